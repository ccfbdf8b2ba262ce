"""
From one version of a table to the next: statements for the target, derived from attnums. Pure.

A column keeps its attnum when it is renamed or retyped, and never gets that of another, so a rename
is never taken for a drop and an add. The statements depend on what the target has: what is there
already is left out, so a table that was created later than the version can follow its history, too.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from typing import Final

from psycopg import sql

from pgstream_dagster.schema.table import Column, ReplicaIdentity, TableSchema
from pgstream_dagster.sinks.postgres.target import TargetTable

_IDENTITIES: Final = frozenset({"smallint", "integer", "bigint"})
"""The types that an identity column may have."""

_NUMBERS: Final = _IDENTITIES | {"numeric", "real", "double precision"}


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
    is_rekeyed = has_other_key(before, after, table)
    if is_rekeyed and table.key_name is not None:
        statements.append(_alter(place, "drop constraint {}", table.key_name))
    for name in _generated_from(_remade(old, new), table):
        statements.append(_alter(place, "drop column {}", name))
        existing.discard(name)
    for attnum, column in old.items():
        if attnum not in new and column.name in existing:
            statements.append(_alter(place, "drop column {}", column.name))
            existing.discard(column.name)
    pairs = [(old[attnum], new[attnum]) for attnum in old.keys() & new.keys()]
    statements += _renames(place, pairs, existing)
    for was, column in sorted(pairs, key=lambda pair: pair[1].attnum):
        if _has_other_type(was, column):
            statements.append(_retype(place, was, column, table))
    for attnum, column in new.items():
        if attnum not in old and column.name not in existing:
            statements += _add(place, column)
    return statements


def new_key(before: TableSchema, after: TableSchema, table: TargetTable) -> sql.Composed | None:
    """What gives the rows of a table of version `after` the key of that; `None`: they have it."""
    if not after.key or not has_other_key(before, after, table):
        return None
    place = sql.Identifier(after.namespace, after.name)
    key = sql.SQL(", ").join(map(sql.Identifier, after.key))
    return sql.SQL("alter table {} add primary key ({})").format(place, key)


def has_other_key(before: TableSchema, after: TableSchema, table: TargetTable) -> bool:
    """
    Whether the primary key has moved to other columns, and the target's is still that of before.

    Another replica identity than FULL or DEFAULT does not tell.
    """
    is_told = after.identity in (ReplicaIdentity.DEFAULT, ReplicaIdentity.FULL)
    is_moved = before.key_attnums != after.key_attnums
    return is_told and is_moved and set(table.key) == set(before.key)


def _remade(old: Mapping[int, Column], new: Mapping[int, Column]) -> set[str]:
    """The columns of before that are dropped or get another type."""
    return {
        column.name
        for attnum, column in old.items()
        if attnum not in new or _has_other_type(column, new[attnum])
    }


def _generated_from(names: Collection[str], table: TargetTable) -> list[str]:
    """The columns that the target computes from these: on the source they had to be dropped."""
    return [column.name for column in table.columns if not set(names).isdisjoint(column.needs)]


def by_name(before: TableSchema, after: TableSchema) -> TableSchema:
    """
    A version of another database with the attnums that its columns have in `after`.

    Columns are the same by their names then, and one that `after` lacks has an attnum of its own.
    """
    columns = (replace(c, attnum=after.attnums.get(c.name, -c.attnum)) for c in before.columns)
    return replace(before, columns=tuple(columns))


def name_aside(schema: TableSchema) -> str:
    """A name that no other table of a sink has, for one whose own is taken."""
    return f"pgstream_{schema.epoch}_{schema.relation_id}"


def _renamed_table(after: TableSchema, table: TargetTable) -> Iterator[sql.Composed]:
    """Its new name and namespace; each may be that of another table without the other."""
    rename, name = sql.SQL("alter table {} rename to {}"), table.name
    if table.namespace != after.namespace:
        if name != after.name:
            name = name_aside(after)
            yield rename.format(table.identifier, sql.Identifier(name))
        yield sql.SQL("alter table {} set schema {}").format(
            sql.Identifier(table.namespace, name), sql.Identifier(after.namespace)
        )
    if name != after.name:
        place = sql.Identifier(after.namespace, name)
        yield rename.format(place, sql.Identifier(after.name))


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


def _has_other_type(was: Column, column: Column) -> bool:
    return (was.type_name, was.typmod) != (column.type_name, column.typmod)


def _retype(place: sql.Identifier, was: Column, column: Column, table: TargetTable) -> sql.Composed:
    """
    Another type for a column.

    A default or an identity that the type cannot have would stop it, and is no data. From a number
    to a number it stays: sequences fill such columns.
    """
    in_target = next((c for c in table.columns if c.name == was.name), None)
    before = ""
    if in_target is not None and in_target.identity:
        before = "" if column.type_name in _IDENTITIES else " alter column {name} drop identity,"
    elif not {c.type_name.partition("(")[0] for c in (was, column)} <= _NUMBERS:
        before = " alter column {name} drop default,"
    text = f"alter table {{table}}{before} alter column {{name}} type {{type}}"
    statement = sql.SQL(f"{text} using {{name}}::{{type}}")  # pyright: ignore[reportArgumentType]
    return statement.format(table=place, name=sql.Identifier(column.name), type=_type(column))


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
