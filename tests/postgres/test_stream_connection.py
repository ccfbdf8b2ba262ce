"""What the stream does with its connection, on real servers; the log is in memory."""

# ruff: noqa: PT012 - a context manager raises at its end what happened inside

from __future__ import annotations

import os
import shutil
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg import sql
from psycopg.conninfo import make_conninfo

from pgstream_dagster.capture import pump as stream_module
from pgstream_dagster.changelog.land import FlushPolicy
from pgstream_dagster.errors import (
    CommitFailed,
    ConnectionLost,
    PublicationMissing,
    QueryCancelled,
    Retry,
    SlotAhead,
    SlotInUse,
    SlotMissing,
    SpoolFailed,
    Unreachable,
)
from pgstream_dagster.lsn import Lsn
from pgstream_dagster.schema.changes import Op
from tests.support.harness.capture import Capture, MemoryCommit
from tests.support.harness.runner import flushed
from tests.support.harness.tcp_proxy import TcpProxy
from tests.support.plugins.cluster import OwnServer, is_free, psql
from tests.support.plugins.wait import until

RECREATE = (
    "select pg_drop_replication_slot({slot}),"
    " pg_create_logical_replication_slot({slot}, 'pgoutput')"
)
TABLE = "create table t (id bigint primary key, x text)"


def ids(capture: Capture) -> list[str | None]:
    return [c.key[0] for c in capture.log.changes if c.op is Op.INSERT and c.key]


def insert(dsn: str, *numbers: int) -> None:
    with psycopg.connect(dsn, autocommit=True) as connection:
        for number in numbers:
            connection.execute("insert into t values (%s, 'x')", [number])


def end_walsender(dsn: str, slot: str) -> None:
    psql(
        dsn,
        "select pg_terminate_backend(active_pid, 5000) from pg_replication_slots"
        f" where slot_name = '{slot}' and active",
    )


def is_lost(capture: Capture) -> Callable[[], bool]:
    return lambda: isinstance(capture.error, ConnectionLost)


def test_a_terminated_walsender_costs_nothing_but_the_connection(dsn: str) -> None:
    """P95."""
    psql(dsn, TABLE)
    capture = Capture(dsn)
    for number in range(3):
        with pytest.raises(ConnectionLost), capture:
            insert(dsn, 2 * number)
            capture.catch_up()
            end_walsender(dsn, capture.slot)
            insert(dsn, 2 * number + 1)  # while nobody reads
            until(is_lost(capture))
    with capture:
        capture.catch_up()
    assert ids(capture) == [str(n) for n in range(6)]


def test_a_cancelled_walsender_is_worth_another_try(dsn: str) -> None:
    psql(dsn, TABLE)
    capture = Capture(dsn)
    with pytest.raises(QueryCancelled), capture:
        insert(dsn, 1)
        capture.catch_up()
        psql(
            dsn,
            "select pg_cancel_backend(active_pid) from pg_replication_slots"
            f" where slot_name = '{capture.slot}'",
        )
        until(lambda: capture.error is not None)
    insert(dsn, 2)
    with capture:
        capture.catch_up()
    assert ids(capture) == ["1", "2"]


@pytest.mark.long
def test_a_fast_shutdown_does_not_wait_for_the_stream(own_postgres: OwnServer) -> None:
    """Postgres asks for a confirmation of all it has written, and gets it at once."""
    dsn = own_postgres.dsn
    psql(dsn, TABLE)
    capture = Capture(dsn, policy=FlushPolicy(idle_advance_seconds=3600))
    with pytest.raises(ConnectionLost), capture:
        insert(dsn, 1)
        capture.catch_up()
        psql(dsn, "create table unrelated as select generate_series(1, 1000) as n")
        began = time.monotonic()
        own_postgres.stop("fast", timeout_seconds=60)
        assert time.monotonic() - began < 10
        until(is_lost(capture))
    own_postgres.start()
    insert(dsn, 2)
    with capture:
        capture.catch_up()
    assert ids(capture) == ["1", "2"]


def test_a_crash_of_the_server_costs_nothing_but_the_connection(own_postgres: OwnServer) -> None:
    dsn = own_postgres.dsn
    psql(dsn, TABLE)
    capture = Capture(dsn)
    with pytest.raises(ConnectionLost), capture:
        insert(dsn, 1)
        own_postgres.kill()
        until(is_lost(capture))
    own_postgres.start()
    insert(dsn, 2)
    with capture:
        capture.catch_up()
    assert ids(capture) == ["1", "2"]


@pytest.mark.long
@pytest.mark.parametrize(
    "commit_seconds",
    [pytest.param(0.0, id="idle"), pytest.param(4.0, id="slow commits", marks=pytest.mark.long)],
)
def test_a_server_of_little_patience_is_answered_in_time(dsn: str, commit_seconds: float) -> None:
    """The server asks after half of its timeout; a slow lake is no dead reader."""
    psql(dsn, TABLE, _alter(dsn, "set wal_sender_timeout = '3s'"))
    capture = Capture(dsn, policy=FlushPolicy(idle_advance_seconds=3600))
    committed = capture.log._committed

    def slowly(commit: MemoryCommit) -> MemoryCommit:
        time.sleep(commit_seconds)
        return committed(commit)

    capture.log._committed = slowly  # type: ignore[method-assign]
    with capture:
        insert(dsn, 1)
        done = time.monotonic() + 7
        until(lambda: capture.error is not None or time.monotonic() > done)
        insert(dsn, 2)
        capture.catch_up()
    assert ids(capture) == ["1", "2"]


def test_the_wal_of_others_does_not_hold_the_slot(dsn: str, postgres: Any) -> None:
    """P94."""
    psql(dsn, TABLE)
    capture = Capture(dsn, policy=FlushPolicy(idle_advance_seconds=0.2))
    with capture:
        psql(postgres.dsn, "create table noise as select generate_series(1, 20000) as n")
        target = flushed(postgres.dsn)
        psql(postgres.dsn, "drop table noise")
        until(lambda: capture.confirmed >= target)
    assert not capture.log.changes
    assert capture.confirmed <= capture.log.watermark


def test_idle_positions_are_not_recorded_more_often_than_wanted(dsn: str) -> None:
    psql(dsn, TABLE)
    capture = Capture(dsn, policy=FlushPolicy(idle_advance_seconds=3600))
    with capture:
        insert(dsn, 1)
        capture.catch_up()
        before = len(capture.log.commits)  # some of positions that were waited for
        for _ in range(5):
            psql(dsn, "create temporary table noise as select 1", "select pg_switch_wal()")
            time.sleep(0.1)  # what must not happen needs time not to happen
    assert len(capture.log.commits) - before <= 1


def test_a_second_reader_is_refused(dsn: str) -> None:
    """P99."""
    psql(dsn, TABLE)
    capture, second = Capture(dsn), Capture(dsn)
    with capture:
        second.slot = capture.slot
        with pytest.raises(SlotInUse):
            second.__enter__()
        insert(dsn, 1)
        capture.catch_up()
    assert ids(capture) == ["1"]


@pytest.mark.parametrize("messages", ["notice", "error"])
def test_a_dropped_publication_ends_the_stream(dsn: str, messages: str) -> None:
    """
    Even where the server would pass over every change made meanwhile and say so in a warning.

    A setting of the role, by which it would keep that to itself, does not count.
    """
    [(database,)] = psql(dsn, "select current_database()")
    psql(
        dsn,
        TABLE,
        f"alter role current_user in database {database} set client_min_messages = {messages}",
    )
    capture = Capture(dsn)
    with pytest.raises(PublicationMissing), capture:
        insert(dsn, 1)
        capture.catch_up()
        psql(dsn, f"drop publication {capture.publication}")
        insert(dsn, 2)
        until(lambda: capture.error is not None)
    psql(dsn, f"create publication {capture.publication} for all tables")
    insert(dsn, 3)
    with pytest.raises(PublicationMissing), capture:  # the second row is still before us
        until(lambda: capture.error is not None)
    assert ids(capture) == ["1"]


@pytest.mark.majors(since=17)  # before it no change waits for a standby
def test_a_standby_that_changes_wait_for_is_named_and_ends_no_stream(
    own_postgres: OwnServer,
) -> None:
    dsn = own_postgres.dsn
    psql(dsn, TABLE, "select pg_create_physical_replication_slot('standby')")
    capture = Capture(dsn, failover=True)
    with capture:
        insert(dsn, 1)
        capture.catch_up()
        hold = [
            "alter system set synchronized_standby_slots = 'standby'",
            "select pg_reload_conf()",
        ]
        psql(dsn, *hold)
        insert(dsn, 2)
        until(lambda: capture.stream.stall is not None)
        assert "'standby'" in str(capture.stream.stall).replace('"', "'")
        assert capture.error is None
        psql(dsn, "alter system reset synchronized_standby_slots", "select pg_reload_conf()")
        capture.catch_up()
        until(lambda: capture.stream.stall is None)
    assert ids(capture) == ["1", "2"]


@pytest.mark.parametrize(
    ("statement", "error"),
    [
        ("select pg_drop_replication_slot({slot})", SlotMissing),
        (RECREATE, SlotAhead),
        ("select pg_replication_slot_advance({slot}, pg_current_wal_lsn())", SlotAhead),
    ],
    ids=["dropped", "made again", "advanced"],
)
def test_a_slot_that_skips_changes_is_refused(
    dsn: str, statement: str, error: type[Exception]
) -> None:
    """P101: one that was dropped is not made again by the stream, as it would skip WAL."""
    psql(dsn, TABLE)
    capture = Capture(dsn)
    with capture:
        insert(dsn, 1)
        capture.catch_up()
    insert(dsn, 2)
    until(lambda: is_free(dsn, capture.slot))
    psql(dsn, sql.SQL(statement).format(slot=sql.Literal(capture.slot)).as_string(None))
    with pytest.raises(error):
        capture.__enter__()
    assert ids(capture) == ["1"]


def test_a_stop_lands_and_confirms_what_is_complete(dsn: str) -> None:
    """P98."""
    psql(dsn, TABLE, _alter(dsn, "set logical_decoding_work_mem = '64kB'"))
    capture = Capture(dsn, policy=FlushPolicy(flush_seconds=3600))
    with psycopg.connect(dsn) as open_one:
        with capture:
            open_one.execute("insert into t select g, 'open' from generate_series(1000, 9000) g")
            insert(dsn, 1)
            until(lambda: ids(capture) == ["1"])  # a quiet source is landed at once
            insert(dsn, 2, 3)
            target = flushed(dsn)
            until(lambda: capture.stream._assembler.received >= target)
        assert ids(capture) == ["1", "2", "3"]
        until(lambda: capture.confirmed == capture.log.watermark)  # the server reads it at leisure
        open_one.commit()
    with capture:
        capture.catch_up()
    assert len(ids(capture)) == 3 + 8_001
    assert len(set(ids(capture))) == 3 + 8_001


def test_confirmed_never_passes_the_log(dsn: str) -> None:
    psql(dsn, TABLE)
    capture = Capture(dsn, policy=FlushPolicy(flush_seconds=0, idle_advance_seconds=0.05))
    breaches: list[tuple[Lsn, Lsn]] = []
    done = threading.Event()

    def poll() -> None:
        while not done.is_set():
            confirmed = capture.confirmed
            if confirmed > capture.log.watermark:
                breaches.append((confirmed, capture.log.watermark))

    watcher = threading.Thread(target=poll)
    watcher.start()
    try:
        with capture:
            for number in range(100):
                insert(dsn, number)
            capture.catch_up()
    finally:
        done.set()
        watcher.join()
    assert not breaches


class Held:
    """Commits of changes wait while it is held, as for a lake that does not answer."""

    def __init__(self, capture: Capture) -> None:
        self.free, self.waiting = threading.Event(), threading.Event()
        self.error: Exception | None = None
        self.commits: list[MemoryCommit] = []
        self._committed = capture.log._committed
        capture.log._committed = self._wait  # type: ignore[method-assign]

    def _wait(self, commit: MemoryCommit) -> MemoryCommit:
        if not commit.tables:  # an idle position, which may come before the changes
            return self._committed(commit)
        self.waiting.set()
        assert self.free.wait(600)
        self.commits.append(commit)
        if self.error is not None:
            raise self.error
        return self._committed(commit)


LAKE_AWAY = CommitFailed("change_log", "503 Slow Down")


def test_a_change_that_was_not_landed_when_its_walsender_ended_comes_again(dsn: str) -> None:
    """P96."""
    psql(dsn, TABLE)
    capture = Capture(dsn)
    held = Held(capture)
    with pytest.raises(CommitFailed), capture:
        insert(dsn, 1)
        until(held.waiting.is_set)
        start = capture.log.watermark
        end_walsender(dsn, capture.slot)
        held.error = LAKE_AWAY
        held.free.set()
        until(lambda: capture.error is not None)
    assert capture.confirmed <= capture.log.watermark == start
    held.error = None
    with capture:
        capture.catch_up()
    lost, landed = (
        [table["commit_lsn"].to_pylist() for commit in commits for table in commit.tables]
        for commits in (held.commits[:1], capture.log.commits)
    )
    assert lost == landed
    assert ids(capture) == ["1"]


def test_a_stop_raises_the_error_of_the_commit_that_it_waits_for(dsn: str) -> None:
    """P98."""
    psql(dsn, TABLE)
    capture = Capture(dsn)
    held = Held(capture)
    with pytest.raises(CommitFailed), capture:
        insert(dsn, 1)
        until(held.waiting.is_set)
        capture.stop.set()
        held.error = LAKE_AWAY
        held.free.set()
    held.error = None
    with capture:
        capture.catch_up()
    assert ids(capture) == ["1"]


def test_a_connection_that_breaks_while_the_queues_are_full_is_noticed(dsn: str) -> None:
    psql(dsn, TABLE)
    capture = Capture(dsn)
    held = Held(capture)
    with pytest.raises(ConnectionLost), capture:
        transactions, number = capture.stream._transactions, 0
        while not transactions.full():
            number += 1
            insert(dsn, number)
            time.sleep(0.1)  # a batch each
        end_walsender(dsn, capture.slot)
        until(capture.stream._pumped.is_set)
        held.free.set()
        until(is_lost(capture))
    with capture:
        capture.catch_up()
    assert ids(capture) == [str(n) for n in range(1, number + 1)]


# --- silence ----------------------------------------------------------------------------------


@pytest.mark.parametrize("timeout", ["1s", "0"], ids=["wal_sender_timeout", "without"])
def test_a_connection_that_falls_silent_is_given_up_by_our_clock(
    own_postgres: OwnServer, timeout: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No FIN, no RST: the kernel continues answering for a server process that stands still."""
    monkeypatch.setattr(stream_module, "SILENT_SECONDS", 3.0)
    dsn = own_postgres.dsn
    psql(dsn, TABLE, _alter(dsn, f"set wal_sender_timeout = '{timeout}'"))
    capture = Capture(dsn)
    with pytest.raises(ConnectionLost, match="silent"), capture:
        insert(dsn, 1)
        capture.catch_up()
        [(pid,)] = psql(dsn, "select active_pid from pg_replication_slots where active")
        os.kill(pid, signal.SIGSTOP)
        try:
            began = time.monotonic()
            until(lambda: capture.stream.silent_seconds is not None)
            until(is_lost(capture))
            assert time.monotonic() - began < 3 * 3.0  # a busy machine
        finally:
            os.kill(pid, signal.SIGCONT)
    insert(dsn, 2)
    with capture:
        capture.catch_up()
    assert ids(capture) == ["1", "2"]


def test_silence_is_noticed_while_the_decoder_waits_for_the_catalog(
    own_postgres: OwnServer,
) -> None:
    """The session that describes tables leads to the same server, and nothing ends its wait."""
    dsn = own_postgres.dsn
    psql(dsn, TABLE, _alter(dsn, "set wal_sender_timeout = '1s'"))
    capture = Capture(dsn)
    with pytest.raises(ConnectionLost, match="silent"), capture:
        catalog = capture.catalog_pid
        os.kill(catalog, signal.SIGSTOP)
        insert(dsn, 1)  # the first row of the table: it is described
        until(lambda: capture.stream._decoding_since is not None)
        [(pid,)] = psql(dsn, "select active_pid from pg_replication_slots where active")
        os.kill(pid, signal.SIGSTOP)
        try:
            until(is_lost(capture))
        finally:
            os.kill(pid, signal.SIGCONT)
            os.kill(catalog, signal.SIGCONT)
    with capture:
        capture.catch_up()
    assert ids(capture) == ["1"]


def test_an_idle_server_is_asked_and_goes_on_being_read(dsn: str) -> None:
    psql(dsn, TABLE, _alter(dsn, "set wal_sender_timeout = '1s'"))
    capture = Capture(dsn)
    with capture:
        capture.stream._silence.limit_seconds = 1.5
        done = time.monotonic() + 4
        until(lambda: capture.error is not None or time.monotonic() > done)
        insert(dsn, 1)
        capture.catch_up()
    assert ids(capture) == ["1"]


@pytest.mark.long
def test_a_connection_that_cannot_be_made_leaves_no_descriptor_behind(dsn: str) -> None:
    psql(dsn, TABLE)
    capture = Capture(dsn)
    with closing(psycopg.connect(dsn)) as capture._catalog, _proxy(dsn) as (proxy, through):
        # libpq's ping keeps the proxy of this process from answering until its time is over.
        capture.dsn, capture.stop = make_conninfo(through, connect_timeout=2), threading.Event()
        proxy.refuse()
        for attempt in range(3):
            with pytest.raises(Unreachable):
                capture._open_stream(capture.start)
            if not attempt:
                before = _descriptors()
        assert not _descriptors() - before  # others of this process may end meanwhile


def _descriptors() -> set[str]:
    """This process's pipes."""
    targets = {
        str(link.readlink()) for link in Path("/proc/self/fd").iterdir() if link.is_symlink()
    }
    return {link for link in targets if link.startswith("pipe:")}


@contextmanager
def _proxy(dsn: str) -> Iterator[tuple[TcpProxy, str]]:
    """A network in front of the server, and the way through it."""
    with psycopg.connect(dsn) as connection:
        host, port = connection.info.hostaddr or "127.0.0.1", connection.info.port
    with TcpProxy(host, port) as proxy:
        yield proxy, make_conninfo(dsn, host="127.0.0.1", hostaddr="127.0.0.1", port=proxy.port)


# --- the spool --------------------------------------------------------------------------------


LARGE = "insert into t select g, repeat('x', 200) from generate_series(1, 20000) as g"


def _small_memory(dsn: str) -> str:
    return _alter(dsn, "set logical_decoding_work_mem = '64kB'")


@pytest.mark.long
def test_streams_that_share_a_state_folder_leave_each_other_alone(dsn: str, tmp_path: Path) -> None:
    """Two slots of one server here; two servers are no different."""
    psql(dsn, TABLE, _small_memory(dsn))
    first, second = (Capture(dsn, state=tmp_path) for _ in range(2))
    with first, psycopg.connect(dsn) as connection:
        connection.execute(LARGE)
        until(lambda: bool(first.stream._assembler._streams))
        with second:  # connects in the middle
            connection.commit()
            first.catch_up()
            second.catch_up()
    with second:
        second.catch_up()
    for capture in (first, second):
        assert len(ids(capture)) == len(set(ids(capture))) == 20_000
    assert not list(tmp_path.iterdir())


def test_a_stream_that_slept_through_a_takeover_still_holds_its_whole_transaction(
    dsn: str, tmp_path: Path
) -> None:
    psql(dsn, TABLE, _small_memory(dsn))
    sleeper = Capture(dsn, state=tmp_path)
    held = Held(sleeper)
    with sleeper:
        sleeper.stream._transactions.maxsize = 0  # no heartbeat takes the place of the transaction
        insert(dsn, 100_000)
        assert held.waiting.wait(60)
        psql(dsn, LARGE)
        target = flushed(dsn)
        until(lambda: sleeper.stream._assembler.received >= target)  # so it has the whole of it
        end_walsender(dsn, sleeper.slot)
        until(sleeper.stream._pumped.is_set)
        second = Capture(dsn, state=tmp_path)
        second.slot, second.publication = sleeper.slot, sleeper.publication
        second.log.watermark = sleeper.log.watermark
        with second:
            second.catch_up()
        held.free.set()
        until(is_lost(sleeper))
        sleeper.error = None
    for capture in (sleeper, second):
        sizes = {commit.rows for commit in capture.log.commits}
        assert sizes <= {0, 1, 20_000}
    assert 20_000 in {commit.rows for commit in sleeper.log.commits}


@pytest.mark.long
def test_a_state_folder_that_is_removed_takes_no_transaction_with_it(
    dsn: str, tmp_path: Path
) -> None:
    psql(dsn, TABLE, _small_memory(dsn))
    state = tmp_path / "state"
    capture = Capture(dsn, state=state)
    with capture, psycopg.connect(dsn) as connection:
        connection.execute(LARGE)
        streams = capture.stream._assembler._streams
        until(lambda: any(file._file for file in streams.values()))
        shutil.rmtree(state)
        connection.execute("insert into t select g from generate_series(20001, 40000) as g")
        connection.commit()
        capture.catch_up()
    assert len(ids(capture)) == 40_000


@pytest.mark.long
def test_a_state_folder_that_cannot_be_written_is_waited_for(dsn: str, tmp_path: Path) -> None:
    """The error reconnects; nothing is landed of what could not be kept."""
    psql(dsn, TABLE, _small_memory(dsn))
    state = tmp_path / "state"
    state.write_text("in the way")
    capture = Capture(dsn, state=state)
    with pytest.raises(SpoolFailed) as raised, capture:
        psql(dsn, LARGE)
        until(lambda: capture.error is not None)
    assert raised.value.retry is Retry.LATER
    assert not ids(capture)
    state.unlink()
    with capture:
        capture.catch_up()
    assert len(ids(capture)) == 20_000


def _alter(dsn: str, what: str) -> str:
    """A setting of this test's database: walsenders take it from there too."""
    return f"alter database {psql(dsn, 'select current_database()')[0][0]} {what}"
