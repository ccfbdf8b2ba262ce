"""
`setup` killed with SIGKILL in the middle of its copies, then run again.

Afterwards every table has a newest copy that is exactly the table as of its consistent point, the
slot begins where the watermark does, and nothing of an unfinished copy is in the log.
"""

from __future__ import annotations

import signal
from collections import Counter
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from pgstream_dagster.changelog.lake import Lake
from pgstream_dagster.changelog.ledger import Ledger
from pgstream_dagster.changelog.log import ChangeLog
from pgstream_dagster.config import parse
from pgstream_dagster.delta import jvm
from pgstream_dagster.lsn import Lsn
from pgstream_dagster.pipeline import Pipeline
from pgstream_dagster.upkeep.setup import setup
from tests.support.harness import rows, runner
from tests.support.harness.background import END_SECONDS, start
from tests.support.lake.copy_process import CONFIG
from tests.support.lake.log_reader import log_rows
from tests.support.plugins.cluster import psql
from tests.support.plugins.lake import SETTINGS

ROWS = {"a": 4000, "b": 1, "c": 0}

FAILPOINTS = ["copy.task:3", pytest.param("copy.files", marks=pytest.mark.long), "copy.committed:2"]
"""In the middle of a table, and between two: `tests/crash` has every step, under load."""


def run_setup(pipeline: Pipeline, failpoint: str) -> int:
    process = start(
        "tests.support.lake.copy_process",
        *(pipeline.dsn, pipeline.lake.root, str(pipeline.state)),
        log=Path(pipeline.lake.root).with_name("setup.log"),
        failpoint=failpoint,
    )
    return process.wait(END_SECONDS)


@pytest.mark.crash
@pytest.mark.long
@pytest.mark.parametrize("failpoint", FAILPOINTS)
def test_setup_goes_on_after_a_kill_at(
    failpoint: str, dsn: str, tmp_path: Path, spark: SparkSession
) -> None:
    """P90: tables whose copy is in the log are not copied again."""
    for name, count in ROWS.items():
        psql(
            dsn,
            f"create table {name} (id int primary key, v text)",
            f"insert into {name} select i, 'v' || i from generate_series(1, {count}) i",
        )
    pipeline = Pipeline(
        parse(CONFIG), dsn, Lake(str(tmp_path / "lake")), SETTINGS, tmp_path / "state"
    )
    assert run_setup(pipeline, failpoint) == -signal.SIGKILL

    psql(dsn, "insert into b values (2, 'later')")
    done = {
        record.table for record in Ledger(pipeline.lake, jvm.gateway(SETTINGS)).copies().values()
    }
    assert done or failpoint != "copy.committed:2"
    again = {copied.table for copied in setup(pipeline)}
    assert again == {f"public.{name}" for name in ROWS} - done
    assert setup(pipeline) == []
    assert_every_table_is_copied(pipeline)
    assert_the_slot_begins_at_the_watermark(pipeline)


@pytest.mark.crash
@pytest.mark.long
@pytest.mark.slow
def test_rows_that_change_while_a_killed_setup_is_down_are_those_of_the_source(
    dsn: str, tmp_path: Path, spark: SparkSession
) -> None:
    """P90: killed when the files of the table are written and not yet in the log."""
    psql(dsn, "create table b (id int primary key, v text)", "insert into b values (1, 'v1')")
    lake = Lake(str(tmp_path / "lake"))
    pipeline = Pipeline(parse(CONFIG), dsn, lake, SETTINGS, tmp_path / "state")
    assert run_setup(pipeline, "copy.files") == -signal.SIGKILL
    psql(dsn, "delete from b where id = 1", "insert into b values (2, 'later')")
    assert [copied.rows for copied in setup(pipeline)] == [1]
    runner.catch_up(pipeline)
    assert [row["key"] for row in log_rows(lake) if row["op"] == "read"] == [["2"]]
    assert rows.assert_log_folds_to_source(pipeline, ["b"]) == 1


def assert_every_table_is_copied(pipeline: Pipeline) -> None:
    log = log_rows(pipeline.lake)
    copies = Ledger(pipeline.lake, jvm.gateway(SETTINGS)).copies()
    assert {record.table for record in copies.values()} == {f"public.{name}" for name in ROWS}
    for oid, record in copies.items():
        of_table = [row for row in log if row["relation_id"] == oid]
        markers = [row["commit_lsn"] for row in of_table if row["op"] == "copy"]
        assert max(markers) == record.consistent_point
        name = record.table.removeprefix("public.")
        for point in markers:
            counts = Counter(
                tuple(value for _, value in row["after"])
                for row in of_table
                if row["op"] == "read" and row["commit_lsn"] == point
            )
            expected = {(str(i), f"v{i}") for i in range(1, ROWS[name] + 1)}
            later = {("2", "later")} if name == "b" else set[tuple[str, str]]()
            assert set(counts.values()) <= {1}
            assert expected <= counts.keys() <= expected | later
        assert (
            sum(row["op"] == "read" and row["commit_lsn"] not in markers for row in of_table) == 0
        )


def assert_the_slot_begins_at_the_watermark(pipeline: Pipeline) -> None:
    watermark = ChangeLog(pipeline.lake, "shop", jvm.gateway(SETTINGS)).watermark(1)
    slots = psql(
        pipeline.dsn,
        "select confirmed_flush_lsn::text from pg_replication_slots"
        " where database = current_database()",
    )
    assert [Lsn.parse(confirmed) for (confirmed,) in slots] == [watermark]
