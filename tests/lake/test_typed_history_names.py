"""Histories, as-of reads and views of changes where tables take each other's names."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession

from pgstream_dagster.copy.snapshot import snapshot
from pgstream_dagster.pipeline import Pipeline
from pgstream_dagster.query import rendering
from pgstream_dagster.query.query import query
from pgstream_dagster.tables.history.as_of import read_as_of
from pgstream_dagster.tables.merge import merge_tables
from tests.support.harness.case import execute
from tests.support.harness.typed_tables import all_rows, caught_up, merged_pipeline

pytestmark = pytest.mark.one_major("newest")


def history_of(pipeline: Pipeline, spark: SparkSession) -> DataFrame:
    return spark.read.format("delta").load(pipeline.lake.typed_table("public.t__history"))


@pytest.mark.long
def test_a_table_that_is_renamed_to_a_dropped_one_brings_its_own_past(
    dsn: str, tmp_path: Path, spark: SparkSession
) -> None:
    """And is found by its name, though the dropped one was copied later."""
    execute(
        dsn,
        "create table t (id int primary key, note text)",
        "insert into t values (1, 'dropped')",
        "create table t_new (id int primary key, note text)",
        "insert into t_new values (1, 'kept')",
    )
    pipeline = merged_pipeline(dsn, tmp_path, history=("*.*",))
    snapshot(pipeline, ["public.t"])
    execute(dsn, "drop table t", "alter table t_new rename to t")
    execute(dsn, "insert into t values (2, 'new')")
    caught_up(pipeline)
    with pipeline.open() as opened:
        now = opened.require_watermark()
    merge_tables(pipeline, rebuild=["public.t"])
    past = read_as_of(pipeline, "public.t", now).rows.collect()
    assert sorted(row["note"] for row in past) == ["kept", "new"]
    kept = history_of(pipeline, spark).collect()
    assert sorted(row["note"] for row in kept) == ["kept", "new"]
    with query(pipeline, "select note from change_log_t", rendering.text) as result:
        assert sorted(note for (note,) in result.rows if note) == ["kept", "new"]


@pytest.mark.long
def test_a_default_that_older_rows_showed_stays_after_the_column_is_dropped(
    dsn: str, tmp_path: Path, spark: SparkSession
) -> None:
    """The version from before the column comes again; a history in steps is as one from the log."""
    execute(
        dsn,
        "create table t (id int primary key, note text, body text)",
        "alter table t alter body set storage external",
        "insert into t select n, 'a', repeat('x', 9000) from generate_series(1, 3) as n",
    )
    pipeline = merged_pipeline(dsn, tmp_path, history=("*.*",))
    execute(
        dsn,
        "alter table t add extra text default 'x'",
        "update t set note = 'b', body = note || body, extra = 'z' where id > 1",
    )
    caught_up(pipeline)
    execute(
        dsn,
        "alter table t drop extra",
        "update t set note = 'c' where id = 2",  # without its body
        "update t set note = note, body = body || '' where id = 3",
        "insert into t values (4, 'd', 'short')",
    )
    caught_up(pipeline)
    history = history_of(pipeline, spark)
    shown = {(row["id"], row["note"], row["extra"]) for row in history.collect()}
    assert shown >= {(1, "a", "x"), (2, "a", "x"), (2, "b", "z"), (3, "b", "z")}
    assert history.count() == 7
    grown = all_rows(history)
    merge_tables(pipeline, rebuild=["public.t"])
    assert all_rows(history_of(pipeline, spark)) == grown
