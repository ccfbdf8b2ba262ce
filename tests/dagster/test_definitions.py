"""What Dagster shows: assets, jobs, resources; without a server and without a variable set."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import dagster as dg
import pytest

from pgstream_dagster.definitions import build_definitions
from pgstream_dagster.errors import InvalidPipeline


@pytest.fixture
def definitions(tmp_path: Path) -> dg.Definitions:
    file = tmp_path / "pgstream.yaml"
    file.write_text("pipeline: shop\n")
    return build_definitions(file)


@pytest.fixture
def searching(tmp_path: Path) -> dg.Definitions:
    """The same pipeline with two indices; the names of their aliases are alike."""
    file = tmp_path / "search.yaml"
    indices = "{flights.new: {table: flights}, flights-new: {table: public.flights}}"
    file.write_text(f"pipeline: shop\nsearch: {indices}\n")
    return build_definitions(file)


def graph(definitions: dg.Definitions) -> dict[str, list[str]]:
    repository = definitions.get_repository_def()
    return {
        "assets": sorted(
            key.to_user_string() for key in repository.asset_graph.get_all_asset_keys()
        ),
        "jobs": sorted(job.name for job in repository.get_all_jobs() if "__ASSET" not in job.name),
        "resources": sorted(repository.get_top_level_resources()),
        "sensors": sorted(sensor.name for sensor in repository.sensor_defs),
        "schedules": sorted(schedule.name for schedule in repository.schedule_defs),
    }


def test_graph_is_what_was_reviewed(definitions):
    assert graph(definitions) == {
        "assets": ["change_log", "snapshot"],
        "jobs": ["optimize", "reconcile", "resnapshot", "setup", "snapshot", "stream", "teardown"],
        "resources": ["lake", "pipeline", "search", "source"],
        "sensors": [],
        "schedules": [],
    }


def test_indices_of_the_file_are_assets_with_their_jobs(definitions, searching):
    plain, shown = graph(definitions), graph(searching)
    added = {kind: sorted(set(names) - set(plain[kind])) for kind, names in shown.items()}
    assert added == {
        "assets": ["search/flights-new", "search/flights.new"],
        "jobs": ["index", "redrive", "reindex", "rollback"],
        "resources": [],
        "sensors": [],
        "schedules": ["nightly_reindex"],
    }


def test_index_comes_after_the_log_and_is_one_of_search(searching):
    key = dg.AssetKey(["search", "flights-new"])
    spec = searching.resolve_assets_def(key).get_asset_spec(key)
    assert [dep.asset_key for dep in spec.deps] == [dg.AssetKey("change_log")]
    assert (spec.group_name, spec.kinds) == ("search", {"opensearch"})


def test_reindex_builds_the_indices_and_nothing_else(searching):
    job = searching.resolve_job_def("reindex")
    assert {key.to_user_string() for key in job.asset_layer.selected_asset_keys} == {
        "search/flights-new",
        "search/flights.new",
    }
    assert {node.name for node in job.nodes} == {"search__flights_new", "search__flights_new__2"}
    assert job.executor_def.name == "in_process"


def test_schedules_are_off_until_somebody_turns_them_on(searching):
    [nightly] = searching.get_repository_def().schedule_defs
    assert (nightly.job_name, nightly.cron_schedule) == ("reindex", "0 3 * * *")
    assert nightly.default_status is dg.DefaultScheduleStatus.STOPPED


def test_tables_are_dynamic_partitions_of_the_snapshot(definitions):
    partitions = definitions.resolve_assets_def("snapshot").partitions_def
    assert isinstance(partitions, dg.DynamicPartitionsDefinition)
    assert partitions.name == "pgstream_tables"


def test_long_runs_hold_a_pool_of_their_own(definitions, searching):
    pools = {
        name: definitions.resolve_assets_def(name).op.pool for name in ("change_log", "snapshot")
    }
    assert pools == {"change_log": "stream", "snapshot": "copy"}
    indexer = searching.resolve_job_def("index").nodes
    assert [node.definition.pools for node in indexer] == [{"index"}]
    for job in ("setup", "resnapshot", "teardown", "optimize", "reconcile"):
        nodes = definitions.resolve_job_def(job).nodes
        assert [node.definition.pools for node in nodes] == [set()]


def test_wrong_pipeline_file_is_said_when_definitions_load(tmp_path):
    file = tmp_path / "pgstream.yaml"
    file.write_text("pipeline: shop\ncolour: blue\n")
    with pytest.raises(InvalidPipeline, match="colour: unknown key"):
        build_definitions(file)


def test_definitions_load_without_a_file_a_server_or_a_variable(tmp_path):
    bare = {name: said for name, said in os.environ.items() if not name.startswith(("PG", "JAVA"))}
    loaded = subprocess.run(
        [
            sys.executable,
            *["-m", "dagster", "definitions", "validate", "-m", "pgstream_dagster.definitions"],
        ],
        cwd=tmp_path,
        env={**bare, "DAGSTER_HOME": str(tmp_path), "DAGSTER_DISABLE_TELEMETRY": "yes"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert loaded.returncode == 0, loaded.stderr
    assert "Validation successful" in loaded.stderr + loaded.stdout
