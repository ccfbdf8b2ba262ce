"""
Latency as readers have it: from the commit on the source to the row in hand.

Of two readers: one that follows the log, one that asks the index for the document by its id, which
is answered at once; searches see it at the index's next refresh, within a second by default.
"""

from __future__ import annotations

import threading
import time
from types import TracebackType
from typing import Final, Self

import numpy as np
import psycopg
import pyarrow.compute as pc

from pgstream_dagster.changelog.tail import Kind, Tail
from pgstream_dagster.demo import search
from pgstream_dagster.pipeline import Pipeline
from pgstream_dagster.upkeep.setup import FIRST_EPOCH

PAUSE_SECONDS: Final = 0.05
"""Between probes; each is a transaction of its own."""

ASK_SECONDS: Final = 0.01
"""Between questions to the index: what it adds to the latency that is seen."""

ARRIVAL_SECONDS: Final = 10.0
"""After the last probe: those that are not there by then are left out."""

PROBE: Final = "insert into flights (year, carrier) values (2013, 'AA') returning id::text"


class Probe:
    """Commits flights and waits for each in log and index; use as a context manager."""

    def __init__(self, pipeline: Pipeline) -> None:
        self._dsn, self._tail = pipeline.dsn, Tail(pipeline.lake, pipeline.name, FIRST_EPOCH)
        self._version = self._tail.newest_version()
        self._pipeline = pipeline
        self._sent: dict[str, float] = {}
        self._in_log: dict[str, float] = {}
        self._in_index: dict[str, float] = {}
        self._stop = threading.Event()
        self._gone_by = 0.0
        self._threads = [
            threading.Thread(target=work, name=f"demo-{work.__name__}", daemon=True)
            for work in (self._send, self._watch_log, self._watch_index)
        ]

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._gone_by = time.monotonic() + ARRIVAL_SECONDS
        self._stop.set()
        for thread in self._threads:
            thread.join()

    def log_seconds(self) -> np.ndarray:
        """From commit to in hand by the log, of every probe that has arrived."""
        return self._seconds(self._in_log)

    def index_seconds(self) -> np.ndarray:
        """From commit to found by id in the index, of every probe that has arrived."""
        return self._seconds(self._in_index)

    def _seconds(self, seen: dict[str, float]) -> np.ndarray:
        return np.array([seen[key] - at for key, at in self._sent.items() if key in seen])

    def _is_over(self, seen: dict[str, float]) -> bool:
        """Whether nothing more is sent, and all of it was seen or will not be."""
        if not self._stop.is_set() or self._threads[0].is_alive():
            return False
        return self._sent.keys() <= seen.keys() or time.monotonic() > self._gone_by

    def _send(self) -> None:
        with psycopg.connect(self._dsn, autocommit=True) as connection:
            while not self._stop.wait(PAUSE_SECONDS):
                [key] = connection.execute(PROBE).fetchall()[0]
                self._sent[key] = time.monotonic()  # the commit has been answered

    def _watch_log(self) -> None:
        while not self._is_over(self._in_log):
            self._tail.wait(0.1)
            for commit in self._tail.poll(self._version):
                self._version = commit.version
                if commit.kind is not Kind.LANDING:
                    continue
                rows = self._tail.read(commit)
                now = time.monotonic()
                flights = rows.filter(pc.equal(rows.column("relation"), "flights"))
                for key in flights.column("key").to_pylist():
                    self._in_log.setdefault(key[0], now)

    def _watch_index(self) -> None:
        with search.cluster(self._pipeline) as cluster:
            while not self._is_over(self._in_index):
                waiting = [key for key in list(self._sent) if key not in self._in_index]
                found = cluster.sources("flights", waiting) if waiting else {}
                self._in_index |= dict.fromkeys(found, time.monotonic())
                time.sleep(ASK_SECONDS)
