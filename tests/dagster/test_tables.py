"""Typed tables in Dagster, against a real Postgres and a real lake: assets, jobs and checks."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator
from typing import Any

import dagster as dg
import pytest
from pyspark.sql import SparkSession

from pgstream_dagster.assets import tables, throttle
from pgstream_dagster.assets.tables import EQUALS_SOURCE, KEEPS_UP, Reported, is_due
from pgstream_dagster.build import build_definitions
from pgstream_dagster.cli import render
from pgstream_dagster.cli import tables as cli
from pgstream_dagster.jobs import TABLES_TAG
from pgstream_dagster.tables.merge import merge_tables
from pgstream_dagster.tables.status import typed_status
from pgstream_dagster.upkeep.readers import reader_status
from tests.support.harness.runner import streaming
from tests.support.plugins.cluster import psql

# Dagster asks itself for a deprecated property when it resolves a nested resource.
pytestmark = [
    pytest.mark.filterwarnings("ignore:.*dagster_run.*:DeprecationWarning"),
    pytest.mark.one_major("newest"),
]

DRAIN = dg.RunConfig(ops={"land_changes": {"config": {"mode": "drain"}}})
ORDERS, CUSTOMERS = (dg.AssetKey(["tables", "public", name]) for name in ("orders", "customers"))
PASS = dg.AssetKey("typed_tables")


@pytest.fixture
def site(site, spark: SparkSession):
    site.define(tables={})
    assert site.run("setup").success
    return site


def events(site, key: dg.AssetKey) -> list[dict[str, Any]]:
    """The metadata of all materializations of an asset, the newest first."""
    records = site.instance.fetch_materializations(key, limit=100).records
    events = [record.asset_materialization for record in records]
    return [{name: e.value for name, e in event.metadata.items()} for event in events if event]


def newest_check(site, asset: dg.AssetKey) -> dg.AssetCheckEvaluation:
    """The newest outcome of the comparison of a table, as the job `reconcile` reports it."""
    check = dg.AssetCheckKey(asset, EQUALS_SOURCE)
    storage = site.instance.event_log_storage
    [record] = storage.get_asset_check_execution_history(check, limit=1)
    return record.event.dagster_event.asset_check_evaluation_data


def outcomes(result: dg.ExecuteInProcessResult) -> Iterator[tuple[dg.AssetKey, str, bool]]:
    for check in result.get_asset_check_evaluations():
        yield check.asset_key, check.check_name, check.passed


@pytest.mark.slow
def test_every_table_is_an_asset_that_is_reported_when_it_has_changed(site, dsn):
    assert site.run("merge_tables").success
    [orders] = events(site, ORDERS)
    assert (orders["dagster/row_count"], orders["step"], orders["state"]) == (
        *(100, "rebuilt", "current"),
    )
    assert orders["dagster/uri"].endswith("/lake/tables/public.orders")
    assert orders["lag_bytes"] == orders["lag_seconds"] == 0
    columns = {column.name: column for column in orders["dagster/column_schema"].columns}
    assert [columns[name].type for name in ("id", "note", "_rescued")] == [
        *("bigint", "string", "map<string,string>"),
    ]
    assert columns["id"].description == "part of the key"
    lineage = orders["dagster/column_lineage"].deps_by_column
    assert [(str(d.asset_key.to_user_string()), d.column_name) for d in lineage["note"]] == [
        ("change_log", "after"),
        ("source", "public.orders.note"),
    ]
    assert [d.column_name for d in lineage["_commit_lsn"]] == ["commit_lsn"]
    assert len(events(site, CUSTOMERS)) == len(events(site, PASS)) == 1

    # Nothing has changed, so nothing is reported.
    assert site.run("merge_tables").success
    assert [len(events(site, key)) for key in (ORDERS, CUSTOMERS, PASS)] == [1, 1, 1]

    psql(dsn, "update orders set note = null where id < 4", "delete from orders where id = 9")
    assert site.run("stream", run_config=DRAIN).success
    assert site.run("merge_tables").success
    newest = events(site, ORDERS)[0]
    assert (newest["changes"], newest["step"], newest["dagster/row_count"]) == (4, "merged", 99)
    assert newest["position_lsn"] > orders["position_lsn"]
    assert [len(events(site, key)) for key in (ORDERS, CUSTOMERS, PASS)] == [2, 1, 2]

    # Another process has merged, or a run was killed before it could report.
    psql(dsn, "insert into customers values (3)")
    assert site.run("stream", run_config=DRAIN).success
    merge_tables(site.opened())
    assert site.run("merge_tables").success
    assert events(site, CUSTOMERS)[0]["dagster/row_count"] == 3
    assert [len(events(site, key)) for key in (ORDERS, CUSTOMERS)] == [2, 2]

    rebuild = {"ops": {"write_tables_again": {"config": {"tables": ["public.orders"]}}}}
    assert site.run("rebuild_tables", run_config=rebuild).success
    assert events(site, ORDERS)[0]["step"] == "rebuilt"
    assert [len(events(site, key)) for key in (ORDERS, CUSTOMERS)] == [3, 2]

    # An asset of the host depends on a table by its key.
    @dg.asset(deps=[ORDERS])
    def report() -> None: ...

    merged = dg.Definitions.merge(site.definitions, dg.Definitions([report]))
    graph = merged.get_repository_def().asset_graph
    assert graph.get(dg.AssetKey("report")).parent_keys == {ORDERS}
    assert graph.get(ORDERS).parent_keys == {dg.AssetKey("change_log")}


def test_a_table_without_a_name_in_the_metastore_fails_the_run_that_reports_all_tables(site):
    names = {"public.orders": "taken", "public.customers": "taken"}
    metastore = {"uri": "thrift://127.0.0.1:1", "database": "lake", "names": names}
    site.define(tables={"metastore": metastore})
    result = site.run("merge_tables")
    assert not result.success
    [failure] = result.get_step_failure_events()
    assert "give it another one under tables.metastore.names" in str(failure.event_specific_data)
    assert [len(events(site, key)) for key in (ORDERS, CUSTOMERS, PASS)] == [1, 1, 1]


@pytest.mark.long
def test_a_pass_serves_all_tables_whichever_are_selected(site):
    """As the button "Materialize" does it, with the checks of the asset."""
    with streaming(site.opened()):
        result = site.run("merge_tables", asset_selection=[CUSTOMERS])
        assert result.success
    assert (CUSTOMERS, EQUALS_SOURCE, True) in list(outcomes(result))
    assert [len(events(site, key)) for key in (ORDERS, CUSTOMERS)] == [1, 1]


@pytest.mark.long
def test_checks_name_what_is_behind_and_what_differs(site, dsn, spark: SparkSession):
    pipeline = site.opened()
    assert [table.state.value for table in typed_status(pipeline).tables] == ["missing"] * 2
    [reader] = reader_status(pipeline)
    assert (reader.kind, reader.state, reader.next_step) == (
        *("tables", "behind", "pgstream tables run"),
    )
    assert "public.orders: no typed table yet" in (reader.error or "")
    kept = dict.fromkeys((ORDERS, CUSTOMERS), False)
    assert {key: ok for key, name, ok in outcomes(site.run("check")) if name == KEEPS_UP} == kept
    assert site.run("merge_tables").success
    kept = dict.fromkeys((ORDERS, CUSTOMERS), True)
    assert {key: ok for key, name, ok in outcomes(site.run("check")) if name == KEEPS_UP} == kept

    psql(dsn, "delete from customers where id = 1")
    assert site.run("stream", run_config=DRAIN).success
    status = typed_status(pipeline)
    assert {table.state.value for table in status.tables} == {"behind"}
    assert status.lag_bytes > 0
    assert status.lag_seconds is not None
    shown = cli.listed_text(status).splitlines()
    assert [line.split()[:3] for line in shown[1:3]] == [
        ["public.customers", "behind", "2"],
        ["public.orders", "behind", "100"],
    ]
    [reader] = reader_status(pipeline)
    assert (reader.reader, reader.state, reader.lag_bytes) == (
        *("typed tables (2)", "behind", status.lag_bytes),
    )
    assert "typed tables (2)" in render.readers([reader])

    merge_tables(pipeline)
    orders = f"delta.`{pipeline.lake.typed_table('public.orders')}`"
    spark.sql(f"UPDATE {orders} SET note = 'damaged' WHERE id = 7")
    compare = {"ops": {"compare_source_and_log": {"config": {"typed_tables": True}}}}
    with streaming(pipeline):
        result = site.run("reconcile", run_config=compare)
    assert not result.success
    evaluated = {key: newest_check(site, key) for key in (ORDERS, CUSTOMERS)}
    assert {key: check.passed for key, check in evaluated.items()} == {
        ORDERS: False,
        CUSTOMERS: True,
    }
    check = evaluated[ORDERS]
    assert check.check_name == EQUALS_SOURCE
    assert check.description == "launch 'rebuild_tables' of public.orders"
    facts = {name: entry.value for name, entry in check.metadata.items()}
    assert (facts["typed_differs"], facts["source_differs"], facts["sample"]) == (1, 0, "('7',)")


def test_tables_are_known_when_definitions_load_without_a_server(tmp_path, monkeypatch):
    """Those that the file names, and those that are in the lake; others after a reload."""
    monkeypatch.delenv("PGSTREAM_LAKE", raising=False)
    file = tmp_path / "pgstream.yaml"
    file.write_text(
        "pipeline: shop\nsource: {tables: [orders, 'shop.*', audit]}\n"
        "tables: {exclude: [public.audit]}\n"
    )
    assert typed_keys(build_definitions(file)) == ["tables/public/orders"]
    for name in ("public.orders", "shop.A-b", "shop.a.b", "no_table", "shop.~e9"):
        (tmp_path / "lake" / "tables" / name / "_delta_log").mkdir(parents=True)
    (tmp_path / "lake" / "tables" / "other").mkdir()
    monkeypatch.setenv("PGSTREAM_LAKE", str(tmp_path / "lake"))
    assert typed_keys(build_definitions(file)) == [
        *("tables/no_table", "tables/public/orders"),
        *("tables/shop/A_2db", "tables/shop/_e9", "tables/shop/a_2eb"),
    ]
    prefixed = build_definitions(file, prefix="eu")
    assert dg.AssetKey(["eu", "tables", "public", "orders"]) in keys(prefixed)


def keys(definitions: dg.Definitions) -> set[dg.AssetKey]:
    return set(definitions.get_repository_def().asset_graph.get_all_asset_keys())


def typed_keys(definitions: dg.Definitions) -> list[str]:
    names = sorted(key.to_user_string() for key in keys(definitions))
    return [key for key in names if key.startswith("tables/")]


def test_schedule_leaves_a_run_that_has_not_ended_alone(tmp_path):
    file = tmp_path / "pgstream.yaml"
    file.write_text("pipeline: shop\ntables: {include: [public.orders]}\n")
    definitions = build_definitions(file)
    schedule = definitions.get_repository_def().get_schedule_def("frequent_merge_tables")
    (home := tmp_path / "home").mkdir()
    at = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)
    with (
        dg.DagsterInstance.local_temp(str(home)) as instance,
        dg.build_schedule_context(instance, scheduled_execution_time=at) as context,
    ):
        [request] = schedule.evaluate_tick(context).run_requests or []
        assert request.tags[TABLES_TAG] == "shop/tables"
        job = definitions.resolve_job_def("merge_tables")
        assert job.tags[TABLES_TAG] == "shop/tables"
        assert job.executor_def.name == "in_process"
        run = instance.create_run_for_job(
            job, tags=dict(job.tags), status=dg.DagsterRunStatus.STARTED
        )
        tick = schedule.evaluate_tick(context)
        assert (tick.run_requests or [], tick.skip_message) == (
            [],
            f"run {run.run_id[:8]} is started",
        )
        instance.report_run_canceled(run)
        assert schedule.evaluate_tick(context).run_requests


def test_a_table_is_reported_when_its_version_differs_and_once_in_an_hour():
    assert is_due(None, "a", 0)
    assert is_due(Reported("b", 10), "a", 11)
    assert not is_due(Reported("a", 10), "a", 11)
    assert is_due(Reported("a", 10), "a", 10 + throttle.QUIET_SECONDS)


def test_names_of_outputs_are_distinct():
    names = ["a_b.c", "a.b_c", "a__b.c", "a.b.c", "a-b.c", "a~2e.b"]
    assert len({tables._output(name) for name in names}) == len(names)
    assert all(tables._output(name).isidentifier() for name in names)
