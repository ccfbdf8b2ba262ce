"""Whether a typed table is as the last pass recorded it, and passes in which a table fails."""

from __future__ import annotations

from pathlib import Path

import pytest

from pgstream_dagster.changelog.lake import Lake
from pgstream_dagster.delta import uri
from pgstream_dagster.delta.entries import LOG_FOLDER, entry_name
from pgstream_dagster.lsn import Lsn
from pgstream_dagster.tables.passes import has_gone_on, must_build
from pgstream_dagster.tables.progress import Entry

NAME, RELATION, COPY = "public.t", 7, Lsn(5)


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    return Lake(f"file:{tmp_path}")


def with_versions(lake: Lake, *versions: int) -> None:
    folder = uri.local(uri.child(lake.typed_table(NAME), LOG_FOLDER))
    assert folder is not None
    folder.mkdir(parents=True)
    for version in versions:
        (folder / entry_name(version)).touch()


def entry(version: int) -> Entry:
    return Entry(RELATION, int(COPY), "columns", rows=1, version=version)


@pytest.mark.parametrize(
    ("there", "recorded", "is_missing", "is_newer"),
    [
        ((0, 1, 2), 2, False, False),
        ((0, 1, 2), 1, False, True),  # a pass that was not recorded, or an `optimize`
        ((8,), 7, True, True),  # another table is in its place
        ((0, 1), 2, True, False),  # from a backup
        ((), 2, True, False),  # removed; making it again has ended before its commit
        ((0,), -1, False, False),  # recorded by an earlier release
    ],
)
def test_a_table_is_made_again_if_it_is_older_than_recorded_and_looked_at_if_it_is_newer(
    lake: Lake, there: tuple[int, ...], recorded: int, *, is_missing: bool, is_newer: bool
) -> None:
    with_versions(lake, *there)
    assert must_build(lake, NAME, entry(recorded), RELATION, COPY) == is_missing
    assert has_gone_on(lake, NAME, entry(recorded)) == is_newer


def test_a_table_that_is_not_there_is_made(lake: Lake) -> None:
    assert must_build(lake, NAME, entry(-1), RELATION, COPY)
    assert must_build(lake, NAME, None, RELATION, COPY)
    assert not has_gone_on(lake, NAME, None)
