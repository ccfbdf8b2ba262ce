"""
One operation in a process of its own, for tests that kill it.

`python -m tests.support.harness.runner stream --dsn ... --name ... --folder ...` runs until
SIGTERM.
"""

from __future__ import annotations

import argparse
import faulthandler
import logging
import re
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, Self

import psycopg
from psycopg.conninfo import conninfo_to_dict

from pgstream_dagster.capture.stream import stream
from pgstream_dagster.changelog.lake import Lake
from pgstream_dagster.changelog.land import Landed
from pgstream_dagster.config import CaptureConfig, PipelineConfig
from pgstream_dagster.delta.jvm import JvmSettings
from pgstream_dagster.lsn import Lsn
from pgstream_dagster.pipeline import Pipeline
from pgstream_dagster.upkeep.setup import setup
from tests.support.harness import oracle
from tests.support.harness.background import END_SECONDS, in_thread, start

logger = logging.getLogger(__name__)

JVM: Final = JvmSettings(heap="1g", master="local[2]")

CAPTURE: Final = CaptureConfig(flush_seconds=0.2, idle_advance_seconds=1, catalog_check_seconds=30)
"""Much happens in the few seconds a test has."""


def new_pipeline(dsn: str, folder: Path, *, capture: CaptureConfig = CAPTURE) -> Pipeline:
    """A pipeline of everything in the database; slots are the cluster's, so it is named so, too."""
    name = re.sub(r"[^a-z0-9_]", "_", f"p_{conninfo_to_dict(dsn)['dbname']}")
    config = PipelineConfig(pipeline=name, capture=capture)
    return Pipeline(config, dsn, Lake(str(folder / "lake")), JVM, folder / "state")


def change_log(pipeline: Pipeline) -> Path:
    """Where the log's files are."""
    return oracle.folder_of(pipeline.lake.change_log)


def app(pipeline: Pipeline, epoch: int = 1) -> str:
    """The transaction id's app that is the watermark."""
    return f"{pipeline.name}/{epoch}"


def spawn(
    operation: str, pipeline: Pipeline, *, failpoint: str | None = None, log: Path | None = None
) -> subprocess.Popen[bytes]:
    """Start `setup` or `stream` in a process of its own; it dies with SIGKILL at the failpoint."""
    folder = pipeline.state.parent
    return start(
        "tests.support.harness.runner",
        operation,
        pipeline.dsn,
        str(folder),
        log=log or folder / f"{operation}.log",
        failpoint=failpoint,
    )


@contextmanager
def running(
    operation: str, pipeline: Pipeline, **options: Any
) -> Iterator[subprocess.Popen[bytes]]:
    """A process that is gone at the end, one way or the other."""
    process = spawn(operation, pipeline, **options)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def output_of(operation: str, pipeline: Pipeline) -> str:
    """The end of what such processes printed."""
    path = pipeline.state.parent / f"{operation}.log"
    return path.read_text(errors="replace")[-6_000:] if path.exists() else ""


def flushed(dsn: str) -> Lsn:
    """The end of flushed WAL: everything committed so far ends before it."""
    with psycopg.connect(dsn, autocommit=True) as connection:
        [(text,)] = connection.execute("select pg_current_wal_flush_lsn()::text").fetchall()
    return Lsn.parse(text)


def catch_up(pipeline: Pipeline, *, seconds: float = END_SECONDS) -> Landed:
    """Stream, here, until everything committed so far is landed and every table has a copy."""
    stop, target = threading.Event(), flushed(pipeline.dsn)
    over = threading.Timer(seconds, stop.set)
    over.start()
    try:
        landed = stream(pipeline, stop=stop, until=target)
    finally:
        over.cancel()
    assert landed.watermark >= target, f"landed up to {landed.watermark}, not {target}"
    return landed


@contextmanager
def streaming(pipeline: Pipeline) -> Iterator[Callable[[], None]]:
    """
    The stream in a thread while the block runs; what ended it is raised at the end.

    Gives what raises when the stream has ended early.
    """
    with in_thread(lambda stop: stream(pipeline, stop=stop), "stream") as check:
        yield check


class Sampler:
    """
    Sees at every moment that Postgres was told of nothing that is not in the log.

    The confirmed position is read first, then the log: the log can only have grown in between.
    """

    def __init__(self, pipeline: Pipeline, *, epoch: int = 1) -> None:
        self._dsn, self._slot = pipeline.dsn, pipeline.config.source.slot
        self._log, self._app = change_log(pipeline), app(pipeline, epoch)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="sampler", daemon=True)
        self._version, self._watermark = -1, Lsn(0)
        self.samples = 0
        self.breaches: list[str] = []

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *raised: object) -> None:
        self._stop.set()
        self._thread.join()
        if raised[0] is None:
            assert not self.breaches, self.breaches

    def _run(self) -> None:
        while not self._stop.is_set():
            try:
                with psycopg.connect(self._dsn, autocommit=True) as connection:
                    while not self._stop.wait(0.01):
                        self._sample(connection)
            except psycopg.OperationalError:  # the test restarts the server
                self._stop.wait(0.1)

    def _sample(self, connection: psycopg.Connection[Any]) -> None:
        row = connection.execute(
            "select confirmed_flush_lsn::text from pg_replication_slots where slot_name = %s",
            [self._slot],
        ).fetchone()
        for entry in oracle.entries(self._log, after=self._version):
            self._version = entry.version
            if self._app in entry.transactions:
                self._watermark = Lsn(entry.transactions[self._app])
        if row is None or row[0] is None or not self._watermark:
            return  # before setup has recorded the first watermark nothing reads the slot
        self.samples += 1
        confirmed = Lsn.parse(row[0])
        if confirmed > self._watermark:
            self.breaches.append(f"confirmed {confirmed}, the log ends at {self._watermark}")


def main() -> None:
    """What the process does."""
    faulthandler.enable()
    faulthandler.register(signal.SIGUSR1)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(threadName)s %(message)s")
    parser = argparse.ArgumentParser()
    parser.add_argument("operation", choices=["setup", "stream"])
    parser.add_argument("dsn")
    parser.add_argument("folder", type=Path)
    given = parser.parse_args()
    pipeline = new_pipeline(given.dsn, given.folder)
    began = time.monotonic()
    if given.operation == "setup":
        copied = setup(pipeline)
        logger.info("copied %d tables", len(copied))
    else:
        stop = threading.Event()
        signal.signal(signal.SIGTERM, lambda *_: stop.set())
        landed = stream(pipeline, stop=stop)
        logger.info("landed %s", landed)
    logger.info("%s ended after %.1f s", given.operation, time.monotonic() - began)


if __name__ == "__main__":
    main()
