"""A process that writes to a target is killed at any moment: each change is there exactly once."""

from __future__ import annotations

import random
import signal
import subprocess
from pathlib import Path

import pytest

from tests.support.harness.background import END_SECONDS, start
from tests.support.harness.sink_process import TABLES, expected_events
from tests.support.plugins.cluster import ALL, psql
from tests.support.plugins.wait import until

pytestmark = pytest.mark.crash

KILLS = 200 if ALL else 8
COUNT = 20_000
PROCESS = "tests.support.harness.sink_process"


def reached(dsn: str) -> int:
    """The last transaction that the target has, and nothing more or less than it."""
    [(cursor, events, counters)] = psql(
        dsn,
        "select (select cursor from pgstream.sink_progress),"
        " (select coalesce(array_agg(n order by n), '{}') from events),"
        " (select array_agg(id) from counters)",
    )
    assert events == expected_events(int(cursor))
    assert counters == [int(cursor)]
    return int(cursor)


@pytest.mark.long
@pytest.mark.parametrize("failpoint", ["postgres_sink.applied", "postgres_sink.committed"])
@pytest.mark.parametrize("count", [1, 2, 8, 9] if ALL else [1, 8])
def test_each_change_is_there_once_after_a_kill_at(
    failpoint: str, count: int, dsn: str, tmp_path: Path
) -> None:
    """P124: a batch that was applied and not confirmed is delivered again and changes nothing."""
    psql(dsn, *TABLES)
    log = tmp_path / "sink.log"
    killed = start(PROCESS, dsn, "20", log=log, failpoint=f"{failpoint}:{count}")
    assert killed.wait(END_SECONDS) == -signal.SIGKILL, log.read_text()
    if count > 1:
        assert reached(dsn) == count - (2 if failpoint.endswith("applied") else 1)
    assert start(PROCESS, dsn, "20", log=log).wait(END_SECONDS) == 0, log.read_text()
    assert reached(dsn) == 20


@pytest.mark.long
def test_each_change_is_there_once_after_many_kills(dsn: str, tmp_path: Path) -> None:
    psql(dsn, *TABLES)
    chance, last = random.Random(7), -1
    for _ in range(KILLS):
        log = tmp_path / "sink.log"
        process = start(PROCESS, dsn, str(COUNT), log=log)
        target = last + chance.randint(1, COUNT // KILLS // 2)
        try:
            until(
                lambda at_least=target, running=process: is_past(at_least, dsn, running), seconds=60
            )
        finally:
            process.kill()
            process.wait()
        last = reached(dsn)
        assert last >= target


def is_past(target: int, dsn: str, process: subprocess.Popen[bytes]) -> bool:
    assert process.poll() is None, "the process has ended by itself"
    return position(dsn) >= target


def position(dsn: str) -> int:
    """The cursor that other sessions see; -1 before there is one."""
    exists = "select to_regclass('pgstream.sink_progress') is not null"
    if psql(dsn, exists) == [(False,)]:
        return -1
    rows = psql(dsn, "select cursor from pgstream.sink_progress")
    return int(rows[0][0]) if rows else -1
