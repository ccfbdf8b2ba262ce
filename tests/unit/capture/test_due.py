"""When a table needs a copy: what the ledger recorded at the last one against what is now."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from pgstream_dagster.capture.decoding import OTHER_KEY, OTHER_TEXT
from pgstream_dagster.capture.due import (
    READS_OTHERWISE,
    REWRITTEN,
    CopyRequest,
    awaited_copies,
    due_copies,
)
from pgstream_dagster.changelog.ledger import CopyRecord
from pgstream_dagster.copy.copying import copy_record
from pgstream_dagster.lsn import Lsn
from pgstream_dagster.schema.table import Column, ReplicaIdentity, TableSchema
from tests.support.harness.published_table import OID, TABLE

COPY = copy_record(Lsn(100), TABLE, TABLE.members, TABLE.versions)


def due(copy: CopyRecord | None = COPY, since: int = 0, **now: Any) -> str | None:
    copies = {} if copy is None else {OID: copy}
    wishes = {OID: CopyRequest(Lsn(since), "a test wants it")} if since else {}
    return due_copies([replace(TABLE, **now)], copies, wishes).get(OID)


def test_a_table_as_it_was_needs_none() -> None:
    assert due() is None


def test_a_table_without_a_copy_needs_one() -> None:
    assert due(None) == "it has no copy"


def test_a_copy_that_was_asked_for_is_due_until_one_is_new_enough() -> None:
    assert due(since=101) == "a test wants it"
    assert due(since=100) is None


def test_a_copy_is_awaited_until_one_is_new_enough_for_the_same_reason() -> None:
    requests = {OID: CopyRequest(Lsn(101), OTHER_TEXT)}
    assert awaited_copies({}, requests, OTHER_TEXT) == {OID}
    assert awaited_copies({OID: COPY}, requests, OTHER_TEXT) == {OID}
    assert awaited_copies({OID: COPY}, requests, OTHER_KEY) == set()
    assert (
        awaited_copies({OID: COPY}, {OID: CopyRequest(Lsn(100), OTHER_TEXT)}, OTHER_TEXT) == set()
    )


def test_a_new_column_whose_type_was_changed_since_it_was_made_needs_one() -> None:
    types = {**TABLE.versions.types, "column 5": 25}
    assert due(versions=replace(TABLE.versions, types=types)) is None
    late = replace(TABLE.versions, types=types, late_columns=("column 5",))
    assert due(versions=late) == READS_OTHERWISE
    copied = replace(COPY, versions=replace(COPY.versions, types=types))
    assert due(copied, versions=late) is None


@pytest.mark.parametrize("members", [{OID: 30_001}, {OID: 30_000, 5: 6}, {}])
def test_other_files_or_leaves_need_one(members: dict[int, int]) -> None:
    assert due(members=members) == REWRITTEN


def test_a_partition_attached_again_needs_one() -> None:
    assert due(versions=replace(TABLE.versions, edges={OID + 1: 702})) == REWRITTEN


def test_another_version_of_a_type_needs_one() -> None:
    assert due(versions=replace(TABLE.versions, types={"label 9": 703})) == READS_OTHERWISE


@pytest.mark.parametrize("types", [{"label 9": 702, "label 10": 703}, {}])
def test_types_that_come_or_go_need_none(types: dict[str, int]) -> None:
    assert due(versions=replace(TABLE.versions, types=types)) is None


def test_columns_made_since_and_names_need_none() -> None:
    assert due(columns=("id", "b"), name="u") is None
    assert due(columns=("id", "a", "e"), attnums=(1, 3, 5), newest_attnum=5) is None


def test_columns_that_go_need_none() -> None:
    assert due(columns=("id",), attnums=(1,)) is None


OTHERWISE = "the publication was changed, or shows other columns or rows of it"


def test_a_column_older_than_the_copy_that_is_shown_since_needs_one() -> None:
    assert due(columns=("id", "a", "d"), attnums=(1, 3, 4)) == OTHERWISE


@pytest.mark.parametrize(
    "now",
    [
        {"versions": replace(TABLE.versions, listing=(20_000, 702))},
        {"versions": replace(TABLE.versions, listing=(20_009, 702))},
        {"row_filter": "(id > 5)"},
    ],
)
def test_another_entry_of_the_publication_needs_one(now: dict[str, Any]) -> None:
    assert due(**now) == OTHERWISE


def version(point: int, *key: str, oid: int = 25, attnum: int = 1) -> tuple[Lsn, TableSchema]:
    columns = (Column("id", attnum, oid, ""), Column("code", 3, 25, ""))
    return Lsn(point), TableSchema(1, OID, "public", "t", ReplicaIdentity.DEFAULT, columns, key)


ID, CODE = ("id",), ("code",)


@pytest.mark.parametrize(
    ("history", "reason"),
    [
        ([version(100, *ID)], None),
        ([version(50, *ID), version(120, "id", oid=25)], None),
        # The stream found the change, and asked for this copy.
        ([version(20, *ID), version(99, *CODE)], None),
        # A copy that landed after changes with another key, which follow it.
        ([version(100, *ID), version(120, *CODE)], OTHER_KEY),
        ([version(100, *ID), version(120, *CODE), version(130, *ID)], OTHER_KEY),
        ([version(50, *ID), version(100, *ID), version(100, *CODE)], OTHER_KEY),
        # The stream may have continued with the version before it.
        ([version(50, *ID), version(100, *CODE)], OTHER_KEY),
        ([version(50, *ID), version(60, *CODE), version(100, *CODE)], None),
        # The same with text.
        ([version(100, *ID, oid=1114), version(120, *ID, oid=1184)], OTHER_TEXT),
        ([version(50, *ID, oid=1114), version(100, *ID, oid=1184)], None),
        # What was uncertain has asked for this copy.
        ([version(50, *ID), version(60, *CODE, attnum=-1), version(100, *ID)], None),
    ],
)
def test_a_copy_that_the_versions_after_it_do_not_fit_needs_another(
    history: list[tuple[Lsn, TableSchema]], reason: str | None
) -> None:
    assert due_copies([TABLE], {OID: COPY}, {}, history).get(OID) == reason


TYPED = replace(TABLE, versions=replace(TABLE.versions, types={"column 1": 25, "column 3": 25}))


@pytest.mark.parametrize(
    ("logged_oid", "reason"),
    [
        (25, None),
        (1043, None),  # varchar has the text of text
        (1114, READS_OTHERWISE),
        (20_000, None),  # a domain, maybe over text
    ],
)
def test_a_type_that_differs_from_the_newest_version_of_the_log_needs_one(
    logged_oid: int, reason: str | None
) -> None:
    history = [version(150, *ID, oid=logged_oid)]
    assert due_copies([TYPED], {OID: COPY}, {}, history).get(OID) == reason
