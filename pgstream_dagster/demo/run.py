"""
The demo: a private Postgres, real tables, and everything that can happen to them.

At its end source and log are compared, value by value, while writes go on. Uses what a user uses
(`operations`), on a folder of its own that each run begins anew.
"""

from __future__ import annotations

import shutil
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, Self

import numpy as np
import psycopg

from pgstream_dagster.changelog.jvm import JvmSettings
from pgstream_dagster.changelog.lake import Lake
from pgstream_dagster.changelog.land import Landed
from pgstream_dagster.config import load
from pgstream_dagster.demo import data, life
from pgstream_dagster.demo.probe import Probe
from pgstream_dagster.embedded.postgres import Postgres
from pgstream_dagster.lsn import Lsn
from pgstream_dagster.operations.pipeline import Pipeline
from pgstream_dagster.operations.reconcile import Reconciliation, reconcile
from pgstream_dagster.operations.setup import setup
from pgstream_dagster.operations.stream import current_lsn, stream
from pgstream_dagster.operations.teardown import teardown

Say = Callable[[str], None]

MAJOR: Final = 18
PIPELINE: Final = "pipeline: demo\ncapture:\n  catalog_check_seconds: 5\n"

QUIET_SECONDS: Final = 5.0
"""How long the latency is watched with nothing but the gentle writer going on."""


@dataclass(frozen=True, slots=True)
class Summary:
    """What the demo prints at its end."""

    landed: Landed
    stream_seconds: float  # of the events, until all of it was in the log
    lag_bytes: int
    latency_seconds: np.ndarray
    reconciliation: Reconciliation

    def lines(self) -> Iterator[str]:
        """For people, a line each."""
        rows = sum(table.source_rows for table in self.reconciliation.tables)
        yield f"rows          {rows:,} in {len(self.reconciliation.tables)} tables"
        yield f"changes       {self.landed.rows:,} streamed in {self.landed.commits:,} commits"
        yield f"rate          {self.landed.rows / self.stream_seconds:,.0f} changes/s on average"
        yield f"watermark     {self.landed.watermark}, {self.lag_bytes:,} bytes behind the source"
        if len(self.latency_seconds):
            p50, p99 = np.percentile(self.latency_seconds, [50, 99])
            yield f"latency       commit to queryable: p50 {p50:.2f} s, p99 {p99:.2f} s"
        yield f"source = log  {'identical' if self.reconciliation.identical else 'DIFFERENT'}"


def timed(say: Say) -> Say:
    """The same, each line with the seconds since now."""
    began = time.monotonic()
    return lambda line: say(f"{time.monotonic() - began:6.1f} s  {line}")


def run(folder: Path, say: Say) -> Summary:
    """
    Run the demo in `folder`, which is emptied first.

    Raises:
        PgstreamError: whatever went wrong; the folder is left as it was then.
    """
    say = timed(say)
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    file = folder / "pgstream.yaml"
    file.write_text(PIPELINE)
    say(f"starting a private Postgres {MAJOR} (the first time fetches it)")
    with Postgres(MAJOR, settings={"logical_decoding_work_mem": "4MB"}) as server:
        pipeline = Pipeline(
            config=load(file),
            dsn=server.dsn,
            lake=Lake(str((folder / "lake").absolute())),
            jvm=JvmSettings(),
            state=folder / "state",
        )
        with psycopg.connect(server.dsn, autocommit=True) as connection:
            data.create_tables(connection)
            for table, rows in data.load(connection):
                say(f"  {table}: {rows:,} rows")
            summary = _capture(pipeline, connection, say)
        teardown(pipeline)
    return summary


def _capture(pipeline: Pipeline, connection: data.Connection, say: Say) -> Summary:
    with life.Writer(pipeline.dsn) as writer:
        say("setup: publication, slot, a copy of every table, while writes go on")
        setup(pipeline)
        with _Streaming(pipeline) as streaming, Probe(pipeline) as probe:
            began = time.monotonic()
            for line, happen in life.events().items():
                say(f"  {line}")
                happen(connection)
            streaming.wait_for_now()
            seconds = time.monotonic() - began
            say(f"watching the latency for {QUIET_SECONDS:.0f} s")
            probe.forget()
            time.sleep(QUIET_SECONDS)
            latency = probe.seconds()
            say(f"comparing source and log, while writes go on ({writer.transactions:,} so far)")
            compared = reconcile(pipeline, on_table=lambda table: say(f"  {table.table}"))
            lag = max(0, current_lsn(pipeline) - streaming.landed().watermark)
            return Summary(streaming.landed(), seconds, lag, latency, compared)


class _Streaming:
    """The stream in a thread of its own, as a context manager."""

    def __init__(self, pipeline: Pipeline) -> None:
        self._pipeline, self._stop = pipeline, threading.Event()
        self._latest: Landed | None = None
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="demo-stream", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *raised: object) -> None:
        self._stop.set()
        self._thread.join()

    def landed(self) -> Landed:
        """How far it is; raises what ended it."""
        if self._error is not None:
            raise self._error
        return self._latest or Landed(Lsn(0))

    def wait_for_now(self) -> None:
        """Until everything committed before this call is in the log."""
        until = current_lsn(self._pipeline)
        while self.landed().watermark < until:
            time.sleep(0.05)

    def _run(self) -> None:
        try:
            stream(self._pipeline, stop=self._stop, report=self._report)
        except BaseException as error:  # noqa: BLE001 - `landed` raises it in the demo's thread
            self._error = error

    def _report(self, landed: Landed) -> None:
        self._latest = replace(landed)
