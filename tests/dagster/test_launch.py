"""`pgstream ... --dagster`: the run that Dagster has afterwards."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
import yaml

from pgstream_dagster.build import build_definitions
from pgstream_dagster.cli import commands, run

ROOT = Path(__file__).parents[2]

LAUNCHED = {
    "setup": ["setup"],
    "stream": ["stream", "--drain"],
    "snapshot": ["snapshot", "public.orders"],
    "resnapshot": ["resnapshot"],
    "reconcile": ["reconcile", "public.orders", "--timeout", "5"],
    "optimize": ["optimize"],
    "teardown": ["teardown", "--yes"],
    "index": ["index", "run"],
    "reindex": ["reindex", "orders-v2", "--keep", "2"],
    "rollback": ["rollback", "orders-v2"],
    "redrive": ["redrive", "orders-v2"],
    "merge_tables": ["tables", "merge"],
    "rebuild_tables": ["tables", "merge", "--rebuild", "public.orders"],
}
"""Every job with a command of its own, and the command."""


class Home:
    """A project of a user: the folder the command is called in, and Dagster's instance."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.file = folder / "pgstream.yaml"
        search = {"orders-v2": {"table": "public.orders"}, "items": {"table": "public.items"}}
        shop = {"pipeline": "shop", "search": search, "tables": {}}
        self.file.write_text(yaml.safe_dump(shop))
        (folder / ".env").write_text("PGSTREAM_DSN=host=nowhere\nPGSTREAM_LAKE=./lake\n")
        for name in ("dagster.yaml", "workspace.yaml"):
            shutil.copy(ROOT / name, folder)
        monkeypatch.chdir(folder)
        monkeypatch.setenv("DAGSTER_HOME", str(folder))
        monkeypatch.setenv("PGSTREAM_STATE", str(folder / "state"))

    def runs(self) -> list[dg.DagsterRun]:
        with dg.DagsterInstance.get() as instance:
            return list(instance.get_runs())


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Home:
    return Home(tmp_path, monkeypatch)


@pytest.mark.slow
def test_run_is_queued_with_config_and_selection(home, capsys):
    assert run.run(["reindex", "orders-v2", "--keep", "2", "--dagster"]) == 0
    [queued] = home.runs()
    assert capsys.readouterr().out == f"launched run {queued.run_id} of job 'reindex'\n"
    assert queued.status is dg.DagsterRunStatus.QUEUED
    assert queued.run_config == {"ops": {"search__orders_v2": {"config": {"keep": 2}}}}
    assert queued.resolved_op_selection == {"search__orders_v2"}


@pytest.mark.long
@pytest.mark.slow
def test_snapshot_is_a_run_for_each_table(home, capsys):
    assert run.run(["snapshot", "public.orders", "public.items", "--dagster"]) == 0
    partitions = {queued.tags["dagster/partition"] for queued in home.runs()}
    assert partitions == {"public.orders", "public.items"}
    assert capsys.readouterr().out.count("of job 'snapshot'") == 2


@pytest.mark.parametrize(("job", "line"), LAUNCHED.items(), ids=LAUNCHED)
def test_every_command_asks_for_a_run_that_its_job_takes(home, monkeypatch, job, line):
    asked: list[Any] = []
    monkeypatch.setattr("pgstream_dagster.cli.launch.launch", asked.append)
    assert run.run([*line, "--dagster"]) == 0
    [request] = asked
    assert request.job == job
    definition = build_definitions(home.file).resolve_job_def(job)
    dg.validate_run_config(definition, request.config)
    assert set(request.ops) <= {node.name for node in definition.graph.nodes}


def test_typed_tables_are_compared_in_the_run_of_reconcile(home, monkeypatch):
    asked: list[Any] = []
    monkeypatch.setattr("pgstream_dagster.cli.launch.launch", asked.append)
    assert run.run(["reconcile", "--tables", "public.orders", "--dagster"]) == 0
    [request] = asked
    config = request.config["ops"]["compare_source_and_log"]["config"]
    assert (config["typed_tables"], config["tables"]) == (True, ["public.orders"])
    definition = build_definitions(home.file).resolve_job_def("reconcile")
    dg.validate_run_config(definition, request.config)


def test_every_job_with_a_command_can_be_launched():
    """What is left has no command (check, replay), or only prints, or is a demo."""
    without = {
        name
        for name, command in commands.pgstream.commands.items()
        if not any(option.name == "in_dagster" for option in command.params)
    }
    groups = {"index", "sink", "outbox", "rules", "schema", "sql", "tables"}
    assert without == groups | {"grants", "status", "tail", "demo", "dev"}


def test_run_that_no_person_would_see_is_refused(home, monkeypatch, capsys):
    monkeypatch.delenv("DAGSTER_HOME")
    assert run.run(["optimize", "--dagster"]) == 2
    assert "DAGSTER_HOME is not set" in capsys.readouterr().err


@pytest.mark.long
def test_folder_without_a_workspace_is_reported_in_dagsters_words(home, capsys):
    (home.file.parent / "workspace.yaml").unlink()
    assert run.run(["optimize", "--dagster"]) == 3
    printed = capsys.readouterr().err
    assert "Dagster did not launch job 'optimize'" in printed
    assert "workspace.yaml" in printed


def test_unknown_alias_and_dry_run_are_refused_before_anything_is_launched(home, capsys):
    assert run.run(["reindex", "nothing", "--dagster"]) != 0
    assert "orders-v2" in capsys.readouterr().err
    assert run.run(["reindex", "items", "--dry-run", "--dagster"]) == 2
    assert "no run to launch" in capsys.readouterr().err
