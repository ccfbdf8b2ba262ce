"""What Dagster is told when `pgstream dev` starts it, and what a folder loses by that."""

from __future__ import annotations

import importlib.metadata
import socket
import threading
from pathlib import Path

import pytest
import yaml

from pgstream_dagster.config import load
from pgstream_dagster.demo import dev, site
from pgstream_dagster.errors import ExtraMissing, ServerNotStarted

ROOT = Path(__file__).parents[3]


def made(folder: Path, **given: str) -> site.Site:
    return site.make(folder, given, "host=127.0.0.1", "http://127.0.0.1:9200", is_kept=True)


def test_variables_of_another_pipeline_do_not_reach_dagster(tmp_path):
    others = {"PGSTREAM_SEARCH_USER": "admin", "PGSTREAM_ALERT_URL": "x", "DAGSTER_HOME": "/x"}
    told = made(tmp_path, **others, PGSTREAM_CACHE="/cache", PATH="/bin").variables
    assert told.keys() & others.keys() == {"DAGSTER_HOME"}
    assert told["DAGSTER_HOME"] == str(tmp_path / "home")
    assert (told["PGSTREAM_CACHE"], told["PATH"]) == ("/cache", "/bin")


def test_folder_is_begun_anew_and_what_is_not_ours_stays(tmp_path):
    (tmp_path / "lake" / "_delta_log").mkdir(parents=True)
    (tmp_path / "thesis.txt").write_text("years of work")
    made(tmp_path)
    assert not (tmp_path / "lake").exists()
    assert (tmp_path / "thesis.txt").exists()


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
