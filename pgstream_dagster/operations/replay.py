"""
Replay: days of the log, by commit time, rebuilt as a table with one partition a day.

For those who ask by date and table and not by position: `<lake>/daily_changes`. A day's rows are
replaced as a whole, so a day that is replayed twice is the same; the log itself is not touched.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass
from datetime import date

from pgstream_dagster.changelog import jvm, replay
from pgstream_dagster.changelog.ledger import Ledger
from pgstream_dagster.changelog.log import ChangeLog
from pgstream_dagster.errors import NotSetUp
from pgstream_dagster.lsn import Lsn
from pgstream_dagster.operations.pipeline import Pipeline


@dataclass(frozen=True, slots=True)
class Replayed:
    """Changes per day, and up to where the log was when they were read."""

    rows: Mapping[date, int]
    watermark: Lsn


def replay_days(pipeline: Pipeline, first: date, last: date) -> Replayed:
    """
    Rebuild the days from `first` to `last`, both included, in UTC; copied rows are left out.

    One run at a time: two that rebuild the same days would refuse each other's commit.

    Raises:
        NotSetUp: `setup` was never run for this pipeline and lake.
    """
    gateway = pipeline.gateway()
    with (
        closing(Ledger(pipeline.lake, gateway)) as ledger,
        closing(ChangeLog(pipeline.lake, pipeline.name, gateway)) as log,
    ):
        known = ledger.identity(pipeline.name)
        watermark = None if known is None else log.watermark(known.epoch)
    if watermark is None:
        raise NotSetUp(pipeline.name, pipeline.lake.root)
    spark = jvm.spark(pipeline.jvm)
    replay.rebuild_days(spark, pipeline.lake, first, last)
    return Replayed(replay.rows_of_days(spark, pipeline.lake, first, last), watermark)
