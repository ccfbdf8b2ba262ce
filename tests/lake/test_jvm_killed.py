"""The JVM is killed, or no descriptor is free: the end has a name, and the next start works."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from pgstream_dagster.upkeep.setup import setup
from tests.support.harness import rows, runner
from tests.support.plugins.cluster import psql

pytestmark = [pytest.mark.slow, pytest.mark.one_major("newest")]


def outcomes(*arguments: str) -> list[str]:
    """What `tests.support.lake.jvm_killed` prints."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.support.lake.jvm_killed", *arguments],
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr[-4_000:]
    lines = [line.partition("outcome: ") for line in done.stdout.splitlines()]
    return [outcome for _, mark, outcome in lines if mark]  # the JVM prints, too


@pytest.mark.long
@pytest.mark.parametrize(
    ("operation", "error"),
    [
        ("snapshot", "JvmEnded"),
        ("snapshot on Spark", "JvmEnded"),
        ("resnapshot", "JvmEnded"),
        ("optimize", "JvmEnded"),
        ("stream", "JvmEnded"),
        ("descriptors", "DescriptorsExhausted"),
    ],
)
def test_the_end_has_a_name_and_the_next_start_in_the_process_works(
    dsn: str, tmp_path: Path, operation: str, error: str
) -> None:
    psql(
        dsn,
        "create table t (id bigint primary key, x text)",
        "insert into t select g, repeat('x', 100) from generate_series(1, 2000) g",
    )
    pipeline = runner.new_pipeline(dsn, tmp_path)
    pipeline.state.mkdir(parents=True, exist_ok=True)
    setup(pipeline)
    psql(dsn, "update t set x = 'later' where id < 10")
    assert outcomes(operation, dsn, str(tmp_path)) == [error, "ended"]
    runner.catch_up(pipeline)
    assert rows.assert_log_folds_to_source(pipeline, ["t"]) == 2_000
