"""
Latency from the commit on the source until a reader has the row.

For two readers: one follows the log, one gets the document from the index by its id, which needs no
refresh. Searches see the document after the index's next refresh, within a second by default.
"""

from __future__ import annotations

import threading
import time
from typing import Final, Self

import numpy as np
import psycopg
import pyarrow.compute as pc

from pgstream_dagster.changelog.tail import Kind, Tail
from pgstream_dagster.demo import search
from pgstream_dagster.pipeline import Pipeline
from pgstream_dagster.schema.changes import FIRST_EPOCH

PAUSE_SECONDS: Final = 0.05
"""Between probes; each is a transaction of its own."""

POLL_SECONDS: Final = 0.01
"""Between queries of the index: adds to the measured latency."""

ARRIVAL_SECONDS: Final = 10.0
"""After the last probe; later arrivals are not counted."""

PROBE: Final = "insert into flights (year, carrier) values (2013, 'AA') returning id::text"


class Probe:
    """Commits flights and waits for each in log and index; use it as a context manager."""

    def __init__(self, pipeline: Pipeline) -> None:
        self._dsn, self._tail = pipeline.dsn, Tail(pipeline.lake, pipeline.name, FIRST_EPOCH)
        self._version = self._tail.newest_version()
        self._pipeline = pipeline
        self._sent: dict[str, float] = {}
        self._in_log: dict[str, float] = {}
        self._in_index: dict[str, float] = {}
        self._stop = threading.Event()
        self._deadline = 0.0
        self._threads = [
            threading.Thread(target=work, name=f"demo-{work.__name__}", daemon=True)
            for work in (self._send, self._watch_log, self._watch_index)
        ]

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *raised: object) -> None:
        self._deadline = time.monotonic() + ARRIVAL_SECONDS
        self._stop.set()
        for thread in self._threads:
            thread.join()

    def log_seconds(self) -> np.ndarray:
        """From commit until read from the log, for every probe that has arrived."""
        return self._seconds(self._in_log)

    def index_seconds(self) -> np.ndarray:
        """From commit until returned by the index, for every probe that has arrived."""
        return self._seconds(self._in_index)

    def _seconds(self, arrivals: dict[str, float]) -> np.ndarray:
        return np.array([arrivals[key] - at for key, at in self._sent.items() if key in arrivals])

    def _is_over(self, arrivals: dict[str, float]) -> bool:
        """Whether nothing more is sent, and every probe has arrived or is too late."""
        if not self._stop.is_set() or self._threads[0].is_alive():
            return False
        return self._sent.keys() <= arrivals.keys() or time.monotonic() > self._deadline

    def _send(self) -> None:
        with psycopg.connect(self._dsn, autocommit=True) as connection:
            while not self._stop.wait(PAUSE_SECONDS):
                [key] = connection.execute(PROBE).fetchall()[0]
                self._sent[key] = time.monotonic()  # the commit is acknowledged

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
                documents = cluster.sources("flights", waiting) if waiting else {}
                self._in_index |= dict.fromkeys(documents, time.monotonic())
                time.sleep(POLL_SECONDS)
