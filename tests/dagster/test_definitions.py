"""What Dagster shows: assets, jobs, resources; without a server and without a variable set."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import dagster as dg
import pytest

from pgstream_dagster.build import build_definitions
from pgstream_dagster.errors import InvalidPipeline


@pytest.fixture
def definitions(tmp_path: Path) -> dg.Definitions:
    file = tmp_path / "pgstream.yaml"
    file.write_text("pipeline: shop\n")
    return build_definitions(file)


@pytest.fixture
def search_pipelines(tmp_path: Path) -> dg.Definitions:
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
        "checks": sorted(
            f"{key.asset_key.to_user_string()}:{key.name}"
            for key in repository.asset_graph.asset_check_keys
        ),
        "jobs": sorted(job.name for job in repository.get_all_jobs() if "__ASSET" not in job.name),
        "resources": sorted(repository.get_top_level_resources()),
        "sensors": sorted(sensor.name for sensor in repository.sensor_defs),
        "schedules": sorted(schedule.name for schedule in repository.schedule_defs),
    }


def test_outbox_brings_a_job_and_a_schedule(definitions, tmp_path: Path) -> None:
    file = tmp_path / "outbox.yaml"
    file.write_text("pipeline: shop\noutbox: {keep_days: 3}\n")
    before, after = graph(definitions), graph(build_definitions(file))
    assert set(after["jobs"]) - set(before["jobs"]) == {"outbox_maintenance"}
    assert set(after["schedules"]) - set(before["schedules"]) == {"hourly_outbox_maintenance"}


def test_graph_is_what_was_reviewed(definitions):
    assert graph(definitions) == {
        "assets": ["change_log", "daily_changes", "snapshot", "source"],
        "checks": [
            "change_log:positions_without_gap",
            "change_log:slot_health",
            "change_log:tables_fit",
            "snapshot:copies_complete",
        ],
        "jobs": [
            *("check", "check_source", "optimize", "reconcile", "replay", "resnapshot"),
            *("setup", "snapshot", "stream", "teardown"),
        ],
        "resources": ["pgstream_lake", "pgstream_pipeline", "pgstream_search", "pgstream_source"],
        "sensors": ["keep_stream", "report_failure"],
        "schedules": [
            *("hourly_optimize", "nightly_reconcile", "nightly_replay", "weekly_snapshot"),
        ],
    }


def test_a_pipeline_that_reads_topics_shows_nothing_of_slots_and_copies(tmp_path: Path) -> None:
    file = tmp_path / "pgstream.yaml"
    file.write_text(
        "pipeline: copy\nsource:\n  kafka: {bootstrap_servers: k:9092, topics: [shop.*],"
        " schemas_topic: shop.schemas}\nsinks: {out: {stdout: {}}}\n"
    )
    definitions = build_definitions(file)
    shown = graph(definitions)
    assert {kind: shown[kind] for kind in ("assets", "checks", "jobs", "schedules")} == {
        "assets": ["change_log", "sinks/out", "source"],
        "checks": [
            "change_log:positions_without_gap",
            *("sinks/out:everything_delivered", "sinks/out:keeps_up"),
        ],
        "jobs": [
            *("check", "check_source", "optimize", "redrive_sink", "replay_sink"),
            *("setup", "sinks", "stream"),
        ],
        "schedules": ["hourly_optimize"],
    }
    assert definitions.get_repository_def().asset_graph.get(dg.AssetKey("source")).kinds == {
        "kafka"
    }


def test_indices_of_the_file_are_assets_with_their_jobs(definitions, search_pipelines):
    plain, shown = graph(definitions), graph(search_pipelines)
    added = {kind: sorted(set(names) - set(plain[kind])) for kind, names in shown.items()}
    assert added == {
        "assets": ["search/flights-new", "search/flights.new"],
        "checks": [
            "search/flights-new:index_equals_fold",
            "search/flights-new:live_index_equals_fold",
            "search/flights.new:index_equals_fold",
            "search/flights.new:live_index_equals_fold",
        ],
        "jobs": ["index", "redrive", "reindex", "rollback"],
        "resources": [],
        "sensors": ["keep_index"],
        "schedules": ["weekly_reindex"],
    }


def test_rows_come_from_the_source_as_copies_and_as_changes(definitions):
    graph = definitions.get_repository_def().asset_graph
    source, snapshot, log = map(dg.AssetKey, ("source", "snapshot", "change_log"))
    assert graph.get(snapshot).parent_keys == {source}
    assert graph.get(log).parent_keys == {source, snapshot}
    assert not graph.get(source).is_executable


def test_index_comes_after_the_log_and_is_one_of_search(search_pipelines):
    key = dg.AssetKey(["search", "flights-new"])
    spec = search_pipelines.resolve_assets_def(key).get_asset_spec(key)
    assert [dep.asset_key for dep in spec.deps] == [dg.AssetKey("change_log")]
    assert (spec.group_name, spec.kinds) == ("search", {"opensearch"})


def test_reindex_builds_the_indices_and_nothing_else(search_pipelines):
    job = search_pipelines.resolve_job_def("reindex")
    assert {key.to_user_string() for key in job.asset_layer.selected_asset_keys} == {
        "search/flights-new",
        "search/flights.new",
    }
    assert {node.name for node in job.nodes} == {"search__flights_new", "search__flights_new__2"}
    assert job.executor_def.name == "in_process"


def test_schedules_are_off_until_somebody_turns_them_on(search_pipelines):
    schedules = search_pipelines.get_repository_def().schedule_defs
    assert {schedule.default_status for schedule in schedules} == {dg.DefaultScheduleStatus.STOPPED}


def test_stream_and_indexer_are_kept_without_being_asked(search_pipelines):
    sensors = search_pipelines.get_repository_def().sensor_defs
    assert {sensor.default_status for sensor in sensors} == {dg.DefaultSensorStatus.RUNNING}


def test_several_pipelines_share_a_location_under_prefixes(tmp_path):
    made = []
    for prefix in ("shop", "crm"):
        file = tmp_path / f"{prefix}.yaml"
        file.write_text(f"pipeline: {prefix}\nsearch: {{items: {{table: items}}}}\n")
        made.append(build_definitions(file, prefix=prefix))
    shown = graph(dg.Definitions.merge(*made))
    assert "shop/search/items" in shown["assets"]
    for names in shown.values():
        ours = [name for name in names if name.startswith("shop")]
        assert len(ours) * 2 == len(names)
    [stream] = made[0].resolve_job_def("shop_stream").nodes
    assert stream.definition.pool == "shop/shop/stream"
    assert stream.definition.required_resource_keys == {"shop_pgstream_pipeline"}


def test_prefix_that_no_name_may_have_is_refused(tmp_path):
    with pytest.raises(ValueError, match="letters, digits and underscores"):
        build_definitions(tmp_path / "nowhere.yaml", prefix="my-shop")


def test_tables_are_dynamic_partitions_of_the_snapshot(definitions):
    partitions = definitions.resolve_assets_def("snapshot").partitions_def
    assert isinstance(partitions, dg.DynamicPartitionsDefinition)
    assert partitions.name == "shop/tables"


def test_long_runs_hold_a_pool_of_their_own(definitions, search_pipelines):
    assert definitions.resolve_assets_def("snapshot").op.pool == "shop/copy"
    for job in ("stream", "index"):
        nodes = search_pipelines.resolve_job_def(job).nodes
        assert [node.definition.pools for node in nodes] == [{f"shop/{job}"}]
    for job in ("setup", "resnapshot", "teardown", "optimize", "reconcile"):
        nodes = definitions.resolve_job_def(job).nodes
        assert [node.definition.pools for node in nodes] == [set()]


def test_wrong_pipeline_file_is_named_when_definitions_load(tmp_path):
    file = tmp_path / "pgstream.yaml"
    file.write_text("pipeline: shop\ncolour: blue\n")
    with pytest.raises(InvalidPipeline, match="colour: unknown key"):
        build_definitions(file)


@pytest.mark.long
def test_definitions_load_without_a_file_a_server_or_a_variable(tmp_path):
    bare = {
        name: value for name, value in os.environ.items() if not name.startswith(("PG", "JAVA"))
    }
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


@pytest.mark.long
@pytest.mark.slow
def test_command_line_and_dagster_use_one_lake_when_dotenv_and_environment_differ(tmp_path):
    """`validate` loads the code location in a server of its own, as `dagster dev` does."""
    (tmp_path / "pgstream.yaml").write_text("pipeline: shop\n")
    (tmp_path / ".env").write_text("PGSTREAM_DSN=host=nowhere\nPGSTREAM_LAKE=./of_the_file\n")
    (tmp_path / "location.py").write_text(
        "from pathlib import Path\n"
        "from pgstream_dagster.definitions import defs\n"
        "from pgstream_dagster.resources.lake import DeltaLake\n"
        "Path('seen').write_text(DeltaLake().lake().root)\n"
    )

    def output(*command: str) -> str:
        ended = subprocess.run(
            [sys.executable, "-m", *command],
            cwd=tmp_path,
            env={
                **os.environ,
                "DAGSTER_HOME": str(tmp_path),
                "DAGSTER_DISABLE_TELEMETRY": "yes",
                "PGSTREAM_LAKE": "./of_the_environment",
                "PGSTREAM_STATE": str(tmp_path / "state"),
            },
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        return ended.stdout + ended.stderr

    refused = "is not set up in the lake './of_the_file'"
    by_command = output("pgstream_dagster.cli", "optimize")
    assert refused in by_command
    assert "PGSTREAM_LAKE is taken from .env, not from the environment" in by_command
    job = ("-m", "pgstream_dagster.definitions", "-j", "optimize")
    assert refused in output("dagster", "job", "execute", *job)
    output("dagster", "definitions", "validate", "-f", "location.py")
    assert (tmp_path / "seen").read_text() == "./of_the_file"
