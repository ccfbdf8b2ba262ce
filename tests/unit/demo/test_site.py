"""The environment in which `pgstream dev` starts Dagster, and what it removes from a folder."""

from __future__ import annotations

import importlib.metadata
import socket
import threading
from pathlib import Path

import pytest
import yaml

from pgstream_dagster import settings
from pgstream_dagster.config import load
from pgstream_dagster.demo import dev, printing, site
from pgstream_dagster.demo import run as demo
from pgstream_dagster.demo.folder import MARKER, begin
from pgstream_dagster.demo.receiver import Receiver
from pgstream_dagster.demo.running import Running
from pgstream_dagster.demo.targets import Targets
from pgstream_dagster.errors import ExtraMissing, FolderTaken, ServerNotStarted
from tests.support.plugins.wait import until

ROOT = Path(__file__).parents[3]


KAFKA = "127.0.0.1:9092"
SECRET = "whsec_" + "MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"


def make_site(folder: Path, **environment: str) -> site.Site:
    with Receiver(SECRET, lambda event: None) as receiver:
        ends = Targets(
            "127.0.0.1:9092", receiver, "dbname=masked", {"DEMO_KAFKA": "127.0.0.1:9092"}
        )
        return site.make(
            *(folder, environment, "host=127.0.0.1", "http://127.0.0.1:9200", ends), is_kept=True
        )


def test_variables_of_another_pipeline_do_not_reach_dagster(tmp_path):
    others = {"PGSTREAM_SEARCH_USER": "admin", "PGSTREAM_ALERT_URL": "x", "DAGSTER_HOME": "/x"}
    variables = make_site(tmp_path, **others, PGSTREAM_CACHE="/cache", PATH="/bin").variables
    assert variables.keys() & others.keys() == {"DAGSTER_HOME"}
    assert variables["DAGSTER_HOME"] == str(tmp_path / "home")
    assert (variables["PGSTREAM_CACHE"], variables["PATH"]) == ("/cache", "/bin")


def test_commands_in_its_folder_are_about_its_pipeline(tmp_path):
    made = make_site(tmp_path)
    assert (tmp_path / ".env").stat().st_mode & 0o777 == 0o600
    assert settings.overridden(made.variables, tmp_path) == []
    shell = {"PGSTREAM_DSN": "dbname=another"}
    assert settings.with_dotenv(shell, tmp_path).items() >= made.variables.items()


def test_folder_that_is_neither_empty_nor_a_demos_is_refused_and_left_as_it_is(tmp_path):
    (tmp_path / "lake" / "_delta_log").mkdir(parents=True)
    before = sorted(tmp_path.rglob("*"))
    for run in (
        lambda: begin(tmp_path),
        lambda: demo.run(tmp_path, printing.Steps(print)),
        lambda: dev.run(tmp_path, None, {}, stop=threading.Event(), echo=print),
    ):
        with pytest.raises(FolderTaken, match=str(tmp_path)):
            run()
    assert sorted(tmp_path.rglob("*")) == before


def test_folder_of_a_demo_is_cleared_of_what_demos_create_and_of_nothing_else(tmp_path):
    begin(tmp_path / "demo")
    elsewhere = tmp_path / "elsewhere"
    (elsewhere / "data").mkdir(parents=True)
    (tmp_path / "demo" / "lake" / "_delta_log").mkdir(parents=True)
    (tmp_path / "demo" / "state").symlink_to(elsewhere)
    (tmp_path / "demo" / "thesis.txt").write_text("years of work")
    begin(tmp_path / "demo")
    assert {path.name for path in (tmp_path / "demo").iterdir()} == {MARKER, "thesis.txt"}
    assert (elsewhere / "data").exists()


def test_dagster_is_waited_for_as_long_as_it_runs_and_that_is_printed(monkeypatch):
    monkeypatch.setattr(printing, "REPORT_SECONDS", 0.0)
    lines = list[str]()
    answers = iter([False, False, True])
    monkeypatch.setattr(site, "answers", lambda port: next(answers))

    class Dagster:
        def require_running(self) -> None:
            pass

    site.wait_for_answer(Dagster(), 3000, threading.Event(), lines.append)
    assert [line.partition(",")[0] for line in lines] == ["  waiting for Dagster to answer"] * 2


def test_wait_for_an_operation_prints_its_progress_and_raises_its_error(monkeypatch):
    monkeypatch.setattr(printing, "REPORT_SECONDS", 0.0)
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
    variables = make_site(tmp_path).variables
    config = load(tmp_path / "pgstream.yaml")
    assert set(config.search) == {"planes", "distributions"}
    assert {sink.target for sink in config.sinks.values()} == {"kafka", "postgres", "webhook"}
    assert variables["DEMO_KAFKA"] == KAFKA


@pytest.mark.parametrize("template", [demo.PIPELINE, site.PACKAGE / "dev.yaml"])
def test_the_address_of_the_receiver_is_written_into_the_pipeline_file(template, tmp_path):
    with Receiver(SECRET, lambda event: None) as receiver:
        Targets("", receiver, "", {}).write_pipeline(template, tmp_path / "pgstream.yaml")
        webhook = load(tmp_path / "pgstream.yaml").sink("partner").webhook
        assert webhook is not None
        assert webhook.subscriptions["receiver"].url == receiver.url


def test_instance_is_as_the_repositorys_but_for_its_storage(tmp_path):
    make_site(tmp_path)
    ours = yaml.safe_load((tmp_path / "home" / "dagster.yaml").read_text())
    theirs = yaml.safe_load((ROOT / "dagster.yaml").read_text())
    storage = {"storage", "local_artifact_storage", "compute_logs"}
    assert ours == {name: value for name, value in theirs.items() if name not in storage}


def test_port_that_is_taken_is_an_error_when_it_was_requested():
    refused = pytest.raises(ServerNotStarted, match="is taken by another process")
    with socket.create_server(("127.0.0.1", 0)) as taken, refused:
        site.port_for(taken.getsockname()[1])
    assert site.port_for(None) >= site.PORT


def test_missing_package_is_named_with_the_extra_that_brings_it(monkeypatch):
    def nothing(name: str) -> None:
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "distribution", nothing)
    with pytest.raises(ExtraMissing, match=r"pip install 'pgstream-dagster\[ui\]'"):
        dev.run(None, None, {}, stop=threading.Event(), echo=print)


def test_steps_of_the_demo_are_numbered_and_the_bar_grows_with_each():
    lines = list[str]()
    steps = printing.Steps(lines.append)
    assert steps.bar() == f"{'░' * printing.BAR_WIDTH} 0 of 16  {printing.Step.START}"
    steps(printing.Step.LOAD)
    steps("  flights: 30,000 rows")
    steps(printing.Step.QUERY)
    begun, detail, last = (line.split(" s  ", 1)[1] for line in lines)
    assert begun == "[ 2/16] loading the source"
    assert detail == "  flights: 30,000 rows"
    assert last.startswith("[16/16] tables: SQL")
    bar, _, text = steps.bar().partition(" ")
    assert (bar.count("█"), text[:8]) == (24, "15 of 16")
