"""What counts as a change of columns, and what identifies it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pgstream_dagster.lsn import Lsn
from pgstream_dagster.schema.table import Column, ReplicaIdentity, TableSchema
from pgstream_dagster.tables.holding import unapplied, versions_digest
from pgstream_dagster.tables.progress import Entry

INT, TEXT = 23, 25
TABLE = TableSchema(
    1,
    16_400,
    "public",
    "t",
    ReplicaIdentity.DEFAULT,
    (Column("id", 1, INT, "integer"), Column("note", 2, TEXT, "text")),
    ("id",),
)


def columns(*changed: Column) -> TableSchema:
    return replace(TABLE, columns=(TABLE.columns[0], *changed))


RETYPED = columns(Column("note", 2, INT, "integer"))
MADE_AGAIN = columns(Column("note", 3, TEXT, "text"))
WIDER = columns(*TABLE.columns[1:], Column("more", 3, TEXT, "text"))


def entry(*history: TableSchema) -> Entry:
    return Entry(TABLE.relation_id, 1, "columns", 0, versions=versions_digest(history))


@pytest.mark.parametrize(
    ("later", "changes"),
    [
        ([RETYPED], ['column "note": type text changed to integer']),
        (
            [RETYPED, TABLE],
            [
                'column "note": type text changed to integer',
                'column "note": type integer changed to text',
            ],
        ),
        (
            [MADE_AGAIN],
            ['column "note" dropped, it was text', 'column "note" added: text'],
        ),
        ([WIDER], ['column "more" added: text']),
        ([replace(TABLE, key=("note",))], ['table "public.t": key id changed to note']),
    ],
)
def test_changes_wait_even_if_they_are_undone(later: list[TableSchema], changes: list[str]) -> None:
    held = unapplied(entry(TABLE), [TABLE, *later], "columns", Lsn(7))
    assert held is not None
    assert (list(held.changes), held.position) == (changes, 7)
    assert unapplied(entry(TABLE, *later), [TABLE, *later], "columns", Lsn(7)) is None


@pytest.mark.parametrize(
    "later",
    [
        [],
        [TABLE],  # seen again
        [replace(TABLE, name="renamed")],
        [replace(TABLE, identity=ReplicaIdentity.FULL)],
        [replace(TABLE, columns=tuple(replace(c, default="1") for c in TABLE.columns))],
        [replace(TABLE, columns=tuple(replace(c, not_null=True) for c in TABLE.columns))],
    ],
)
def test_what_leaves_columns_and_key_as_they_are_does_not_wait(later: list[TableSchema]) -> None:
    assert unapplied(entry(TABLE), [TABLE, *later], "columns", Lsn(7)) is None


def test_changes_that_come_later_are_identified_by_another_digest() -> None:
    first, second = ([TABLE, RETYPED], [TABLE, RETYPED, TABLE])
    digests = {versions_digest(history) for history in ([TABLE], first, second)}
    assert len(digests) == 3


def test_another_relation_is_shown_as_a_new_table() -> None:
    other = replace(TABLE, relation_id=16_500)
    held = unapplied(entry(TABLE), [other], "columns", Lsn(7))
    assert held is not None
    assert held.changes == ('table "public.t" added: id integer, note text; key id',)


@pytest.mark.parametrize(("columns", "waits"), [("columns", False), ("others", True)])
def test_table_of_an_earlier_release_is_compared_by_its_columns(columns: str, waits: bool) -> None:
    of_earlier = Entry(TABLE.relation_id, 1, "columns", 0)
    assert (unapplied(of_earlier, [TABLE, RETYPED], columns, Lsn(7)) is not None) is waits
