"""
Replay: days of the log, by commit time, rebuilt as a table with one partition a day.

For queries by date and table instead of by position: `<lake>/daily_changes`. A day's rows are
replaced as a whole, so replaying a day twice gives the same rows; the log itself is not changed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from typing import Final

from pgstream_dagster.changelog import replay
from pgstream_dagster.delta import jvm
from pgstream_dagster.lsn import Lsn
from pgstream_dagster.named import named
from pgstream_dagster.pipeline import OpenPipeline, Pipeline
from pgstream_dagster.source.interrupt import session
from pgstream_dagster.source.landed import TIMEOUT_SECONDS, wait_until_landed
from pgstream_dagster.source.query import query
from pgstream_dagster.stop import Stop

ONE_DAY: Final = timedelta(days=1)

OUT_OF_ORDER: Final = timedelta(minutes=1)
"""A commit gets its time a moment before its place in the WAL, so times may be out of order."""


@dataclass(frozen=True, slots=True)
class Replayed:
    """
    Changes per day, and the watermark of the log when they were read.

    `is_complete`: the days are over, and the log has all of them. `touched` are other days, rebuilt
    because the log received more of their changes since they were built.
    """

    rows: Mapping[date, int]
    watermark: Lsn
    is_complete: bool
    touched: tuple[date, ...]


@named
def replay_days(
    pipeline: Pipeline,
    first: date,
    last: date,
    *,
    timeout_seconds: float = TIMEOUT_SECONDS,
    stop: Stop | None = None,
) -> Replayed:
    """
    Rebuild the days from `first` to `last`, both included, in UTC; copied rows are left out.

    Waits until the log has all of the days that are over. Also rebuilds other days of which the log
    received more changes since they were built. One run at a time: the commits of two runs that
    rebuild the same days would conflict.

    Raises:
        NotSetUp: `setup` was never run for this pipeline and lake.
        WatermarkBehind: the stream has not landed the end of these days yet.
    """
    pipeline.require_postgres("replay")
    with pipeline.open() as opened:
        opened.require_watermark()
        is_complete = _wait_for(opened, last, timeout_seconds, stop or Stop())
        watermark = opened.require_watermark()
    spark, lake = jvm.spark(pipeline.jvm), pipeline.lake
    replay.rebuild_days(spark, lake, first, last)
    rows, now = replay.rows_of_days(spark, lake), replay.rows_of_days_in_log(spark, lake)
    touched = touched_days(rows, now)
    for day in touched:
        replay.rebuild_days(spark, lake, day, day)
        rows[day] = now[day]
    return Replayed(rows, watermark, is_complete, touched)


def touched_days(built: Mapping[date, int], now: Mapping[date, int]) -> tuple[date, ...]:
    """The days of which the log has more changes than when they were built; it never has fewer."""
    return tuple(sorted(day for day, rows in built.items() if now.get(day, 0) > rows))


def _wait_for(opened: OpenPipeline, day: date, timeout_seconds: float, stop: Stop) -> bool:
    """Wait until the log has all of `day`; false if the day is not over by the source's clock."""
    end = datetime.combine(day + ONE_DAY, time())
    pipeline = opened.pipeline
    newest = replay.newest_commit(jvm.spark(pipeline.jvm), pipeline.lake, opened.epoch)
    if newest is not None and newest >= end + OUT_OF_ORDER:
        return True
    with session(pipeline.dsn, stop) as source:
        [(now,)] = query(source, "source/clock")
    if now < end.replace(tzinfo=UTC):
        return False
    wait_until_landed(opened, timeout_seconds=timeout_seconds, stop=stop)
    return True
