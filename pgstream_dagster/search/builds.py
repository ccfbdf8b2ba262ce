"""
The re-indexes of a live indexer: in this process, or in one of their own.

A JVM that had a Spark in it keeps some 200 MB of classes and compiled code until it ends, and an
indexer that runs for days builds seldom. So its process has none: what it has to build it gives to
another one, which ends with its last re-index.
"""

from __future__ import annotations

import logging
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from multiprocessing import Pipe
from typing import Final, NamedTuple, TypeAlias

from pgstream_dagster.errors import PgstreamError
from pgstream_dagster.pipeline import Pipeline
from pgstream_dagster.search.reindex import reindex

logger = logging.getLogger(__name__)

OURS: Final = "pgstream_dagster"
"""The logger above all of ours."""

PROCESS: Final = "pgstream_dagster.search.build_process"

POLL_SECONDS: Final = 0.2

STOP_SECONDS: Final = 30.0
"""For a re-index to end after a stop; then its process is killed."""

Build: TypeAlias = Callable[[Pipeline, str, threading.Event], bool]
"""Re-index an alias until it is done or stopped; false, and a log line, when it failed."""


def build_in_process(pipeline: Pipeline, alias: str, stop: threading.Event) -> bool:
    """Re-index in this process; a `Build`."""
    try:
        reindex(pipeline, alias, stop=stop)
    except PgstreamError as error:
        logger.warning("re-index of %s failed, its alias stays: %s", alias, error)
        return False
    except Exception:
        logger.exception("re-index of %s failed, its alias stays", alias)
        return False
    return True


class BuildProcess:
    """A process that builds indices of a pipeline; it runs only while there is one to build."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._child: _Child | None = None
        self._users = 0

    def build(self, pipeline: Pipeline, alias: str, stop: threading.Event) -> bool:
        """Re-index in that process; a `Build`."""
        with self._lock:
            if self._child is None or self._child.is_over:
                self._child, self._users = _Child(pipeline), 0
            child = self._child
            self._users += 1
        try:
            return child.build(alias, stop)
        finally:
            with self._lock:
                if child is self._child:
                    self._users -= 1
                    if not self._users:
                        child.end()
                        self._child = None


class Request(NamedTuple):
    """To the process: build an index, or stop doing so. `None`: nothing is left to build."""

    alias: str
    is_stop: bool = False


class Answer(NamedTuple):
    """From the process: a re-index is over. Its log records arrive on the same pipe."""

    alias: str
    is_done: bool


class _Child:
    """The process, as its parent sees it."""

    def __init__(self, pipeline: Pipeline) -> None:
        self._ours, theirs = Pipe()
        self._lock, self._waiting = threading.Lock(), dict[str, Future[bool]]()
        self.is_over = False
        with theirs:
            descriptor = theirs.fileno()
            self._process = subprocess.Popen(
                [sys.executable, "-m", PROCESS, str(descriptor)],
                pass_fds=[descriptor],
                stdin=subprocess.DEVNULL,
                start_new_session=True,  # Ctrl-C is for the parent, which asks it to stop
            )
        self._send((pipeline, logging.getLogger(OURS).getEffectiveLevel()))
        self._listener = threading.Thread(target=self._listen, name="builds", daemon=True)
        self._listener.start()

    def build(self, alias: str, stop: threading.Event) -> bool:
        """As `Build`; the end of the process is a failure."""
        answer = Future[bool]()
        with self._lock:
            if self.is_over:
                return False
            self._waiting[alias] = answer
        self._send(Request(alias))
        while not stop.wait(POLL_SECONDS):
            if answer.done():
                return answer.result()
        self._send(Request(alias, is_stop=True))
        try:
            return answer.result(STOP_SECONDS)
        except TimeoutError:
            self._process.kill()  # its lease runs out, and the next one removes what it made
            return answer.result()

    def end(self) -> None:
        """End the process: nothing is left to build."""
        self._send(None)
        self._listener.join()
        self._ours.close()

    def _send(self, message: object) -> None:
        with self._lock, suppress(OSError):  # it has died: `_listen` answers those who wait
            self._ours.send(message)

    def _listen(self) -> None:
        with suppress(EOFError, OSError):
            while True:
                match self._ours.recv():
                    case Answer(alias, is_done):
                        self._waiting.pop(alias).set_result(is_done)
                    case record:
                        logging.getLogger(record.name).handle(record)
        code = self._process.wait()
        with self._lock:
            self.is_over = True
        for alias, answer in self._waiting.items():
            logger.warning("re-index of %s failed: its process ended with %d", alias, code)
            answer.set_result(False)
