"""A stop ends waits on the source: within seconds, nothing half done, nothing left there."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import closing, contextmanager

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from tests.support.harness.tcp_proxy import TcpProxy, Throttle
from tests.support.plugins.cluster import psql
from tests.support.plugins.wait import until

pytestmark = [pytest.mark.one_major("newest"), pytest.mark.slow]

SECONDS = 120  # a JVM starts in 3 s, and in a minute on a busy machine

STOP_SECONDS = 10  # what a stop promises

LEFT = (
    "select pid from pg_stat_activity where datname = current_database()"
    " and application_name like 'pgstream%'"
)

WAITING = f"{LEFT} and wait_event_type = 'Lock'"


def ended(process: subprocess.Popen[str]) -> str:
    """What it wrote to stderr, once it has ended."""
    _, errors = process.communicate(timeout=STOP_SECONDS)
    assert "Traceback" not in errors
    return errors


def copied(shell, table: str) -> bool:
    tables = shell.json("status", code=shell.problem)["tables"]
    return any(status["table"] == table and status["copied_at"] for status in tables)


@contextmanager
def locked(dsn: str, table: str) -> Iterator[psycopg.Connection]:
    """A session that holds a table exclusively."""
    with closing(psycopg.connect(dsn)) as holder:
        holder.execute(f"lock table {table} in access exclusive mode")
        yield holder


@contextmanager
def slowed(dsn: str) -> Iterator[str]:
    """The DSN of a network on which the larger rows of `late` take half a minute."""
    server = conninfo_to_dict(dsn)
    with TcpProxy(str(server["host"]), int(str(server["port"]))) as proxy:
        proxy.throttle = Throttle(bytes_per_second=3e6)
        yield make_conninfo(dsn, host="127.0.0.1", port=proxy.port)


@pytest.fixture
def late(shell, spark):
    """A pipeline that is set up, and a table that joined its publication since: a copy is due."""
    shell.problem = 0
    shell.pgstream("setup")
    psql(
        shell.dsn,
        "create table late (id int primary key, note text)",
        "insert into late select i, repeat('x', 500) from generate_series(1, 40000) i",
        "alter publication pgstream_shop add table late",
    )
    return shell


@pytest.mark.long
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_stop_does_not_wait_for_a_table_that_is_locked(late, number):
    with locked(late.dsn, "late"):
        stream = late.start("stream")
        until(lambda: psql(late.dsn, WAITING), seconds=SECONDS)
        stream.send_signal(number)
        ended(stream)
        assert stream.returncode == 0
        until(lambda: not psql(late.dsn, LEFT), seconds=STOP_SECONDS)
    with late.streaming():
        until(lambda: copied(late, "public.late"), seconds=SECONDS)


@pytest.mark.long
def test_a_fatal_error_does_not_wait_for_a_table_that_is_locked(late):
    with locked(late.dsn, "late"):
        stream = late.start("stream")
        until(lambda: psql(late.dsn, WAITING), seconds=SECONDS)
        until(lambda: late.heartbeat_file().get("state") == "streaming", seconds=SECONDS)
        psql(
            late.dsn,
            "select pg_terminate_backend(active_pid, 5000) from pg_replication_slots"
            f" where slot_name = '{late.slot}'",
        )
        until(lambda: drop_slot(late), seconds=SECONDS)
        errors = ended(stream)
        assert stream.returncode not in (0, None)
        assert "resnapshot" in errors


def drop_slot(shell) -> bool:
    """Between two connections of the stream."""
    try:
        psql(
            shell.dsn,
            "select pg_terminate_backend(active_pid, 5000), pg_drop_replication_slot(slot_name)"
            f" from pg_replication_slots where slot_name = '{shell.slot}'",
        )
    except psycopg.errors.ObjectInUse:
        return False
    return True


@pytest.mark.long
@pytest.mark.parametrize("ranges", [1, 4])
def test_a_stop_does_not_wait_for_a_copy_that_reads(late, ranges):
    """With one range the copy is read in this process, else by tasks of Spark."""
    with (late.folder / "pgstream.yaml").open("a") as file:
        file.write(f"copy: {{ranges: {ranges}}}\n")
    larger = "select i, repeat('x', 5000) from generate_series(40001, 60000) i"
    psql(late.dsn, f"insert into late {larger}")
    backends: list[int] = []

    def is_reading() -> bool:
        reading = f"{LEFT} and query like 'copy (%' and wait_event = 'ClientWrite'"
        backends.extend(pid for (pid,) in psql(late.dsn, reading))
        return bool(backends)

    with slowed(late.dsn) as dsn:
        late.set(DSN=dsn)
        stream = late.start("stream")
        until(is_reading, seconds=SECONDS)
        os.kill(backends[0], signal.SIGSTOP)
        try:
            stream.send_signal(signal.SIGTERM)
            ended(stream)
        finally:
            os.kill(backends[0], signal.SIGCONT)
    late.set(DSN=late.dsn)
    assert stream.returncode == 0
    assert not copied(late, "public.late")
    with late.streaming():
        until(lambda: copied(late, "public.late"), seconds=SECONDS)


@pytest.mark.long
@pytest.mark.parametrize(
    "command", [("setup",), pytest.param(("snapshot", "public.orders"), marks=pytest.mark.long)]
)
def test_ctrl_c_leaves_no_slot_that_waits_for_older_transactions(shell, spark, command):
    if command != ("setup",):
        shell.pgstream("setup")
    slots = "select from pg_replication_slots where database = current_database()"
    before = len(psql(shell.dsn, slots))
    with closing(psycopg.connect(shell.dsn)) as older:
        older.execute("insert into orders values (1000, 'open')")
        running = shell.start(*command)
        until(lambda: psql(shell.dsn, f"{WAITING} and backend_type = 'walsender'"), seconds=SECONDS)
        running.send_signal(signal.SIGINT)
        errors = ended(running)
        assert running.returncode == 128 + signal.SIGINT, errors
        until(lambda: not psql(shell.dsn, LEFT), seconds=STOP_SECONDS)
        assert len(psql(shell.dsn, slots)) == before
    shell.pgstream(*command)
