"""
Which daily partitions of the events there should be, and which may go. No I/O.

A day is a day in UTC. A partition counts as one of ours if its name and its bounds say the same
day; any other is left alone.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from typing import Final

from pgstream_dagster.lsn import Lsn

PREFIX: Final = "events_"

ONE_DAY: Final = timedelta(days=1)


@dataclass(frozen=True, slots=True)
class Partition:
    """A partition of the events; `bounds` as Postgres prints them in UTC."""

    name: str
    bounds: str
    size_bytes: int


@dataclass(frozen=True, slots=True)
class Day:
    """A daily partition of ours; `closed_lsn`: every commit with events of it is before."""

    day: date
    size_bytes: int
    closed_lsn: Lsn | None


@dataclass(frozen=True, slots=True)
class SinkPosition:
    """How far a sink has delivered; `None`: nothing yet."""

    pipeline: str
    sink: str
    delivered_lsn: Lsn | None


@dataclass(frozen=True, slots=True)
class KeptDay:
    """A day that is old enough to go, and why it stays."""

    day: date
    reason: str


@dataclass(frozen=True, slots=True)
class Expiry:
    """The days to drop, the ones that stay, and what a person should know."""

    drop: tuple[date, ...]
    kept: tuple[KeptDay, ...]
    alerts: tuple[str, ...]


def partition_name(day: date) -> str:
    """The name of the partition of a day."""
    return f"{PREFIX}{day:%Y%m%d}"


def begin_of(day: date) -> datetime:
    """The first moment of a day."""
    return datetime.combine(day, time(), UTC)


def day_of(partition: Partition) -> date | None:
    """The day of a partition of ours; `None` for any other."""
    text = partition.name.removeprefix(PREFIX)
    try:
        day = datetime.strptime(text, "%Y%m%d").replace(tzinfo=UTC).date()
    except ValueError:
        return None
    bounds = f"FOR VALUES FROM ('{day} 00:00:00+00') TO ('{day + ONE_DAY} 00:00:00+00')"
    return day if partition.bounds == bounds and partition_name(day) == partition.name else None


def missing(today: date, days_ahead: int, existing: Collection[date]) -> list[date]:
    """Today and the days ahead that have no partition."""
    days = [today + timedelta(days=number) for number in range(days_ahead + 1)]
    return [day for day in days if day not in existing]


def expiry(
    days: Sequence[Day],
    sinks: Iterable[SinkPosition],
    *,
    today: date,
    keep_days: int,
    total_bytes: int,
    max_bytes: int | None = None,
    force: bool = False,
) -> Expiry:
    """
    What may be dropped: days before the ones to keep that every sink has delivered.

    Undelivered ones go only with `force`, or while the events take more than `max_bytes`, the
    oldest first; each such day is an alert, and so is one that stays because of a sink.
    """
    positions = list(sinks)
    drop, kept, alerts = list[date](), list[KeptDay](), list[str]()
    for day in sorted(days, key=lambda candidate: candidate.day):
        if day.day >= today - timedelta(days=keep_days):
            continue
        reason = _reason(day, positions)
        is_too_large = max_bytes is not None and total_bytes > max_bytes
        if reason is not None and not force and not is_too_large:
            kept.append(KeptDay(day.day, reason))
            alerts.append(f"day {day.day} is older than {keep_days} days and stays: {reason}")
            continue
        if reason is not None:
            because = "by force" if force else f"the events take more than {max_bytes:,} bytes"
            alerts.append(f"day {day.day} was dropped ({because}) although {reason}")
        drop.append(day.day)
        total_bytes -= day.size_bytes
    return Expiry(tuple(drop), tuple(kept), tuple(alerts))


def _reason(day: Day, sinks: Sequence[SinkPosition]) -> str | None:
    """Why a day may not go; `None` if it may."""
    if day.closed_lsn is None:
        return "a transaction that may have written events of it is still open"
    behind = [
        f"{sink.sink!r} of pipeline {sink.pipeline!r}"
        for sink in sinks
        if sink.delivered_lsn is None or sink.delivered_lsn < day.closed_lsn
    ]
    return f"sink {', '.join(behind)} has not delivered it" if behind else None
