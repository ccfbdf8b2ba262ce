"""
The process that builds for a live indexer; see `builds`.

Requests arrive on a pipe. When the other end is closed, the process ends at once: a build has a
lease that expires, and the next build removes what it left.
"""

from __future__ import annotations

import logging
import os
import sys
import threading
from contextlib import suppress
from logging.handlers import QueueHandler
from multiprocessing.connection import Connection
from typing import Any, cast

from pgstream_dagster.pipeline import Pipeline
from pgstream_dagster.search.builds import OURS, Answer, build_in_process


class _Parent:
    """The other end of the pipe: takes answers and log records, one at a time."""

    def __init__(self, connection: Connection) -> None:
        self._connection, self._lock = connection, threading.Lock()

    def put_nowait(self, message: object) -> None:
        """The method `QueueHandler` calls. Raises `OSError` when the other end is closed."""
        with self._lock:
            self._connection.send(message)


def _build(parent: _Parent, pipeline: Pipeline, alias: str, stop: threading.Event) -> None:
    parent.put_nowait(Answer(alias, build_in_process(pipeline, alias, stop)))


def main() -> None:
    """Serve requests until told to end, or until the other end is closed."""
    requests = Connection(int(sys.argv[1]))
    parent, stops = _Parent(requests), dict[str, threading.Event]()
    with suppress(EOFError, OSError):
        pipeline, level = requests.recv()
        logging.getLogger().addHandler(QueueHandler(cast("Any", parent)))
        logging.getLogger(OURS).setLevel(level)
        while (request := requests.recv()) is not None:
            if request.is_stop:
                stops[request.alias].set()
                continue
            stop = stops[request.alias] = threading.Event()
            work = (parent, pipeline, request.alias, stop)
            threading.Thread(target=_build, args=work, name=f"reindex-{request.alias}").start()
    os._exit(0)  # threads may be inside a Spark job; the JVM ends with us


if __name__ == "__main__":
    main()
