"""
The last attempts of a subscription and its counts. No I/O.

What decides on disabling, and the newest attempts, are stored with the sink's progress.
"""

from __future__ import annotations

import threading
from collections import Counter, deque
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import islice
from typing import Final

from pgstream_dagster.sinks.base import CallRecord, Health
from pgstream_dagster.sinks.webhook.answers import Meaning, Outcome

STORED: Final = 20
"""Of the newest attempts: the progress is stored every few seconds."""


@dataclass(frozen=True, slots=True)
class Attempt:
    """One call: when, what for, how it ended. `reason` holds no header and no secret."""

    at: datetime
    message_id: str
    change_count: int
    seconds: float
    outcome: Outcome
    status: int | None = None
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Delivery:
    """A subscription's deliveries since its reader began."""

    delivered_changes: int
    attempts: int
    refused: int
    not_now: int
    failures_in_row: int
    failing_since: datetime | None
    last_delivered_at: datetime | None
    recent: tuple[Attempt, ...]  # the newest last


def attempt_of(
    began: float, ended: float, message_id: str, change_count: int, result: Meaning
) -> Attempt:
    """A call; times in seconds since 1970."""
    return Attempt(
        datetime.fromtimestamp(began, UTC),
        message_id,
        change_count,
        max(0.0, ended - began),
        result.outcome,
        result.status,
        result.reason,
    )


class History:
    """Takes attempts from any thread."""

    def __init__(self, size: int) -> None:
        self._lock = threading.Lock()
        self._recent: deque[Attempt] = deque(maxlen=size)
        self._counts: Counter[Outcome] = Counter()
        self._delivered_changes = 0
        self._failures_in_row = self._refused_in_row = 0
        self._failing_since: datetime | None = None
        self._failing_id = ""
        self._last_delivered_at: datetime | None = None

    def restore(self, health: Health) -> None:
        """Go on from what was stored."""
        with self._lock:
            self._recent.extend(map(_attempt, health.calls))
            self._failures_in_row, self._refused_in_row = health.failures, health.refusals
            self._failing_since = _instant(health.failing_since)
            self._failing_id = health.failing_id
            self._last_delivered_at = _instant(health.delivered_at)

    def health(self) -> Health:
        """What `restore` takes."""
        with self._lock:
            since, delivered = self._failing_since, self._last_delivered_at
            newest = list(islice(reversed(self._recent), STORED))
            return Health(
                self._failures_in_row,
                self._refused_in_row,
                None if since is None else since.timestamp(),
                self._failing_id,
                None if delivered is None else delivered.timestamp(),
                calls=tuple(map(_record, reversed(newest))),
            )

    def add(
        self, began: float, ended: float, message_id: str, change_count: int, result: Meaning
    ) -> Attempt:
        """Record a call; times in seconds since 1970."""
        now = datetime.fromtimestamp(ended, UTC)
        attempt = attempt_of(began, ended, message_id, change_count, result)
        at = attempt.at
        with self._lock:
            self._recent.append(attempt)
            self._counts[result.outcome] += 1
            if result.outcome is Outcome.DELIVERED:
                self._delivered_changes += change_count
                self._failures_in_row, self._failing_since, self._failing_id = 0, None, ""
                self._refused_in_row = 0
                self._last_delivered_at = now
            else:
                self._failures_in_row += 1
                self._refused_in_row += result.outcome is Outcome.REFUSED
                self._failing_since = self._failing_since or at
                self._failing_id = self._failing_id or message_id
        return attempt

    def delivery(self) -> Delivery:
        """All of it, at one moment."""
        with self._lock:
            return Delivery(
                self._delivered_changes,
                self._counts.total(),
                self._counts[Outcome.REFUSED],
                self._counts[Outcome.NOT_NOW],
                self._failures_in_row,
                self._failing_since,
                self._last_delivered_at,
                tuple(self._recent),
            )

    def failing(self) -> tuple[int, datetime | None]:
        """Failures in a row, and when the first of them was."""
        with self._lock:
            return self._failures_in_row, self._failing_since


def _instant(seconds: float | None) -> datetime | None:
    return None if seconds is None else datetime.fromtimestamp(seconds, UTC)


def _record(attempt: Attempt) -> CallRecord:
    return CallRecord(
        attempt.at.timestamp(),
        attempt.message_id,
        attempt.change_count,
        attempt.seconds,
        attempt.outcome.value,
        attempt.status,
        attempt.reason,
    )


def _attempt(record: CallRecord) -> Attempt:
    return Attempt(
        datetime.fromtimestamp(record.at, UTC),
        record.message_id,
        record.changes,
        record.seconds,
        Outcome(record.outcome),
        record.status,
        record.reason,
    )
