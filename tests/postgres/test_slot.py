"""Slots: what is read of them, what is refused, and who may be ended."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator

import pytest
from psycopg import pq
from psycopg.conninfo import make_conninfo

from pgstream_dagster.errors import (
    AccessRefused,
    PreflightFailed,
    SlotAhead,
    SlotForeign,
    SlotInUse,
    SlotLost,
    SlotMissing,
)
from pgstream_dagster.lsn import Lsn
from pgstream_dagster.source import slot
from pgstream_dagster.source.connect import command, connect, replication
from pgstream_dagster.source.slot import ExportedSlot, WalStatus
from tests.support.plugins.cluster import OwnServer, psql
from tests.support.plugins.wait import until

FAR = Lsn((1 << 63) - 1)


def made(dsn: str, name: str) -> ExportedSlot:
    pgconn = replication(dsn)
    try:
        return slot.create(pgconn, name)
    finally:
        pgconn.finish()


@contextlib.contextmanager
def reading(
    dsn: str, name: str, *, application_name: str = "pgstream", through: str = ""
) -> Iterator[pq.abc.PGconn]:
    """A walsender on the slot, and nobody who answers it."""
    psql(dsn, "drop publication if exists p", "create publication p for all tables")
    pgconn = replication(through or dsn, application_name=application_name)
    pgconn.send_query(
        f"START_REPLICATION SLOT {name} LOGICAL 0/0"
        " (proto_version '1', publication_names 'p')".encode()
    )
    until(
        lambda: psql(dsn, f"select active from pg_replication_slots where slot_name = '{name}'")[0][
            0
        ]
    )
    try:
        yield pgconn
    finally:
        pgconn.finish()


def name_of(dsn: str) -> str:
    """A slot name of this test's own: slots are the server's, not the database's."""
    return f"s_{psql(dsn, 'select current_database()')[0][0]}"


def test_a_new_slot_exports_the_rows_before_its_consistent_point(dsn: str) -> None:
    name = name_of(dsn)
    psql(dsn, "create table t (id int)", "insert into t values (1)")
    pgconn = replication(dsn)
    try:
        exported = slot.create(pgconn, name)
        psql(dsn, "insert into t values (2)")
        with connect(dsn) as connection:
            connection.autocommit = False
            connection.execute("set transaction isolation level repeatable read")
            connection.execute(f"set transaction snapshot '{exported.snapshot}'")  # type: ignore[arg-type]
            assert connection.execute("select id from public.t").fetchall() == [(1,)]
    finally:
        pgconn.finish()
    with connect(dsn) as connection:
        state = slot.inspect(connection, name)
        assert state is not None
        assert state.confirmed_lsn == exported.consistent_point
        assert state.wal_status is WalStatus.RESERVED
        assert not state.is_lost
        assert not state.is_temporary
        assert state.active_pid is None
        assert state.lag_bytes is not None
        assert state.lag_bytes > 0
        assert (
            slot.resume_lsn(connection, name, exported.consistent_point)
            == exported.consistent_point
        )


def test_a_temporary_slot_goes_with_its_session(dsn: str) -> None:
    name = name_of(dsn)
    pgconn = replication(dsn)
    slot.create(pgconn, name, temporary=True)
    with connect(dsn) as connection:
        state = slot.inspect(connection, name)
        assert state is not None
        assert state.is_temporary
        pgconn.finish()
        until(lambda: slot.inspect(connection, name) is None)


def test_failover_is_set_where_the_server_has_it(dsn: str) -> None:
    name = name_of(dsn)
    pgconn = replication(dsn)
    try:
        slot.create(pgconn, name, failover=True)
        version = pgconn.server_version
    finally:
        pgconn.finish()
    with connect(dsn) as connection:
        state = slot.inspect(connection, name)
        assert state is not None
        assert state.is_failover is (version >= 170000)


def test_a_second_slot_of_the_same_name_is_refused(dsn: str) -> None:
    name = name_of(dsn)
    made(dsn, name)
    with pytest.raises(SlotForeign, match="it exists already"):
        made(dsn, name)


def test_a_role_without_the_right_is_refused(dsn: str) -> None:
    role = f"r_{name_of(dsn)}"
    psql(dsn, f"create role {role} login")
    try:
        with pytest.raises(AccessRefused):
            made(make_conninfo(dsn, user=role), name_of(dsn))
    finally:
        psql(dsn, f"drop role {role}")


def test_a_server_without_logical_wal_or_free_slots_says_so(own_postgres: OwnServer) -> None:
    made(own_postgres.dsn, "s1")
    own_postgres.settings["max_replication_slots"] = "1"
    own_postgres.restart()
    with pytest.raises(PreflightFailed, match="max_replication_slots"):
        made(own_postgres.dsn, "s2")
    with connect(own_postgres.dsn) as connection:
        slot.drop(connection, "s1")
    own_postgres.settings["wal_level"] = "replica"
    own_postgres.restart()
    with pytest.raises(PreflightFailed, match="wal_level"):
        made(own_postgres.dsn, "s2")


def test_a_missing_slot_is_never_made_again_silently(dsn: str) -> None:
    """P101."""
    with connect(dsn) as connection, pytest.raises(SlotMissing, match="pgstream resnapshot"):
        slot.resume_lsn(connection, "nope", FAR)


def test_a_slot_past_the_watermark_is_refused(dsn: str) -> None:
    name = name_of(dsn)
    exported = made(dsn, name)
    psql(dsn, "create table t (id int)", "insert into t values (1)")
    psql(dsn, f"select pg_replication_slot_advance('{name}', pg_current_wal_flush_lsn())")
    with connect(dsn) as connection:
        with pytest.raises(SlotAhead) as caught:
            slot.resume_lsn(connection, name, exported.consistent_point)
        assert caught.value.watermark == exported.consistent_point
        slot.drop(connection, name)
    made(dsn, name)
    with connect(dsn) as connection, pytest.raises(SlotAhead):  # dropped and made again
        slot.resume_lsn(connection, name, exported.consistent_point)


@pytest.mark.parametrize(
    ("create", "fact"),
    [
        ("pg_create_physical_replication_slot('{}')", "a physical slot"),
        ("pg_create_logical_replication_slot('{}', 'test_decoding')", "'test_decoding'"),
    ],
)
def test_a_slot_of_another_kind_is_refused_and_kept(dsn: str, create: str, fact: str) -> None:
    name = name_of(dsn)
    psql(dsn, f"select {create.format(name)}")
    with connect(dsn) as connection:
        with pytest.raises(SlotForeign, match=fact):
            slot.resume_lsn(connection, name, FAR)
        with pytest.raises(SlotForeign):
            slot.drop(connection, name)
    psql(dsn, f"select pg_drop_replication_slot('{name}')")


def test_a_slot_of_another_database_is_refused_and_kept(dsn: str) -> None:
    name = name_of(dsn)
    made(dsn, name)
    with connect(make_conninfo(dsn, dbname="postgres")) as connection:
        with pytest.raises(SlotForeign, match="it belongs to database"):
            slot.resume_lsn(connection, name, FAR)
        with pytest.raises(SlotForeign):
            slot.drop(connection, name)


def test_a_slot_whose_wal_was_removed_is_lost(own_postgres: OwnServer) -> None:
    made(own_postgres.dsn, "s1")
    own_postgres.settings |= {"max_slot_wal_keep_size": "1MB", "max_wal_size": "32MB"}
    own_postgres.restart()
    psql(own_postgres.dsn, "create table t (x text)")
    for _ in range(4):
        psql(
            own_postgres.dsn,
            "insert into t select repeat('x', 2000) from generate_series(1, 8000)",
            "select pg_switch_wal()",
        )
    psql(own_postgres.dsn, "checkpoint")
    with connect(own_postgres.dsn) as connection:
        state = slot.inspect(connection, "s1")
        assert state is not None
        assert state.is_lost
        with pytest.raises(SlotLost, match="pgstream resnapshot"):
            slot.resume_lsn(connection, "s1", FAR)
        assert slot.drop(connection, "s1")


@pytest.mark.majors(since=18)  # idle_replication_slot_timeout
def test_a_slot_that_idled_too_long_is_lost(own_postgres: OwnServer) -> None:
    made(own_postgres.dsn, "s1")
    psql(
        own_postgres.dsn,
        "alter system set idle_replication_slot_timeout = '1s'",
        "select pg_reload_conf()",
    )
    with connect(own_postgres.dsn) as connection:

        def is_lost() -> bool:
            psql(own_postgres.dsn, "checkpoint")
            state = slot.inspect(connection, "s1")
            return state is not None and state.is_lost

        until(is_lost, every=0.5)
        with pytest.raises(SlotLost, match="idle_timeout"):
            slot.resume_lsn(connection, "s1", FAR)


def test_dropping_twice_is_fine_where_asked_for(dsn: str) -> None:
    name = name_of(dsn)
    made(dsn, name)
    with connect(dsn) as connection:
        assert slot.drop(connection, name)
        assert not slot.drop(connection, name, missing_ok=True)
        with pytest.raises(SlotMissing):
            slot.drop(connection, name)


def test_a_slot_in_use_is_neither_resumed_nor_dropped(dsn: str) -> None:
    name = name_of(dsn)
    made(dsn, name)
    with reading(dsn, name) as reader, connect(dsn) as connection:
        with pytest.raises(SlotInUse, match=str(reader.backend_pid)):
            slot.resume_lsn(connection, name, FAR)
        with pytest.raises(SlotInUse, match=str(reader.backend_pid)):  # it has moved on meanwhile
            slot.resume_lsn(connection, name, Lsn(0))
        with pytest.raises(SlotInUse, match=str(reader.backend_pid)):
            slot.drop(connection, name)
        assert slot.inspect(connection, name) is not None


def test_a_free_slot_is_taken_over_at_once(dsn: str) -> None:
    name = name_of(dsn)
    made(dsn, name)
    with connect(dsn) as connection:
        slot.take_over(connection, name, "pgstream")


@pytest.mark.parametrize("application_name", ["another", None])
def test_a_dying_reader_is_waited_for(dsn: str, application_name: str | None) -> None:
    name = name_of(dsn)
    made(dsn, name)
    with reading(dsn, name) as reader, connect(dsn) as connection:
        ending = threading.Timer(1.0, reader.finish)
        ending.start()
        slot.take_over(connection, name, application_name)
        ending.join()
        state = slot.inspect(connection, name)
        assert state is not None
        assert state.active_pid is None


def test_an_earlier_connection_of_ours_is_ended_with_the_least_of_rights(dsn: str) -> None:
    name, role = name_of(dsn), f"r_{name_of(dsn)}"
    made(dsn, name)
    psql(dsn, f"create role {role} login replication")
    try:
        ours = make_conninfo(dsn, user=role)
        with (
            reading(dsn, name, through=ours, application_name="pgstream 1a2b"),
            connect(ours) as connection,
        ):
            slot.take_over(connection, name, "pgstream 1a2b")
            state = slot.inspect(connection, name)
            assert state is not None
            assert slot.resume_lsn(connection, name, FAR) == state.confirmed_lsn
    finally:
        psql(dsn, f"drop role {role}")


def test_a_reader_of_another_name_is_refused_and_goes_on_reading(
    dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(slot, "DYING_SECONDS", 0.3)
    name = name_of(dsn)
    made(dsn, name)
    with (
        reading(dsn, name, application_name="pgstream 1a2b") as reader,
        connect(dsn) as connection,
    ):
        with pytest.raises(SlotInUse, match=f"pg_terminate_backend.{reader.backend_pid}"):
            slot.take_over(connection, name, "pgstream 3c4d")
        state = slot.inspect(connection, name)
        assert state is not None
        assert state.active_pid == reader.backend_pid


def test_without_a_name_every_reader_is_refused(dsn: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slot, "DYING_SECONDS", 0.3)
    name = name_of(dsn)
    made(dsn, name)
    with (
        reading(dsn, name, application_name=""),
        connect(dsn) as connection,
        pytest.raises(SlotInUse),
    ):
        slot.take_over(connection, name)


def test_a_slot_that_moved_after_it_was_looked_at_is_refused(dsn: str) -> None:
    name = name_of(dsn)
    start = made(dsn, name).consistent_point
    with connect(dsn) as connection:
        slot.require_not_ahead(connection, name, start)
        psql(
            dsn,
            "create table t (n int)",
            f"select pg_replication_slot_advance('{name}', pg_current_wal_lsn())",
        )
        with pytest.raises(SlotAhead):
            slot.require_not_ahead(connection, name, start)


def test_commands_of_a_walsender_are_answered_while_the_slot_is_made(dsn: str) -> None:
    pgconn = replication(dsn)
    try:
        slot.create(pgconn, name_of(dsn), temporary=True)
        assert command(pgconn, "select 1 as one") == [{"one": "1"}]
    finally:
        pgconn.finish()
