"""The wait for a server that starts: as long as it makes progress, and no longer."""

from __future__ import annotations

import logging
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from pgstream_dagster.embedded import processes
from pgstream_dagster.embedded.processes import why_not_ready

WRITES = "i=0; while [ $i -lt 600 ]; do echo line; i=$((i + 1)); sleep 0.05; done"


@contextmanager
def started(script: str, log: Path) -> Iterator[subprocess.Popen[bytes]]:
    with (
        log.open("wb") as output,
        subprocess.Popen(["/bin/sh", "-c", script], stdout=output) as process,
    ):
        yield process
        process.kill()


def lines(log: Path) -> int:
    return log.read_text().count("\n")


def test_a_slow_start_is_waited_for_and_named_while_its_log_grows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(processes, "SILENT_SECONDS", 2.0)
    monkeypatch.setattr(processes, "REPORT_SECONDS", 0.2)
    log, began = tmp_path / "log", time.monotonic()
    with started(WRITES, log) as process, caplog.at_level(logging.INFO):
        # 50 lines take longer than the silence that ends the wait.
        assert why_not_ready("a server", process, log, lambda: lines(log) >= 50) is None
    assert time.monotonic() - began > 2.0
    assert "waiting for a server to start" in caplog.text


def test_a_start_that_stands_still_is_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(processes, "SILENT_SECONDS", 1.0)
    log = tmp_path / "log"
    with started("exec sleep 600", log) as process:
        reason = why_not_ready("a server", process, log, lambda: False)
    assert reason == "its process runs, but its log did not grow for 1 s"


def test_a_start_that_fails_is_reported_at_once(tmp_path: Path) -> None:
    log = tmp_path / "log"
    with started("echo cause; exit 1", log) as process:
        assert why_not_ready("a server", process, log, lambda: False) == "its process has ended"
