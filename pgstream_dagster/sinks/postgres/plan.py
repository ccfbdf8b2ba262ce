"""
In which groups the changes of a batch are applied: pure, no I/O.

With foreign keys off, the changes of different tables are independent, and a group has all changes
of one table up to the next point that separates them: a truncate, a copy, or another version of a
table. With foreign keys on, a group is a run of changes of one table, so that the order in which
tables are written is the source's.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

from pgstream_dagster.readers.change import Change
from pgstream_dagster.schema.changes import ROW_OPS, Op
from pgstream_dagster.schema.table import TableSchema


@dataclass(frozen=True, slots=True)
class WriteRows:
    """Changes of rows of one version of one table."""

    schema: TableSchema
    changes: list[Change]


@dataclass(frozen=True, slots=True)
class EmptyTables:
    """Tables that are emptied by one statement: `changes` are truncates, or one copy marker."""

    changes: list[Change]


@dataclass(frozen=True, slots=True)
class AlterTable:
    """A table that DDL changed, whether or not rows follow."""

    change: Change


Step: TypeAlias = WriteRows | EmptyTables | AlterTable


def steps(changes: Sequence[Change], *, keeps_order: bool) -> Iterator[Step]:
    """The groups of a batch, to be applied one after the other; markers of gaps are left out."""
    groups: dict[int, WriteRows] = {}
    names = Names()
    truncates: list[Change] = []
    for change in changes:
        if truncates and not _is_one_truncate(truncates[-1], change):
            yield EmptyTables(truncates)
            truncates = []
        if change.op in (Op.TRUNCATE, Op.COPY):
            yield from groups.values()
            groups = {}
            truncates.append(change)
        elif change.op == Op.DDL and change.schema is not None:
            yield from groups.values()
            groups = {}
            yield AlterTable(change)
        elif change.op in ROW_OPS and change.schema is not None:
            group, schema = groups.get(change.relation_id), names.schema(change)
            is_other = group is not None and group.schema is not schema
            if is_other or (keeps_order and group is None):
                yield from groups.values()
                groups, group = {}, None
            if group is None:
                group = groups[change.relation_id] = WriteRows(schema, [])
            group.changes.append(change)
    if truncates:
        yield EmptyTables(truncates)
    yield from groups.values()


class Names:
    """
    Versions under the name that the table had when a change was made.

    A rename of a table is no other version, so a version may carry a name that came later.
    """

    def __init__(self) -> None:
        self._versions: dict[tuple[int, str, str], TableSchema] = {}

    def schema(self, change: Change) -> TableSchema:
        """The version of a change; the same object for the same version and name."""
        assert change.schema is not None
        version = change.schema.schema_id, change.namespace, change.relation
        schema = self._versions.get(version)
        if schema is None:
            schema = replace(change.schema, namespace=version[1], name=version[2])
            self._versions[version] = schema
        return schema


def _is_one_truncate(last: Change, change: Change) -> bool:
    """
    Whether two truncates may be those of one statement, as foreign keys between the tables need.

    Postgres sends the tables of one TRUNCATE in one message, so their ordinals are consecutive.
    """
    return (
        last.op == change.op == Op.TRUNCATE
        and last.commit_lsn == change.commit_lsn
        and last.ordinal + 1 == change.ordinal
    )


def split(changes: Sequence[tuple[int, Change]]) -> int:
    """Where to halve a group that failed: at the border of a source transaction if it has one."""
    middle = len(changes) // 2
    borders = [
        place
        for place in range(1, len(changes))
        if changes[place - 1][1].commit_lsn != changes[place][1].commit_lsn
    ]
    return min(borders, key=lambda place: abs(place - middle), default=middle)
