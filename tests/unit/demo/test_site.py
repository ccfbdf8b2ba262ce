"""What Dagster is told when `pgstream dev` starts it, and what a folder loses by that."""

from __future__ import annotations

import importlib.metadata
import socket
import threading
from pathlib import Path

import pytest
import yaml

from pgstream_dagster.config import load
from pgstream_dagster.demo import dev, printing, site
from pgstream_dagster.demo import run as demo
from pgstream_dagster.demo.folder import MARKER, begin
from pgstream_dagster.demo.running import Running
from pgstream_dagster.errors import ExtraMissing, FolderTaken, ServerNotStarted
from tests.support.plugins.wait import until

ROOT = Path(__file__).parents[3]


def made(folder: Path, **given: str) -> site.Site:
    return site.make(folder, given, "host=127.0.0.1", "http://127.0.0.1:9200", is_kept=True)


def test_variables_of_another_pipeline_do_not_reach_dagster(tmp_path):
    others = {"PGSTREAM_SEARCH_USER": "admin", "PGSTREAM_ALERT_URL": "x", "DAGSTER_HOME": "/x"}
    told = made(tmp_path, **others, PGSTREAM_CACHE="/cache", PATH="/bin").variables
    assert told.keys() & others.keys() == {"DAGSTER_HOME"}
    assert told["DAGSTER_HOME"] == str(tmp_path / "home")
    assert (told["PGSTREAM_CACHE"], told["PATH"]) == ("/cache", "/bin")


def test_folder_that_is_neither_empty_nor_a_demos_is_refused_and_left_as_it_is(tmp_path):
    (tmp_path / "lake" / "_delta_log").mkdir(parents=True)
    before = sorted(tmp_path.rglob("*"))
    for run in (
        lambda: begin(tmp_path),
        lambda: demo.run(tmp_path, print),
        lambda: dev.run(tmp_path, None, {}, stop=threading.Event(), say=print),
    ):
        with pytest.raises(FolderTaken, match=str(tmp_path)):
            run()
    assert sorted(tmp_path.rglob("*")) == before


def test_demos_own_folder_is_begun_again_and_what_is_not_ours_stays(tmp_path):
    begin(tmp_path / "demo")
    elsewhere = tmp_path / "elsewhere"
    (elsewhere / "data").mkdir(parents=True)
    (tmp_path / "demo" / "lake" / "_delta_log").mkdir(parents=True)
    (tmp_path / "demo" / "state").symlink_to(elsewhere)
    (tmp_path / "demo" / "thesis.txt").write_text("years of work")
    begin(tmp_path / "demo")
    assert {path.name for path in (tmp_path / "demo").iterdir()} == {MARKER, "thesis.txt"}
    assert (elsewhere / "data").exists()


def test_dagster_is_waited_for_as_long_as_it_runs_and_that_is_said(monkeypatch):
    monkeypatch.setattr(printing, "SAY_SECONDS", 0.0)
    lines = list[str]()
    answers = iter([False, False, True])
    monkeypatch.setattr(site, "_answers", lambda port: next(answers))

    class Dagster:
        def require_running(self) -> None:
            pass

    site.wait_for_answer(Dagster(), 3000, threading.Event(), lines.append)
    assert [line.partition(",")[0] for line in lines] == ["  waiting for Dagster to answer"] * 2


def test_operation_that_is_waited_for_says_how_far_it_is_and_what_ended_it(monkeypatch):
    monkeypatch.setattr(printing, "SAY_SECONDS", 0.0)
    lines = list[str]()

    def operation(stop, report):
        for n in range(3):
            report(n)
            until(lambda n=n: any(f"at {n}" in line for line in lines))
        raise ServerNotStarted("Postgres", "the disk is full")

    with (
        pytest.raises(ServerNotStarted, match="the disk is full"),
        Running("counting", operation) as running,
    ):
        running.wait_until(lambda n: n > 5, printing.Waiting("six", lines.append), "at {}".format)


def test_pipeline_file_of_the_site_is_sound(tmp_path):
    made(tmp_path)
    assert set(load(tmp_path / "pgstream.yaml").search) == {"planes", "distributions"}


def test_instance_is_as_the_repositorys_but_for_its_storage(tmp_path):
    made(tmp_path)
    ours = yaml.safe_load((tmp_path / "home" / "dagster.yaml").read_text())
    theirs = yaml.safe_load((ROOT / "dagster.yaml").read_text())
    storage = {"storage", "local_artifact_storage", "compute_logs"}
    assert ours == {name: said for name, said in theirs.items() if name not in storage}


def test_port_that_is_taken_is_an_error_when_it_was_asked_for():
    refused = pytest.raises(ServerNotStarted, match="is taken by another process")
    with socket.create_server(("127.0.0.1", 0)) as taken, refused:
        site.port_for(taken.getsockname()[1])
    assert site.port_for(None) >= site.PORT


def test_missing_package_is_named_with_the_extra_that_brings_it(monkeypatch):
    def nothing(name: str) -> None:
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "distribution", nothing)
    with pytest.raises(ExtraMissing, match=r"pip install 'pgstream-dagster\[ui\]'"):
        dev.run(None, None, {}, stop=threading.Event(), say=print)
