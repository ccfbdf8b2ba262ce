"""A pipeline in Dagster: its definitions, and an instance of its own."""

from __future__ import annotations

import json
import secrets
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import dagster as dg
import pytest

from pgstream_dagster.build import build_definitions
from pgstream_dagster.pipeline import Pipeline
from pgstream_dagster.resources.lake import DeltaLake
from pgstream_dagster.resources.pipeline import PipelineFile
from pgstream_dagster.resources.postgres import PostgresSource
from pgstream_dagster.resources.search import SearchCluster
from tests.support.plugins.cluster import psql
from tests.support.plugins.wait import until

TABLES = (
    "create table orders (id bigint primary key, note text)",
    "insert into orders select i, 'note ' || i from generate_series(1, 100) i",
    "create table customers (id bigint primary key)",
    "insert into customers values (1), (2)",
)


class Site:
    """One pipeline in Dagster: definitions, instance, and where things are."""

    def __init__(self, dsn: str, folder: Path, instance: dg.DagsterInstance) -> None:
        self.dsn, self.folder, self.instance = dsn, folder, instance
        self.slot = f"shop_{secrets.token_hex(4)}"  # slots are the server's, not the database's
        self.define()

    def define(
        self,
        indices: Mapping[str, object] | None = None,
        search: SearchCluster | None = None,
        sinks: Mapping[str, object] | None = None,
        tables: Mapping[str, object] | None = None,
    ) -> None:
        """The pipeline file, with indices, sinks and typed tables or without; its definitions."""
        typed = "" if tables is None else f"tables: {json.dumps(tables)}\n"
        self.yaml.write_text(
            f"pipeline: shop\nsource: {{slot: {self.slot}, tables: [orders, customers]}}\n"
            f"search: {json.dumps(indices or {})}\nsinks: {json.dumps(sinks or {})}\n{typed}"
        )
        self.definitions = build_definitions(self.yaml, search=search, **self.resources())

    @property
    def yaml(self) -> Path:
        return self.folder / "pgstream.yaml"

    def file(self) -> PipelineFile:
        """The resource that a run or a tick opens the pipeline with."""
        return PipelineFile(file=str(self.yaml), search=SearchCluster(), **self.resources())

    def opened(self) -> Pipeline:
        """The pipeline as the command line has it."""
        return self.file().open()

    def resources(self) -> dict[str, Any]:
        """Where the source and the lake are."""
        lake = DeltaLake(root=str(self.folder / "lake"), state=str(self.folder / "state"))
        return {"source": PostgresSource(dsn=self.dsn), "lake": lake}

    def run(self, job: str, **options) -> dg.ExecuteInProcessResult:
        job_definition = self.definitions.resolve_job_def(job)
        return job_definition.execute_in_process(
            instance=self.instance, raise_on_error=False, **options
        )

    def end(self, job: str) -> None:
        """End the run of a job, by its status alone."""
        started = dg.RunsFilter(job_name=job, statuses=[dg.DagsterRunStatus.STARTED])
        until(lambda: self.instance.get_runs(started), seconds=120)
        self.instance.report_run_canceling(self.instance.get_runs(started)[0])

    def copies(self) -> dict[str, int]:
        """Rows of the newest copy of every partition of `snapshot`."""
        key = dg.AssetKey("snapshot")
        tables = self.instance.get_materialized_partitions(key)
        return {table: self.copy(table)["dagster/row_count"] for table in tables}

    def reported(self, table: str) -> Sequence[dg.EventLogRecord]:
        """The copies of a table, the newest first."""
        of_table = dg.AssetRecordsFilter(dg.AssetKey("snapshot"), asset_partitions=[table])
        return self.instance.fetch_materializations(of_table, limit=10).records

    def copy(self, table: str) -> dict[str, object]:
        event = self.reported(table)[0].asset_materialization
        assert event is not None
        return {name: entry.value for name, entry in event.metadata.items()}

    def confirmed(self) -> str | None:
        rows = psql(
            self.dsn,
            f"select confirmed_flush_lsn::text from pg_replication_slots"
            f" where slot_name = '{self.slot}'",
        )
        return rows[0][0] if rows else None


@contextmanager
def made(dsn: str, folder: Path) -> Generator[Site]:
    psql(dsn, *TABLES)
    # Runs write at the same time: the ephemeral instance shares one connection among them.
    home = folder / "dagster"
    home.mkdir()
    with dg.DagsterInstance.local_temp(str(home)) as instance:
        yield Site(dsn, folder, instance)


@pytest.fixture
def site(dsn, tmp_path, gateway):
    with made(dsn, tmp_path) as site:
        yield site


@pytest.fixture(scope="module")
def shared_site(module_dsn, tmp_path_factory, gateway):
    """A pipeline that the tests of a module share."""
    with made(module_dsn, tmp_path_factory.mktemp("site")) as site:
        yield site
