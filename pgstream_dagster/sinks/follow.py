"""
One sink in a thread of its own: reads the log, delivers, stores the progress.

Progress is stored after delivery, so a change may be delivered twice after a crash but never left
out; a sink whose target keeps the cursor delivers each change once. An outage of the target holds
up this sink only, is waited for without a limit, and is shown in the sink's state.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

import msgspec

from pgstream_dagster.backoff import waits
from pgstream_dagster.changelog.sink_letters import SinkLetters
from pgstream_dagster.changelog.sink_log import SinkLog
from pgstream_dagster.config.sinks import SinkConfig
from pgstream_dagster.delta import faults
from pgstream_dagster.errors import PgstreamError, Retry
from pgstream_dagster.failpoints import reach
from pgstream_dagster.patterns import TablePattern
from pgstream_dagster.pipeline import OpenPipeline
from pgstream_dagster.readers.change import ChangeBatch
from pgstream_dagster.readers.change_reader import ChangeReader, Selection
from pgstream_dagster.sinks import state
from pgstream_dagster.sinks.base import Sink
from pgstream_dagster.sinks.delivery import Delivery
from pgstream_dagster.sinks.start import first_cursor
from pgstream_dagster.sinks.state import Lease, Progress
from pgstream_dagster.stop import Cancelled

logger = logging.getLogger(__name__)

SAVE_SECONDS: Final = 2.0
"""Between saves of the progress while changes arrive: each is a commit of 40 ms."""

REQUEST_SECONDS: Final = 1.0
"""Between checks of what people ask."""

EPOCH_SECONDS: Final = 10.0
"""Between checks whether the pipeline began with another source."""

READ_SECONDS: Final = 0.2

FIRST_WAIT_SECONDS: Final = 0.2
LONGEST_WAIT_SECONDS: Final = 30.0

AGAIN_SECONDS: Final = 60.0
"""Until a sink is tried again that only a person can fix."""


@dataclass(frozen=True, slots=True)
class Followed:
    """
    One sink as its thread knows it.

    `name` is that of the pipeline file; `make` gives its target, opened anew after each error.
    """

    name: str
    config: SinkConfig
    make: Callable[[], Sink]


def follow(
    opened: OpenPipeline,
    log: SinkLog,
    letters: SinkLetters,
    followed: Followed,
    stop: threading.Event,
    report: Callable[[Progress], None],
) -> None:
    """Deliver the changes of one sink until `stop` is set, whatever fails meanwhile."""
    pauses = waits(FIRST_WAIT_SECONDS, LONGEST_WAIT_SECONDS)
    while not stop.is_set():
        try:
            with (
                faults.named(opened.pipeline.lake.change_log),
                _following(opened, log, letters, followed, stop, report) as follower,
            ):
                while not stop.is_set() and follower.tick():
                    pauses = waits(FIRST_WAIT_SECONDS, LONGEST_WAIT_SECONDS)
        except Cancelled:
            return
        except PgstreamError as error:
            seconds = next(pauses) if error.retry is Retry.LATER else AGAIN_SECONDS
            logger.warning("%s; trying again in %.1f s", error, seconds)
            report(msgspec.structs.replace(state.progress(log, followed.name), error=str(error)))
            stop.wait(seconds)


@contextmanager
def _following(
    opened: OpenPipeline,
    log: SinkLog,
    letters: SinkLetters,
    followed: Followed,
    stop: threading.Event,
    report: Callable[[Progress], None],
) -> Generator[_Follower]:
    """One opening of a sink's target, under its lease, which says at the end what went wrong."""
    lease = Lease(log, followed.name)
    problem: str | None = None
    follower: _Follower | None = None
    sink = followed.make()
    try:
        follower = _Follower(opened, log, letters, followed, sink, lease, stop, report)
        yield follower
    except PgstreamError as error:
        problem = str(error)
        raise
    finally:
        sink.close()
        progress = {} if follower is None else follower.progress()
        try:
            lease.release(**progress | {"error": problem})
        except PgstreamError as error:  # what is not stored is delivered again
            logger.info("the progress of sink %s is not stored: %s", followed.name, error)
        if follower is not None:
            follower.close()


class _Follower:
    """One sink, from one opening of its target until it fails."""

    def __init__(
        self,
        opened: OpenPipeline,
        log: SinkLog,
        letters: SinkLetters,
        followed: Followed,
        sink: Sink,
        lease: Lease,
        stop: threading.Event,
        report: Callable[[Progress], None],
    ) -> None:
        self._opened, self._log, self._report = opened, log, report
        self._name, self._config, self._stop = followed.name, followed.config, stop
        self._lease = lease
        self._request = state.request(log, followed.name)
        self._saved_at = self._asked_at = self._epoch_at = time.monotonic()
        self._has_news = False
        kept = sink.open()
        self._delivery = Delivery(followed.name, followed.config, sink, letters, stop)
        self._reader = self._make_reader(kept)

    def tick(self) -> bool:
        """Deliver what is next; false if the sink must be opened again."""
        if self._is_changed():
            return False
        if self._request.is_paused:
            self._lease.require()
            self._stop.wait(REQUEST_SECONDS)
            return True
        self._serve_redrive()
        batch = self._reader.read(READ_SECONDS)
        if batch is not None:
            self._deliver(batch)
        elif self._has_news and time.monotonic() - self._saved_at >= SAVE_SECONDS:
            self._save()
        self._lease.require()
        return True

    def progress(self) -> dict[str, object]:
        """What is stored of the progress."""
        return {"cursor": self._reader.cursor, "refused": self._delivery.refused, "error": None}

    def close(self) -> None:
        """Leave nothing behind in the lake."""
        self._reader.close()

    def _make_reader(self, kept: str | None) -> ChangeReader:
        cursor = first_cursor(
            self._opened, self._request, self._config, self._lease.progress.cursor, kept
        )
        name = f"{self._opened.pipeline.name}-{self._name}"
        selection = selection_of(self._config)
        max_bytes = self._config.max_queue_bytes
        return ChangeReader(self._opened, name, cursor, selection, max_bytes)

    def _is_changed(self) -> bool:
        """Whether people asked for another start, or the pipeline began with another source."""
        now = time.monotonic()
        if now - self._asked_at >= REQUEST_SECONDS:
            self._asked_at, before = now, self._request.generation
            self._request = state.request(self._log, self._name)
            if self._request.generation != before:
                return True
        if now - self._epoch_at >= EPOCH_SECONDS:
            self._epoch_at = now
            identity = self._opened.ledger.identity(self._opened.pipeline.name)
            return identity is not None and identity.epoch != self._reader.cursor.epoch
        return False

    def _deliver(self, batch: ChangeBatch) -> None:
        self._lease.require()
        count = self._delivery.deliver(batch)
        reach("sink.delivered")
        self._count(count, batch)
        if time.monotonic() - self._saved_at >= SAVE_SECONDS:
            self._save()

    def _count(self, count: int, batch: ChangeBatch) -> None:
        progress = self._lease.progress
        committed = batch.changes[-1].committed_at_us if batch.changes else None
        self._lease.progress = msgspec.structs.replace(
            progress,
            changes=progress.changes + count,
            committed_at_us=committed or progress.committed_at_us,
        )
        self._has_news = True
        self._report(msgspec.structs.replace(self._lease.progress, **self.progress()))

    def _serve_redrive(self) -> None:
        if self._request.redrives > self._lease.progress.redriven:
            count = self._delivery.redrive(self._reader.cursor.to_json())
            logger.info("sink %s: %d dead letters delivered", self._name, count)
            self._lease.save(redriven=self._request.redrives, **self.progress())

    def _save(self) -> None:
        self._lease.save(**self.progress())
        self._saved_at, self._has_news = time.monotonic(), False
        reach("sink.saved")


def selection_of(config: SinkConfig) -> Selection:
    """The changes that a sink receives."""
    tables = [TablePattern.parse(pattern) for pattern in config.tables]
    excluded = [TablePattern.parse(pattern) for pattern in config.exclude]

    def has_table(namespace: str, relation: str) -> bool:
        return any(p.matches(namespace, relation) for p in tables) and not any(
            p.matches(namespace, relation) for p in excluded
        )

    return Selection(has_table, frozenset(config.operations), config.copies == "rows")
