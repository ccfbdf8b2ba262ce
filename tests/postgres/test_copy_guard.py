"""Exported snapshots and the guard: what a copy may rely on while it reads."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from contextlib import closing

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from pgstream_dagster.errors import SnapshotLost, TableLocked, TableRewritten
from pgstream_dagster.source import snapshot as snapshots
from pgstream_dagster.source.connect import connect
from pgstream_dagster.source.publication import PublishedTable, ensure, published
from pgstream_dagster.source.snapshot import Guard, Session, exported, pinned
from tests.support.plugins.cluster import psql
from tests.support.plugins.wait import until


@pytest.fixture
def catalog(dsn: str) -> Iterator[Session]:
    psql(
        dsn,
        "create table orders (id int primary key, note text)",
        "insert into orders select i, 'x' from generate_series(1, 100) i",
        "create table parts (id int, day int, primary key (id, day)) partition by list (day)",
        "create table parts_1 partition of parts for values in (1)",
        "create table parts_2 (day int not null, id int not null)",
        "alter table parts attach partition parts_2 for values in (2)",
        "insert into parts select i, 1 + i % 2 from generate_series(1, 100) i",
    )
    with closing(connect(dsn)) as session:
        ensure(session, "pub", "all")
        yield session


def table(session: Session, name: str) -> PublishedTable:
    return next(t for t in published(session, "pub") if t.name == name)


def hold(guard: Guard, listed: PublishedTable, catalog: Session) -> Mapping[int, int]:
    return guard.hold(listed, catalog, wait_seconds=10)


def count(session: Session, name: str) -> int:
    return session.execute(f"select count(*) from public.{name}").fetchall()[0][0]


def test_a_pinned_session_sees_what_was_there_and_the_temporary_slot_is_gone(
    dsn: str, catalog: Session
) -> None:
    with exported(dsn) as snapshot:
        psql(dsn, "delete from orders", "vacuum orders", "insert into orders values (7, 'new')")
        with closing(pinned(dsn, snapshot.name)) as session:
            assert count(session, "orders") == 100
        database = "database = current_database()"
        assert psql(dsn, f"select from pg_replication_slots where {database}") == []


def test_a_permanent_slot_streams_from_the_consistent_point_of_its_snapshot(
    dsn: str, catalog: Session
) -> None:
    with exported(dsn, slot="h6_kept") as snapshot:
        ((confirmed,),) = psql(
            dsn,
            "select confirmed_flush_lsn::text from pg_replication_slots"
            " where slot_name = 'h6_kept' and not active",
        )
        assert confirmed == str(snapshot.consistent_point)


def test_no_session_gets_into_the_snapshot_after_its_end(dsn: str, catalog: Session) -> None:
    with exported(dsn) as snapshot:
        pass
    with pytest.raises(SnapshotLost):
        pinned(dsn, snapshot.name)


def test_the_guard_has_the_versions_of_the_snapshot_and_not_of_now(
    dsn: str, catalog: Session
) -> None:
    """What the publication hid after the snapshot is in no copy from it."""
    before = table(catalog, "orders").versions
    with exported(dsn) as snapshot, Guard(dsn, snapshot) as guard:
        psql(dsn, "alter publication pub set (publish = 'insert')")
        listed = table(catalog, "orders")
        assert guard.versions(listed, "pub") == before != listed.versions


def test_the_guard_names_the_leaves_and_their_files(dsn: str, catalog: Session) -> None:
    with exported(dsn) as snapshot, Guard(dsn, snapshot) as guard:
        for name in ("orders", "parts"):
            expected = table(catalog, name)
            assert hold(guard, expected, catalog) == expected.members
        guard.require_alive()


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("orders", "truncate orders"),
        ("orders", "vacuum full orders"),
        ("orders", "cluster orders using orders_pkey"),
        ("orders", "alter table orders alter id type bigint"),
        ("orders", "alter table orders add at timestamptz default clock_timestamp()"),
        ("orders", "alter table orders add plain int"),
        ("orders", "alter table orders rename note to remark"),
        ("orders", "alter table orders drop note"),
        ("orders", "alter table orders replica identity full"),
        ("orders", "alter table orders rename to former"),
        ("orders", "drop table orders"),
        ("parts", "truncate parts_1"),
        ("parts", "alter table parts detach partition parts_1"),
        ("parts", "create table parts_3 partition of parts for values in (3)"),
        ("parts", "drop table parts_2"),
    ],
)
def test_a_table_changed_after_the_snapshot_is_refused(
    dsn: str, catalog: Session, name: str, change: str
) -> None:
    listed = table(catalog, name)
    with exported(dsn) as snapshot:
        psql(dsn, change)
        with Guard(dsn, snapshot) as guard, pytest.raises(TableRewritten):
            hold(guard, listed, catalog)
    after = {t.relation_id: t for t in published(catalog, "pub")}.get(listed.relation_id)
    if after is not None:
        with exported(dsn) as snapshot, Guard(dsn, snapshot) as guard:
            assert hold(guard, after, catalog) == after.members


def test_a_partition_that_is_half_detached_is_none_of_the_table(dsn: str, catalog: Session) -> None:
    """Else its tree would look changed, and be copied, at every check of the catalog."""
    listed = table(catalog, "parts")
    hasty = make_conninfo(dsn, options="-c statement_timeout=200")
    with psycopg.connect(dsn) as reader:
        reader.execute("select from parts")  # DETACH waits for this transaction
        with pytest.raises(psycopg.errors.QueryCanceled):
            psql(hasty, "alter table parts detach partition parts_1 concurrently")
    left = table(catalog, "parts")
    with exported(dsn) as snapshot, Guard(dsn, snapshot) as guard:
        assert hold(guard, left, catalog) == left.members
    assert len(listed.members) == len(left.members) + 1


@pytest.mark.parametrize("change", ["vacuum orders", "analyze orders", "delete from orders"])
def test_what_only_moves_rows_is_no_rewrite(dsn: str, catalog: Session, change: str) -> None:
    with exported(dsn) as snapshot:
        psql(dsn, change)
        with Guard(dsn, snapshot) as guard:
            assert hold(guard, table(catalog, "orders"), catalog)
        with closing(pinned(dsn, snapshot.name)) as session:
            assert count(session, "orders") == 100


@pytest.mark.parametrize(
    ("name", "leaf"), [("orders", "orders"), ("parts", "parts"), ("parts", "parts_2")]
)
def test_a_held_table_and_its_leaves_cannot_be_rewritten(
    dsn: str, catalog: Session, name: str, leaf: str
) -> None:
    with exported(dsn) as snapshot, Guard(dsn, snapshot) as guard:
        hold(guard, table(catalog, name), catalog)
        with pytest.raises(psycopg.errors.LockNotAvailable):
            psql(f"{dsn} options='-c lock_timeout=50'", f"truncate {leaf}")
        psql(dsn, f"insert into {name} values (1000, {2 if name == 'parts' else 'null'})")


def test_an_inheritance_child_is_not_held_with_its_parent(dsn: str, catalog: Session) -> None:
    psql(dsn, "create table child () inherits (orders)")
    with exported(dsn) as snapshot, Guard(dsn, snapshot) as guard:
        parent = table(catalog, "orders")
        assert hold(guard, parent, catalog) == parent.members
        psql(f"{dsn} options='-c lock_timeout=500'", "truncate child")


def test_a_lock_that_does_not_come_is_named_with_its_holder(dsn: str, catalog: Session) -> None:
    listed = table(catalog, "parts")
    with (
        exported(dsn) as snapshot,
        Guard(dsn, snapshot) as guard,
        closing(psycopg.connect(dsn)) as blocker,
    ):
        blocker.execute("lock table parts_2 in access exclusive mode")
        with pytest.raises(TableLocked) as caught:
            guard.hold(listed, catalog, wait_seconds=0.1)
        assert caught.value.held_by == [blocker.info.backend_pid]
        assert str(blocker.info.backend_pid) in str(caught.value)


def test_a_lock_that_comes_in_time_is_waited_for(dsn: str, catalog: Session) -> None:
    listed = table(catalog, "orders")
    waiting = "select from pg_locks where not granted and relation = 'orders'::regclass"
    with (
        exported(dsn) as snapshot,
        Guard(dsn, snapshot) as guard,
        closing(psycopg.connect(dsn)) as blocker,
    ):
        blocker.execute("lock table orders in access exclusive mode")

        def release() -> None:
            until(lambda: psql(dsn, waiting))
            blocker.rollback()

        helper = threading.Thread(target=release)
        helper.start()
        assert guard.hold(listed, catalog, wait_seconds=30) == listed.members
        helper.join()


def test_older_transactions_that_hold_the_snapshot_up_are_named(
    dsn: str, catalog: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(snapshots, "SLOW_SECONDS", 0.1)
    with closing(psycopg.connect(dsn)) as older:
        older.execute("insert into orders values (1000, 'open')")
        reported: list[list[int]] = []

        def on_wait(pids: list[int]) -> None:
            reported.append(pids)
            older.commit()

        with exported(dsn, on_wait=on_wait) as snapshot:
            assert reported[0] == [older.info.backend_pid]
            with closing(pinned(dsn, snapshot.name)) as session:
                assert count(session, "orders") == 101


def test_a_guard_whose_session_was_ended_says_so(dsn: str, catalog: Session) -> None:
    with exported(dsn) as snapshot, Guard(dsn, snapshot) as guard:
        hold(guard, table(catalog, "orders"), catalog)
        psql(
            dsn,
            "select pg_terminate_backend(pid, 5000) from pg_stat_activity"
            " where application_name = 'pgstream guard' and datname = current_database()",
        )
        with pytest.raises(SnapshotLost):
            guard.require_alive()
