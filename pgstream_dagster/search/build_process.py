"""
The process that builds for a live indexer; see `builds`.

Its standing orders come through a pipe. When the other end is gone it ends as it is,
as the indexer did: a build has a lease that runs out, and what it made is removed by the next one.
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
from pgstream_dagster.search.builds import OURS, Answer, here


class _Parent:
    """The other end: what is over, and the log's records, one at a time."""

    def __init__(self, connection: Connection) -> None:
        self._connection, self._lock = connection, threading.Lock()

    def put_nowait(self, message: object) -> None:
        """Named as `QueueHandler` wants it. Raises `OSError` when the other end is gone."""
        with self._lock:
            self._connection.send(message)


def _build(parent: _Parent, pipeline: Pipeline, alias: str, stop: threading.Event) -> None:
    parent.put_nowait(Answer(alias, here(pipeline, alias, stop)))


def main() -> None:
    """Do what is asked until told to end, or until the other end is gone."""
    asking = Connection(int(sys.argv[1]))
    parent, stops = _Parent(asking), dict[str, threading.Event]()
    with suppress(EOFError, OSError):
        pipeline, level = asking.recv()
        logging.getLogger().addHandler(QueueHandler(cast("Any", parent)))
        logging.getLogger(OURS).setLevel(level)
        while (asked := asking.recv()) is not None:
            if asked.is_stop:
                stops[asked.alias].set()
                continue
            stop = stops[asked.alias] = threading.Event()
            work = (parent, pipeline, asked.alias, stop)
            threading.Thread(target=_build, args=work, name=f"reindex-{asked.alias}").start()
    os._exit(0)  # threads may be inside a Spark job; the JVM ends with us


if __name__ == "__main__":
    main()
