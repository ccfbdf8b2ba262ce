"""
The demo: private servers, real tables, and changes of every kind.

At its end log and indices, what every sink has delivered, and source, log and typed tables are
compared value by value; writes continue but for the second. It uses the public operations, in a
folder of its own that each run clears.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
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
from pgstream_dagster.demo import data, outbox, search, sinks, typed, workload
from pgstream_dagster.demo.folder import begin
from pgstream_dagster.demo.printing import FETCHED, Echo, Step, Steps, Waiting
from pgstream_dagster.demo.probe import Probe
from pgstream_dagster.demo.receiver import Event
from pgstream_dagster.demo.running import Running
from pgstream_dagster.demo.sinks import Compared
from pgstream_dagster.demo.targets import Targets, targets
from pgstream_dagster.embedded.opensearch import OpenSearch
from pgstream_dagster.embedded.postgres import Postgres
from pgstream_dagster.lsn import Lsn
from pgstream_dagster.pipeline import Pipeline
from pgstream_dagster.search.cluster import SearchSettings
from pgstream_dagster.search.reindex import Reindexed
from pgstream_dagster.search.verify import Difference
from pgstream_dagster.upkeep.reconcile_tables import TypedReconciliation
from pgstream_dagster.upkeep.setup import setup
from pgstream_dagster.upkeep.teardown import teardown

MAJOR: Final = 18
PIPELINE: Final = Path(__file__).with_name("pgstream.yaml")

FLIGHTS: Final = 5_000
"""At most, and rows of `weather`; with all 336,776 flights the demo takes ten times as long."""

COMPILER: Final = "-XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=256m"
"""For the JVM of the small demo: in its few minutes the optimizing compiler would take a third of
the time, and return less. Without it a JVM keeps 48 MB for code, which are too few."""

ALL_FLIGHTS: Final = 336_776

REINDEXED: Final = "flights"
"""The alias that is re-indexed; with all flights every alias is."""

LARGE_SHARE: Final = 0.6
"""Of the flights: the rows of the largest transaction. It is spooled to disk in both sizes."""

QUIET_SECONDS: Final = 5.0
"""How long the latency is measured, with only the writer running."""


class Streamed(NamedTuple):
    """The changes that landed during the events, and the seconds until they had landed."""

    rows: int
    seconds: float


@dataclass(frozen=True, slots=True)
class Summary:
    """What the demo prints at its end."""

    landed: Landed
    events: Streamed
    lag_bytes: int
    log_seconds: np.ndarray  # from commit until read from the log, per probe
    index_seconds: np.ndarray  # from commit until returned by the index, per probe
    rebuilt: Sequence[Reindexed]
    indices: dict[str, Difference]
    delivered: Sequence[Compared] = ()
    tables: Sequence[TypedReconciliation] = ()

    @property
    def identical(self) -> bool:
        """Whether source, log, typed tables, indices and the targets of all sinks are equal."""
        is_delivered = all(compared.problem is None for compared in self.delivered)
        return self.is_landed and self.is_typed and self.is_indexed and is_delivered

    @property
    def is_landed(self) -> bool:
        """Whether the change log is equal to the tables of the source, of which there are some."""
        compared = [table.source for table in self.tables]
        return bool(compared) and all(source and source.identical for source in compared)

    @property
    def is_typed(self) -> bool:
        """Whether every typed table is equal to the change log."""
        return all(table.typed and table.typed.identical for table in self.tables)

    @property
    def is_indexed(self) -> bool:
        """Whether every index is equal to the change log."""
        return all(difference.identical for difference in self.indices.values())

    def lines(self) -> Iterator[str]:
        """For people, a line per fact; the last one is the verdict."""
        tables, indices = self.tables, self.indices.values()
        rows = sum(table.source.source_rows for table in tables if table.source)
        documents = sum(difference.documents for difference in indices)
        largest = max(self.rebuilt, key=lambda done: done.documents)
        yield f"rows          {rows:,} in {len(tables)} tables"
        yield f"changes       {self.landed.rows:,} streamed in {self.landed.commits:,} commits"
        yield f"rate          {self.events.rows / self.events.seconds:,.0f} changes/s of the events"
        yield f"watermark     {self.landed.watermark}, {self.lag_bytes:,} bytes behind the source"
        yield from _latency("change log", self.log_seconds)
        yield from _latency("index", self.index_seconds)
        yield f"documents     {documents:,} behind {len(indices)} aliases"
        yield f"re-index      {largest.documents / largest.load_seconds:,.0f} documents/s"
        yield f"source = log  {_compared(self.is_landed)}"
        yield f"log = index   {_compared(self.is_indexed)}"
        yield f"log = tables  {_compared(self.is_typed)}"
        for compared in self.delivered:
            yield from compared.lines()
        everything = "source, change log, typed tables, indices and the targets of all sinks"
        if self.identical:
            yield f"verdict       PASSED: {everything} hold the same values"
        else:
            yield f"verdict       FAILED: {everything} do not hold the same values, see above"


def _latency(to: str, seconds: np.ndarray) -> Iterator[str]:
    if len(seconds):
        p50, p99 = np.percentile(seconds, [50, 99])
        yield f"latency       commit to {to}: p50 {p50:.2f} s, p99 {p99:.2f} s"


def _compared(is_identical: bool) -> str:
    return "identical" if is_identical else "DIFFERENT"


def run(folder: Path, echo: Steps, *, is_full: bool = False) -> Summary:
    """
    Run the demo in `folder`; what a former demo created there is removed first.

    `is_full`: with every flight of the year.

    Raises:
        FolderTaken: the folder is neither empty nor of a demo.
        PgstreamError: any other failure; the folder is left as it was at that moment.
    """
    flights = ALL_FLIGHTS if is_full else FLIGHTS
    begin(folder)
    file, received = folder / PIPELINE.name, list[Event]()
    echo(Step.START)
    echo(f"  Postgres {MAJOR}, OpenSearch 3, Kafka 4{FETCHED}")
    with (
        Postgres(MAJOR, settings={"logical_decoding_work_mem": "256kB"}) as server,
        OpenSearch("3", heap=search.HEAP) as node,
        targets(server.dsn, received.append) as ends,
    ):
        ends.write_pipeline(PIPELINE, file)
        pipeline = Pipeline(
            config=load(file),
            dsn=server.dsn,
            lake=Lake(str((folder / "lake").absolute())),
            jvm=JvmSettings(),
            state=folder / "state",
            search=SearchSettings(node.url),
        )
        with psycopg.connect(server.dsn, autocommit=True) as connection:
            echo(Step.LOAD)
            data.create_tables(connection)
            for table, rows in data.load(connection, limit=flights):
                echo(f"  {table}: {rows:,} rows")
            echo(Step.OUTBOX)
            outbox.subscribe(server.dsn)
            summary = _capture(pipeline, ends, received, connection, echo, flights)
        teardown(pipeline)
    return summary


def _capture(
    pipeline: Pipeline,
    ends: Targets,
    received: Sequence[Event],
    connection: data.Connection,
    echo: Echo,
    flights: int,
) -> Summary:
    """Set up, stream, index, deliver and merge while the writer continues; compare it all."""
    busy = partial(workload.writer, pipeline.dsn, partial(workload.busy, flights=flights))
    with ExitStack() as until_delivered:
        with busy() as writer:
            echo(Step.SETUP)
            setup(pipeline)
            echo(Step.TABLES)
            typed.merge(pipeline, echo)
            echo(Step.SINKS)
            delivering = until_delivered.enter_context(sinks.delivering(pipeline, ends))
            streaming = until_delivered.enter_context(_streaming(pipeline))
            summary = _stream(pipeline, ends, connection, streaming, writer, echo, flights)
        echo(Step.DELIVER)
        until = current_lsn(pipeline)
        _wait_until_landed(streaming, until, echo)
        sinks.wait_for(delivering, len(pipeline.config.sinks), until, echo)
    echo(Step.COMPARE_TARGETS)
    delivered = sinks.compare(pipeline, ends, received)
    with busy() as writer, _streaming(pipeline):
        tables = typed.follow(pipeline, echo)
        echo(_meanwhile(writer))
    return replace(summary, delivered=delivered, tables=tables)


def _stream(
    pipeline: Pipeline,
    ends: Targets,
    connection: data.Connection,
    streaming: Running[Landed],
    writer: Running[int],
    echo: Echo,
    flights: int,
) -> Summary:
    """Index, change rows, re-index and compare indices while writes continue."""
    with search.indexing(pipeline) as indexing:
        echo(Step.INDEX)
        search.wait_for_now(pipeline, indexing, echo)
        echo(Step.STREAM)
        ends.receiver.is_away = True
        echo("  the receiver of late flights is away from here")
        events = workload.events(round(LARGE_SHARE * flights))
        streamed = _stream_events(pipeline, connection, streaming, echo, events)
        search.wait_for_now(pipeline, indexing, echo)
        echo(Step.SEARCH)
        for line in search.query(pipeline):
            echo(f"  {line}")
        ends.receiver.is_away = False
        turned_away = ends.receiver.turned_away
        echo(f"  the receiver of late flights is back; {turned_away} calls were turned away")
        echo(Step.REINDEX)
        echo(_meanwhile(writer))
        aliases = [*pipeline.config.search] if flights == ALL_FLIGHTS else [REINDEXED]
        rebuilt = search.rebuild(pipeline, aliases, echo)
        search.wait_for_now(pipeline, indexing, echo)
        for line in search.generations_now(pipeline):
            echo(f"  {line}")
        echo(Step.LATENCY)
        with Probe(pipeline) as probe:
            time.sleep(QUIET_SECONDS)
    echo(Step.COMPARE_INDICES)
    indices = search.compare(pipeline)
    echo(_meanwhile(writer))
    landed = _landed(streaming)
    return Summary(
        landed=landed,
        events=streamed,
        lag_bytes=max(0, current_lsn(pipeline) - landed.watermark),
        log_seconds=probe.log_seconds(),
        index_seconds=probe.index_seconds(),
        rebuilt=rebuilt,
        indices=indices,
    )


def _meanwhile(writer: Running[int]) -> str:
    return f"  {writer.latest() or 0:,} transactions written so far"


def _stream_events(
    pipeline: Pipeline,
    connection: data.Connection,
    streaming: Running[Landed],
    echo: Echo,
    events: Mapping[str, Callable[[data.Connection], None]],
) -> Streamed:
    """Run the events one after the other, then wait until all of them are in the change log."""
    before, began = _landed(streaming).rows, time.monotonic()
    for description, event in events.items():
        echo(f"  {description}")
        event(connection)
    _wait_until_landed(streaming, current_lsn(pipeline), echo)
    return Streamed(_landed(streaming).rows - before, time.monotonic() - began)


def _streaming(pipeline: Pipeline) -> Running[Landed]:
    def operation(stop: threading.Event, report: Callable[[Landed], None]) -> None:
        stream(pipeline, stop=stop, report=lambda landed: report(replace(landed)))

    return Running("stream", operation)


def _wait_until_landed(streaming: Running[Landed], until: Lsn, echo: Echo) -> None:
    streaming.wait_until(
        lambda landed: landed.watermark >= until,
        Waiting(f"the change log to reach {until}", echo),
        lambda landed: f"it is at {landed.watermark}, {landed.rows:,} changes",
    )


def _landed(streaming: Running[Landed]) -> Landed:
    return streaming.latest() or Landed(Lsn(0))
