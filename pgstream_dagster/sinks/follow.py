"""
One sink in a thread of its own: reads the log, delivers, stores the progress.

Progress is stored after delivery, also that of a part of a batch where delivery takes long. So a
change may be delivered twice after a crash but never left out; a sink whose target keeps the cursor
delivers each change once. An outage of the target holds up this sink only, is waited for without a
limit, and is shown in the sink's state.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Final, TypeAlias

import msgspec

from pgstream_dagster.backoff import waits
from pgstream_dagster.changelog.sink_letters import SinkLetters
from pgstream_dagster.changelog.sink_log import SinkLog
from pgstream_dagster.config.sinks import SinkConfig
from pgstream_dagster.delta import faults
from pgstream_dagster.errors import (
    PgstreamError,
    Retry,
    SinkLost,
    SinkUnreachable,
    TooManyLetters,
    TooManyRefused,
)
from pgstream_dagster.failpoints import reach
from pgstream_dagster.lsn import Lsn
from pgstream_dagster.modifiers import Modifiers
from pgstream_dagster.patterns import TablePattern
from pgstream_dagster.pipeline import OpenPipeline
from pgstream_dagster.readers.change import Change, ChangeBatch, of_operation
from pgstream_dagster.readers.change_reader import ChangeReader, Selection
from pgstream_dagster.readers.cursor import Cursor, Intake, Pending
from pgstream_dagster.readers.part import cursor_within
from pgstream_dagster.readers.sorted_rows import remove
from pgstream_dagster.schema.changes import Op
from pgstream_dagster.sinks import state
from pgstream_dagster.sinks.base import MakesTables, NotNow, Sink, WithHealth
from pgstream_dagster.sinks.delivery import Delivery, Guard
from pgstream_dagster.sinks.events import Events
from pgstream_dagster.sinks.start import Start, beginning, of_epoch
from pgstream_dagster.sinks.state import Progress, Replay, Request, SinkLease
from pgstream_dagster.sinks.table_filter import TableFilter
from pgstream_dagster.stop import Cancelled

logger = logging.getLogger(__name__)

SAVE_SECONDS: Final = 2.0
"""Between saves of the progress while changes arrive: each is a commit of 40 ms."""

REQUEST_SECONDS: Final = 1.0
"""Between checks of what people ask."""

READ_SECONDS: Final = 0.2

FIRST_WAIT_SECONDS: Final = 0.2
LONGEST_WAIT_SECONDS: Final = 30.0

AGAIN_SECONDS: Final = 60.0
"""Until a sink is tried again that only a person can fix."""


Conversion: TypeAlias = Callable[[Change], "Change | None"]
"""What leaves of a change; `None`: nothing."""


class _Asked(Exception):
    """A person has asked for something else while a batch was being delivered."""


@dataclass(frozen=True, slots=True)
class SinkSession:
    """An open pipeline and the tables of its sinks; all threads share it."""

    opened: OpenPipeline
    log: SinkLog
    letters: SinkLetters


@dataclass(frozen=True, slots=True)
class Followed:
    """
    One sink, as the pipeline file describes it.

    `make` gives its target, again after each error; `report` is called with its progress; `modify`
    gives what changes the columns of its changes, and `rules` the fingerprint of that.
    `is_patient`: whether a target that is away is waited for.
    """

    name: str
    config: SinkConfig
    make: Callable[[], Sink]
    report: Callable[[Progress], None] = lambda _: None
    modify: Callable[[], Modifiers | None] = lambda: None
    rules: Callable[[], str] = lambda: ""
    is_patient: bool = True


def follow(session: SinkSession, followed: Followed, stop: threading.Event) -> None:
    """Deliver the changes of one sink until `stop` is set, whatever fails meanwhile."""
    pauses = waits(FIRST_WAIT_SECONDS, LONGEST_WAIT_SECONDS)
    stored = Progress()
    while not stop.is_set():
        follower: _Follower | None = None
        try:
            with faults.named(session.opened.pipeline.lake.change_log):
                stored = state.progress(session.log, followed.name)
                with following(session, followed, stop) as follower:
                    while not stop.is_set() and follower.tick():
                        stored = follower.stored
                        pauses = waits(FIRST_WAIT_SECONDS, LONGEST_WAIT_SECONDS)
        except Cancelled:
            return
        except (TooManyRefused, TooManyLetters) as error:
            logger.warning("%s", error)
            followed.report(msgspec.structs.replace(stored, error=str(error)))
            if follower is not None:
                _wait_for_another(follower.request, session, followed.name, stop)
        except PgstreamError as error:
            seconds = next(pauses) if error.retry is Retry.LATER else AGAIN_SECONDS
            # As text: a handler may keep records, and an error keeps its target's connections.
            logger.warning("%s; trying again in %.1f s", str(error), seconds)
            # Not what is stored now: the lake may be what is away.
            followed.report(msgspec.structs.replace(stored, error=str(error)))
            stop.wait(seconds)


def _wait_for_another(
    request: Request, session: SinkSession, sink: str, stop: threading.Event
) -> None:
    """Until a person asks for something else: to try again would only add dead letters."""
    while not stop.wait(REQUEST_SECONDS):
        try:
            with faults.named(session.opened.pipeline.lake.change_log):
                if state.request(session.log, sink) != request:
                    return
        except PgstreamError as error:
            logger.info("what is asked of sink %s is not known now: %s", sink, error)


@contextmanager
def following(
    session: SinkSession, followed: Followed, stop: threading.Event
) -> Generator[_Follower]:
    """One opening of a sink's target, under its lease, which says at the end what went wrong."""
    lease = SinkLease(session.log, followed.name)
    problem: str | None = None
    follower: _Follower | None = None
    sink: Sink | None = None
    try:
        remove(session.opened.pipeline.lake, files_of(session, followed.name))
        sink = followed.make()
        follower = _Follower(session, followed, sink, lease, stop)
        yield follower
    except PgstreamError as error:
        problem = str(error)
        raise
    finally:
        if sink is not None:
            sink.close()
        progress = {} if follower is None else follower.progress()
        try:
            lease.release(**progress | {"error": problem})
        except PgstreamError as error:  # what is not stored is delivered again
            logger.info("the progress of sink %s is not stored: %s", followed.name, error)
        if follower is not None:
            follower.close()


def files_of(session: SinkSession, sink: str) -> str:
    """The folder for the sorted rows of a sink's readers."""
    return f"{session.opened.pipeline.name}/{sink}"


class _Follower:
    """One sink, from one opening of its target until it fails."""

    def __init__(
        self,
        session: SinkSession,
        followed: Followed,
        sink: Sink,
        lease: SinkLease,
        stop: threading.Event,
    ) -> None:
        self._session, self._followed, self._lease, self._stop = session, followed, lease, stop
        self._name = followed.name
        self._request = state.request(session.log, followed.name)
        self._saved_at = self._asked_at = time.monotonic()
        self._has_news, self._counted = False, 0
        self._is_serving = False
        self._modifiers = followed.modify()
        self._convert = _conversion(
            followed.config, self._modifiers, self._request.delivered_before
        )
        self._sink = sink
        start = Start(
            *(session.opened, self._name, self._request, followed.config, lease.progress.cursor)
        )
        if isinstance(sink, MakesTables):
            history = session.opened.schema_log.history
            sink.make_tables_of(session.opened.epoch, self._modifiers, history, start.leaves_log)
        if isinstance(sink, WithHealth):
            sink.restore(lease.progress.health)
        kept = sink.open()
        self._keeps_cursor = sink.keeps_cursor
        if self._keeps_cursor:
            start.require_kept(kept)
        cursor = start.cursor(kept)
        self._delivery = Delivery(
            *(followed.name, followed.config, sink, session.letters),
            Guard(stop, lease.require, self._wait),
            rules=followed.rules(),
        )
        if kept is not None and not start.leaves_log(kept):
            self._delivery.settle(Cursor.from_json(kept).redriven)
        if start.is_reset:
            self._delivery.restart(cursor)
        self._reader = self._make_reader(cursor)
        self._delivered = cursor
        if start.replaces(kept):  # before the lake has it: the older one must not count again
            self._delivery.deliver(ChangeBatch(cursor=cursor.to_json()))
        # A sink that starts now continues from there, whatever happens next. What went wrong before
        # is over with the first tick.
        self._save(error=lease.progress.error)

    def tick(self) -> bool:
        """Deliver what is next; false if the sink must be opened again."""
        try:
            return not self._is_changed() and self._goes_on()
        except _Asked:
            return False

    def _goes_on(self) -> bool:
        """Deliver what is next; false at the end of an epoch."""
        if self._request.is_paused:
            self._lease.require()
            self._stop.wait(REQUEST_SECONDS)
            return True
        cursor = self._reader.cursor
        if not self._keeps_cursor or (cursor.place is None and cursor.pending is None):
            self.serve()  # else the target may be in the middle of a transaction
        batch = self._reader.read(READ_SECONDS)
        if batch is not None:
            self._deliver(batch)
        elif self._reader.cursor.epoch != self._session.opened.epoch:
            return False  # all of the former epoch is delivered
        else:
            self._lease.note(current_at=time.time())
            if self._is_unsaved and time.monotonic() - self._saved_at >= SAVE_SECONDS:
                self._save()
        self._lease.require()
        return True

    @property
    def request(self) -> Request:
        """What people ask, as it was read last."""
        return self._request

    @property
    def stored(self) -> Progress:
        """The progress as it was stored last."""
        return self._lease.progress

    @property
    def _is_unsaved(self) -> bool:
        return self._has_news or self._lease.progress.error is not None

    def progress(self) -> dict[str, object]:
        """What is stored of the progress."""
        stored: dict[str, object] = {
            "cursor": self._delivered,
            "refused": self._delivery.refused,
            "error": None,
        }
        health = {"health": self._sink.health()} if isinstance(self._sink, WithHealth) else {}
        return stored | health

    def close(self) -> None:
        """Leave nothing behind in the lake."""
        if self._modifiers is not None:
            self._modifiers.close()
        self._reader.close()

    def _make_reader(self, cursor: Cursor) -> ChangeReader:
        config, name = self._followed.config, files_of(self._session, self._name)
        opened = of_epoch(self._session.opened, cursor.epoch)
        selection = replace(selection_of(config), takes_back=True)
        if isinstance(self._sink, MakesTables) and Op.READ in selection.operations:
            selection = replace(selection, operations=selection.operations | {Op.COPY, Op.DDL})
        return ChangeReader(opened, name, cursor, selection, config.max_queue_bytes)

    def _is_changed(self) -> bool:
        """Whether people asked for another start, or for a pause."""
        now = time.monotonic()
        if now - self._asked_at >= REQUEST_SECONDS:
            self._asked_at, before = now, self._request
            self._request = state.request(self._session.log, self._name)
            if self._request.generation != before.generation:
                return True
            if self._request.is_paused and not before.is_paused:
                return True  # a target's transaction must not stay open meanwhile
        return False

    def _require_same(self) -> None:
        """
        Between two calls of a batch: end it if people asked for something else.

        Raises:
            _Asked: so it is; `SinkLost` if `followed` does not wait.
        """
        before = self._request
        is_changed = self._is_changed()
        has_more = (self._request.redrives, self._request.replay) != (
            before.redrives,
            before.replay,
        )
        if is_changed or (has_more and not self._is_serving):
            raise _Asked if self._followed.is_patient else SinkLost(self._name)

    def _wait(self, verdict: NotNow) -> None:
        """
        Show what is waited for.

        Raises:
            _Asked, SinkLost: as `_require_same`.
            SinkUnreachable: the target is away, and `followed` does not wait for it.
        """
        self._require_same()
        unreachable = SinkUnreachable(self._name, verdict.reason)
        if verdict.is_away and not self._followed.is_patient:
            raise unreachable
        if time.monotonic() - self._saved_at >= SAVE_SECONDS:
            self._save(error=str(unreachable))
            self._followed.report(self._lease.progress)

    def _deliver(self, batch: ChangeBatch) -> None:
        batch, before = _converted(batch, self._convert), self._delivered
        self._lease.require()
        self._end_letters(batch)
        self._counted = self._lease.progress.changes
        count = self._delivery.deliver(batch, passed=partial(self._passed, before))
        if batch.ends_transaction or not self._keeps_cursor:  # else it may still be rolled back
            self._delivered = self._reader.cursor
        reach("sink.delivered")
        self._count(count, batch.changes)
        if time.monotonic() - self._saved_at >= SAVE_SECONDS:
            self._save()

    def _end_letters(self, batch: ChangeBatch) -> None:
        """End the dead letters of tables that begin again: all of their changes come again."""
        begun = {(c.epoch, c.relation_id) for c in of_operation(batch.changes, Op.COPY)}
        if begun:
            self._delivery.begin_again(begun)

    def _passed(self, before: Cursor, changes: Sequence[Change], count: int) -> None:
        """
        The first changes of a batch after a cursor are done with.

        Raises:
            _Asked, SinkLost: as `_require_same`.
        """
        if self._counted + count > self._lease.progress.changes:  # else it waits, which is shown
            cursor = cursor_within(before, self._reader.cursor, changes[-1]) if changes else None
            self._delivered = cursor or self._delivered
            self._count(count, changes)
            if time.monotonic() - self._saved_at >= SAVE_SECONDS:
                self._save()
        self._require_same()

    def _count(self, count: int, changes: Sequence[Change]) -> None:
        """Show how many changes of a batch were delivered, and up to which of them."""
        progress = self._lease.progress
        committed = next((change.committed_at_us for change in changes[-1:]), None)
        self._lease.note(
            changes=self._counted + count,
            committed_at_us=committed or progress.committed_at_us,
        )
        self._has_news = True
        self._followed.report(msgspec.structs.replace(self._lease.progress, **self.progress()))

    def serve(self) -> None:
        """Do what people asked for: deliver dead letters, or a part of the log, once more."""
        if self._reader.cursor.epoch != self._session.opened.epoch:
            return  # positions that people give are of the new epoch
        served, asked, replay = self._lease.progress, self._request, self._request.replay
        self._is_serving = True
        if asked.redrives > served.redriven:
            count = self._delivery.redrive(self._reader.cursor)
            logger.info("sink %s: %d dead letters delivered", self._name, count)
            self._lease.save(redriven=asked.redrives, **self.progress())
        if replay is not None and replay.number > served.replayed:
            self._replay(replay)
            self._lease.save(replayed=replay.number, replaying=None, **self.progress())
        self._is_serving = False

    def _replay(self, replay: Replay) -> None:
        """
        Deliver a part of the log once more, in order; nothing else is delivered meanwhile.

        It continues where it was when it was ended.
        """
        opened, config = self._session.opened, self._followed.config
        until = self._reader.cursor.end
        if replay.until != "now":
            until = min(Lsn.parse(replay.until), until)
        cursor = self._begun(replay) or beginning(opened, 0, replay.start)
        name, position = files_of(self._session, self._name), self._reader.cursor.to_json()
        convert = _conversion(config, self._modifiers, None)  # events of a former log, too
        selection = _narrowed(selection_of(config), replay.tables)
        reader = ChangeReader(opened, name, cursor, selection, config.max_queue_bytes)
        with closing(reader), self._delivery.replaying(cursor):
            while (batch := reader.read(0.0)) is not None:
                self._lease.require()
                changes = [c for c in batch.changes if _is_before(c, until, reader.cursor.pending)]
                part = _converted(ChangeBatch(changes, position), convert)
                self._counted = self._lease.progress.changes
                passed = partial(self._replayed, replay, cursor, reader)
                count = self._delivery.deliver(part, passed=passed)
                cursor = reader.cursor
                self._note_replayed(replay, cursor, count, part.changes)
                if self._stop.is_set():
                    raise Cancelled
                if reader.cursor.watermark >= until and reader.is_whole:
                    return

    def _begun(self, replay: Replay) -> Cursor | None:
        """How far a replay is that was ended."""
        begun = self._lease.progress.replaying
        if begun is None or begun[0] != replay.number:
            return None
        return begun[1] if begun[1].epoch == self._session.opened.epoch else None

    def _replayed(
        self,
        replay: Replay,
        before: Cursor,
        reader: ChangeReader,
        changes: Sequence[Change],
        count: int,
    ) -> None:
        """
        As `_passed`, of a replay.

        Raises:
            _Asked, SinkLost: as `_require_same`.
        """
        if changes and self._counted + count > self._lease.progress.changes:
            cursor = cursor_within(before, reader.cursor, changes[-1])
            self._note_replayed(replay, cursor or before, count, changes)
        self._require_same()

    def _note_replayed(
        self, replay: Replay, cursor: Cursor, count: int, changes: Sequence[Change]
    ) -> None:
        self._lease.note(replaying=(replay.number, cursor))
        self._count(count, changes)
        if time.monotonic() - self._saved_at >= SAVE_SECONDS:
            self._save()

    def _save(self, **changes: object) -> None:
        self._lease.save(**self.progress() | changes)
        self._saved_at, self._has_news = time.monotonic(), False
        reach("sink.saved")


def _conversion(
    config: SinkConfig, modifiers: Modifiers | None, delivered_before: tuple[int, str] | None
) -> Conversion | None:
    """What makes of each change what leaves, or nothing; `None`: all of them leave as they are."""
    if config.outbox is not None:
        stream, as_rows = config.outbox.stream, config.postgres is not None
        noted_of, snapshot = delivered_before or (None, None)
        before = snapshot if noted_of == stream else None
        return Events(stream, as_rows=as_rows, delivered_before=before).of_change
    return None if modifiers is None else modifiers.change


def _converted(batch: ChangeBatch, convert: Conversion | None) -> ChangeBatch:
    """The batch as it may leave."""
    if convert is None:
        return batch
    changes = [convert(change) for change in batch.changes]
    return replace(batch, changes=[change for change in changes if change is not None])


def _is_before(change: Change, until: Lsn, pending: Pending | None) -> bool:
    """Whether a change is of what landed before a position; a difference is where its copy is."""
    if pending is not None and pending.intake is Intake.DIFFERENCES:
        return pending.points[change.relation_id] < until
    return change.place < (until, 0)


def selection_of(config: SinkConfig) -> Selection:
    """The changes that a sink receives."""
    tables = TableFilter(config.tables, config.exclude, config.schema_only)
    return Selection(tables.has_rows, frozenset(config.operations), config.copies == "rows")


def _narrowed(selection: Selection, tables: Sequence[str]) -> Selection:
    """Of what a sink receives, the tables that patterns match; all without patterns."""
    patterns = [TablePattern.parse(table) for table in tables]

    def has_table(namespace: str, name: str) -> bool:
        is_chosen = not patterns or any(p.matches(namespace, name) for p in patterns)
        return is_chosen and selection.has_table(namespace, name)

    return replace(selection, has_table=has_table)
