"""
What is wrong with an installed outbox: each finding has the fact, and what repairs it.

Changes nothing. It tries every subscription against its table again, as when it was written.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime

from pgstream_dagster.config.outbox import DAYS_AHEAD, KEEP_DAYS
from pgstream_dagster.errors import OutboxMissing, OutboxNewer, OutboxOutdated
from pgstream_dagster.outbox.days import ONE_DAY, expiry, missing
from pgstream_dagster.outbox.install import require_installed
from pgstream_dagster.outbox.maintain import days, default_days, partitions, sink_positions
from pgstream_dagster.source.connect import Session
from pgstream_dagster.source.preflight import Finding, by_severity
from pgstream_dagster.source.preflight.finding import error, note, warning
from pgstream_dagster.source.query import query, query_all

REPAIR = "run select pgstream.repair()"

MAINTAIN = "run 'pgstream outbox maintain', hourly or daily"


@dataclass(frozen=True, slots=True)
class _Subscription:
    """A subscription as it is written, and as its table is now."""

    key: str
    stream_id: int
    operation: str
    table: str
    reason: str | None
    has_moved: bool
    is_of_former_table: bool


@dataclass(frozen=True, slots=True)
class _Trigger:
    """What should be generated for a table, and whether it is."""

    table: str
    operation: str
    is_current: bool
    is_enabled: bool


def check(
    session: Session,
    *,
    days_ahead: int = DAYS_AHEAD,
    keep_days: int = KEEP_DAYS,
    now: datetime | None = None,
) -> list[Finding]:
    """All findings, errors first; none if all is well."""
    try:
        require_installed(session)
    except (OutboxMissing, OutboxOutdated, OutboxNewer) as problem:
        fact, _, remedy = str(problem).partition("; ")
        return [error("outbox", fact, remedy)]
    at = now or query(session, "source/clock")[0][0]
    return by_severity(
        [
            *_event_triggers(session),
            *_subscriptions(session),
            *_generated(session),
            *_partitions(session, at, days_ahead),
            *_retention(session, at, keep_days),
        ]
    )


def _event_triggers(session: Session) -> Iterator[Finding]:
    [(_, _, has_event_triggers, *_)] = query(session, "outbox/state")
    if not has_event_triggers:
        yield note(
            "event_triggers",
            "there are no event triggers: subscriptions do not follow by themselves when a table or"
            " column is renamed, moved or dropped",
            "run select pgstream.repair() after such a change",
        )


def _subscriptions(session: Session) -> Iterator[Finding]:
    for subscription in query_all(session, _Subscription, "outbox/checked_subscriptions"):
        name = (
            f"subscription {subscription.key!r} (stream {subscription.stream_id},"
            f" {subscription.operation} of {subscription.table})"
        )
        if subscription.reason is not None:
            yield error(
                "subscription",
                f"{name} is not in force, or would fail: {subscription.reason}",
                "update its row in pgstream.subscriptions, or delete it",
            )
        elif subscription.is_of_former_table:
            yield error(
                "subscription",
                f"{name} is not in force: its table was dropped, and made again since",
                REPAIR,
            )
        elif subscription.has_moved:
            yield warning(
                "drift", f"{name} has names that its table, or its columns, had before", REPAIR
            )


def _generated(session: Session) -> Iterator[Finding]:
    for trigger in query_all(session, _Trigger, "outbox/generated"):
        name = f"the trigger for {trigger.operation} of {trigger.table}"
        if not trigger.is_current:
            yield error("trigger", f"{name} is missing or not what subscriptions say", REPAIR)
        elif not trigger.is_enabled:
            yield error(
                "trigger_disabled",
                f"{name} is disabled: nothing is captured",
                f"run alter table {trigger.table} enable trigger all",
            )
    unused = [name for (name,) in query(session, "outbox/unused")]
    if unused:
        yield warning("unused", f"no subscription needs {', '.join(unused)}", REPAIR)


def _partitions(session: Session, at: datetime, days_ahead: int) -> Iterator[Finding]:
    today = at.astimezone(UTC).date()
    if not any(partition.bounds == "DEFAULT" for partition in partitions(session)):
        yield error(
            "default_partition",
            "the events have no default partition: without one for its day, a write fails",
            "run create table pgstream.events_default partition of pgstream.events default",
        )
    elif held := default_days(session, datetime.max.replace(tzinfo=UTC).date()):
        shown = ", ".join(str(day) for day in held[:3])
        yield warning(
            "default_rows",
            f"the default partition has events of {len(held)} days ({shown}): they had no partition"
            " when they were written",
            MAINTAIN,
        )
    absent = missing(today, days_ahead, {day.day for day in days(session)})
    if absent:
        severity = error if absent[0] <= today + ONE_DAY else warning
        yield severity(
            "partitions",
            f"there is no partition for {', '.join(map(str, absent))}",
            MAINTAIN,
        )


def _retention(session: Session, at: datetime, keep_days: int) -> Iterator[Finding]:
    due = expiry(
        days(session),
        sink_positions(session),
        today=at.astimezone(UTC).date(),
        keep_days=keep_days,
        total_bytes=0,
    )
    for kept in due.kept:
        yield warning(
            "undelivered_day",
            f"day {kept.day} is older than {keep_days} days and stays: {kept.reason}",
            "start the sink, or remove its row from pgstream.outbox_sinks; 'pgstream outbox"
            " maintain --force' drops the day",
        )
    if due.drop:
        yield note(
            "expired_days", f"{len(due.drop)} days are older than {keep_days} days", MAINTAIN
        )
