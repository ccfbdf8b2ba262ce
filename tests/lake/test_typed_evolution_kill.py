"""Changes of columns, and approvals, that end at any step: done again, they give the same table."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import pytest
from pyspark.sql import SparkSession

from pgstream_dagster.config.tables import OnSchemaChange
from pgstream_dagster.tables.approval import approve_tables, held_tables
from pgstream_dagster.tables.merge import merge_tables
from tests.support.harness import runner
from tests.support.harness.case import execute
from tests.support.harness.merge_ends import EndsAt, ends_at, kill_merge
from tests.support.harness.typed_tables import (
    assert_equal,
    merged_pipeline,
)

pytestmark = [pytest.mark.one_major("newest"), pytest.mark.slow, pytest.mark.crash]

__all__ = ["ends_at"]  # a fixture

MANY: Final = (
    "alter table t rename a to x",
    "alter table t rename b to a",
    "alter table t rename x to b",
    "alter table t drop c, add d text",
    "update t set a = 'after' where id = 3",
)


@pytest.fixture
def source(dsn: str) -> str:
    execute(
        dsn,
        "create table t (id int primary key, a text, b text, c int)",
        "insert into t select n, 'a' || n, 'b' || n, n from generate_series(1, 20) as n",
    )
    return dsn


@pytest.mark.long
def test_columns_that_change_in_several_steps_are_done_by_the_next_pass(
    source: str,
    tmp_path: Path,
    spark: SparkSession,
    ends_at: EndsAt,
) -> None:
    pipeline = merged_pipeline(source, tmp_path)
    execute(source, *MANY)
    runner.catch_up(pipeline)
    for _ in range(5):  # of its steps, one more each time
        with ends_at("tables.evolving"):
            merge_tables(pipeline)
    execute(source, "alter table t add e int default 5", "update t set e = 6 where id = 7")
    runner.catch_up(pipeline)
    for failpoint in ("tables.rewritten", "tables.merged", "tables.passed", "tables.recorded"):
        with ends_at(failpoint):
            merge_tables(pipeline)
    assert merge_tables(pipeline).tables == []
    assert_equal(pipeline, spark, "t")


@pytest.mark.long
def test_an_approval_that_ends_anywhere_is_made_once_and_its_table_is_the_source(
    source: str,
    tmp_path: Path,
    spark: SparkSession,
    ends_at: EndsAt,
) -> None:
    pipeline = merged_pipeline(source, tmp_path, on_schema_change=OnSchemaChange.HOLD)
    execute(source, *MANY)
    runner.catch_up(pipeline)
    with ends_at("tables.passed"):  # nothing says that it is held
        merge_tables(pipeline)
    [held] = merge_tables(pipeline).held
    for failpoint, is_approved in (("tables.approving", False), ("tables.approved", True)):
        with ends_at(failpoint):
            approve_tables(pipeline)
        assert [table.is_approved for table in held_tables(pipeline)] == [is_approved]
    approve_tables(pipeline, versions=held.versions)
    for failpoint in ("tables.rebuilt", "tables.passed", "tables.recorded"):
        with ends_at(failpoint):
            merge_tables(pipeline)
    done = merge_tables(pipeline)
    assert (done.tables, done.held) == ([], [])
    assert_equal(pipeline, spark, "t")


@pytest.mark.long
def test_a_process_that_is_killed_while_it_writes_new_columns_leaves_a_whole_table(
    source: str, tmp_path: Path, spark: SparkSession
) -> None:
    pipeline = merged_pipeline(source, tmp_path)
    execute(source, "alter table t add e int default 5", "update t set e = 6, id = 70 where id = 7")
    runner.catch_up(pipeline)
    kill_merge(pipeline, "tables.rewritten")
    merge_tables(pipeline)
    assert_equal(pipeline, spark, "t")
