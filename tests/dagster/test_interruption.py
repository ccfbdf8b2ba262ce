"""A run that is terminated: the process gets a signal, and what is complete is landed first."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys

import pytest

from tests.support.plugins.cluster import psql
from tests.support.plugins.wait import until

pytestmark = pytest.mark.one_major("newest")

SECONDS = 200  # a JVM and Dagster start in 10 s, and in minutes on a busy machine


DEFINITIONS = """
from pathlib import Path
import dagster as dg
from pgstream_dagster.build import build_definitions
defs = build_definitions(Path("pgstream.yaml"), executor=dg.{executor}_executor)
"""


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.long
@pytest.mark.parametrize("executor", ["in_process", "multiprocess"])
def test_terminated_run_has_landed_and_confirmed_what_was_complete(dsn, tmp_path, executor):
    psql(dsn, "create table orders (id int primary key)")
    (tmp_path / "site.py").write_text(DEFINITIONS.format(executor=executor))
    (tmp_path / "pgstream.yaml").write_text(
        f"pipeline: shop\nsource: {{slot: shop_{os.getpid()}}}\n"
    )
    site = {
        **os.environ,
        "PGSTREAM_DSN": dsn,
        "PGSTREAM_LAKE": "lake",
        "PGSTREAM_STATE": "state",
        "PGSTREAM_JVM_HEAP": "800m",
        "DAGSTER_HOME": str(tmp_path),
        "DAGSTER_DISABLE_TELEMETRY": "yes",
    }

    def start(*arguments: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-m", *arguments],
            cwd=tmp_path,
            env=site,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def landed() -> int:
        file = tmp_path / "state" / "shop.stream.json"
        return json.loads(file.read_text())["rows"] if file.exists() else 0

    execute = ("dagster", "job", "execute", "-f", "site.py", "-j")
    setup = start(*execute, "setup")
    printed, _ = setup.communicate(timeout=SECONDS)
    assert setup.returncode == 0, printed
    run = start(*execute, "stream")
    psql(dsn, "insert into orders select generate_series(1, 1000)")
    until(lambda: landed() == 1000, seconds=SECONDS)
    run.send_signal(signal.SIGTERM)
    printed, _ = run.communicate(timeout=SECONDS)

    assert run.returncode == 1, printed  # Dagster calls a run that nobody terminated a failure
    assert "DagsterExecutionInterruptedError" in printed
    status, _ = start("pgstream_dagster.cli", "status", "--json").communicate(timeout=SECONDS)
    state = json.loads(status[status.index("{\n") :])
    assert state["problem"] is None
    assert state["watermark"] == state["slot"]["confirmed_lsn"]
    assert state["slot"]["active_pid"] is None
