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


def test_graph_is_what_was_reviewed(definitions):
    repository = definitions.get_repository_def()
    shown = {
        "assets": sorted(
            key.to_user_string() for key in repository.asset_graph.get_all_asset_keys()
        ),
        "jobs": sorted(job.name for job in repository.get_all_jobs() if "__ASSET" not in job.name),
        "resources": sorted(repository.get_top_level_resources()),
        "sensors": sorted(sensor.name for sensor in repository.sensor_defs),
        "schedules": sorted(schedule.name for schedule in repository.schedule_defs),
    }
    assert shown == {
        "assets": ["change_log", "snapshot"],
        "jobs": ["optimize", "reconcile", "resnapshot", "setup", "snapshot", "stream", "teardown"],
        "resources": ["lake", "pipeline", "source"],
        "sensors": [],
        "schedules": [],
    }


def test_tables_are_dynamic_partitions_of_the_snapshot(definitions):
    partitions = definitions.resolve_assets_def("snapshot").partitions_def
    assert isinstance(partitions, dg.DynamicPartitionsDefinition)
    assert partitions.name == "pgstream_tables"


def test_only_the_stream_holds_the_pool_of_the_stream(definitions):
    pools = {
        name: definitions.resolve_assets_def(name).op.pool for name in ("change_log", "snapshot")
    }
    assert pools == {"change_log": "stream", "snapshot": "copy"}
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
