"""The source as a resource: its address, and that each step of a slot's life reaches the engine."""

from __future__ import annotations

from importlib import import_module

import pytest

from pgstream_dagster.errors import Unreachable
from pgstream_dagster.resources.lake import DeltaLake
from pgstream_dagster.resources.pipeline import PipelineFile
from pgstream_dagster.resources.postgres import PostgresSource
from pgstream_dagster.resources.search import SearchCluster
from pgstream_dagster.stop import Stop


@pytest.fixture
def file(tmp_path):
    return PipelineFile(
        file="pgstream.yaml",
        text="pipeline: shop\n",
        source=PostgresSource(dsn="host=127.0.0.1 port=1 connect_timeout=1"),
        lake=DeltaLake(root=str(tmp_path / "lake"), state=str(tmp_path / "state")),
        search=SearchCluster(),
    )


def test_field_comes_before_the_environment(monkeypatch):
    monkeypatch.setenv("PGSTREAM_DSN", "host=site")
    assert PostgresSource().address() == "host=site"
    assert PostgresSource(dsn="host=field").address() == "host=field"


def test_check_finds_a_source_that_does_not_answer(file):
    findings = file.source.check(file.open())
    assert "connection" in {finding.check for finding in findings}


def test_setup_ends_with_the_error_of_its_thread(file):
    with pytest.raises(Unreachable):
        file.source.setup(file.open())


@pytest.mark.parametrize("step", ["check", "setup", "resnapshot", "teardown"])
def test_step_runs_the_engines_operation_on_this_pipeline(file, monkeypatch, step):
    calls: list[tuple[object, object]] = []

    def operation(pipeline: object, *, stop: Stop | None = None) -> str:
        calls.append((pipeline, stop))
        return "done"

    monkeypatch.setattr(import_module(f"pgstream_dagster.upkeep.{step}"), step, operation)
    pipeline = file.open()
    assert getattr(file.source, step)(pipeline) == "done"
    [(given, stop)] = calls
    assert given is pipeline
    assert (stop is not None) == (step in ("setup", "resnapshot"))
