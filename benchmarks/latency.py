"""From the commit on the source to the row in a reader's hand, at a steady rate."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import psycopg
import pyarrow.compute as pc

from benchmarks.sources import Bench, bench
from pgstream_dagster.capture.stream import stream
from pgstream_dagster.changelog.tail import Kind, Tail
from pgstream_dagster.schema.changes import FIRST_EPOCH
from pgstream_dagster.upkeep.setup import setup

WARM_SECONDS = 3.0


Times = dict[int, float]
"""The first row of a commit -> when, by the monotonic clock."""

Work = Callable[[Times, Times, threading.Event], None]
"""Called with what was sent, what was seen, and an event that ends it."""


@dataclass(frozen=True, slots=True)
class Latency:
    """Seconds from commit to in hand."""

    rows_per_second: int
    sent: int
    p50: float
    p99: float


def latencies(major: int, rates: tuple[int, ...], seconds: float) -> Iterator[Latency]:
    """At each rate of rows a second: single-row transactions up to 200, batches of 25 above."""
    for rate in rates:
        with bench(major, ("create table ticks (id bigint primary key, v text)",)) as on:
            setup(on.pipeline)
            yield _at(on, rate, seconds)


def _at(on: Bench, rate: int, seconds: float) -> Latency:
    def watch(_sent: Times, seen: Times, stop: threading.Event) -> None:
        _watch(on, seen, stop)

    return from_commit(on, rate, seconds, [watch])


def from_commit(
    on: Bench,
    rate: int,
    seconds: float,
    works: Sequence[Work],
    *,
    is_ready: Callable[[], bool] = lambda: True,
    patience: float = 10,
) -> Latency:
    """
    Seconds from a commit to when one of `works`, each in a thread, has put it into `seen`.

    The pipeline's stream runs beside them.

    Sending begins when `is_ready`; what is not seen `patience` seconds after its end is missing.
    """
    stop, sent, seen = threading.Event(), Times(), Times()
    threads = [
        threading.Thread(target=stream, args=(on.pipeline,), kwargs={"stop": stop}),
        *(threading.Thread(target=work, args=(sent, seen, stop)) for work in works),
    ]
    for thread in threads:
        thread.start()
    while not is_ready():
        time.sleep(0.2)
    send(on, rate, WARM_SECONDS + seconds, sent)
    deadline = time.monotonic() + patience
    while not sent.keys() <= seen.keys() and time.monotonic() < deadline:
        time.sleep(0.05)
    stop.set()
    for thread in threads:
        thread.join()
    first = min(sent.values()) + WARM_SECONDS
    took = np.array([seen[i] - at for i, at in sent.items() if at >= first])
    return Latency(rate, len(took), *map(float, np.percentile(took, [50, 99])))


def send(on: Bench, rate: int, seconds: float, sent: dict[int, float]) -> None:
    """Commits at an even pace; each remembered by its first row, timed when it is answered."""
    batch = 1 if rate <= 200 else 25
    began, number = time.monotonic(), 0
    with psycopg.connect(on.server.dsn, autocommit=True) as connection:
        while (now := time.monotonic()) - began < seconds:
            due = began + number / rate
            if now < due:
                time.sleep(due - now)
            connection.execute(
                "insert into ticks select g, 'tick' from generate_series(%s::bigint, %s::bigint) g",
                [number, number + batch - 1],
            )
            sent[number] = time.monotonic()
            number += batch


def _watch(on: Bench, seen: dict[int, float], ended: threading.Event) -> None:
    tail = Tail(on.pipeline.lake, on.pipeline.name, FIRST_EPOCH)
    version = tail.newest_version()
    while not ended.is_set():
        tail.wait(0.1)
        for commit in tail.poll(version):
            version = commit.version
            if commit.kind is not Kind.LANDING:
                continue
            keys = pc.list_element(tail.read(commit).column("key"), 0)
            now = time.monotonic()
            seen.update(dict.fromkeys(map(int, keys.to_pylist()), now))
