"""`capture.memory_bytes` is what the stream's process takes at most, whatever the rows."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest

from pgstream_dagster.copy import scan
from pgstream_dagster.errors import RowTooLarge
from pgstream_dagster.memory import MemoryBound, needed_for
from pgstream_dagster.source.catalog import describe
from pgstream_dagster.source.connect import connect
from pgstream_dagster.source.publication import ensure, published
from pgstream_dagster.source.snapshot import exported
from tests.support.harness.footprint import Footprint, measured
from tests.support.plugins.cluster import psql

MB = 1 << 20
MEMORY = MemoryBound(256 * MB)
LARGE = MEMORY.row_bytes // MB - 1

TABLES = (
    "create table t (id int primary key, x text)",
    "alter table t alter x set storage external",
    "create table wide (id int primary key, {})".format(", ".join(f"c{n} int" for n in range(200))),
)


def text(megabytes: int, seed: int = 0) -> str:
    """An expression of so much text that does not compress."""
    return (
        f"(select string_agg(md5((g::bigint << 16 | {seed})::text), '')"
        f" from generate_series(1, {megabytes * MB // 32}) g)"
    )


def insert(row: int, megabytes: int) -> str:
    return f"insert into t values ({row}, {text(megabytes, row)})"


WORKS = {
    "one row": [[insert(1, LARGE)]],
    "rows of one transaction": [["; ".join(insert(row, LARGE) for row in range(5))]],
    "rows that are updated": [[
        "alter table t replica identity full", insert(1, LARGE // 2), "update t set id = 2"
    ]],
    "transactions beside each other": [
        ["; ".join(insert(100 * n + row, 7) for row in range(12))] for n in range(4)
    ],
    "columns that are NULL": [
        ["insert into wide (id) select generate_series(1, 60000)"]
    ],
}  # fmt: skip
SHORT = "one row"


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    "works",
    [
        pytest.param(work, id=name, marks=[] if name == SHORT else [pytest.mark.long])
        for name, work in WORKS.items()
    ],
)
def test_a_stream_takes_no_more_memory_than_it_may(
    dsn: str, tmp_path: Path, works: list[list[str]]
) -> None:
    psql(dsn, *TABLES)
    footprint = measured(dsn, tmp_path, MEMORY.bytes, works)
    assert footprint.peak_bytes < MEMORY.bytes, footprint
    assert "gap" not in footprint.rows


@pytest.mark.long
@pytest.mark.timeout(600)
def test_a_row_that_does_not_fit_is_left_out_and_the_stream_goes_on(
    dsn: str, tmp_path: Path
) -> None:
    psql(dsn, *TABLES)
    footprint: Footprint = measured(
        dsn, tmp_path, MEMORY.bytes, [[insert(1, 1), insert(2, 100), insert(3, 1)]]
    )
    assert footprint.peak_bytes < MEMORY.bytes, footprint
    assert (footprint.rows["insert"], footprint.rows["gap"]) == (
        3,
        1,
    )  # one of them of the table `warm`
    [reason] = (reason for reason in footprint.copies if "too large" in reason)
    assert "set in the pipeline file capture.memory_bytes: 8" in reason


def test_a_copy_of_a_row_that_does_not_fit_is_refused_by_name(dsn: str) -> None:
    psql(dsn, *TABLES, insert(1, 4))
    with closing(connect(dsn)) as session:
        ensure(session, "pub", "all")
        table = next(t for t in published(session, "pub") if t.name == "t")
        schema = describe(session, 1, table.relation_id, table.columns)
        with exported(dsn) as snapshot:
            for memory in (MemoryBound(16 * MB), MemoryBound(6 * MB)):  # received, and not
                planned = scan.plan(session, table, schema, snapshot, ranges=1, memory=memory)
                work = scan._Work(dsn, "", planned)
                with pytest.raises(
                    RowTooLarge, match=r"'public\.t' has .* capture\.memory_bytes: "
                ):
                    list(scan._changes(work, planned.tasks[0]))


def test_what_a_row_needs_is_enough_for_it() -> None:
    for size in (1, 7 * MB + 1, 1 << 30):
        assert MemoryBound(needed_for(size)).row_bytes >= size
