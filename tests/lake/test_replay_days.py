"""Days of the log: complete when the log has passed their end, rebuilt when it gets more."""

from __future__ import annotations

import threading
from datetime import UTC, date, datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pytest
from py4j.java_gateway import JavaGateway
from pyspark.sql import SparkSession

from pgstream_dagster.capture.stream import current_lsn, stream
from pgstream_dagster.changelog import replay
from pgstream_dagster.changelog.lake import Lake
from pgstream_dagster.changelog.log import ChangeLog
from pgstream_dagster.config import parse
from pgstream_dagster.errors import WatermarkBehind
from pgstream_dagster.lsn import Lsn
from pgstream_dagster.pipeline import Pipeline
from pgstream_dagster.schema.changes import Op
from pgstream_dagster.schema.layout import CHANGES
from pgstream_dagster.tables.daily_changes import replay_days, touched_days
from pgstream_dagster.upkeep.setup import setup
from tests.support.plugins.cluster import psql
from tests.support.plugins.lake import SETTINGS
from tests.support.reference.history import EPOCH, change, schema, table, text

V1 = schema(text("id", 1))


@pytest.mark.long
@pytest.mark.one_major("newest")
def test_a_day_is_complete_when_the_log_has_passed_its_end(
    dsn: str, tmp_path: Path, spark: SparkSession
) -> None:
    yesterday = datetime.now(UTC).date() - timedelta(days=1)
    tomorrow = yesterday + timedelta(days=2)  # not over, should a midnight come meanwhile
    pipeline = Pipeline(
        parse("pipeline: shop"), dsn, Lake(str(tmp_path / "lake")), SETTINGS, tmp_path / "state"
    )
    psql(dsn, "create table t (id int primary key)")
    setup(pipeline)
    psql(dsn, "insert into t values (1)")
    with pytest.raises(WatermarkBehind):
        replay_days(pipeline, yesterday, yesterday, timeout_seconds=0)
    stream(pipeline, stop=threading.Event(), until=current_lsn(pipeline))
    assert replay_days(pipeline, yesterday, yesterday).is_complete
    until_tomorrow = replay_days(pipeline, yesterday, tomorrow, timeout_seconds=0)
    assert not until_tomorrow.is_complete
    assert list(until_tomorrow.rows.values()) == [1]


def committed(day: date, lsn: int) -> pa.Table:
    """One landed change of that day."""
    made = table([change(Op.INSERT, lsn, 0, schema_id=V1.schema_id, key=("1",))])
    at = CHANGES.get_field_index("committed_at")
    noon = datetime(day.year, day.month, day.day, 12, tzinfo=UTC)
    return made.set_column(at, CHANGES.field(at), pa.array([noon], CHANGES.field(at).type))


@pytest.mark.long
def test_a_day_that_the_log_gets_more_of_later_is_rebuilt(
    lake: Lake, gateway: JavaGateway, spark: SparkSession
) -> None:
    first, second = date(2026, 1, 1), date(2026, 1, 2)
    log = ChangeLog(lake, "shop", gateway)
    log.start(EPOCH, Lsn(100))
    writer = log.writer(EPOCH)
    writer.commit([committed(first, 100)], Lsn(108))
    replay.rebuild_days(spark, lake, first, first)
    writer.commit([committed(second, 200), committed(first, 300)], Lsn(308))
    writer.close()
    log.close()
    replay.rebuild_days(spark, lake, second, second)
    built, now = replay.rows_of_days(spark, lake), replay.rows_of_days_in_log(spark, lake)
    assert (built, now) == ({first: 1, second: 1}, {first: 2, second: 1})
    assert touched_days(built, now) == (first,)
