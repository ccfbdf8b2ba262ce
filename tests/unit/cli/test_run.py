"""How a command ends."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from pgstream_dagster.cli import run
from pgstream_dagster.cli.exits import ExitCode


def test_a_reader_that_has_enough_is_no_problem() -> None:
    """Such as `head`, whose status and ours `set -o pipefail` looks at."""
    reads, writes = os.pipe()
    os.close(reads)
    command = [sys.executable, "-m", "pgstream_dagster.cli", "--help"]
    ended = subprocess.run(command, stdout=writes, stderr=subprocess.PIPE, check=False)
    os.close(writes)
    assert (ended.returncode, ended.stderr) == (ExitCode.OK, b"")


def test_another_broken_pipe_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a connection: it ended as if it had found a problem, without a word."""

    def main(**_: object) -> None:
        raise SystemExit(1)  # as click does

    monkeypatch.setattr(run.pgstream, "main", main)
    monkeypatch.setattr(run, "_is_output_closed", lambda: False)
    assert run.run([]) == ExitCode.BUG
