"""The sink of the guide, in a package of its own: built, installed, delivered through."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest
from psycopg.conninfo import conninfo_to_dict

from pgstream_dagster import Pipeline, setup
from pgstream_dagster.sinks.control import sink_status
from tests.support.harness.runner import catch_up
from tests.support.plugins.cluster import psql
from tests.support.plugins.wait import until

pytestmark = [pytest.mark.slow, pytest.mark.one_major("newest")]

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "tests" / "support" / "packages" / "pgstream-sqlite"

FILE = """
pipeline: {name}
source: {{tables: [t]}}
sinks:
  mine:
    sqlite: {{file: changes.db}}
"""

SHOW_ASSETS = """
import json, pathlib
from pgstream_dagster.build import build_definitions
graph = build_definitions(pathlib.Path("pgstream.yaml")).get_repository_def().asset_graph
shown = {key.to_user_string(): sorted(graph.get(key).kinds) for key in graph.get_all_asset_keys()}
print(json.dumps(shown))
"""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The package, built and installed beside the environment, without a network."""
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "uv", "pip", "install", "--quiet", "--offline", "--no-cache"]
    command += ["--no-deps", "--no-build-isolation", "--python", sys.executable]
    done = subprocess.run(
        [*command, "--target", str(folder), str(PACKAGE)], capture_output=True, check=False
    )
    assert done.returncode == 0, done.stderr.decode()
    return folder


@pytest.fixture
def environment(dsn: str, tmp_path: Path, site: Path) -> dict[str, str]:
    return {
        **os.environ,
        "PYTHONPATH": f"{site}{os.pathsep}{ROOT}",
        "PGSTREAM_DSN": dsn,
        "PGSTREAM_LAKE": str(tmp_path / "lake"),
        "PGSTREAM_STATE": str(tmp_path / "state"),
    }


@contextmanager
def delivering(folder: Path, environment: dict[str, str], failpoint: str = "") -> Iterator[None]:
    with (folder / "sinks.log").open("ab") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "pgstream_dagster.cli", "sink", "run"],
            cwd=folder,
            env={**environment, "PGSTREAM_FAILPOINT": failpoint},
            stdout=log,
            stderr=log,
        )
    try:
        if failpoint:
            assert process.wait(120) == -signal.SIGKILL
        yield
    finally:
        process.terminate()
        process.wait(60)


@pytest.mark.long
def test_a_sink_of_an_installed_package_delivers_each_change_once(
    dsn: str,
    tmp_path: Path,
    spark: object,
    environment: dict[str, str],
    site: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    psql(dsn, "create table t (id int primary key, note text)", "insert into t values (1, 'one')")
    name = f"p_{conninfo_to_dict(dsn)['dbname']}"
    (tmp_path / "pgstream.yaml").write_text(FILE.format(name=name))
    monkeypatch.syspath_prepend(str(site))
    pipeline = Pipeline.from_file(tmp_path / "pgstream.yaml", environment)
    setup(pipeline)
    with delivering(tmp_path, environment, "sink.delivered"):
        pass
    psql(dsn, "insert into t values (2, 'two')", "delete from t where id = 1")
    catch_up(pipeline)
    with delivering(tmp_path, environment):
        until(lambda: len(delivered(tmp_path)) == 3)
    assert delivered(tmp_path) == [("read", 1), ("insert", 2), ("delete", 1)]
    [status] = sink_status(pipeline)
    assert (status.target, status.error) == ("sqlite", None)


@pytest.mark.long
def test_its_asset_is_in_dagster(tmp_path: Path, environment: dict[str, str]) -> None:
    (tmp_path / "pgstream.yaml").write_text(FILE.format(name="shop"))
    done = subprocess.run(
        [sys.executable, "-c", SHOW_ASSETS],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        check=True,
    )
    assert json.loads(done.stdout)["sinks/mine"] == ["sqlite"]


def delivered(folder: Path) -> list[tuple[str, int]]:
    """Operation and key of what is committed in the target, in order."""
    with closing(sqlite3.connect(folder / "changes.db")) as database:
        rows = database.execute("select message from changes order by rowid").fetchall()
    messages = [json.loads(message) for (message,) in rows]
    return [(message["op"], message["key"]["id"]) for message in messages]
