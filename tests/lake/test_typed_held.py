"""A held table is said to be held, at the position of its rows, wherever people look."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from pgstream_dagster.config.tables import OnSchemaChange
from pgstream_dagster.tables.merge import merge_tables
from pgstream_dagster.tables.read_typed import read_typed
from pgstream_dagster.tables.status import TableState, typed_status
from pgstream_dagster.upkeep.reconcile_tables import reconcile_tables
from tests.support.harness import runner
from tests.support.harness.case import execute
from tests.support.harness.merge_ends import EndsAt, ends_at
from tests.support.harness.typed_tables import caught_up, merged_pipeline

pytestmark = pytest.mark.one_major("newest")

__all__ = ["ends_at"]  # a fixture


@pytest.mark.long
def test_a_held_table_is_said_to_be_held(
    dsn: str,
    tmp_path: Path,
    spark: SparkSession,
    ends_at: EndsAt,
) -> None:
    execute(dsn, "create table t (id int primary key, a text)", "insert into t values (1, 'x')")
    pipeline = merged_pipeline(dsn, tmp_path, on_schema_change=OnSchemaChange.HOLD)
    execute(dsn, "insert into t values (2, 'y')")
    runner.catch_up(pipeline)
    with ends_at("tables.passed"):
        merge_tables(pipeline)
    with pipeline.open() as opened:
        merged_upto = opened.require_watermark()
    execute(dsn, "alter table t add c int", "alter table t drop c", "insert into t values (3, 'z')")
    [held] = caught_up(pipeline).held
    assert read_typed(pipeline, "public.t").rows.count() == 2
    assert held.position == merged_upto
    with runner.streaming(pipeline):
        [compared] = reconcile_tables(pipeline, timeout_seconds=5).tables
    assert (compared.typed, compared.source) == (None, None)
    assert "approve" in (compared.reason or "")
    execute(dsn, "alter table t rename to former", "create table t (n int primary key)")
    assert [h.table for h in caught_up(pipeline).held] == ["public.t"]
    states = {table.name: table.state for table in typed_status(pipeline).tables}
    assert states == {"public.t": TableState.HELD, "public.former": TableState.CURRENT}
