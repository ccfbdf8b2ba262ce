"""Columns of typed tables that change with the source: old rows have what they have there."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from pgstream_dagster.pipeline import Pipeline
from pgstream_dagster.tables.passes import Step
from pgstream_dagster.tables.read_typed import read_typed
from pgstream_dagster.tables.types import RESCUED
from tests.support.harness import oracle
from tests.support.harness.case import execute
from tests.support.harness.typed_tables import (
    assert_equal,
    caught_up,
    merged_pipeline,
)

pytestmark = [pytest.mark.one_major("newest"), pytest.mark.slow]


@pytest.fixture
def pipeline(dsn: str, tmp_path: Path, spark: SparkSession) -> Pipeline:
    execute(
        dsn,
        "create table t (id int primary key, price numeric(6,2), day date)",
        "insert into t select n, n + 0.5, '2026-01-01' from generate_series(1, 9) as n",
        "create table log (kind text, n numeric(4,1))",
        "alter table log replica identity full",
        "insert into log values ('a', 1.5), ('a', 1.5)",
    )
    return merged_pipeline(dsn, tmp_path)


@pytest.mark.long
def test_old_rows_show_a_default_and_wider_numbers_without_a_read_of_the_log(
    pipeline: Pipeline, spark: SparkSession
) -> None:
    """In one commit, so that no reader sees a null; of a default that no date is, its text."""
    execute(
        pipeline.dsn,
        "begin; alter table t add c int default 7; update t set c = 8 where id = 1; commit",
        "alter table t add until date not null default 'infinity'",
        "alter table t alter price type numeric(20,2), add at timestamp default '2026-01-01 10:00'",
        "alter table t rename day to on_day",
        "insert into t values (10, 123456789.25, '2026-02-02')",
        "alter table log add source text not null default 'web'",
        "insert into log values ('b', 2.5, 'app')",
    )
    steps = {table.name: table.step for table in caught_up(pipeline).tables}
    assert steps == {"public.t": Step.MERGED, "public.log": Step.APPENDED}
    assert_equal(pipeline, spark, "t", "log")
    folder = pipeline.lake.typed_table("public.t")
    versions = [entry.version for entry in oracle.entries(oracle.folder_of(folder))]
    for number in versions:
        rows = spark.read.format("delta").option("versionAsOf", number).load(folder)
        assert "c" not in rows.columns or rows.where("c is null").isEmpty()
    execute(pipeline.dsn, "update t set until = 'today' where id < 4", "delete from t where id = 5")
    assert [table.step for table in caught_up(pipeline).tables] == [Step.MERGED]
    assert_equal(pipeline, spark, "t", "log")


@pytest.mark.long
def test_a_text_that_a_column_cannot_hold_is_never_left_to_another_column(
    pipeline: Pipeline, spark: SparkSession
) -> None:
    execute(
        pipeline.dsn,
        "update t set day = 'infinity' where id = 1",
        "update t set price = 'NaN' where id = 2",
    )
    caught_up(pipeline)
    assert_equal(pipeline, spark, "t")
    for statements in (
        ["alter table t alter price type numeric(9,2)"],
        ["alter table t drop day, drop price"],
        ["alter table t add day date, add price numeric(6,2)"],
    ):
        execute(pipeline.dsn, *statements)
        caught_up(pipeline)
        assert_equal(pipeline, spark, "t")
    assert read_typed(pipeline, "public.t").rows.where(f"{RESCUED} is not null").isEmpty()


@pytest.mark.long
def test_retypes_show_what_the_source_shows(pipeline: Pipeline, spark: SparkSession) -> None:
    """The source has converted rows without sending them: they come by a copy."""
    for statements in (
        ["alter table t alter price type double precision"],
        ["alter table t alter price type text using price || ' EUR'"],
        ["alter table t alter price type numeric(8,3) using split_part(price, ' ', 1)::numeric"],
        ["alter table t alter id type bigint", "alter table t alter day type timestamp"],
        ["alter table t alter day type timestamptz using day at time zone 'Asia/Tokyo'"],
    ):
        execute(pipeline.dsn, *statements, "update t set id = id + 100 where id = 3")
        caught_up(pipeline)
        assert_equal(pipeline, spark, "t")
