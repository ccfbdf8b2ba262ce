"""A table as it was while its slot was lost: not known, and not what it was before."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from pgstream_dagster.errors import AsOfGap
from pgstream_dagster.lsn import Lsn
from pgstream_dagster.pipeline import Pipeline
from pgstream_dagster.tables.history.as_of import read_as_of
from pgstream_dagster.upkeep.resnapshot import resnapshot
from pgstream_dagster.upkeep.setup import setup
from tests.support.harness.case import execute
from tests.support.harness.typed_tables import caught_up, typed_pipeline
from tests.support.plugins.cluster import psql

pytestmark = pytest.mark.one_major("newest")

NOW = "select pg_current_wal_lsn()::text, clock_timestamp()"


@pytest.mark.long
def test_rows_of_the_time_of_a_lost_slot_are_not_known(
    dsn: str, tmp_path: Path, spark: SparkSession
) -> None:
    del spark
    execute(dsn, "create table t (id int primary key)", "insert into t values (1)")
    pipeline = typed_pipeline(dsn, tmp_path)
    setup(pipeline)
    execute(dsn, "insert into t values (2)")
    caught_up(pipeline)
    with pipeline.open() as opened:
        landed = opened.require_watermark()
    psql(dsn, f"select pg_drop_replication_slot('{pipeline.config.source.slot}')")
    execute(dsn, "delete from t where id = 1", "create table other (id int)")
    [(position, time)] = psql(dsn, NOW)
    resnapshot(pipeline)
    for at in (Lsn.parse(position), time):
        with pytest.raises(AsOfGap, match="are missing"):
            read_as_of(pipeline, "t", at)
    [(_, later)] = psql(dsn, NOW)
    rows = {at: ids(pipeline, at) for at in (landed, later)}
    assert rows == {landed: [1, 2], later: [2]}


def ids(pipeline: Pipeline, at: Lsn | datetime) -> list[int]:
    return sorted(row["id"] for row in read_as_of(pipeline, "t", at).rows.collect())
