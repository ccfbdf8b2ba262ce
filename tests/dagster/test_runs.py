"""The jobs, run in this process against a real Postgres and a real lake."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import dagster as dg
import pytest

from pgstream_dagster.assets import landing, snapshot, throttle
from pgstream_dagster.build import build_definitions
from pgstream_dagster.copy.snapshot import snapshot as copy_tables
from pgstream_dagster.resources.lake import DeltaLake
from pgstream_dagster.resources.postgres import PostgresSource
from pgstream_dagster.upkeep.setup import setup
from tests.support.plugins.cluster import psql
from tests.support.plugins.lake import plant
from tests.support.plugins.wait import until

# Dagster asks itself for a deprecated property when it resolves a nested resource.
pytestmark = [
    pytest.mark.filterwarnings("ignore:.*dagster_run.*:DeprecationWarning"),
    pytest.mark.one_major("newest"),
]

PATIENT = dg.RunConfig(ops={"compare_source_and_log": {"config": {"timeout_seconds": 200.0}}})
DRAIN = dg.RunConfig(ops={"land_changes": {"config": {"mode": "drain"}}})


def materialization(result: dg.ExecuteInProcessResult) -> dict[str, object]:
    """The last one of the run: an earlier one tells of the first commit as soon as it is landed."""
    event = result.asset_materializations_for_node("land_changes")[-1]
    return {name: entry.value for name, entry in event.metadata.items()}


def failure(result: dg.ExecuteInProcessResult) -> dg.Failure:
    [event] = [event for event in result.all_events if event.is_step_failure]
    return event.step_failure_data


def test_jobs_take_a_pipeline_from_nothing_to_a_log_that_is_up_to_date(site, spark):
    assert site.run("setup").success
    assert site.copies() == {"public.orders": 100, "public.customers": 2}
    assert set(site.instance.get_dynamic_partitions("shop/tables")) == {
        "public.orders",
        "public.customers",
    }

    columns = site.copy("public.orders")["dagster/column_schema"].columns
    assert [(c.name, c.type, c.constraints.nullable) for c in columns] == [
        ("id", "bigint", False),
        ("note", "text", True),
    ]

    psql(site.dsn, "update orders set note = 'new' where id <= 10", "delete from customers")
    drained = site.run("stream", run_config=DRAIN)
    assert drained.success
    facts = materialization(drained)
    assert facts["rows"] == 12
    assert facts["watermark"] == site.confirmed()
    assert facts["dagster/uri"] == f"file:{site.folder}/lake/change_log"
    assert facts["dagster/table_name"] == "change_log"

    again = site.run("stream", run_config=DRAIN)
    assert again.success
    assert materialization(again)["rows"] == 0

    psql(site.dsn, "insert into orders values (101, 'late')")
    assert site.run("snapshot", partition_key="public.orders").success
    assert site.copies() == {"public.orders": 101, "public.customers": 2}
    assert site.run("teardown").success
    assert site.confirmed() is None


@pytest.mark.long
def test_optimize_runs_as_a_job(site, spark):
    assert site.run("setup").success
    assert site.run("optimize").success


@pytest.mark.long
def test_lost_slot_is_named_and_resnapshot_repairs_it(site, spark):
    assert site.run("setup").success
    psql(site.dsn, f"select pg_drop_replication_slot('{site.slot}')")
    psql(site.dsn, "insert into customers values (3)")
    failed = failure(site.run("stream", run_config=DRAIN)).user_failure_data
    assert failed.metadata["error"].value == "SlotMissing"
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


@pytest.mark.long
def test_copies_that_others_made_are_reported_once_while_the_stream_runs(site, spark, monkeypatch):
    """`pgstream setup` and `pgstream snapshot` know of no Dagster; nor does the recopier."""
    monkeypatch.setattr(landing, "POLL_SECONDS", 0.1)
    monkeypatch.setattr(snapshot, "POLL_SECONDS", 0.2)
    opened = site.opened()
    setup(opened)

    def reported() -> dict[str, int]:
        tables = site.instance.get_dynamic_partitions("shop/tables")
        return {table: len(site.reported(table)) for table in tables}

    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(site.run, "stream")
        until(lambda: reported() == {"public.customers": 1, "public.orders": 1}, seconds=120)
        [copied] = copy_tables(opened, ["public.orders"])
        until(lambda: reported() == {"public.customers": 1, "public.orders": 2}, seconds=120)
        site.end("stream")
        running.result()
    newest = site.copy("public.orders")
    assert newest["consistent_point"] == str(copied.consistent_point)
    assert [c.name for c in newest["dagster/column_schema"].columns] == ["id", "note"]
    site.run("stream", run_config=DRAIN)
    assert reported() == {"public.customers": 1, "public.orders": 2}


@pytest.mark.long
def test_the_stream_names_a_table_that_is_unfit_as_a_check_of_the_log(site, spark, monkeypatch):
    monkeypatch.setattr(landing, "POLL_SECONDS", 0.1)
    assert site.run("setup").success
    psql(site.dsn, "alter table customers replica identity nothing")
    key, storage = dg.AssetKey("change_log"), site.instance.event_log_storage

    def newest() -> list[dg.AssetCheckEvaluation]:
        check = dg.AssetCheckKey(key, "tables_fit")
        records = storage.get_asset_check_execution_history(check, limit=1)
        events = [record.event.dagster_event for record in records]
        return [event.asset_check_evaluation_data for event in events]

    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(site.run, "stream")
        until(newest, seconds=120)
        site.end("stream")
        running.result()
    [outcome] = newest()
    assert not outcome.passed
    assert "table 'public.customers' has replica identity NOTHING" in outcome.description


def test_pipeline_file_that_is_missing_is_named_by_the_run(dsn, tmp_path):
    definitions = build_definitions(
        tmp_path / "nowhere.yaml",
        source=PostgresSource(dsn=dsn),
        lake=DeltaLake(root=str(tmp_path / "lake")),
    )
    result = definitions.resolve_job_def("setup").execute_in_process(raise_on_error=False)
    assert not result.success
    assert "nowhere.yaml: 1 problem(s)" in failure(result).user_failure_data.description


def test_check_source_fails_with_what_it_finds(tmp_path):
    file = tmp_path / "pgstream.yaml"
    file.write_text("pipeline: shop\n")
    definitions = build_definitions(
        file,
        source=PostgresSource(dsn="host=127.0.0.1 port=1"),
        lake=DeltaLake(root=str(tmp_path / "lake"), state=str(tmp_path / "state")),
    )
    job = definitions.resolve_job_def("check_source")
    data = failure(job.execute_in_process(raise_on_error=False)).user_failure_data
    assert "127.0.0.1:1" in data.description
    [row] = data.metadata["findings"].records
    assert (row.data["check"], row.data["severity"]) == ("connection", "error")


def test_long_run_reports_how_far_it_is_and_ends_when_its_status_does(site, spark, monkeypatch):
    """As when a code server is killed: nobody signals the run, only its status says so."""
    monkeypatch.setattr(landing, "POLL_SECONDS", 0.1)
    monkeypatch.setattr(throttle, "MATERIALIZATION_SECONDS", 0.5)
    monkeypatch.setattr(throttle, "OBSERVATION_SECONDS", 1.0)
    assert site.run("setup").success
    psql(site.dsn, "insert into customers values (3)")
    key, instance = dg.AssetKey("change_log"), site.instance

    def reported_rows() -> object:
        records = instance.fetch_materializations(key, limit=1).records
        return records and records[0].asset_materialization.metadata["rows"].value

    def end() -> None:
        until(lambda: reported_rows() == 1, seconds=120)
        until(lambda: instance.fetch_observations(key, limit=1).records, seconds=120)
        site.end("stream")

    with ThreadPoolExecutor(1) as pool:
        ending = pool.submit(end)
        result = site.run("stream")
        ending.result()
    assert not result.success
    assert "is CANCELING: it stops" in failure(result).user_failure_data.description
    assert reported_rows() == 1
    assert materialization(site.run("stream", run_config=DRAIN))["rows"] == 0


def reconciled(site):
    """The run of `reconcile` while one of `stream` continues."""
    with ThreadPoolExecutor(1) as pool:
        streaming = pool.submit(site.run, "stream")
        try:
            return site.run("reconcile", run_config=PATIENT)
        finally:
            site.end("stream")
            streaming.result()


@pytest.mark.long
def test_reconcile_shows_the_counts_and_fails_when_anything_differs(site, spark, monkeypatch):
    monkeypatch.setattr(landing, "POLL_SECONDS", 0.1)
    assert site.run("setup").success
    assert reconciled(site).success
    plant(
        site.opened().lake,
        "orders",
        {"op": "insert", "key": ["900"], "after": {"id": "900", "note": None}},
    )
    differing = reconciled(site)
    assert not differing.success
    failed = failure(differing).user_failure_data
    assert failed.metadata["tables"].value == ["public.orders"]
    counts = {row.data["table"]: row.data for row in failed.metadata["comparison"].records}
    assert counts["public.customers"]["identical"]
    assert counts["public.orders"]["only_in_log_count"] == 1
