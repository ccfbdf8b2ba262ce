"""A pipeline beside the assets of another project: neither changes what the other does."""

from __future__ import annotations

import json
import logging
import subprocess
import sys
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, cast

import dagster as dg
import pytest
from dagster._core.remote_origin import (
    RegisteredCodeLocationOrigin,
    RemoteJobOrigin,
    RemoteRepositoryOrigin,
)

from pgstream_dagster.assets.names import Names, PgstreamTranslator
from pgstream_dagster.build import build_definitions
from pgstream_dagster.jobs import STREAM_TAG
from pgstream_dagster.resources.lake import DeltaLake
from pgstream_dagster.resources.pipeline import PipelineFile
from pgstream_dagster.resources.postgres import PostgresSource
from pgstream_dagster.resources.search import SearchCluster
from pgstream_dagster.sensors import DEPLOYED_TAG, keep_stream

RUN = "0" * 32
SEARCH = "search: {orders: {table: orders}}\nsinks: {out: {stdout: {}}}\n"


def pipeline(folder: Path, name: str = "shop", **options) -> dg.Definitions:
    file = folder / f"{name}.yaml"
    file.write_text(f"pipeline: {name}\n{SEARCH}")
    return build_definitions(file, **options)


def test_host_keeps_its_executor_and_its_resources(tmp_path):
    @dg.asset
    def mine(source: dg.ResourceParam[str]) -> str:
        return source

    host = dg.Definitions([mine], resources={"source": "mine"}, executor=dg.multiprocess_executor)
    merged = dg.Definitions.merge(host, pipeline(tmp_path))
    assert merged.executor is dg.multiprocess_executor
    assert (merged.resources or {})["source"] == "mine"
    executors = {
        job.name: job.executor_def.name
        for job in merged.get_repository_def().get_all_jobs()
        if not job.name.startswith("__")
    }
    assert set(executors.values()) == {"in_process"}


def test_two_locations_on_one_instance_share_no_pool_tag_or_partition_set(tmp_path):
    def shared(name: str) -> set[str]:
        repository = pipeline(tmp_path, name).get_repository_def()
        jobs = repository.get_all_jobs()
        pools = {pool for job in jobs for node in job.nodes for pool in node.definition.pools}
        tags = {job.tags[STREAM_TAG] for job in jobs if STREAM_TAG in job.tags}
        partitions = repository.asset_graph.get(dg.AssetKey("snapshot")).partitions_def
        assert isinstance(partitions, dg.DynamicPartitionsDefinition)
        return pools | tags | {str(partitions.name)}

    assert shared("shop") & shared("crm") == set()


@pytest.mark.filterwarnings("ignore:InitResourceContext.dagster_run is deprecated")
def test_sensor_of_one_location_leaves_the_runs_of_another_alone(tmp_path):
    file = tmp_path / "shop.yaml"
    file.write_text("pipeline: shop\n")
    opened = PipelineFile(
        file=str(file),
        source=PostgresSource(dsn="host=nowhere"),
        lake=DeltaLake(root=str(tmp_path / "lake"), state=str(tmp_path / "state")),
        search=SearchCluster(),
    )
    shop, crm = Names(pipeline="shop"), Names(pipeline="crm")
    with dg.DagsterInstance.ephemeral() as instance:
        status = dg.DagsterRunStatus.STARTED
        tags = {STREAM_TAG: crm.in_instance("stream"), DEPLOYED_TAG: "another version"}
        instance.add_run(dg.DagsterRun("stream", run_id=RUN, status=status, tags=tags))
        resources = {"pgstream_pipeline": opened}
        with dg.build_sensor_context(instance, resources=resources) as context:
            tick = keep_stream(shop).evaluate_tick(context)
        run = instance.get_run_by_id(RUN)
    assert run is not None
    assert (run.status, run.tags) == (status, tags)
    assert [request.run_key for request in tick.run_requests or []] == ["shop/stream-first"]


LONG_RUNS = pytest.mark.parametrize("job", ["stream", "index", "sinks"])

HOST = {
    "run_retries": {"enabled": True, "max_retries": 3},
    "run_monitoring": {"enabled": True, "max_runtime_seconds": 1},
    "concurrency": {
        "runs": {
            "max_concurrent_runs": 3,
            "tag_concurrency_limits": [{"key": "team", "limit": 1}],
        },
        "pools": {"granularity": "run", "default_limit": 1},
    },
}
"""The limits of an instance that had runs of its own before ours."""


ORIGIN = RemoteJobOrigin(
    RemoteRepositoryOrigin(RegisteredCodeLocationOrigin("host"), "__repository__"), "any"
)
"""Where the queue would find the job of a run."""


@pytest.fixture
def instance(tmp_path: Path) -> Iterator[dg.DagsterInstance]:
    with dg.instance_for_test(temp_dir=str(tmp_path), overrides=HOST) as instance:
        yield instance


def long_run(
    instance: dg.DagsterInstance, folder: Path, job: str, status: dg.DagsterRunStatus
) -> dg.DagsterRun:
    """A run of ours, with the tags and the pool of its job."""
    definition = pipeline(folder).resolve_job_def(job)
    return instance.create_run_for_job(
        definition, status=status, tags=definition.run_tags, remote_job_origin=ORIGIN
    )


def their_run(
    instance: dg.DagsterInstance, status: dg.DagsterRunStatus, team: str = "any"
) -> dg.DagsterRun:
    run = dg.DagsterRun("theirs", status=status, tags={"team": team}, remote_job_origin=ORIGIN)
    return instance.add_run(run)


def start(instance: dg.DagsterInstance, run: dg.DagsterRun) -> None:
    """As if the run had started an hour ago."""
    event = dg.DagsterEvent(dg.DagsterEventType.RUN_START.value, run.job_name)
    instance.report_dagster_event(event, run.run_id, timestamp=time.time() - 3600)


def status(instance: dg.DagsterInstance, run: dg.DagsterRun) -> dg.DagsterRunStatus:
    current = instance.get_run_by_id(run.run_id)
    assert current is not None
    return current.status


@LONG_RUNS
def test_retries_of_the_instance_do_not_repeat_a_long_run(tmp_path, instance, job):
    from dagster._core.execution.retries import auto_reexecution_should_retry_run

    def is_repeated(run: dg.DagsterRun) -> bool:
        return auto_reexecution_should_retry_run(instance, run, None)

    failed = dg.DagsterRunStatus.FAILURE
    assert is_repeated(their_run(instance, failed))
    assert not is_repeated(long_run(instance, tmp_path, job, failed))


@pytest.mark.long
@LONG_RUNS
def test_longest_time_of_a_run_does_not_end_a_long_run(tmp_path, instance, job):
    """The check that Dagster's monitoring daemon makes of each run that has started."""
    from dagster._daemon.monitoring.run_monitoring import monitor_started_run

    def after_an_hour(run: dg.DagsterRun) -> dg.DagsterRunStatus:
        start(instance, run)
        [record] = instance.get_run_records(dg.RunsFilter(run_ids=[run.run_id]))
        monitor_started_run(instance, cast("Any", None), record, logging.getLogger())
        return status(instance, run)

    queued = dg.DagsterRunStatus.QUEUED
    ours, theirs = long_run(instance, tmp_path, job, queued), their_run(instance, queued)
    assert after_an_hour(theirs) is dg.DagsterRunStatus.FAILURE
    assert after_an_hour(ours) is dg.DagsterRunStatus.STARTED


@LONG_RUNS
def test_queue_of_the_instance_leaves_a_long_run_its_place_and_a_second_one_waiting(
    tmp_path, instance, job
):
    """What Dagster's queue launches next; a long run takes a place, and no tag of theirs."""
    from dagster._daemon.run_coordinator.queued_run_coordinator_daemon import (
        QueuedRunCoordinatorDaemon,
    )

    def next_runs() -> list[str]:
        limits, daemon = instance.get_concurrency_config(), QueuedRunCoordinatorDaemon(1)
        return [run.run_id for run in daemon._get_runs_to_dequeue(instance, limits, None)]

    queued = dg.DagsterRunStatus.QUEUED
    first = long_run(instance, tmp_path, job, queued)
    assert next_runs() == [first.run_id]
    start(instance, first)
    long_run(instance, tmp_path, job, queued)  # which a person has launched
    theirs = [their_run(instance, queued, team) for team in "ab"]
    assert next_runs() == [theirs[0].run_id]  # one with a team at a time, the third place is free
    assert status(instance, first) is dg.DagsterRunStatus.STARTED


class Prefixed(PgstreamTranslator):
    """As a project with conventions of its own has it."""

    def get_asset_spec(self, spec: dg.AssetSpec) -> dg.AssetSpec:
        return spec.replace_attributes(
            key=spec.key.with_prefix(["raw", "postgres"]),
            group_name="shop",
            owners=["team:platform"],
            automation_condition=dg.AutomationCondition.eager(),
        ).merge_attributes(tags={"tier": "1"})


def test_translator_changes_every_asset_and_every_reference_to_it(tmp_path):
    graph = pipeline(tmp_path, translator=Prefixed()).get_repository_def().asset_graph
    keys = {key.to_user_string() for key in graph.get_all_asset_keys()}
    assert all(key.startswith("raw/postgres/") for key in keys)
    log = graph.get(dg.AssetKey(["raw", "postgres", "change_log"]))
    assert log.parent_keys <= set(graph.get_all_asset_keys())
    assert {graph.get(key).group_name for key in graph.get_all_asset_keys()} == {"shop"}
    assert {check.asset_key for check in graph.asset_check_keys} <= graph.get_all_asset_keys()


def test_prefix_of_several_parts_is_a_path_in_keys_and_underscores_in_names(tmp_path):
    repository = pipeline(tmp_path, prefix="eu/shop").get_repository_def()
    assert dg.AssetKey(["eu", "shop", "change_log"]) in repository.asset_graph.get_all_asset_keys()
    assert "eu_shop_stream" in {job.name for job in repository.get_all_jobs()}


def test_log_is_reported_by_its_job_and_not_materialized(tmp_path):
    definitions = pipeline(tmp_path)
    log = definitions.get_repository_def().asset_graph.get(dg.AssetKey("change_log"))
    assert not log.is_executable
    assert definitions.resolve_job_def("stream").nodes[0].name == "land_changes"


@pytest.mark.filterwarnings("ignore:Parameter `include_sources`")
def test_eager_asset_downstream_follows_the_log_while_the_stream_runs(tmp_path):
    log = dg.AssetKey("change_log")

    @dg.asset(deps=[log], automation_condition=dg.AutomationCondition.eager())
    def downstream() -> None: ...

    merged = dg.Definitions.merge(pipeline(tmp_path), dg.Definitions([downstream]))
    with dg.DagsterInstance.ephemeral() as instance:
        evaluation = dg.evaluate_automation_conditions(merged, instance)

        def requested_after(asset: dg.AssetKey) -> int:
            nonlocal evaluation
            instance.report_runless_asset_event(dg.AssetMaterialization(asset))
            cursor = evaluation.cursor
            evaluation = dg.evaluate_automation_conditions(merged, instance, cursor=cursor)
            return evaluation.get_num_requested(downstream.key)

        # While the run continues only its events reach the asset.
        ticks = [log, downstream.key, log, downstream.key]
        assert [requested_after(asset) for asset in ticks] == [1, 0, 1, 0]


def test_component_imports_in_a_folder_with_a_broken_pipeline_file(tmp_path):
    (tmp_path / "pgstream.yaml").write_text("colour: blue\n")
    imported = subprocess.run(
        [sys.executable, "-c", "import pgstream_dagster.components"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert imported.returncode == 0, imported.stderr


IMPORTS = """
import json, sys, time
def cpu(name):
    before = time.process_time()
    __import__(name)
    return time.process_time() - before
times = cpu("dagster"), cpu("pgstream_dagster.build")
engines = {"pandas", "pyspark", "delta", "opensearchpy", "pooch"} & set(sys.modules)
print(json.dumps([*times, sorted(engines)]))
"""


def test_definitions_cost_less_to_import_than_dagster():
    output = subprocess.run(
        [sys.executable, "-c", IMPORTS], capture_output=True, text=True, timeout=120, check=True
    )
    dagster, ours, engines = json.loads(output.stdout)
    assert engines == []
    assert ours < dagster


@pytest.mark.filterwarnings("ignore:Parameter `include_sources`")
def test_cron_asset_downstream_runs_once_after_its_tick_when_the_log_moved(tmp_path):
    log = dg.AssetKey("change_log")
    condition = dg.AutomationCondition.on_cron("0 * * * *")

    @dg.asset(deps=[log], automation_condition=condition)
    def downstream() -> None: ...

    merged = dg.Definitions.merge(pipeline(tmp_path), dg.Definitions([downstream]))
    now = datetime.now(UTC).replace(minute=30)  # so that one tick is passed, not two
    with dg.DagsterInstance.ephemeral() as instance:
        evaluation = dg.evaluate_automation_conditions(merged, instance, evaluation_time=now)
        instance.report_runless_asset_event(dg.AssetMaterialization(log))
        requested = []
        for hours in (1, 1.01):
            evaluation = dg.evaluate_automation_conditions(
                merged,
                instance,
                cursor=evaluation.cursor,
                evaluation_time=now + timedelta(hours=hours),
            )
            requested.append(evaluation.get_num_requested(downstream.key))
            instance.report_runless_asset_event(dg.AssetMaterialization(log))
    assert sum(requested) == 1
