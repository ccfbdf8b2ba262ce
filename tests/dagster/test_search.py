"""Search indices in Dagster, against a real Postgres, a real lake and a real search engine."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import dagster as dg
import pytest

from pgstream_dagster import checks, jobs
from pgstream_dagster.assets import throttle
from pgstream_dagster.assets.names import Names
from pgstream_dagster.assets.search import key_of, op_names
from pgstream_dagster.lsn import Lsn
from pgstream_dagster.resources.search import SearchCluster
from tests.support.plugins.cluster import psql
from tests.support.plugins.search import ask
from tests.support.plugins.wait import until

# Dagster asks itself for a deprecated property when it resolves a nested resource.
pytestmark = [
    pytest.mark.filterwarnings("ignore:.*dagster_run.*:DeprecationWarning"),
    pytest.mark.one_major("newest"),
]

SECONDS = 200
DRAIN = dg.RunConfig(ops={"land_changes": {"config": {"mode": "drain"}}})


@pytest.fixture
def alias(index_prefix: str) -> str:
    return f"{index_prefix}orders"


@pytest.fixture
def search_pipelines(site, search_node, alias):
    site.define({alias: {"table": "public.orders"}}, SearchCluster(url=search_node.url))
    return site


def plain(metadata) -> dict[str, object]:
    return {name: entry.value for name, entry in metadata.items()}


def facts(result: dg.ExecuteInProcessResult, op: str) -> dict[str, object]:
    [event] = result.asset_materializations_for_node(op)
    return plain(event.metadata)


def failure(result: dg.ExecuteInProcessResult) -> dg.Failure:
    [event] = [event for event in result.all_events if event.is_step_failure]
    return event.step_failure_data.user_failure_data


def on(job: str, alias: str) -> dg.RunConfig:
    op = {"rollback": "move_alias_back", "redrive": "send_refused_documents"}[job]
    return dg.RunConfig(ops={op: {"config": {"alias": alias}}})


@pytest.mark.slow
@pytest.mark.first
@pytest.mark.timeout(900)
def test_index_is_built_kept_current_and_brought_back(
    search_pipelines, spark, search_node, alias, monkeypatch
):
    site, key, op = search_pipelines, key_of(Names(), alias), op_names([alias])[alias]

    def documents() -> int:
        ask(search_node, "POST", f"/{alias}/_refresh")
        return ask(search_node, "GET", f"/{alias}/_count")["count"]

    assert site.run("setup").success
    psql(site.dsn, "delete from orders where id = 1", "update orders set note = '' where id = 2")
    assert site.run("stream", run_config=DRAIN).success

    built = site.run("reindex")
    assert built.success
    built_facts = facts(built, op)
    assert (built_facts["index"], built_facts["replaced"]) == (f"{alias}-000001", "")
    assert (built_facts["documents"], built_facts["refused"]) == (99, 0)
    assert Lsn.parse(built_facts["delivered"]) == built_facts["delivered_lsn"] > 0
    assert built_facts["documents_per_second"] == pytest.approx(99 / built_facts["load_seconds"])
    columns = [(c.name, c.type) for c in built_facts["dagster/column_schema"].columns]
    assert columns == [("id", "long"), ("note", "text")]
    assert documents() == 99

    psql(site.dsn, "insert into orders values (101, 'late')")
    watermark = facts(site.run("stream", run_config=DRAIN), "land_changes")["watermark"]
    monkeypatch.setattr(jobs, "POLL_SECONDS", 0.1)
    monkeypatch.setattr(throttle, "MATERIALIZATION_SECONDS", 0.5)

    def newest() -> dict[str, object]:
        [record] = site.instance.fetch_materializations(key, limit=1).records
        return plain(record.asset_materialization.metadata)

    def end() -> None:
        until(lambda: newest()["delivered"] == watermark, seconds=SECONDS, every=0.2)
        site.end("index")

    with ThreadPoolExecutor(1) as pool:
        ending = pool.submit(end)
        kept_current = site.run("index")
        ending.result()
    assert "is CANCELING: it stops" in failure(kept_current).description
    assert newest()["index"] == f"{alias}-000001"
    assert documents() == 100

    [compared] = [
        evaluation
        for evaluation in site.run("check").get_asset_check_evaluations()
        if evaluation.check_name == checks.LIVE_EQUALS_FOLD
    ]
    assert (compared.asset_key, compared.passed) == (key, True)
    shown = plain(compared.metadata)
    assert (shown["index"], shown["compared"]) == (f"{alias}-000001", 100)
    assert Lsn.parse(shown["at"]) == shown["at_lsn"]

    # That these need not wait says that the indexer has let go.
    again = site.run("reindex")
    assert facts(again, op)["replaced"] == f"{alias}-000001"
    assert facts(again, op)["documents"] == 100
    back = site.run("rollback", run_config=on("rollback", alias))
    assert facts(back, "move_alias_back")["index"] == f"{alias}-000001"
    assert documents() == 100
    assert site.run("redrive", run_config=on("redrive", alias)).success


@pytest.mark.long
@pytest.mark.parametrize("job", ["rollback", "redrive"])
def test_alias_that_is_not_in_the_file_is_named(search_pipelines, spark, job):
    assert search_pipelines.run("setup").success
    failed = failure(search_pipelines.run(job, run_config=on(job, "nothing")))
    assert failed.metadata["error"].value == "NoSuchAlias"
    assert "no index 'nothing'" in failed.description


@pytest.mark.long
@pytest.mark.parametrize("job", ["reindex", "index"])
def test_run_without_an_address_names_the_variable(site, monkeypatch, job):
    monkeypatch.delenv("PGSTREAM_SEARCH_URL", raising=False)
    site.define({"orders": {"table": "public.orders"}})
    failed = failure(site.run(job))
    assert failed.metadata["error"].value == "MissingSetting"
    assert "PGSTREAM_SEARCH_URL is not set" in failed.description
