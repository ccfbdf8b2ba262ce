"""Keys that are equal only for Spark, or that only their texts tell apart."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from pgstream_dagster.config.column_types import ColumnTypes
from pgstream_dagster.config.tables import TypedTableConfig
from pgstream_dagster.tables.read_typed import read_typed
from pgstream_dagster.upkeep.setup import setup
from tests.support.harness.case import execute
from tests.support.harness.typed_tables import (
    assert_equal,
    caught_up,
    each_way,
    merged_pipeline,
    typed_pipeline,
)

pytestmark = pytest.mark.one_major("newest")

__all__ = ["each_way"]  # a fixture


@pytest.mark.usefixtures("each_way")
def test_keys_that_their_columns_cannot_hold_are_keys_of_their_own(
    dsn: str,
    tmp_path: Path,
    spark: SparkSession,
) -> None:
    execute(dsn, "create table prices (amount numeric(8,2), day date, primary key (amount, day))")
    pipeline = merged_pipeline(dsn, tmp_path)
    execute(
        dsn,
        "insert into prices values (1, 'infinity'), (1, '-infinity'), (1, '2026-01-01'),"
        " (1, '0044-03-15 BC')",
    )
    caught_up(pipeline)
    assert_equal(pipeline, spark, "prices")


@pytest.mark.long
def test_keys_that_spark_cannot_tell_apart_do_not_stop_a_merge(
    dsn: str, tmp_path: Path, spark: SparkSession
) -> None:
    execute(
        dsn,
        "create table t (k float8[] primary key, n int)",
        "insert into t values ('{0}', 1), ('{1}', 1)",
        "create table u (k numeric[] primary key, n int)",
        "insert into u values ('{1.0}', 1)",
    )
    pipeline = typed_pipeline(dsn, tmp_path)
    decimals = TypedTableConfig(columns={"k": ColumnTypes(numeric="decimal(10,3)")})
    assert pipeline.config.tables is not None
    tables = pipeline.config.tables.model_copy(update={"types": {"public.u": decimals}})
    config = pipeline.config.model_copy(update={"tables": tables})
    pipeline = replace(pipeline, config=config)
    setup(pipeline)
    caught_up(pipeline)
    execute(dsn, "update t set k = '{-0}' where k = '{0}'", "update u set k = '{1.00}'")
    caught_up(pipeline)
    rows = read_typed(pipeline, "public.t").rows
    assert sorted(str(row["k"]) for row in rows.collect()) == ["[-0.0]", "[1.0]"]
    assert read_typed(pipeline, "public.u").rows.count() == 1
