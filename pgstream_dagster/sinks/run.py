"""
The process of the sinks: one thread per sink, which none of the others can hold up.

Sinks share the open pipeline and nothing else: each reads the log from its own position. Capture
and the indexer know nothing of them.
"""

from __future__ import annotations

import logging
import threading
import time
import traceback
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from functools import partial
from typing import Final, TypeAlias

import msgspec

from pgstream_dagster import state_folder
from pgstream_dagster.changelog.sink_letters import SinkLetters
from pgstream_dagster.changelog.sink_log import SinkLog
from pgstream_dagster.changelog.table_specs import create_sinks
from pgstream_dagster.config.sinks import SinkConfig
from pgstream_dagster.delta import faults
from pgstream_dagster.errors import JvmEnded, NoSuchSink, PgstreamError, SinkFailed
from pgstream_dagster.heartbeat import HeartbeatWriter
from pgstream_dagster.named import named
from pgstream_dagster.pipeline import Pipeline
from pgstream_dagster.process_identity import has_ended, this_process
from pgstream_dagster.sinks import state
from pgstream_dagster.sinks.follow import Followed, SinkSession, follow
from pgstream_dagster.sinks.state import Progress, store_problem
from pgstream_dagster.sinks.targets import Make, Targets, fingerprint, modifiers, targets
from pgstream_dagster.stop import Stop

logger = logging.getLogger(__name__)

POLL_SECONDS: Final = 0.25
WARN_SECONDS: Final = 60.0

END_SECONDS: Final = 5.0
"""Between checks for subscriptions that were removed, whose states are to be ended."""

EPOCH_SECONDS: Final = 10.0
"""Between checks whether the pipeline began with another source."""

Report: TypeAlias = Callable[[Mapping[str, Progress]], None]


@named
def run(
    pipeline: Pipeline,
    sinks: Sequence[str] = (),
    *,
    stop: threading.Event,
    report: Report = lambda progress: None,
    environment: Mapping[str, str] | None = None,
) -> dict[str, Progress]:
    """
    Deliver to the named sinks, or to all of the pipeline file, until `stop` is set.

    Waits while a target is away, a variable that the file names is missing, or another process
    delivers for a sink; each sink by itself, and its state says why. An error without a name ends
    its sink.

    Raises:
        NoSuchSink: the file has none of this name, or none at all.
        NotSetUp: `setup` was never run.
        StateTaken: the state folder belongs to another pipeline of this name.
        SinkFailed: every sink ended by an error without a name.
    """
    names = list(sinks) or list(pipeline.config.sinks)
    if not names:
        raise NoSuchSink("", [])
    state_folder.claim(pipeline)
    variables = pipeline.environment if environment is None else environment
    ended = Stop(stop)  # also set when no sink is left
    with ExitStack() as stack:
        every = [
            _Sink(
                name,
                pipeline.config.sink(name),
                partial(targets, pipeline, name, variables, ended),
            )
            for name in names
        ]
        for sink in every:
            stack.callback(sink.close)
        heartbeat = HeartbeatWriter(pipeline.sinks_heartbeat_file)
        progress: dict[str, Progress] = {}
        while not ended.is_set():  # again when the pipeline begins with another source
            with opened(pipeline) as session:
                running = _Running(session, every, variables, ended, progress)
                running.run(heartbeat, report)
            running.raise_error()
    return progress


class _Sink:
    """
    One sink of the file and its readers; `problem` is why these are not known now.

    What is wrong with one sink, such as a missing variable, is no other's concern.
    """

    def __init__(self, name: str, config: SinkConfig, make: Callable[[], Targets]) -> None:
        self.name, self.config, self._make = name, config, make
        self.problem: str | None = None
        self.reported_at = float("-inf")
        self._targets: Targets | None = None
        self._tried_at = float("-inf")

    def readers(self) -> Mapping[str, Make]:
        """The readers as they are now; none while there is a problem."""
        if self._targets is None and time.monotonic() - self._tried_at < WARN_SECONDS:
            return {}
        try:
            if self._targets is None:
                self._tried_at = time.monotonic()
                self._targets = self._make()
            readers = self._targets.readers()
        except PgstreamError as error:
            self._set(str(error))
            return {}
        self._set(None)
        return readers

    def is_over(self, reader: str) -> bool:
        """Whether a reader is of a subscription of this sink that was removed."""
        if self._targets is None or self.problem is not None:
            return False
        return self._targets.is_over(reader)

    def close(self) -> None:
        """End what the readers share."""
        if self._targets is not None:
            self._targets.close()

    def _set(self, problem: str | None) -> None:
        if problem != self.problem:
            self.problem, self.reported_at = problem, float("-inf")
            if problem is not None:
                logger.warning("sink %s: %s", self.name, problem)


@contextmanager
def opened(pipeline: Pipeline, *, creates: bool = True) -> Generator[SinkSession]:
    """
    The tables of the sinks; with `creates` they are created if they are missing.

    Raises:
        NotSetUp: `setup` was never run.
    """
    with pipeline.open() as opened:
        if creates:
            create_sinks(pipeline.lake, opened.gateway)
        with (
            closing(SinkLog(pipeline.lake, opened.gateway)) as log,
            closing(SinkLetters(pipeline.lake, opened.gateway)) as letters,
        ):
            yield SinkSession(opened, log, letters)


class _Running:
    """The threads of all readers; a webhook's subscriptions come and go."""

    def __init__(
        self,
        session: SinkSession,
        sinks: Sequence[_Sink],
        environment: Mapping[str, str],
        stop: threading.Event,
        progress: dict[str, Progress],
    ) -> None:
        self.progress = progress
        self._epoch_at = time.monotonic()
        self._session, self._sinks, self._environment = session, sinks, environment
        self._stop = stop
        self._threads: dict[str, _Thread] = {}
        self._ending: list[_Thread] = []
        self._ended_at = float("-inf")
        self._made: dict[str, Make] = {}
        self._failed: dict[str, SinkFailed] = {}
        self._error: SinkFailed | None = None

    def run(self, heartbeat: HeartbeatWriter, report: Report) -> None:
        """Deliver until a stop, or until the pipeline begins with another source."""
        try:
            while not self._stop.is_set() and self.is_current():
                self.poll()
                report(dict(self.progress))  # the threads add to it
                if heartbeat.is_due:
                    self.beat(heartbeat)
                self._stop.wait(POLL_SECONDS)
        finally:
            self.end()

    def poll(self) -> None:
        """Start a thread for each new reader, end those of readers that are gone."""
        current: dict[str, tuple[SinkConfig, Make]] = {}
        for sink in self._sinks:
            readers = sink.readers()
            if sink.problem is not None:  # the readers that run were made before it
                readers = {name: make for name, make in self._made.items() if _is_of(sink, name)}
            current |= {name: (sink.config, make) for name, make in readers.items()}
            self._report(sink)
        self._made = {name: make for name, (_, make) in current.items()}
        for name in self._threads.keys() - current.keys():
            self._let_end(name)
        for name, (config, make) in current.items():
            if name not in self._threads:
                self._threads[name] = self._made_thread(name, config, make)
                self._threads[name].start()
        if time.monotonic() - self._ended_at >= END_SECONDS:
            self._ended_at = time.monotonic()
            self._forget_removed()
        if self._failed and self._failed.keys() >= self._threads.keys():
            self._error = next(iter(self._failed.values()))
            self._stop.set()

    def _let_end(self, name: str) -> None:
        """End the thread of a reader that is gone, after the call that it makes now."""
        thread = self._threads.pop(name)
        thread.stop.set()
        self._ending = [*filter(threading.Thread.is_alive, self._ending), thread]
        self.progress.pop(name, None)
        self._failed.pop(name, None)
        self._ended_at = float("-inf")

    def _forget_removed(self) -> None:
        """
        End the states and dead letters of subscriptions that were removed.

        Again at the next time where a thread or another process still delivers for one.
        """
        started: list[str] = []
        with self._unless_away("the readers that have started are not known"):
            started = self._session.log.sinks()
        for reader in started:
            with self._unless_away(f"the state of {reader}, which was removed, is not ended"):
                if any(sink.is_over(reader) for sink in self._sinks):
                    letters = self._session.letters
                    letters.add(letter.delivered() for letter in letters.open(reader))
                    state.end(self._session.log, reader)
                    logger.info("the state of %s is ended: it was removed", reader)

    def _report(self, sink: _Sink) -> None:
        """
        Show what keeps the readers of a sink from being known, as the sink's own error.

        Again from time to time: another process may have stored a problem that was its own.
        """
        if time.monotonic() - sink.reported_at < WARN_SECONDS:
            return
        if sink.problem is not None:
            self.progress[sink.name] = Progress(error=sink.problem)
        elif sink.name in self._threads:
            return  # it stores its own errors
        else:
            self.progress.pop(sink.name, None)
        with self._unless_away(f"the problem of sink {sink.name} is not stored"):
            if not self._is_delivered_elsewhere(sink):
                store_problem(self._session.log, sink.name, sink.problem)
            sink.reported_at = time.monotonic()

    def _is_delivered_elsewhere(self, sink: _Sink) -> bool:
        """Whether another process delivers for the sink, so that what is wrong is wrong here."""
        log = self._session.log
        stored = (state.progress(log, reader) for reader in log.sinks() if _is_of(sink, reader))
        return any(p.holder != this_process() and is_running(p) for p in stored)

    @contextmanager
    def _unless_away(self, consequence: str) -> Generator[None]:
        """Log what the lake refuses now; the end of the JVM is not waited for."""
        try:
            with faults.named(self._session.opened.pipeline.lake.change_log):
                yield
        except JvmEnded:
            raise
        except PgstreamError as error:
            logger.info("%s now: %s", consequence, error)

    def is_current(self) -> bool:
        """Whether the epoch that is followed is still the newest one of the log."""
        if time.monotonic() - self._epoch_at < EPOCH_SECONDS:
            return True
        self._epoch_at, opened = time.monotonic(), self._session.opened
        identity = None  # the threads wait for a lake that is away
        with self._unless_away("the epoch of the log is not known"):
            identity = opened.ledger.identity(opened.pipeline.name)
        return identity is None or identity.epoch == opened.epoch

    def beat(self, heartbeat: HeartbeatWriter) -> None:
        """Report that the process is alive."""
        progress = dict(self.progress)  # the threads add to it
        changes = sum(sink.changes for sink in progress.values())
        errors = {name: sink.error for name, sink in progress.items() if sink.error}
        heartbeat.say("delivering", changes=changes, errors=errors)

    def end(self) -> None:
        """End all threads; what they have delivered is stored."""
        for thread in self._threads.values():
            thread.stop.set()
        for thread in (*self._threads.values(), *self._ending):
            thread.join()

    def raise_error(self) -> None:
        """Raise what ended every thread."""
        if self._error is not None:
            raise self._error

    def _made_thread(self, name: str, config: SinkConfig, make: Make) -> _Thread:
        opened, environment = self._session.opened, self._environment
        modify = partial(modifiers, opened, config, environment)
        rules = partial(fingerprint, opened.pipeline, config, environment)
        followed = Followed(name, config, make, partial(self._show, name), modify, rules)
        return _Thread(self._session, followed, Stop(self._stop), self._end_of)

    def _show(self, name: str, progress: Progress) -> None:
        if name in self._threads:  # else it was removed meanwhile
            self.progress[name] = progress

    def _end_of(self, reader: str, error: BaseException) -> None:
        """Show that a reader has ended by an error without a name, which may be of its package."""
        frames = traceback.extract_tb(error.__traceback__)
        kind, place = type(error).__name__, f"{frames[-1].filename}:{frames[-1].lineno}"
        failed = SinkFailed(reader, kind, place)
        failed.__cause__ = error
        # Not the text of the error: it may have values of rows.
        logger.error("%s\n%s", failed, "".join(frames.format()))
        if reader not in self._threads:
            return  # it was removed meanwhile
        before = self.progress.get(reader, Progress())
        self.progress[reader] = msgspec.structs.replace(before, error=str(failed))
        self._failed[reader] = failed
        with self._unless_away(f"the error of sink {reader} is not stored"):
            store_problem(self._session.log, reader, str(failed))


def _is_of(sink: _Sink, reader: str) -> bool:
    return reader.partition(".")[0] == sink.name


def is_running(progress: Progress) -> bool:
    """Whether a process delivers for a sink, as far as its stored progress says."""
    holder = progress.holder
    return holder is not None and progress.until > time.time() and not has_ended(holder)


class _Thread(threading.Thread):
    """One reader's thread; `failed` is called with its name and an error that has none."""

    def __init__(
        self,
        session: SinkSession,
        followed: Followed,
        stop: threading.Event,
        failed: Callable[[str, BaseException], None],
    ) -> None:
        super().__init__(name=f"sink-{followed.name}", daemon=True)
        self.stop = stop
        self._session, self._followed, self._failed = session, followed, failed

    def run(self) -> None:
        """Deliver until the stop."""
        try:
            follow(self._session, self._followed, self.stop)
        except BaseException as error:  # noqa: BLE001 - it concerns no other sink
            self._failed(self._followed.name, error)
