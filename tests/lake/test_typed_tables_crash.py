"""Merges that end in the middle, run twice at once, or while files are rewritten."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

import pytest
from pyspark.sql import SparkSession

from pgstream_dagster.pipeline import Pipeline
from pgstream_dagster.tables.merge import merge_tables
from pgstream_dagster.upkeep.optimize import optimize
from tests.support.harness import oracle, runner
from tests.support.harness.case import execute
from tests.support.harness.merge_ends import EndsAt, ends_at, kill_merge
from tests.support.harness.typed_tables import (
    assert_equal,
    caught_up,
    merged_pipeline,
)

pytestmark = [pytest.mark.one_major("newest"), pytest.mark.slow]

__all__ = ["ends_at"]  # a fixture

SWAP: Final = (
    "alter table t rename a to x",
    "alter table t rename b to a",
    "alter table t rename x to b",
)

MOVE: Final = "update t set id = id + 1000 where id < 20"

ENDS: Final = {
    "tables.folded": (MOVE,),
    "tables.written": ("delete from t where id = 30", "insert into u values (3)"),
    "tables.merged": (MOVE, "insert into u values (1), (2)"),
    "tables.evolving": (*SWAP, "update t set a = 'after the swap' where id = 21"),
    "tables.rebuilt": ("truncate t", "insert into t values (1, 'a', 'b')"),
    "tables.passed": ("update t set id = id + 1",),
    "tables.recorded": ("delete from t",),
}


@pytest.fixture
def pipeline(dsn: str, tmp_path: Path, spark: SparkSession) -> Pipeline:
    execute(
        dsn,
        "create table t (id int primary key, a text, b text)",
        "alter table t alter a set storage external",
        "insert into t select n, repeat(md5(n::text), 300), 'b' || n"
        " from generate_series(1, 40) as n",
        "create table u (id int primary key)",
    )
    return merged_pipeline(dsn, tmp_path)


@pytest.mark.long
def test_a_pass_that_ended_anywhere_is_done_by_the_next(
    pipeline: Pipeline,
    spark: SparkSession,
    ends_at: EndsAt,
) -> None:
    for failpoint, statements in ENDS.items():
        execute(pipeline.dsn, *statements)
        runner.catch_up(pipeline)
        with ends_at(failpoint):
            merge_tables(pipeline)
        merge_tables(pipeline)
        assert_equal(pipeline, spark, "t", "u")


@pytest.mark.long
@pytest.mark.crash
def test_a_killed_merge_is_done_by_the_next(pipeline: Pipeline, spark: SparkSession) -> None:
    execute(pipeline.dsn, MOVE, "insert into u values (1)")
    runner.catch_up(pipeline)
    kill_merge(pipeline, "tables.merged")
    merge_tables(pipeline)
    assert_equal(pipeline, spark, "t", "u")


@pytest.mark.long
def test_of_two_merges_at_once_one_has_nothing_to_do(
    pipeline: Pipeline, spark: SparkSession
) -> None:
    execute(pipeline.dsn, MOVE, "insert into u values (1)")
    runner.catch_up(pipeline)
    with ThreadPoolExecutor(2) as pool:
        passes = list(pool.map(lambda _: merge_tables(pipeline), range(2)))
    assert sorted(len(done.tables) for done in passes) == [0, 2]
    assert_equal(pipeline, spark, "t", "u")


@pytest.mark.long
def test_files_are_rewritten_while_tables_are_merged(
    pipeline: Pipeline, spark: SparkSession
) -> None:
    with ThreadPoolExecutor(1) as pool:
        optimizing = pool.submit(optimize, pipeline)
        execute(pipeline.dsn, MOVE, "insert into u values (1)")
        caught_up(pipeline)
        optimizing.result()
    execute(pipeline.dsn, "delete from t where id % 2 = 0")
    caught_up(pipeline)
    assert_equal(pipeline, spark, "t", "u")
    entries = oracle.entries(oracle.folder_of(pipeline.lake.typed_table("public.t")))
    assert len(list(entries)) > 2
