"""Typed tables are clustered by the columns that the pipeline file names, as long as there are."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from pgstream_dagster.config.tables import TypedTableConfig
from pgstream_dagster.errors import NotClustered
from pgstream_dagster.pipeline import Pipeline
from pgstream_dagster.tables.passes import Step
from pgstream_dagster.upkeep.optimize import optimize
from tests.support.harness.case import execute
from tests.support.harness.typed_tables import (
    assert_equal,
    caught_up,
    merged_pipeline,
    typed_pipeline,
)

pytestmark = [pytest.mark.one_major("newest"), pytest.mark.slow]


@pytest.mark.long
def test_a_table_is_clustered_as_the_file_says_whatever_happens_to_its_columns(
    dsn: str, tmp_path: Path, spark: SparkSession
) -> None:
    execute(
        dsn,
        "create table t (id int primary key, place text, at date, tags int[])",
        "insert into t select n, 'p' || n % 7, date '2026-01-01' + n, null"
        " from generate_series(1, 100) n",
        "create table other (id int primary key)",
    )
    options = {
        "public.t": TypedTableConfig(cluster=("place", "at")),
        "public.other": TypedTableConfig(cluster=("nowhere",)),
    }
    pipeline = merged_pipeline(dsn, tmp_path, types=options)
    with pytest.raises(NotClustered, match=r"'public.other'.*nowhere: the table has no such"):
        optimize(pipeline)
    assert clustering(pipeline, spark) == ["place", "at"]

    execute(dsn, "alter table t rename column place to town", "update t set at = at + 1")
    changed = caught_up(pipeline)
    assert [(t.name, t.step) for t in changed.tables] == [("public.t", Step.MERGED)]
    assert clustering(pipeline, spark) == ["town", "at"]
    assert_equal(pipeline, spark, "t")

    execute(dsn, "alter table t drop column at", "insert into t values (101, 'new', null)")
    changed = caught_up(pipeline)
    assert [(t.name, t.step) for t in changed.tables] == [("public.t", Step.MERGED)]
    assert clustering(pipeline, spark) == []
    assert_equal(pipeline, spark, "t")

    options |= {
        "public.t": TypedTableConfig(cluster=("town",)),
        "public.other": TypedTableConfig(),
    }
    optimize(typed_pipeline(dsn, tmp_path, types=options))
    assert clustering(pipeline, spark) == ["town"]
    assert_equal(pipeline, spark, "t")

    options |= {"public.t": TypedTableConfig(cluster=("tags",))}
    with pytest.raises(NotClustered, match=r"'public.t' cannot be clustered by tags"):
        optimize(typed_pipeline(dsn, tmp_path, types=options))
    assert clustering(pipeline, spark) == ["town"]


def clustering(pipeline: Pipeline, spark: SparkSession) -> list[str]:
    table = pipeline.lake.typed_table("public.t")
    [detail] = spark.sql(f"describe detail delta.`{table}`").collect()
    return detail["clusteringColumns"]
