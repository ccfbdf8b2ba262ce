"""
Keep the daily partitions of the events: make days ahead, empty the default, drop old days.

One maintenance runs at a time; it may be interrupted anywhere, and the next continues. Writers wait
for milliseconds at most: a lock that is not free at once is given up and asked for again.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from typing import Final, LiteralString

import psycopg
from psycopg import sql

from pgstream_dagster.config.outbox import OutboxConfig
from pgstream_dagster.lsn import Lsn
from pgstream_dagster.outbox.days import (
    ONE_DAY,
    Day,
    KeptDay,
    Partition,
    SinkPosition,
    begin_of,
    day_of,
    expiry,
    missing,
    partition_name,
)
from pgstream_dagster.outbox.install import require_installed
from pgstream_dagster.source.connect import Session, named_errors
from pgstream_dagster.source.query import query, query_all

logger = logging.getLogger(__name__)

LOCK_WAIT: Final = "50ms"
"""The longest that a writer may wait behind a lock that is asked for."""

LOCK_SECONDS: Final = 10.0
"""How long a lock is asked for; then the rest is left to the next maintenance."""

PAUSE_SECONDS: Final = 0.1
"""Between two attempts, so that writers go on in most of the time."""

DEFAULT_DAYS: Final = 100
"""Days that are made for rows of the default partition in one maintenance."""

CLOSING_MINUTE: Final = 60
"""Seconds after the end of a day before it is closed: an event has its time a little before its
transaction has an id."""

FILLING: Final = "pgstream: being filled, not a partition yet"
"""The comment of a table that becomes a partition; without it, a table is not ours to drop."""


@dataclass(frozen=True, slots=True)
class Maintained:
    """
    What a maintenance did.

    `postponed`: what found its lock taken, and waits for the next one. `alerts`: what a person
    should know.
    """

    created: tuple[date, ...]
    moved_rows: int
    dropped: tuple[date, ...]
    kept: tuple[KeptDay, ...]
    postponed: tuple[str, ...]
    alerts: tuple[str, ...]


@dataclass(slots=True)
class _Work:
    """A maintenance while it runs."""

    session: Session
    lock_seconds: float
    created: list[date] = field(default_factory=list[date])
    moved_rows: int = 0
    dropped: list[date] = field(default_factory=list[date])
    postponed: list[str] = field(default_factory=list[str])
    alerts: list[str] = field(default_factory=list[str])


def maintain(
    session: Session,
    config: OutboxConfig | None = None,
    *,
    force: bool = False,
    now: datetime | None = None,
    lock_seconds: float = LOCK_SECONDS,
    register: Callable[[], None] | None = None,
) -> Maintained:
    """
    Make the days ahead, move rows out of the default partition, close and drop days.

    `session` is in autocommit mode, of the role that owns the outbox. `config`: by default that of
    an empty section. `now`: by default the server's clock. `register` notes how far the sinks are:
    without it, or if it fails, days are made but none is dropped.

    Raises:
        OutboxMissing, OutboxOutdated, OutboxNewer, AccessRefused, and what `register` raises
    """
    require_installed(session)
    config = config or OutboxConfig()
    work = _Work(session, lock_seconds)
    query(session, "outbox/maintenance_lock")
    try:
        at = now or query(session, "source/clock")[0][0]
        today = at.astimezone(UTC).date()
        query(session, "outbox/forget_elsewhere")
        with named_errors(session):
            _make_days(work, today, config.days_ahead)
            _move_default(work, today, config.days_ahead)
            _close_days(work, at)
        kept = ()
        if register is not None:
            register()
            with named_errors(session):
                kept = _drop_days(work, today, config, force=force)
    finally:
        if not session.closed:
            query(session, "outbox/maintenance_unlock")
    return Maintained(
        tuple(work.created),
        work.moved_rows,
        tuple(work.dropped),
        kept,
        tuple(work.postponed),
        tuple(work.alerts),
    )


def partitions(session: Session) -> list[Partition]:
    """All partitions of the events, the default one too."""
    return query_all(session, Partition, "outbox/partitions")


def days(session: Session) -> list[Day]:
    """The daily partitions of ours, oldest first."""
    closed = {day: lsn for day, lsn in query(session, "outbox/closed_days") if lsn is not None}
    dated = [(day_of(partition), partition) for partition in partitions(session)]
    return sorted(
        (
            Day(day, partition.size_bytes, Lsn.parse(closed[day]) if day in closed else None)
            for day, partition in dated
            if day is not None
        ),
        key=lambda candidate: candidate.day,
    )


def sink_positions(session: Session) -> list[SinkPosition]:
    """How far each registered sink has delivered."""
    return [
        SinkPosition(pipeline, sink, None if lsn is None else Lsn.parse(lsn))
        for pipeline, sink, lsn in query(session, "outbox/sink_positions")
    ]


def default_days(session: Session, before: date) -> list[date]:
    """The days of rows in the default partition before a day, oldest first."""
    rows = query(session, "outbox/default_days", before=begin_of(before), limit=DEFAULT_DAYS)
    return [day for (day,) in rows]


def _make_days(work: _Work, today: date, days_ahead: int) -> None:
    """Partitions without rows: all that maintenance has to do where it runs daily."""
    held = set(default_days(work.session, today + (days_ahead + 1) * ONE_DAY))
    existing = {day.day for day in days(work.session)}
    for day in missing(today, days_ahead, existing):
        if day not in held:
            _make(work, [day], is_filled=False)


def _move_default(work: _Work, today: date, days_ahead: int) -> None:
    """The days whose rows went to the default partition, all at once: it is emptied faster so."""
    existing = {day.day for day in days(work.session)}
    held = default_days(work.session, today + (days_ahead + 1) * ONE_DAY)
    if new_days := [day for day in held if day not in existing]:
        _make(work, new_days, is_filled=True)


def _make(work: _Work, new_days: Sequence[date], *, is_filled: bool) -> None:
    """Make tables, fill them from the default partition, and attach them."""
    prepared = [day for day in new_days if _prepare(work, day, is_filled=is_filled)]
    if not prepared:
        return

    def attach() -> int:
        _run(work.session, "lock table pgstream.events_default in access exclusive mode")
        moved = _empty_default(work.session, prepared) if is_filled else 0
        for day in prepared:
            _attach(work.session, day)
        return moved

    names = ", ".join(str(day) for day in prepared)
    try:
        moved = _with_lock(work, f"partition of {names}", attach)
    except psycopg.errors.InvalidObjectDefinition as error:
        work.alerts.append(
            f"no partition for {names}: {error.diag.message_primary}; detach the other partition"
        )
        moved = None
    if moved is None:
        for day in prepared:
            _run(work.session, "drop table if exists pgstream.{}", partition_name(day))
        return
    work.moved_rows += moved
    work.created += prepared


def _prepare(work: _Work, day: date, *, is_filled: bool) -> bool:
    """
    A table that can become the partition of a day, with the rows that the default has of it.

    It is unlogged while it is filled: so logical replication, which has sent these rows already,
    never sees them again.
    """
    session, name = work.session, partition_name(day)
    [(is_there, comment)] = query(session, "outbox/table_comment", name=name)
    if is_there and comment != FILLING:
        work.alerts.append(
            f"no partition for {day}: pgstream.{name} exists and is none; rename or attach it"
        )
        return False
    with session.transaction():
        _run(session, "drop table if exists pgstream.{}", name)
        _run(
            session,
            f"create {'unlogged ' if is_filled else ''}table pgstream.{{}}"
            " (like pgstream.events including defaults including indexes)",
            name,
        )
        _run(session, "comment on table pgstream.{} is {}", name, literals=[FILLING])
        [(owner,)] = query(session, "outbox/owner")
        _run(session, f"alter table pgstream.{{}} owner to {owner}", name)
        if is_filled:
            _fill(session, day)
            _run(session, "alter table pgstream.{} set logged", name)
    return True


def _fill(session: Session, day: date) -> None:
    _run(
        session,
        "insert into pgstream.{} select d.* from only pgstream.events_default as d"
        " where d.created_at >= {} and d.created_at < {}",
        partition_name(day),
        literals=_bounds(day),
    )


def _empty_default(session: Session, filled: Sequence[date]) -> int:
    """Move what has come since `_prepare`, then take all rows of these days from the default."""
    for day in filled:
        _run(
            session,
            "insert into pgstream.{0} select d.* from only pgstream.events_default as d"
            " where d.created_at >= {1} and d.created_at < {2} and not exists ("
            "select from pgstream.{0} as m where m.created_at = d.created_at and m.id = d.id)",
            partition_name(day),
            literals=_bounds(day),
        )
    [(all_count,)] = query(session, "outbox/default_count")
    moved = 0
    for day in filled:
        count = sql.SQL("select count(*) from pgstream.{}")
        table = sql.Identifier(partition_name(day))
        moved += session.execute(count.format(table)).fetchall()[0][0]
    if moved == all_count:
        _run(session, "truncate pgstream.events_default")
        return moved
    for day in filled:
        _run(
            session,
            "delete from only pgstream.events_default where created_at >= {} and created_at < {}",
            literals=_bounds(day),
        )
    return moved


def _attach(session: Session, day: date) -> None:
    name = partition_name(day)
    _run(session, "comment on table pgstream.{} is null", name)
    _run(
        session,
        "alter table pgstream.events attach partition pgstream.{} for values from ({}) to ({})",
        name,
        literals=_bounds(day),
    )


def _close_days(work: _Work, at: datetime) -> None:
    """Note of each day that is over when its last transaction has ended."""
    for day in days(work.session):
        seconds_since = (at - begin_of(day.day + ONE_DAY)).total_seconds()
        if day.closed_lsn is None and seconds_since >= CLOSING_MINUTE:
            query(work.session, "outbox/end_day", day=day.day)
    query(work.session, "outbox/close_days")


def _drop_days(
    work: _Work, today: date, config: OutboxConfig, *, force: bool
) -> tuple[KeptDay, ...]:
    total_bytes = sum(partition.size_bytes for partition in partitions(work.session))
    due = expiry(
        days(work.session),
        sink_positions(work.session),
        today=today,
        keep_days=config.keep_days,
        total_bytes=total_bytes,
        max_bytes=config.max_bytes,
        force=force,
    )
    for day in due.drop:
        if _with_lock(work, f"drop of {day}", lambda day=day: _drop(work.session, day)):
            work.dropped.append(day)
    work.alerts += due.alerts
    return due.kept


def _drop(session: Session, day: date) -> bool:
    """
    Drop a partition; the lock on the parent is held for milliseconds.

    DETACH CONCURRENTLY is refused where there is a default partition.
    """
    _run(session, "lock table only pgstream.events in access exclusive mode")
    _run(session, "drop table pgstream.{}", partition_name(day))
    query(session, "outbox/forget_day", day=day)
    return True


def _with_lock(work: _Work, what: str, step: Callable[[], int]) -> int | None:
    """Run a step in a transaction whose locks are free at once; `None` if they never were."""
    deadline = time.monotonic() + work.lock_seconds
    while True:
        try:
            with work.session.transaction():
                _run(work.session, "set local lock_timeout = {}", literals=[LOCK_WAIT])
                return step()
        except psycopg.errors.LockNotAvailable:
            if time.monotonic() >= deadline:
                work.postponed.append(f"{what}: its lock was not free for {work.lock_seconds:g} s")
                logger.warning("outbox: %s", work.postponed[-1])
                return None
            time.sleep(PAUSE_SECONDS)


def _bounds(day: date) -> list[object]:
    return [begin_of(day), begin_of(day + ONE_DAY)]


def _run(
    session: Session, text: LiteralString | str, *names: str, literals: Sequence[object] = ()
) -> None:
    """A statement that names an object, so it cannot be a file."""
    parts = [*map(sql.Identifier, names), *map(sql.Literal, literals)]
    session.execute(sql.SQL(text).format(*parts))  # type: ignore[arg-type]
