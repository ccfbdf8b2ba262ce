"""
The process of the sinks: one thread per sink, which none of the others can hold up.

Sinks share the open pipeline and nothing else: each reads the log from its own position. Capture
and the indexer know nothing of them.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import closing, contextmanager
from functools import partial
from typing import Final, TypeAlias

from pgstream_dagster import state_folder
from pgstream_dagster.changelog.sink_letters import SinkLetters
from pgstream_dagster.changelog.sink_log import SinkLog
from pgstream_dagster.changelog.table_specs import create_sinks
from pgstream_dagster.config.sinks import SinkConfig
from pgstream_dagster.errors import NoSuchSink
from pgstream_dagster.heartbeat import HeartbeatWriter
from pgstream_dagster.named import named
from pgstream_dagster.pipeline import Pipeline
from pgstream_dagster.sinks.base import Sink
from pgstream_dagster.sinks.envelope import Envelope
from pgstream_dagster.sinks.follow import Followed, SinkSession, follow
from pgstream_dagster.sinks.lines import FilesSink, StdoutSink
from pgstream_dagster.sinks.state import Progress
from pgstream_dagster.stop import Stop

logger = logging.getLogger(__name__)

POLL_SECONDS: Final = 0.25

Report: TypeAlias = Callable[[Mapping[str, Progress]], None]


@named
def run(
    pipeline: Pipeline,
    sinks: Sequence[str] = (),
    *,
    stop: threading.Event,
    report: Report = lambda progress: None,
) -> dict[str, Progress]:
    """
    Deliver to the named sinks, or to all of the pipeline file, until `stop` is set.

    Waits while a target is away or another process delivers for a sink; each sink by itself.

    Raises:
        NoSuchSink: the file has none of this name, or none at all.
        NotSetUp: `setup` was never run.
        StateTaken: the state folder belongs to another pipeline of this name.
    """
    names = list(sinks) or list(pipeline.config.sinks)
    if not names:
        raise NoSuchSink("", [])
    configs = {name: pipeline.config.sink(name) for name in names}
    state_folder.claim(pipeline)
    progress: dict[str, Progress] = {}
    stop = Stop(stop)  # also set when a thread ends by itself
    with opened(pipeline) as session:
        threads = [
            _Thread(session, pipeline, name, config, progress, stop)
            for name, config in configs.items()
        ]
        _wait(pipeline, threads, stop, progress, report)
    return progress


@contextmanager
def opened(pipeline: Pipeline) -> Generator[SinkSession]:
    """The tables of the sinks; raises `NotSetUp` before `setup`."""
    with pipeline.open() as opened:
        create_sinks(pipeline.lake, opened.gateway)
        with (
            closing(SinkLog(pipeline.lake, opened.gateway)) as log,
            closing(SinkLetters(pipeline.lake, opened.gateway)) as letters,
        ):
            yield SinkSession(opened, log, letters)


def target(pipeline: Pipeline, name: str, config: SinkConfig) -> Sink:
    """The sink of a definition, not opened yet."""
    if config.files is not None:
        return FilesSink(name, config.files, Envelope(pipeline.name))
    return StdoutSink(name, Envelope(pipeline.name))


class _Thread(threading.Thread):
    """One sink's thread; `error` is what ended it, if that was not a stop."""

    def __init__(
        self,
        session: SinkSession,
        pipeline: Pipeline,
        sink: str,
        config: SinkConfig,
        progress: dict[str, Progress],
        stop: threading.Event,
    ) -> None:
        super().__init__(name=f"sink-{sink}", daemon=True)
        make = partial(target, pipeline, sink, config)
        report = partial(progress.__setitem__, sink)
        self._session, self._followed = session, Followed(sink, config, make, report)
        self._stop_requested = stop
        self.error: BaseException | None = None

    def run(self) -> None:
        """Deliver until the stop."""
        try:
            follow(self._session, self._followed, self._stop_requested)
        except BaseException as error:  # noqa: BLE001 - raised again by `_wait`
            self.error = error
            self._stop_requested.set()


def _wait(
    pipeline: Pipeline,
    threads: Sequence[_Thread],
    stop: threading.Event,
    progress: Mapping[str, Progress],
    report: Report,
) -> None:
    """Wait for the threads, with heartbeats and reports; raises what ended one of them."""
    heartbeat = HeartbeatWriter(pipeline.sinks_heartbeat_file)
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        stop.wait(POLL_SECONDS)
        threads[0].join(0.01)
        report(progress)
        if heartbeat.is_due:
            changes = sum(sink.changes for sink in progress.values())
            errors = {name: sink.error for name, sink in progress.items() if sink.error}
            heartbeat.say("delivering", changes=changes, errors=errors)
    for thread in threads:
        if thread.error is not None:
            raise thread.error
