"""
The demo: a private Postgres, a private OpenSearch, real tables, and all that can happen to them.

At its end source, log and indices are compared, value by value, while writes go on. Uses what a
user uses, on a folder of its own that each run begins again.
"""

from __future__ import annotations

import shutil
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np
import psycopg

from pgstream_dagster.capture.stream import current_lsn, stream
from pgstream_dagster.changelog.lake import Lake
from pgstream_dagster.changelog.land import Landed
from pgstream_dagster.config import load
from pgstream_dagster.delta.jvm import JvmSettings
from pgstream_dagster.demo import data, search, workload
from pgstream_dagster.demo.folder import begin
from pgstream_dagster.demo.printing import Say, Waiting, timed
from pgstream_dagster.demo.probe import Probe
from pgstream_dagster.demo.running import Running
from pgstream_dagster.embedded.opensearch import OpenSearch
from pgstream_dagster.embedded.postgres import Postgres
from pgstream_dagster.lsn import Lsn
from pgstream_dagster.pipeline import Pipeline
from pgstream_dagster.search.cluster import SearchSettings
from pgstream_dagster.search.reindex import Reindexed
from pgstream_dagster.search.verify import Difference
from pgstream_dagster.upkeep.reconcile import Reconciliation, reconcile
from pgstream_dagster.upkeep.setup import setup
from pgstream_dagster.upkeep.teardown import teardown

MAJOR: Final = 18
PIPELINE: Final = Path(__file__).with_name("pgstream.yaml")

FLIGHTS: Final = 50_000
"""Indexed three times on the way: all 336,776 take three times as long."""

ALL_FLIGHTS: Final = 336_776

LARGE_SHARE: Final = 0.6
"""Of the flights: the rows of the largest transaction, which is spooled in both sizes."""

QUIET_SECONDS: Final = 5.0
"""How long the latency is watched with nothing but the gentle writer going on."""


class Streamed(NamedTuple):
    """What was landed of the events, and the seconds until all of it was in the log."""

    rows: int
    seconds: float


@dataclass(frozen=True, slots=True)
class Summary:
    """What the demo prints at its end."""

    landed: Landed
    events: Streamed
    lag_bytes: int
    log_seconds: np.ndarray  # from commit to in hand, each probe
    index_seconds: np.ndarray  # from commit to found by id, each probe
    rebuilt: Sequence[Reindexed]
    indices: dict[str, Difference]
    reconciliation: Reconciliation

    @property
    def identical(self) -> bool:
        """Source, log and every index say the same."""
        return self.reconciliation.identical and self.is_indexed

    @property
    def is_indexed(self) -> bool:
        """Every index says what the log says."""
        return all(found.identical for found in self.indices.values())

    def lines(self) -> Iterator[str]:
        """For people, a line each."""
        rows = sum(table.source_rows for table in self.reconciliation.tables)
        documents = sum(found.documents for found in self.indices.values())
        largest = max(self.rebuilt, key=lambda done: done.documents)
        yield f"rows          {rows:,} in {len(self.reconciliation.tables)} tables"
        yield f"changes       {self.landed.rows:,} streamed in {self.landed.commits:,} commits"
        yield f"rate          {self.events.rows / self.events.seconds:,.0f} changes/s of the events"
        yield f"watermark     {self.landed.watermark}, {self.lag_bytes:,} bytes behind the source"
        yield from _latency("queryable", self.log_seconds)
        yield from _latency("found by id", self.index_seconds)
        yield f"documents     {documents:,} behind {len(self.indices)} aliases"
        yield f"re-index      {largest.documents / largest.load_seconds:,.0f} documents/s"
        yield f"source = log  {_verdict(self.reconciliation.identical)}"
        yield f"log = index   {_verdict(self.is_indexed)}"


def _latency(to: str, seconds: np.ndarray) -> Iterator[str]:
    if len(seconds):
        p50, p99 = np.percentile(seconds, [50, 99])
        yield f"latency       commit to {to}: p50 {p50:.2f} s, p99 {p99:.2f} s"


def _verdict(is_identical: bool) -> str:
    return "identical" if is_identical else "DIFFERENT"


def run(folder: Path, say: Say, *, is_full: bool = False) -> Summary:
    """
    Run the demo in `folder`, without what a former one made there.

    `is_full`: with every flight of the year.

    Raises:
        FolderTaken: it is neither empty nor a demo's own.
        PgstreamError: whatever went wrong; the folder is left as it was then.
    """
    say, flights = timed(say), ALL_FLIGHTS if is_full else FLIGHTS
    begin(folder)
    file = folder / PIPELINE.name
    shutil.copyfile(PIPELINE, file)
    say(f"starting a private Postgres {MAJOR} and OpenSearch 3 (the first time fetches them)")
    with (
        Postgres(MAJOR, settings={"logical_decoding_work_mem": "4MB"}) as server,
        OpenSearch("3", heap=search.HEAP) as node,
    ):
        pipeline = Pipeline(
            config=load(file),
            dsn=server.dsn,
            lake=Lake(str((folder / "lake").absolute())),
            jvm=JvmSettings(),
            state=folder / "state",
            search=SearchSettings(node.url),
        )
        with psycopg.connect(server.dsn, autocommit=True) as connection:
            data.create_tables(connection)
            for table, rows in data.load(connection, limit=flights):
                say(f"  {table}: {rows:,} rows")
            summary = _capture(pipeline, connection, say, flights)
        teardown(pipeline)
    return summary


def _capture(pipeline: Pipeline, connection: data.Connection, say: Say, flights: int) -> Summary:
    events = workload.events(round(LARGE_SHARE * flights))
    with workload.Writer(pipeline.dsn, partial(workload.busy, flights=flights)) as writer:
        say("setup: publication, slot, a copy of every table, while writes go on")
        setup(pipeline)
        with _streaming(pipeline) as streaming:
            with search.indexing(pipeline) as indexing:
                say("indexing: an index behind each alias, from the log")
                search.wait_for_now(pipeline, indexing, say)
                streamed = _happen(pipeline, connection, streaming, say, events)
                search.wait_for_now(pipeline, indexing, say)
                say("searching the real text")
                for line in search.ask(pipeline):
                    say(f"  {line}")
                say(f"re-indexing, while writes go on ({writer.transactions:,} so far)")
                rebuilt = search.rebuild(pipeline, say)
                search.wait_for_now(pipeline, indexing, say)
                for line in search.generations_now(pipeline):
                    say(f"  {line}")
                say(f"watching the latency for {QUIET_SECONDS:.0f} s")
                with Probe(pipeline) as probe:
                    time.sleep(QUIET_SECONDS)
            say("comparing log and indices, document by document")
            indices = search.compare(pipeline)
            say(f"comparing source and log, while writes go on ({writer.transactions:,} so far)")
            compared = reconcile(pipeline, on_table=lambda table: say(f"  {table.table}"))
            landed = _landed(streaming)
            lag = max(0, current_lsn(pipeline) - landed.watermark)
            return Summary(
                landed,
                streamed,
                lag,
                probe.log_seconds(),
                probe.index_seconds(),
                rebuilt,
                indices,
                compared,
            )


def _happen(
    pipeline: Pipeline,
    connection: data.Connection,
    streaming: Running[Landed],
    say: Say,
    events: Mapping[str, Callable[[data.Connection], None]],
) -> Streamed:
    """The events, one after the other, until all of it is in the log."""
    before, began = _landed(streaming).rows, time.monotonic()
    for line, happen in events.items():
        say(f"  {line}")
        happen(connection)
    until = current_lsn(pipeline)
    streaming.wait_until(
        lambda landed: landed.watermark >= until,
        Waiting(f"the log to reach {until}", say),
        lambda landed: f"it is at {landed.watermark}, {landed.rows:,} changes",
    )
    return Streamed(_landed(streaming).rows - before, time.monotonic() - began)


def _streaming(pipeline: Pipeline) -> Running[Landed]:
    def operation(stop: threading.Event, report: Callable[[Landed], None]) -> None:
        stream(pipeline, stop=stop, report=lambda landed: report(replace(landed)))

    return Running("stream", operation)


def _landed(streaming: Running[Landed]) -> Landed:
    return streaming.latest() or Landed(Lsn(0))
