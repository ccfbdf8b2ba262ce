"""
The life of the long run under Dagster's own daemon: what survives what.

Real processes throughout: a daemon, its code server, run workers. Every outcome is compared row by
row at the end: nothing is lost and nothing twice, whatever was killed.
"""

from __future__ import annotations

import logging
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import dagster as dg
import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from pgstream_dagster import heartbeat
from pgstream_dagster.heartbeat import Heartbeat
from pgstream_dagster.sensors import DEPLOYED_TAG
from tests.support.plugins.cluster import OwnServer, psql
from tests.support.plugins.container import free_port
from tests.support.plugins.wait import until

pytestmark = [pytest.mark.slow, pytest.mark.first, pytest.mark.timeout(1200)]

SECONDS = 240  # a JVM and Dagster start in 20 s, and in minutes on a busy machine
ROOT = Path(__file__).parents[2]
DEFINITIONS = ("-m", "pgstream_dagster.definitions")
STARTED, FAILED, CANCELED, SUCCESS = (
    dg.DagsterRunStatus.STARTED,
    dg.DagsterRunStatus.FAILURE,
    dg.DagsterRunStatus.CANCELED,
    dg.DagsterRunStatus.SUCCESS,
)

logger = logging.getLogger(__name__)


class Daemon:
    """
    `dagster-daemon run` with a home of its own, and what it has launched.

    With a `storage` it is as `deploy` has it: Dagster's own database, and a code server apart.
    """

    def __init__(self, folder: Path, dsn: str, storage: str | None = None) -> None:
        self.folder, self.dsn, self.is_deployed = folder, dsn, storage is not None
        self.home = folder / "home"
        self.home.mkdir()
        shutil.copy((ROOT / "deploy" if storage else ROOT) / "dagster.yaml", self.home)
        self.file = folder / "pgstream.yaml"
        self.file.write_text(f"pipeline: shop\nsource: {{slot: shop_{os.getpid()}}}\n")
        self.env = {
            **os.environ,
            "DAGSTER_HOME": str(self.home),
            "PGSTREAM_DSN": dsn,
            "PGSTREAM_FILE": str(self.file),
            "PGSTREAM_LAKE": str(folder / "lake"),
            "PGSTREAM_STATE": str(folder / "state"),
            "PGSTREAM_JVM_HEAP": "800m",
            "PGSTREAM_CODE_HOST": "127.0.0.1",
            "PGSTREAM_CODE_PORT": str(free_port()),
            **_storage_of(storage),
        }
        self.process: subprocess.Popen[bytes] | None = None
        self.code: subprocess.Popen[bytes] | None = None
        for name in ("PGSTREAM_STATE", *_storage_of(storage)):
            os.environ[name] = self.env[name]  # dagster.yaml asks for it
        self.instance = dg.DagsterInstance.from_config(str(self.home))

    def run(self, *arguments: str) -> str:
        """A command that ends by itself; what it said."""
        ended = subprocess.run(
            [sys.executable, "-m", *arguments],
            env=self.env,
            cwd=self.folder,
            capture_output=True,
            text=True,
            timeout=SECONDS,
            check=False,
        )
        assert ended.returncode == 0, ended.stderr + ended.stdout
        return ended.stdout

    def start(self) -> None:
        """The daemon; where it is deployed, the code server unless that runs."""
        if self.is_deployed and (self.code is None or self.code.poll() is not None):
            place = ("--host", "127.0.0.1", "--port", self.env["PGSTREAM_CODE_PORT"])
            self.code = self._begin("dagster", "code-server", "start", *place, *DEFINITIONS)
        workspace = ("--workspace", str(ROOT / "deploy" / "workspace.yaml"))
        where = workspace if self.is_deployed else DEFINITIONS
        if self.process is None or self.process.poll() is not None:
            self.process = self._begin("dagster._daemon", "run", *where)

    def _begin(self, *arguments: str) -> subprocess.Popen[bytes]:
        with (self.folder / "services.log").open("ab") as log:
            return subprocess.Popen(
                [sys.executable, "-m", *arguments],
                env=self.env,
                cwd=self.folder,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def everything(self) -> list[int]:
        """Every process of this site: the daemon, what it started, and what those did."""
        pids = []
        for process in Path("/proc").iterdir():
            if process.name.isdigit():
                try:
                    environ = (process / "environ").read_bytes()
                except OSError:
                    continue
                if f"DAGSTER_HOME={self.home}".encode() in environ.split(b"\0"):
                    pids.append(int(process.name))
        return pids

    def kill_everything(self) -> None:
        """What a host's crash leaves of them: nothing."""
        _kill(self.everything)
        for process in (self.process, self.code):
            if process is not None:
                process.wait()

    def kill_code(self) -> None:
        """The code server with its runs, as an out-of-memory kill of its unit."""
        assert self.code is not None
        session = self.code.pid
        _kill(lambda: [pid for pid in self.everything() if _session(pid) == session])
        self.code.wait()

    def runs(self) -> list[dg.DagsterRun]:
        """The runs of `stream`, newest first."""
        return list(self.instance.get_runs(dg.RunsFilter(job_name="stream")))

    def sign(self) -> Heartbeat | None:
        return heartbeat.read(self.folder / "state" / "shop.stream.json")

    def streaming(self, *, after: str | None = None) -> dg.DagsterRun:
        """Wait until another run than `after` streams; that run."""
        before = self.sign()

        def streams() -> bool:
            runs = self.runs()
            sign = self.sign()
            return bool(
                runs
                and runs[0].run_id != after
                and runs[0].status is STARTED
                and sign is not None
                and (after is None or before is None or sign.pid != before.pid)
                and sign.state == "streaming"
                and not sign.is_gone
            )

        until(streams, seconds=SECONDS, every=0.2)
        return self.runs()[0]

    def status(self, run: dg.DagsterRun) -> dg.DagsterRunStatus:
        current = self.instance.get_run_by_id(run.run_id)
        assert current is not None
        return current.status

    def skipped(self) -> str:
        """Why the sensor did nothing at its newest tick."""
        states = self.instance.all_instigator_state()
        [state] = [state for state in states if state.instigator_name == "keep_stream"]
        ticks = self.instance.get_ticks(state.instigator_origin_id, state.selector_id, limit=1)
        return (ticks[0].tick_data.skip_reason or "") if ticks else ""

    def write(self, first: int, count: int = 100) -> None:
        psql(
            self.dsn, f"insert into t select i from generate_series({first}, {first + count - 1}) i"
        )

    def landed_all(self) -> None:
        """Wait until everything committed is confirmed, by whatever run streams then."""
        ((lsn,),) = psql(self.dsn, "select pg_current_wal_lsn()::text")
        asked = "select count(*) from pg_replication_slots where confirmed_flush_lsn >= %s"
        with psycopg.connect(self.dsn, autocommit=True) as connection:

            def is_there() -> bool:
                row = connection.execute(asked, [lsn]).fetchone()
                return bool(row and row[0])

            until(is_there, seconds=SECONDS, every=0.1)

    def readers(self) -> int:
        ((count,),) = psql(self.dsn, "select count(*) from pg_stat_replication")
        return int(count)

    def identical(self) -> None:
        """The log says row by row what the source does, and every position is there once."""
        output = self.run("pgstream_dagster.cli", "reconcile")
        assert "identical" in output, output


def _kill(running: Callable[[], list[int]]) -> None:
    """SIGKILL to all of them until there are none: each may have begun another meanwhile."""
    while pids := running():
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.05)  # until the kernel has ended them; the loop looks again


def _session(pid: int) -> int | None:
    with suppress(ProcessLookupError):
        return os.getsid(pid)
    return None


def _storage_of(dsn: str | None) -> dict[str, str]:
    """What `deploy/dagster.yaml` asks for."""
    if dsn is None:
        return {}
    parameters = conninfo_to_dict(dsn)
    parts = {"HOST": "host", "PORT": "port", "DB": "dbname", "USER": "user"}
    named = {f"DAGSTER_PG_{part}": str(parameters[name]) for part, name in parts.items()}
    return named | {"DAGSTER_PG_PASSWORD": str(parameters.get("password", "any"))}


@contextmanager
def started(daemon: Daemon) -> Iterator[Daemon]:
    """Set up and running; at the end nothing of it is."""
    try:
        daemon.run("pgstream_dagster.cli", "setup")
        daemon.start()
        yield daemon
    finally:
        daemon.kill_everything()
        daemon.instance.dispose()


@pytest.fixture
def daemon(tmp_path: Path, own_postgres: OwnServer) -> Iterator[Daemon]:
    psql(
        own_postgres.dsn,
        "create table t (id int primary key)",
        "create role capture superuser replication login",
    )
    with started(Daemon(tmp_path, make_conninfo(own_postgres.dsn, user="capture"))) as made:
        yield made


def comes_back(daemon: Daemon, killed: dg.DagsterRun) -> None:
    """What was killed is started: another run streams, alone, and nothing is lost."""
    began = time.monotonic()
    daemon.start()
    daemon.streaming(after=killed.run_id)
    logger.info("streams %.1f s after the start", time.monotonic() - began)
    assert daemon.status(killed) is FAILED
    daemon.landed_all()
    assert daemon.readers() == 1
    daemon.identical()


@pytest.mark.long
def test_stream_that_is_killed_is_started_again(daemon: Daemon) -> None:
    """The first is launched by the sensor."""
    first = daemon.streaming()
    daemon.write(1)
    daemon.landed_all()

    killed_at = time.monotonic()
    sign = daemon.sign()
    assert sign is not None
    os.kill(sign.pid, signal.SIGKILL)
    daemon.write(101)
    daemon.streaming(after=first.run_id)
    logger.info("kill -9 of the worker: streams again after %.1f s", time.monotonic() - killed_at)
    assert daemon.status(first) is FAILED
    assert daemon.readers() == 1
    daemon.landed_all()
    daemon.identical()


@pytest.mark.long
def test_stream_is_kept_running_until_a_person_ends_it(daemon: Daemon) -> None:
    """It is outdated, terminated, and launched again."""
    first = daemon.streaming()
    daemon.write(1)

    # Another pipeline file is another deployment: the run ends by itself, as a success.
    changed_at = time.monotonic()
    daemon.file.write_text(daemon.file.read_text() + "# changed\n")
    other = daemon.streaming(after=first.run_id)
    logger.info("changed file: streams again after %.1f s", time.monotonic() - changed_at)
    assert daemon.status(first) is SUCCESS
    assert other.tags[DEPLOYED_TAG] != first.tags[DEPLOYED_TAG]

    daemon.instance.run_launcher.terminate(other.run_id)
    until(lambda: daemon.status(other) is CANCELED, seconds=SECONDS)
    until(lambda: "was terminated; launch 'stream'" in daemon.skipped(), seconds=SECONDS)
    assert daemon.runs()[0].run_id == other.run_id
    until(lambda: daemon.readers() == 0, seconds=SECONDS)  # its process ends after its run
    daemon.write(201)

    daemon.run("dagster", "job", "launch", "-j", "stream", *DEFINITIONS)
    launched = daemon.streaming(after=other.run_id)
    until(lambda: f"run {launched.run_id[:8]} is started" in daemon.skipped(), seconds=SECONDS)
    assert daemon.runs()[0].run_id == launched.run_id  # it was adopted, not replaced
    daemon.landed_all()
    daemon.identical()


@pytest.mark.long
def test_stream_survives_the_crash_of_its_host(daemon: Daemon) -> None:
    first = daemon.streaming()
    daemon.write(1)
    daemon.kill_everything()
    daemon.write(101)
    assert daemon.status(first) is STARTED  # what Dagster believes for ever
    comes_back(daemon, first)


@pytest.mark.long
def test_stream_goes_on_without_daemon_and_code_server(daemon: Daemon) -> None:
    """Killed alone, neither ends the run; a daemon that starts again leaves it alone."""
    first = daemon.streaming()
    sign = daemon.sign()
    assert sign is not None
    for pid in daemon.everything():
        command = Path(f"/proc/{pid}/cmdline").read_bytes()
        if b"dagster._daemon" in command or b"grpc" in command:
            os.kill(pid, signal.SIGKILL)
    daemon.write(1)
    daemon.landed_all()
    daemon.start()
    until(lambda: f"run {first.run_id[:8]} is started" in daemon.skipped(), seconds=SECONDS)
    assert daemon.status(first) is STARTED
    now = daemon.sign()
    assert now is not None
    assert now.pid == sign.pid
    daemon.identical()


@pytest.mark.long
def test_stream_waits_for_a_source_that_is_away(daemon: Daemon, own_postgres: OwnServer) -> None:
    """Two minutes of it: the same run continues, and says meanwhile why it does not."""
    first = daemon.streaming()
    daemon.write(1)
    own_postgres.kill()
    away = time.monotonic()
    until(lambda: "reconnecting" in daemon.skipped(), seconds=SECONDS)
    until(lambda: time.monotonic() - away > 125, seconds=200)
    own_postgres.start()
    began = time.monotonic()
    daemon.write(101)
    daemon.landed_all()
    logger.info("Postgres is back: landed after %.1f s", time.monotonic() - began)
    assert daemon.status(first) is STARTED
    daemon.identical()


@pytest.mark.long
def test_stream_backs_off_and_says_why_after_a_password_was_rotated(daemon: Daemon) -> None:
    first = daemon.streaming()
    admin = make_conninfo(daemon.dsn, user="postgres")
    psql(
        admin,
        "alter role capture nologin",  # what a password that is no more valid comes to
        "select pg_terminate_backend(pid) from pg_stat_activity where usename = 'capture'",
    )
    until(lambda: "in a row; next try in" in daemon.skipped(), seconds=SECONDS)
    assert "capture" in daemon.skipped()
    assert daemon.status(first) is FAILED
    psql(admin, "alter role capture login", "insert into t values (1)")
    daemon.streaming(after=first.run_id)
    daemon.landed_all()
    daemon.identical()


@pytest.mark.long
def test_stream_goes_on_while_dagsters_own_storage_is_away(
    tmp_path: Path, dsn: str, own_postgres: OwnServer
) -> None:
    """Nobody can ask the run, and it can ask nobody; it lands all the same."""
    psql(dsn, "create table t (id int primary key)")
    with started(Daemon(tmp_path, dsn, storage=own_postgres.dsn)) as daemon:
        first, sign = daemon.streaming(), daemon.sign()
        own_postgres.kill()
        away = time.monotonic()
        daemon.write(1)
        daemon.landed_all()
        until(lambda: time.monotonic() - away > 30, seconds=60)
        daemon.write(101)
        daemon.landed_all()
        own_postgres.start()
        daemon.start()  # what has ended, as whatever supervises them does
        until(lambda: f"run {first.run_id[:8]} is started" in daemon.skipped(), seconds=SECONDS)
        now = daemon.sign()
        assert sign is not None
        assert now is not None
        assert now.pid == sign.pid
        assert daemon.status(first) is STARTED
        daemon.identical()


@pytest.mark.long
def test_code_server_that_is_killed_with_its_runs_gets_them_back(
    tmp_path: Path, dsn: str, own_postgres: OwnServer
) -> None:
    """Three services apart, and Dagster's storage in Postgres: `deploy` as it stands."""
    psql(dsn, "create table t (id int primary key)")
    with started(Daemon(tmp_path, dsn, storage=own_postgres.dsn)) as daemon:
        first = daemon.streaming()
        daemon.write(1)
        daemon.kill_code()
        daemon.write(101)
        comes_back(daemon, first)
