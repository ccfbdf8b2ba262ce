"""
What people ask of sinks, and what they see of them: status, pause, reset, redrive, replay.

A request is a row in the lake that the delivering process reads within a second. Where none runs,
the command takes the sink's lease and does it itself.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial
from typing import Final

import msgspec

from pgstream_dagster.changelog.replay import end_before
from pgstream_dagster.changelog.sink_letters import SinkLetter, SinkLetterState
from pgstream_dagster.delta import jvm
from pgstream_dagster.errors import (
    InvalidPattern,
    InvalidPosition,
    NoSuchSink,
    NoSuchSubscription,
    PgstreamError,
    ReplayRefused,
    SinkHeld,
    SinkPaused,
    SinkUnreachable,
    SubscriptionDisabled,
)
from pgstream_dagster.lsn import Lsn
from pgstream_dagster.named import named
from pgstream_dagster.patterns import TablePattern
from pgstream_dagster.pipeline import OpenPipeline, Pipeline
from pgstream_dagster.sinks import state
from pgstream_dagster.sinks.event_position import event_position, event_tables, is_event_id
from pgstream_dagster.sinks.follow import Followed, SinkSession, following
from pgstream_dagster.sinks.run import is_running, opened
from pgstream_dagster.sinks.state import Progress, Replay
from pgstream_dagster.sinks.targets import fingerprint, modifiers, targets
from pgstream_dagster.stop import Stop

WAIT_SECONDS: Final = 1.5 * state.LEASE_SECONDS  # a holder that is gone has lost its lease then
POLL_SECONDS: Final = 0.2


@dataclass(frozen=True, slots=True)
class SinkStatus:
    """
    One sink; `lag_bytes` of WAL are in the log and not delivered.

    `position` is `None` before the first start. `lag_seconds`: since the last delivered commit, or
    since everything was delivered; 0 while everything is. `refused` and `held` count open dead
    letters. `health` is what a webhook has recorded of its last calls.
    """

    sink: str
    target: str
    position: Lsn | None
    lag_bytes: int | None
    lag_seconds: float | None
    delivered_commit_at: datetime | None
    changes: int
    refused: int
    held: int
    is_running: bool
    is_paused: bool
    error: str | None
    health: Mapping[str, object]

    @property
    def state(self) -> str:
        """In a word."""
        if self.is_paused:
            return "paused"
        if self.error is not None:
            return "waiting" if self.is_running else "failed"
        return "running" if self.is_running else "not running"


@named
def sink_status(pipeline: Pipeline, sinks: Sequence[str] = ()) -> list[SinkStatus]:
    """The named sinks, or every one of the pipeline file; changes nothing."""
    with opened(pipeline, creates=False) as session:
        names = sinks or pipeline.config.sinks
        return _statuses(session, [name for sink in names for name in _shown(session, sink)])


def _statuses(session: SinkSession, readers: Sequence[str]) -> list[SinkStatus]:
    letters = session.letters.counts()
    return [_status(session, reader, letters.get(reader, Counter())) for reader in readers]


def _status(session: SinkSession, name: str, letters: Counter[SinkLetterState]) -> SinkStatus:
    progress, asked = state.progress(session.log, name), state.request(session.log, name)
    cursor, watermark = progress.cursor, session.opened.watermark() or Lsn(0)
    committed = progress.committed_at_us
    lag_bytes, lag_seconds = lag_of(progress, watermark)
    return SinkStatus(
        sink=name,
        target=session.opened.pipeline.config.sink(name).target,
        position=None if cursor is None else cursor.watermark,
        lag_bytes=lag_bytes,
        lag_seconds=lag_seconds,
        delivered_commit_at=None if committed is None else _instant(committed),
        changes=progress.changes,
        refused=letters[SinkLetterState.REFUSED],
        held=letters[SinkLetterState.HELD],
        is_running=is_running(progress),
        is_paused=asked.is_paused,
        error=progress.error,
        health=msgspec.to_builtins(progress.health),
    )


@dataclass(frozen=True, slots=True)
class DeliveredEvents:
    """
    What a reader of the outbox has delivered: all events of its stream before a position.

    Dead letters count: the lake keeps them; `has_all` is false while there are any. Position 0 is
    that of a reader that has not taken in the newest copy of the table of events yet, or waits for
    one behind a gap, or is to begin again. `log_id` is of the log that it reads, `generation` grows
    with every reset.
    """

    stream: int
    generation: int
    before: Lsn
    log_id: str
    has_all: bool = True


@named
def delivered_events(pipeline: Pipeline) -> dict[str, DeliveredEvents]:
    """What each reader of the outbox has delivered."""
    with opened(pipeline, creates=False) as session:
        delivered = {
            reader: _delivered(session, reader, stream)
            for sink, stream in pipeline.config.outbox_streams.items()
            for reader in _shown(session, sink)
        }
        letters = session.letters.counts()  # after the positions: a letter is stored before those
        return {
            reader: replace(events, has_all=not letters.get(reader))
            for reader, events in delivered.items()
        }


def _delivered(session: SinkSession, reader: str, stream: int) -> DeliveredEvents:
    generation = state.request(session.log, reader).generation
    before = _delivered_before(session, reader, generation)
    return DeliveredEvents(stream, generation, before, log_id=session.opened.log_id)


def _delivered_before(session: SinkSession, reader: str, generation: int) -> Lsn:
    cursor = state.progress(session.log, reader).cursor
    if cursor is None or cursor.pending is not None or cursor.epoch != session.opened.epoch:
        return Lsn(0)
    if cursor.generation < generation:
        return Lsn(0)
    tables = event_tables(session.opened)
    has_all = tables and all(cursor.copies.get(oid, -1) >= at for oid, at in tables.items())
    return cursor.end if has_all and not cursor.gaps else Lsn(0)


@named
def sink_letters(pipeline: Pipeline, sink: str, *, with_contents: bool = False) -> list[SinkLetter]:
    """The changes that a sink's target refused, and those that wait behind them."""
    pipeline.config.sink(sink)
    with opened(pipeline) as session:
        letters = [session.letters.open(reader) for reader in _started(session, sink)]
        if with_contents:
            letters = [session.letters.with_content(of_reader) for of_reader in letters]
        return [letter for of_reader in letters for letter in of_reader]


@named
def pause(pipeline: Pipeline, sink: str) -> list[SinkStatus]:
    """
    Deliver nothing to a sink, or to one subscription, until `resume`; its changes wait in the log.

    With the name of the sink, subscriptions that start later are paused, too.

    Raises:
        NoSuchSink, NoSuchSubscription, NotSetUp
    """
    pipeline.config.sink(sink)
    with opened(pipeline) as session:
        _readers(session, sink)
        state.ask(session.log, sink, is_paused=True)
        return _statuses(session, _shown(session, sink))


@named
def resume(pipeline: Pipeline, sink: str) -> list[SinkStatus]:
    """
    Deliver to a sink again, with all its subscriptions, or to one of them.

    Raises:
        NoSuchSink, NoSuchSubscription, NotSetUp
        SinkPaused: one of them, and the whole sink is paused.
    """
    pipeline.config.sink(sink)
    with opened(pipeline) as session:
        for reader in (sink, *_readers(session, sink)):
            if state.request(session.log, reader).is_paused:
                state.ask(session.log, reader, is_paused=False)
        _require_active(session, sink)
        return _statuses(session, _shown(session, sink))


@named
def reset(pipeline: Pipeline, sink: str, start: str) -> list[SinkStatus]:
    """
    Let a sink begin again: at `copy` (the rows of every copy first), `now`, a position or a time.

    What it delivered before comes again, with the same event ids. The dead letters of what comes
    again are closed when it begins; those of earlier changes stay.

    Raises:
        NoSuchSink, NoSuchSubscription, NotSetUp
        InvalidPosition: `start` is none of these.
        ReplayRefused: it is a position, and the target has rows.
    """
    config = pipeline.config.sink(sink)
    with opened(pipeline) as session:
        readers = _readers(session, sink)
        if not readers:
            raise NoSuchSubscription(sink, readers)
        start = position(session.opened, start)
        if config.postgres is not None and start not in ("copy", "now"):
            raise ReplayRefused(sink)
        for reader in readers:
            number = state.request(session.log, reader).generation + 1
            asked = {"generation": number, "start": start, "delivered_before": None}
            state.ask(session.log, reader, **asked)
        return _statuses(session, readers)


@named
def redrive(pipeline: Pipeline, sink: str, *, stop: Stop | None = None) -> list[SinkStatus]:
    """
    Deliver the dead letters of a sink again, in order; its status after that.

    Raises:
        NoSuchSink, NoSuchSubscription, SubscriptionDisabled, NotSetUp, SinkPaused
        ReplayRefused: the target has rows, and later changes of theirs may have been delivered.
        Cancelled: asked to stop; the process that delivers next continues with it.
    """
    config = pipeline.config.sink(sink)
    if config.postgres is not None and config.on_failure == "skip":
        raise ReplayRefused(sink)
    with opened(pipeline) as session:
        return _of_each(session, sink, partial(_redrive, stop=stop or Stop()))


def _redrive(session: SinkSession, reader: str, *, stop: Stop) -> None:
    number = state.request(session.log, reader).redrives + 1
    state.ask(session.log, reader, redrives=number)
    _serve(session, reader, lambda progress: progress.redriven >= number, stop)


@named
def replay(
    pipeline: Pipeline,
    sink: str,
    start: str,
    until: str = "now",
    tables: tuple[str, ...] = (),
    *,
    stop: Stop | None = None,
) -> list[SinkStatus]:
    """
    Deliver a part of the log to a sink once more, up to what it has received already.

    Of `tables` those that the sink receives. The sink's position stays. `now` as the end is where
    the sink is when it delivers the part, so that no older state of a row comes last. Changes have
    the event ids that they had before.

    Raises:
        NoSuchSink, NoSuchSubscription, SubscriptionDisabled, NotSetUp, SinkPaused
        InvalidPosition: `start` or `until` is no position, time, `copy`, `now` or id of an event.
        NoSuchEvent: the log has no event of this id.
        InvalidPattern: one of `tables` is none.
        ReplayRefused: the target has rows, which former changes would take back.
        Cancelled: asked to stop; the process that delivers next continues with it.
    """
    if pipeline.config.sink(sink).postgres is not None:
        raise ReplayRefused(sink)
    _require_patterns(tables)
    with opened(pipeline) as session:
        end = position(session.opened, until)
        if end == "copy":
            raise InvalidPosition(until)
        part = Replay(0, position(session.opened, start), end, tables)
        return _of_each(session, sink, partial(_replay, part=part, stop=stop or Stop()))


def _replay(session: SinkSession, reader: str, *, part: Replay, stop: Stop) -> None:
    last = state.request(session.log, reader).replay
    number = 1 if last is None else last.number + 1
    state.ask(session.log, reader, replay=msgspec.structs.replace(part, number=number))
    _serve(session, reader, lambda progress: progress.replayed >= number, stop)


def _require_patterns(tables: Sequence[str]) -> None:
    for table in tables:
        try:
            TablePattern.parse(table)
        except ValueError as error:
            raise InvalidPattern(str(error)) from None


def position(opened: OpenPipeline, text: str) -> str:
    """
    `copy`, `now` or a position as they are; of a time, the end of the last commit before it.

    The id of an event of the outbox stands for its commit.

    Raises:
        InvalidPosition, NoSuchEvent
    """
    if text in ("copy", "now"):
        return text
    if text == "start":
        return "copy"
    if is_event_id(text):
        return event_position(opened, text)
    try:
        return str(Lsn.parse(text))
    except ValueError:
        pass
    try:
        at = datetime.fromisoformat(text)
    except ValueError:
        raise InvalidPosition(text) from None
    spark, lake = jvm.spark(opened.pipeline.jvm), opened.pipeline.lake
    return str(end_before(spark, lake, opened.epoch, at))


def _of_each(
    session: SinkSession, sink: str, serve: Callable[[SinkSession, str], None]
) -> list[SinkStatus]:
    """
    Serve a request to the readers of a sink that make deliveries now; the status of all of them.

    One that fails or is paused keeps no other from it: its error is raised after the last. One that
    is disabled or was removed is left out.

    Raises:
        SinkPaused, SubscriptionDisabled, NoSuchSubscription: it is the one that was named.
    """
    readers, name = _started(session, sink), sink.partition(".")[0]
    _require_active(session, sink)
    pipeline = session.opened.pipeline
    with closing(targets(pipeline, name, pipeline.environment, Stop(), serves=False)) as every:
        active = every.readers()
    if sink in readers and sink not in active:
        reason = state.progress(session.log, sink).health.disabled
        raise SubscriptionDisabled(sink, reason) if reason else NoSuchSubscription(sink, [*active])
    errors: list[PgstreamError] = []
    for reader in filter(active.__contains__, readers):
        try:
            _require_active(session, reader)
            serve(session, reader)
        except PgstreamError as error:
            errors.append(error)
    if errors:
        raise errors[0]
    return _statuses(session, readers)


def _require_active(session: SinkSession, reader: str) -> None:
    if state.request(session.log, reader).is_paused:
        sink = reader.partition(".")[0]
        raise SinkPaused(reader, sink if state.request(session.log, sink).is_paused else reader)


def _serve(session: SinkSession, sink: str, is_done: state.IsDone, stop: Stop) -> None:
    """
    Wait until the process that delivers has served a request, or serve it here if none runs.

    Raises:
        SinkPaused: it is paused meanwhile, and serves the request after that.
        SinkUnreachable: the process did not serve it in time; it will when it can.
        Cancelled
    """
    deadline = time.monotonic() + WAIT_SECONDS
    while not is_done(state.progress(session.log, sink)):
        _require_active(session, sink)
        try:
            _serve_here(session, sink, stop)
        except SinkHeld as held:
            if time.monotonic() > deadline:
                reason = f"process {held.holder} has not served the request yet"
                raise SinkUnreachable(sink, reason) from held
            stop.sleep(POLL_SECONDS)
            continue
        if not is_done(state.progress(session.log, sink)):
            reason = (
                "changes of the former source are not delivered yet; 'pgstream sink run' delivers"
                " them, then it serves the request"
            )
            raise SinkUnreachable(sink, reason)


def _serve_here(session: SinkSession, sink: str, stop: Stop) -> None:
    """
    Take the sink's lease and serve its requests.

    Raises:
        SinkHeld: a process delivers for it.
        NoSuchSubscription: it is disabled, or was removed.
    """
    pipeline = session.opened.pipeline
    config, environment = pipeline.config.sink(sink), pipeline.environment
    modify = partial(modifiers, session.opened, config, environment)
    rules = partial(fingerprint, pipeline, config, environment)
    every = targets(pipeline, sink.partition(".")[0], environment, stop, serves=False)
    with closing(every):
        readers = every.readers()
        if sink not in readers:
            raise NoSuchSubscription(sink, sorted(readers))
        followed = Followed(
            *(sink, config, readers[sink]), modify=modify, rules=rules, is_patient=False
        )
        with following(session, followed, stop) as follower:
            follower.serve()


def _readers(session: SinkSession, sink: str) -> list[str]:
    """
    The readers of a sink: itself, or those of a webhook's subscriptions; or the one that is named.

    Of subscriptions in the table, those that have started and were not removed.

    Raises:
        NoSuchSink, NoSuchSubscription
    """
    name, config = sink.partition(".")[0], session.opened.pipeline.config
    webhook = config.sink(sink).webhook
    if webhook is None:
        if sink != name:
            raise NoSuchSink(sink, sorted(config.sinks))
        return [sink]
    listed = [f"{name}.{subscription}" for subscription in webhook.subscriptions]
    readers = listed or [r for r in session.log.sinks() if r.startswith(f"{name}.")]
    if sink not in (name, *readers):
        raise NoSuchSubscription(sink, readers)
    return readers if sink == name else [sink]


def _started(session: SinkSession, sink: str) -> list[str]:
    """The same, without subscriptions of the file that have not started."""
    started = {sink.partition(".")[0], *session.log.sinks()}
    return [reader for reader in _readers(session, sink) if reader in started]


def _shown(session: SinkSession, sink: str) -> list[str]:
    """The readers of a sink; itself if there are none, or if they were not known at its start."""
    readers = _started(session, sink)
    has_problem = sink not in readers and state.progress(session.log, sink).error is not None
    return [sink, *readers] if has_problem or not readers else readers


def lag_of(progress: Progress, watermark: Lsn) -> tuple[int | None, float | None]:
    """How far a sink is behind the log's watermark, in bytes and in seconds; `None`: not known."""
    if progress.cursor is None:
        return None, None
    lag_bytes = max(0, watermark - progress.cursor.watermark)
    if not lag_bytes:
        return 0, 0.0
    committed = (progress.committed_at_us or 0) / 1e6
    since = max(committed, progress.current_at or 0.0)
    return lag_bytes, max(0.0, time.time() - since) if since else None


def _instant(microseconds: int) -> datetime:
    return datetime.fromtimestamp(microseconds / 1e6).astimezone()
