"""Latency as a reader of the log sees it: from the commit on the source to the row in hand."""

from __future__ import annotations

import threading
import time
from types import TracebackType
from typing import Final, Self

import numpy as np
import psycopg
import pyarrow.compute as pc

from pgstream_dagster.changelog.tail import Tail
from pgstream_dagster.operations.pipeline import Pipeline
from pgstream_dagster.operations.setup import FIRST_EPOCH

PAUSE_SECONDS: Final = 0.05
"""Between probes; each is a transaction of its own."""


class Probe:
    """Commits numbered rows and waits for each in the log; use as a context manager."""

    def __init__(self, pipeline: Pipeline) -> None:
        self._dsn, self._tail = pipeline.dsn, Tail(pipeline.lake, pipeline.name, FIRST_EPOCH)
        self._version = self._tail.newest_version()
        self._sent: dict[str, float] = {}
        self._seen: dict[str, float] = {}
        self._stop = threading.Event()
        self._threads = [
            threading.Thread(target=work, name=f"demo-{work.__name__}", daemon=True)
            for work in (self._send, self._watch)
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
        self._stop.set()
        for thread in self._threads:
            thread.join()

    def forget(self) -> None:
        """Leave out what was sent before now."""
        self._sent.clear()

    def seconds(self) -> np.ndarray:
        """From commit to in hand, of every probe that has arrived."""
        return np.array(
            [at - self._sent[key] for key, at in self._seen.items() if key in self._sent]
        )

    def _send(self) -> None:
        with psycopg.connect(self._dsn, autocommit=True) as connection:
            number = 0
            while not self._stop.wait(PAUSE_SECONDS):
                number += 1
                connection.execute("insert into public.probes (id) values (%s)", [number])
                self._sent[str(number)] = time.monotonic()  # the commit has been answered

    def _watch(self) -> None:
        while not self._stop.is_set():
            self._tail.wait(0.1)
            for commit in self._tail.poll(self._version):
                self._version = commit.version
                if commit.kind != "landing":
                    continue
                rows = self._tail.read(commit)
                now = time.monotonic()
                probes = rows.filter(pc.equal(rows.column("relation"), "probes"))
                for key in probes.column("key").to_pylist():
                    self._seen.setdefault(key[0], now)
