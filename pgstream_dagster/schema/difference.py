"""
What differs between two versions of a table, for people and as data. Pure, no I/O.

Columns are matched by attnum, so a rename is never a drop and an addition, and a column that was
dropped and added again under its name is never the same one. Where both versions have the catalog's
description (`schema/ddl`), it tells more: comments, identity columns, labels of enums, whether a
column was dropped or is only published no longer.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from pgstream_dagster.schema.ddl import DdlColumn, DdlTable
from pgstream_dagster.schema.table import Column, ReplicaIdentity, TableSchema


class Aspect(StrEnum):
    """What of a table or column differs."""

    TABLE_ADDED = "table added"
    TABLE_DROPPED = "table dropped"
    TABLE_RENAMED = "table renamed"
    TABLE_MOVED = "table moved"  # to another namespace
    KEY = "key"
    REPLICA_IDENTITY = "replica identity"
    TABLE_COMMENT = "table comment"
    PARTITION = "partition of"
    PERSISTENCE = "persistence"
    COLUMN_ADDED = "column added"
    COLUMN_DROPPED = "column dropped"
    COLUMN_PUBLISHED = "column published"
    COLUMN_UNPUBLISHED = "column unpublished"
    COLUMN_RENAMED = "column renamed"
    TYPE = "type"
    NOT_NULL = "not null"
    DEFAULT = "default"
    OLDER_ROWS = "value of older rows"
    MODIFIERS = "modifiers"
    COMMENT = "comment"
    GENERATED = "generated"
    IDENTITY = "identity"
    LABELS = "labels"


@dataclass(frozen=True, slots=True)
class Difference:
    """
    One difference; `str()` says it as a person would.

    `subject` is the name of the table or column, after a rename the new one. `attnum` is that of
    the column, `None` for what is of the table. `before` and `after` are the two values, `None`
    where there is no such value: no default, no comment, no column. `older_rows_show` is what rows
    from before an added column have in it, `None` for NULL.
    """

    aspect: Aspect
    subject: str
    attnum: int | None = None
    before: str | None = None
    after: str | None = None
    older_rows_show: str | None = None

    def __str__(self) -> str:
        return _sentence(self)


IDENTITIES: Final = {
    ReplicaIdentity.DEFAULT: "default",
    ReplicaIdentity.NOTHING: "nothing",
    ReplicaIdentity.FULL: "full",
    ReplicaIdentity.INDEX: "using an index",
}
"""As ALTER TABLE ... REPLICA IDENTITY calls them."""

GENERATED: Final = {"s": "stored", "v": "virtual"}
IDENTITY_COLUMNS: Final = {"a": "always", "d": "by default"}
PERSISTENCES: Final = {"p": "logged", "u": "unlogged"}


def differences(
    before: TableSchema | None,
    after: TableSchema | None,
    descriptions: tuple[DdlTable | None, DdlTable | None] = (None, None),
) -> list[Difference]:
    """
    What differs, first of the table, then by attnum; nothing if neither version is there.

    `None` is a table that does not exist. Another relation, even of the same name, is another
    table: the one was dropped, the other added.

    Shape:
        descriptions: the catalog's, of `before` and of `after`.
    """
    if before is None or after is None or before.relation_id != after.relation_id:
        dropped = [] if before is None else [_dropped(before)]
        return dropped if after is None else [*dropped, _added(after)]
    of_table = [*_of_table(before, after), *_described_table(*descriptions)]
    return [*of_table, *_of_columns(before, after, descriptions)]


def columns_text(schema: TableSchema) -> str:
    """The columns with their types, and the key: `id bigint not null, note text; key id`."""
    key = f"; key {', '.join(schema.key)}" if schema.key else "; no key"
    return ", ".join(map(_column_text, schema.columns)) + key


def _dropped(schema: TableSchema) -> Difference:
    return Difference(Aspect.TABLE_DROPPED, schema.full_name, before=columns_text(schema))


def _added(schema: TableSchema) -> Difference:
    return Difference(Aspect.TABLE_ADDED, schema.full_name, after=columns_text(schema))


# --- the table ------------------------------------------------------------------------------------


def _of_table(before: TableSchema, after: TableSchema) -> Iterator[Difference]:
    name = after.full_name
    if before.namespace != after.namespace:
        yield Difference(Aspect.TABLE_MOVED, name, None, before.namespace, after.namespace)
    if before.name != after.name:
        yield Difference(Aspect.TABLE_RENAMED, name, None, before.name, after.name)
    if before.key_attnums != after.key_attnums:
        keys = (", ".join(schema.key) or None for schema in (before, after))
        yield Difference(Aspect.KEY, name, None, *keys)
    if before.identity != after.identity:
        identities = (IDENTITIES[schema.identity] for schema in (before, after))
        yield Difference(Aspect.REPLICA_IDENTITY, name, None, *identities)


def _described_table(before: DdlTable | None, after: DdlTable | None) -> Iterator[Difference]:
    if before is None or after is None:
        return
    name = f"{after.namespace}.{after.name}"
    aspects = (
        (Aspect.TABLE_COMMENT, before.comment, after.comment),
        (Aspect.PARTITION, _parent(before), _parent(after)),
        (Aspect.PERSISTENCE, *(PERSISTENCES.get(t.persistence) for t in (before, after))),
    )
    for aspect, old, new in aspects:
        if old != new:
            yield Difference(aspect, name, None, old, new)


def _parent(table: DdlTable) -> str | None:
    parent = table.partition_of
    return None if parent is None else f"{parent.namespace}.{parent.name}"


# --- columns --------------------------------------------------------------------------------------


def _of_columns(
    before: TableSchema, after: TableSchema, descriptions: tuple[DdlTable | None, DdlTable | None]
) -> Iterator[Difference]:
    old, new = ({column.attnum: column for column in schema.columns} for schema in (before, after))
    described_old, described_new = map(_by_attnum, descriptions)
    for attnum in sorted(old.keys() | new.keys()):
        if attnum not in new:
            yield _gone(old[attnum], is_kept=attnum in described_new)
        elif attnum not in old:
            yield _new(new[attnum], is_old=attnum in described_old)
        else:
            yield from _of_column(old[attnum], new[attnum])
            if attnum in described_old and attnum in described_new:
                yield from _described_column(described_old[attnum], described_new[attnum])


def _by_attnum(table: DdlTable | None) -> Mapping[int, DdlColumn]:
    return {} if table is None else {column.attnum: column for column in table.columns}


def _gone(column: Column, *, is_kept: bool) -> Difference:
    aspect = Aspect.COLUMN_UNPUBLISHED if is_kept else Aspect.COLUMN_DROPPED
    return Difference(aspect, column.name, column.attnum, before=_definition(column))


def _new(column: Column, *, is_old: bool) -> Difference:
    aspect = Aspect.COLUMN_PUBLISHED if is_old else Aspect.COLUMN_ADDED
    return Difference(
        aspect,
        column.name,
        column.attnum,
        after=_definition(column),
        older_rows_show=column.missing,
    )


def _of_column(before: Column, after: Column) -> Iterator[Difference]:
    aspects: list[tuple[Aspect, str | None, str | None]] = []
    if before.name != after.name:
        aspects.append((Aspect.COLUMN_RENAMED, before.name, after.name))
    is_retyped = _type(before) != _type(after)
    if is_retyped:
        aspects.append((Aspect.TYPE, before.type_name, after.type_name))
    if before.not_null != after.not_null:
        aspects.append((Aspect.NOT_NULL, _nullability(before), _nullability(after)))
    if before.default != after.default:
        aspects.append((Aspect.DEFAULT, before.default, after.default))
    if before.missing != after.missing and not is_retyped:  # a retype rewrites the table
        aspects.append((Aspect.OLDER_ROWS, before.missing, after.missing))
    if before.modified != after.modified:
        aspects.append((Aspect.MODIFIERS, before.modified or None, after.modified or None))
    for aspect, old, new in aspects:
        yield Difference(aspect, after.name, after.attnum, old, new)


def _described_column(before: DdlColumn, after: DdlColumn) -> Iterator[Difference]:
    aspects = (
        (Aspect.COMMENT, before.comment, after.comment),
        (Aspect.GENERATED, *(GENERATED.get(c.generated) for c in (before, after))),
        (Aspect.IDENTITY, *(IDENTITY_COLUMNS.get(c.identity) for c in (before, after))),
    )
    for aspect, old, new in aspects:
        if old != new:
            yield Difference(aspect, after.name, after.attnum, old, new)
    labels = _labels(before), _labels(after)
    if labels[0] != labels[1] and None not in labels:  # else it is a change of the type
        yield Difference(Aspect.LABELS, after.name, after.attnum, *labels)


def _type(column: Column) -> tuple[int, int, str]:
    return column.type_oid, column.typmod, column.type_name


def _nullability(column: Column) -> str:
    return "not null" if column.not_null else "null"


def _labels(column: DdlColumn) -> str | None:
    return None if column.labels is None else ", ".join(map(_literal, column.labels))


def _definition(column: Column) -> str:
    """As in CREATE TABLE, after the column's name."""
    parts = [column.type_name, "not null" if column.not_null else ""]
    parts.append("" if column.default is None else f"default {column.default}")
    return " ".join(filter(None, parts))


def _column_text(column: Column) -> str:
    return f"{column.name} {column.type_name}{' not null' if column.not_null else ''}"


# --- for people -----------------------------------------------------------------------------------

_SENTENCES: Final[Mapping[Aspect, str]] = {
    Aspect.TABLE_ADDED: "table {subject} added: {after}",
    Aspect.TABLE_DROPPED: "table {subject} dropped",
    Aspect.TABLE_RENAMED: "table {before} renamed to {after}",
    Aspect.TABLE_MOVED: "table {subject} moved from schema {before} to {after}",
    Aspect.REPLICA_IDENTITY: "table {subject}: replica identity {before} is now {after}",
    Aspect.PERSISTENCE: "table {subject}: {before} is now {after}",
    Aspect.COLUMN_DROPPED: "column {subject} dropped, it was {before}",
    Aspect.COLUMN_UNPUBLISHED: "column {subject} is no longer published, it is {before}",
    Aspect.COLUMN_RENAMED: "column {before} renamed to {after}",
    Aspect.TYPE: "column {subject}: type {before} changed to {after}",
    Aspect.NOT_NULL: "column {subject}: {before} is now {after}",
    Aspect.MODIFIERS: "column {subject}: its values are modified by other rules",
    Aspect.LABELS: "column {subject}: labels {before} are now {after}",
}

_SET: Final[Mapping[Aspect, tuple[str, str]]] = {
    Aspect.KEY: ("table {subject}", "key"),
    Aspect.TABLE_COMMENT: ("table {subject}", "comment"),
    Aspect.PARTITION: ("table {subject}", "partition of"),
    Aspect.DEFAULT: ("column {subject}", "default"),
    Aspect.OLDER_ROWS: ("column {subject}", "value of older rows"),
    Aspect.COMMENT: ("column {subject}", "comment"),
    Aspect.GENERATED: ("column {subject}", "generated"),
    Aspect.IDENTITY: ("column {subject}", "identity"),
}
"""What may be there or not: its owner, and what it is called."""

_QUOTED_SUBJECTS: Final = (Aspect.COLUMN_RENAMED, Aspect.TABLE_RENAMED, Aspect.TABLE_MOVED)
"""Whose values are names, too."""

_COMMENTS: Final = (Aspect.COMMENT, Aspect.TABLE_COMMENT, Aspect.OLDER_ROWS)


def _sentence(difference: Difference) -> str:
    aspect, subject = difference.aspect, _name(difference.subject)
    before, after = difference.before or "", difference.after or ""
    if aspect in (Aspect.COLUMN_ADDED, Aspect.COLUMN_PUBLISHED):
        return _added_sentence(difference)
    if aspect in _SET:
        return _set_sentence(difference)
    if aspect is Aspect.TYPE and before == after:
        return f"column {subject}: another type of the name {after}"
    if aspect in _QUOTED_SUBJECTS:
        before, after = _name(before), _name(after)
    return _SENTENCES[aspect].format(subject=subject, before=before, after=after)


def _added_sentence(difference: Difference) -> str:
    is_added = difference.aspect is Aspect.COLUMN_ADDED
    verb = "added" if is_added else "is published from here on"
    shown = difference.older_rows_show
    older = "" if shown is None else f"; older rows show {_literal(shown)}"
    return f"column {_name(difference.subject)} {verb}: {difference.after}{older}"


def _set_sentence(difference: Difference) -> str:
    owner, what = _SET[difference.aspect]
    show = _literal if difference.aspect in _COMMENTS else str
    owner = owner.format(subject=_name(difference.subject))
    if difference.after is None:
        return f"{owner}: {what} {show(difference.before or '')} removed"
    if difference.before is None:
        return f"{owner}: {what} is now {show(difference.after)}"
    return f"{owner}: {what} {show(difference.before)} changed to {show(difference.after)}"


def _name(name: str) -> str:
    return f'"{name}"'


def _literal(text: str) -> str:
    """As SQL writes a string."""
    return "'" + text.replace("'", "''") + "'"
