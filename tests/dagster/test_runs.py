"""The jobs, run in this process against a real Postgres and a real lake."""

from __future__ import annotations

import json
import secrets
import threading
from pathlib import Path

import dagster as dg
import pytest

from pgstream_dagster.definitions import build_definitions
from pgstream_dagster.resources.lake import DeltaLake
from pgstream_dagster.resources.postgres import PostgresSource
from tests.plugins.cluster import psql
from tests.plugins.wait import until

# Dagster asks itself for a deprecated property when it resolves a nested resource.
pytestmark = pytest.mark.filterwarnings("ignore:.*dagster_run.*:DeprecationWarning")

DRAIN = dg.RunConfig(ops={"change_log": {"config": {"mode": "drain"}}})
TABLES = (
    "create table orders (id bigint primary key, note text)",
    "insert into orders select i, 'note ' || i from generate_series(1, 100) i",
    "create table customers (id bigint primary key)",
    "insert into customers values (1), (2)",
)


class Site:
    """One pipeline in Dagster: definitions, instance, and where things are."""

    def __init__(self, dsn: str, folder: Path, instance: dg.DagsterInstance) -> None:
        self.dsn, self.instance, self.folder = dsn, instance, folder
        self.slot = f"shop_{secrets.token_hex(4)}"  # slots are the server's, not the database's
        file = folder / "pgstream.yaml"
        file.write_text(f"pipeline: shop\nsource: {{slot: {self.slot}}}\n")
        self.definitions = build_definitions(
            file,
            source=PostgresSource(dsn=dsn),
            lake=DeltaLake(root=str(folder / "lake"), state=str(folder / "state")),
        )

    def run(self, job: str, **options) -> dg.ExecuteInProcessResult:
        found = self.definitions.resolve_job_def(job)
        return found.execute_in_process(instance=self.instance, raise_on_error=False, **options)

    def copies(self) -> dict[str, int]:
        """Rows of the newest copy of every partition of `snapshot`."""
        key = dg.AssetKey("snapshot")
        tables = self.instance.get_materialized_partitions(key)
        return {table: self.copy(table)["dagster/row_count"] for table in tables}

    def copy(self, table: str) -> dict[str, object]:
        found = self.instance.fetch_materializations(
            dg.AssetRecordsFilter(asset_key=dg.AssetKey("snapshot"), asset_partitions=[table]),
            limit=1,
        )
        event = found.records[0].asset_materialization
        assert event is not None
        return {name: entry.value for name, entry in event.metadata.items()}

    def confirmed(self) -> str | None:
        rows = psql(
            self.dsn,
            f"select confirmed_flush_lsn::text from pg_replication_slots"
            f" where slot_name = '{self.slot}'",
        )
        return rows[0][0] if rows else None


@pytest.fixture
def site(dsn, tmp_path, gateway):
    psql(dsn, *TABLES)
    with dg.DagsterInstance.ephemeral() as instance:
        yield Site(dsn, tmp_path, instance)


def materialization(result: dg.ExecuteInProcessResult) -> dict[str, object]:
    [event] = result.asset_materializations_for_node("change_log")
    return {name: entry.value for name, entry in event.metadata.items()}


def failure(result: dg.ExecuteInProcessResult) -> dg.Failure:
    [event] = [event for event in result.all_events if event.is_step_failure]
    return event.step_failure_data


def test_jobs_take_a_pipeline_from_nothing_to_a_log_that_is_up_to_date(site, spark):
    assert site.run("setup").success
    assert site.copies() == {"public.orders": 100, "public.customers": 2}
    assert set(site.instance.get_dynamic_partitions("pgstream_tables")) == {
        "public.orders",
        "public.customers",
    }

    psql(site.dsn, "update orders set note = 'new' where id <= 10", "delete from customers")
    drained = site.run("stream", run_config=DRAIN)
    assert drained.success
    told = materialization(drained)
    assert told["rows"] == 12
    assert told["watermark"] == site.confirmed()

    again = site.run("stream", run_config=DRAIN)
    assert again.success
    assert materialization(again)["rows"] == 0

    psql(site.dsn, "insert into orders values (101, 'late')")
    assert site.run("snapshot", partition_key="public.orders").success
    assert site.copies() == {"public.orders": 101, "public.customers": 2}
    assert site.run("teardown").success
    assert site.confirmed() is None


def test_optimize_runs_as_a_job(site, spark):
    assert site.run("setup").success
    assert site.run("optimize").success


def test_lost_slot_is_named_and_resnapshot_repairs_it(site, spark):
    assert site.run("setup").success
    psql(site.dsn, f"select pg_drop_replication_slot('{site.slot}')")
    psql(site.dsn, "insert into customers values (3)")
    told = failure(site.run("stream", run_config=DRAIN)).user_failure_data
    assert told.metadata["error"].value == "SlotMissing"
    assert site.run("resnapshot").success
    assert site.copies() == {"public.orders": 100, "public.customers": 3}
    assert site.run("stream", run_config=DRAIN).success


def test_stream_without_a_setup_fails_at_once_and_says_what_helps(site):
    result = site.run("stream", run_config=DRAIN)
    assert not result.success
    data = failure(result)
    assert data.user_failure_data is not None
    assert "run 'pgstream setup'" in data.user_failure_data.description
    assert data.user_failure_data.metadata["remedy"].value == "run 'pgstream setup'"


def test_setup_again_copies_nothing(site, spark):
    assert site.run("setup").success
    before = site.copy("public.orders")
    assert site.run("setup").success
    assert site.copy("public.orders") == before


def test_pipeline_file_that_is_missing_is_said_by_the_run(dsn, tmp_path):
    definitions = build_definitions(
        tmp_path / "nowhere.yaml",
        source=PostgresSource(dsn=dsn),
        lake=DeltaLake(root=str(tmp_path / "lake")),
    )
    result = definitions.resolve_job_def("setup").execute_in_process(raise_on_error=False)
    assert not result.success
    assert "nowhere.yaml: 1 problem(s)" in failure(result).user_failure_data.description


def test_stream_ends_when_its_run_was_ended_without_it(site, spark):
    """As when a code server is killed: nobody signals the run, only its status says so."""
    assert site.run("setup").success
    psql(site.dsn, "insert into customers values (3)")

    def end() -> None:
        until(lambda: landed(site) == 1, seconds=120)
        [run] = site.instance.get_runs(dg.RunsFilter(statuses=[dg.DagsterRunStatus.STARTED]))
        site.instance.report_run_canceling(run)

    ending = threading.Thread(target=end)
    ending.start()
    result = site.run("stream")
    ending.join()
    assert not result.success
    assert "is CANCELING: it stops" in failure(result).user_failure_data.description
    assert site.run("stream", run_config=DRAIN).success
    assert materialization(site.run("stream", run_config=DRAIN))["rows"] == 0


def landed(site) -> int:
    """Rows that the stream says it has landed."""
    file = site.folder / "state" / "shop.stream.json"
    return json.loads(file.read_text())["rows"] if file.exists() else 0
