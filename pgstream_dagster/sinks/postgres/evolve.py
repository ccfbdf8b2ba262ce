"""
From one version of a table to the next: statements for the target, derived from attnums. Pure.

A column keeps its attnum when it is renamed or retyped, and never gets that of another, so a rename
is never taken for a drop and an add. The statements depend on what the target has: what is there
already is left out, so a table that was created later than the version can follow its history, too.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from psycopg import sql

from pgstream_dagster.schema.table import Column, TableSchema
from pgstream_dagster.sinks.postgres.target import TargetTable


def create_statement(schema: TableSchema) -> sql.Composed:
    """A table with the columns and the key of a version, for a target that lacks it."""
    parts = [
        sql.SQL("{} {}{}").format(
            sql.Identifier(column.name),
            _type(column),
            sql.SQL(" not null" if column.not_null else ""),
        )
        for column in schema.columns
    ]
    if schema.key:
        key = sql.SQL(", ").join(map(sql.Identifier, schema.key))
        parts.append(sql.SQL("primary key ({})").format(key))
    return sql.SQL("create table {} ({})").format(
        sql.Identifier(schema.namespace, schema.name), sql.SQL(", ").join(parts)
    )


def adopted(schema: TableSchema, table: TargetTable) -> list[sql.Composed]:
    """What a table that exists already lacks of a version."""
    unknown = set(table.unknown([column.name for column in schema.columns]))
    return [
        statement
        for column in schema.columns
        if column.name in unknown
        for statement in _add(table.identifier, column)
    ]


def alterations(before: TableSchema, after: TableSchema, table: TargetTable) -> list[sql.Composed]:
    """
    What makes a table of version `before` one of version `after`, in order.

    `table` is the target's table under its name in `before`, or in `after` if it has that already.
    """
    statements = list(_renamed_table(after, table))
    place = sql.Identifier(after.namespace, after.name)
    old = {column.attnum: column for column in before.columns}
    new = {column.attnum: column for column in after.columns}
    existing = set(table.places)
    for attnum, column in old.items():
        if attnum not in new and column.name in existing:
            statements.append(_alter(place, "drop column {}", column.name))
            existing.discard(column.name)
    pairs = [(old[attnum], new[attnum]) for attnum in old.keys() & new.keys()]
    statements += _renames(place, pairs, existing)
    for was, column in sorted(pairs, key=lambda pair: pair[1].attnum):
        if (was.type_name, was.typmod) != (column.type_name, column.typmod):
            statements.append(_retype(place, column))
    for attnum, column in new.items():
        if attnum not in old and column.name not in existing:
            statements += _add(place, column)
    return statements


def by_name(before: TableSchema, after: TableSchema) -> TableSchema:
    """
    A version of another database with the attnums that its columns have in `after`.

    Columns are the same by their names then, and one that `after` lacks has an attnum of its own.
    """
    columns = (replace(c, attnum=after.attnums.get(c.name, -c.attnum)) for c in before.columns)
    return replace(before, columns=tuple(columns))


def _renamed_table(after: TableSchema, table: TargetTable) -> Iterator[sql.Composed]:
    if table.namespace != after.namespace:
        yield sql.SQL("alter table {} set schema {}").format(
            table.identifier, sql.Identifier(after.namespace)
        )
    if table.name != after.name:
        yield sql.SQL("alter table {} rename to {}").format(
            sql.Identifier(after.namespace, table.name), sql.Identifier(after.name)
        )


def _renames(
    place: sql.Identifier, pairs: list[tuple[Column, Column]], existing: set[str]
) -> list[sql.Composed]:
    """Renames of columns; by way of a third name where columns exchange their names."""
    renamed = [(a.name, b.name) for a, b in pairs if a.name != b.name and a.name in existing]
    taken = {name for name, _ in renamed} & {name for _, name in renamed}
    first = [(name, f"pgstream_{number}") for number, name in enumerate(sorted(taken))]
    now = dict(first)
    steps = first + [(now.get(name, name), other) for name, other in renamed]
    existing -= {name for name, _ in renamed}
    existing |= {name for _, name in renamed}
    return [
        sql.SQL("alter table {} rename column {} to {}").format(
            place, sql.Identifier(name), sql.Identifier(other)
        )
        for name, other in steps
    ]


def _retype(place: sql.Identifier, column: Column) -> sql.Composed:
    # A default that cannot be cast would stop the change of type; it is no data.
    return sql.SQL(
        "alter table {table} alter column {name} drop default,"
        " alter column {name} type {type} using {name}::{type}"
    ).format(table=place, name=sql.Identifier(column.name), type=_type(column))


def _add(place: sql.Identifier, column: Column) -> list[sql.Composed]:
    """
    A column that is new; rows that are there show in it what they show on the source.

    NOT NULL comes with that value: without it the rows of the target would have to be read.
    """
    name, type_name = sql.Identifier(column.name), _type(column)
    if column.missing is None:
        return [sql.SQL("alter table {} add column {} {}").format(place, name, type_name)]
    added = sql.SQL("alter table {} add column {} {}{} default {}").format(
        place,
        name,
        type_name,
        sql.SQL(" not null" if column.not_null else ""),
        sql.Literal(column.missing),
    )
    return [added, _alter(place, "alter column {} drop default", column.name)]


def _alter(place: sql.Identifier, action: str, name: str) -> sql.Composed:
    text = sql.SQL(action)  # pyright: ignore[reportArgumentType] - a literal of this module
    return sql.SQL("alter table {} {}").format(place, text.format(sql.Identifier(name)))


def _type(column: Column) -> sql.SQL:
    """The type as the source's catalog prints it, qualified and quoted."""
    return sql.SQL(column.type_name)  # pyright: ignore[reportArgumentType]
