"""Columns of the newest version in the rows of every version."""

from __future__ import annotations

from dataclasses import replace

from pgstream_dagster.schema.change_columns import ChangeColumn, change_columns
from pgstream_dagster.schema.table import Column, ReplicaIdentity, TableSchema


def version(**attnums: int) -> TableSchema:
    """A version of one relation, by the attnums of its columns."""
    columns = tuple(Column(name, attnum, 25, "text") for name, attnum in attnums.items())
    return TableSchema(1, 16_384, "public", "t", ReplicaIdentity.DEFAULT, columns)


def test_a_renamed_column_is_one_column() -> None:
    first, second = version(id=1, old=2), version(id=1, new=2)
    assert change_columns([first, second]) == [
        ChangeColumn("id", {first.schema_id: "id", second.schema_id: "id"}, "id"),
        ChangeColumn("new", {first.schema_id: "old", second.schema_id: "new"}),
    ]


def test_columns_that_had_one_name_one_after_the_other_do_not_mix() -> None:
    first, second = version(id=1, note=2), version(id=1, note=3)
    [_, note] = change_columns([first, second])
    assert note == ChangeColumn("note", {second.schema_id: "note"})


def test_names_that_are_taken_have_their_attnum() -> None:
    newest = version(_op=1, a=2, A=3)
    assert [column.name for column in change_columns([newest])] == ["op_1", "a", "A_3"]


def test_a_version_that_holds_again_counts_once() -> None:
    first = version(id=1)
    renamed = replace(first, name="other")
    [column] = change_columns([first, renamed])
    assert column.same_name == "id"
