"""Copies of whole tables into a real lake: what the log holds, whatever happens meanwhile."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg.pq import TransactionStatus
from py4j.java_gateway import JavaGateway
from pyspark.sql import SparkSession

from pgstream_dagster.changelog.lake import Lake
from pgstream_dagster.changelog.ledger import Ledger
from pgstream_dagster.changelog.log import ChangeLog
from pgstream_dagster.changelog.schema_log import SchemaLog
from pgstream_dagster.config import parse
from pgstream_dagster.copy import copy_plan, copying
from pgstream_dagster.copy.copying import Copier, CopyProgress, only_copier
from pgstream_dagster.copy.snapshot import copy_relations, snapshot
from pgstream_dagster.delta import jvm
from pgstream_dagster.embedded.processes import children
from pgstream_dagster.errors import (
    AccessRefused,
    ConnectionLost,
    CopyFailed,
    CopyRunning,
    NoSuchTable,
    NotSetUp,
    SetUpOtherwise,
    SlotForeign,
    SlotMissing,
    SnapshotLost,
    TableLocked,
)
from pgstream_dagster.lsn import Lsn
from pgstream_dagster.pipeline import Pipeline
from pgstream_dagster.schema.changes import COPY_ORDINAL
from pgstream_dagster.source.connect import connect
from pgstream_dagster.source.publication import limit_lock_waits, published
from pgstream_dagster.source.snapshot import exported
from pgstream_dagster.stop import Cancelled, Stop
from pgstream_dagster.upkeep.log_checks import newest_copies
from pgstream_dagster.upkeep.setup import setup
from pgstream_dagster.upkeep.status import status
from tests.support.lake.log_reader import log_rows
from tests.support.plugins.cluster import OwnServer, psql
from tests.support.plugins.lake import SETTINGS
from tests.support.plugins.wait import until

Row = dict[str, Any]


@pytest.fixture
def pipeline(dsn: str, tmp_path: Path, spark: SparkSession) -> Pipeline:
    """A pipeline over the test's database, nothing set up; its tables are copied in many tasks."""
    config = parse("pipeline: shop\ncopy: {ranges: 4, parallel: 2}")
    return Pipeline(config, dsn, Lake(str(tmp_path / "lake")), SETTINGS, tmp_path / "state")


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small tables get several tasks, and further attempts follow at once."""
    monkeypatch.setattr(copy_plan, "TASK_PAGES", 2)
    monkeypatch.setattr(copying, "WAITS_SECONDS", (0.0, 0.0, 0.0))


def newest_copy(pipeline: Pipeline, relation: str) -> list[Row]:
    """The rows of the newest copy of a table, its marker first."""
    rows = log_rows(pipeline.lake, relation)
    point = max(row["commit_lsn"] for row in rows)
    return [row for row in rows if row["commit_lsn"] == point]


def images(rows: list[Row]) -> list[dict[str, str | None]]:
    return [dict(row["after"]) for row in rows if row["op"] == "read"]


def assert_sound(rows: list[Row], *, payload: str) -> None:
    """One copy: a marker in front, unique negative ordinals, one position, one schema."""
    marker, *reads = rows
    assert (marker["op"], marker["ordinal"], marker["payload"]) == ("copy", COPY_ORDINAL, payload)
    assert marker["after"] is None and marker["key"] is None
    ordinals = [row["ordinal"] for row in reads]
    assert len({*ordinals}) == len(ordinals) and all(COPY_ORDINAL < o < 0 for o in ordinals)
    for row in reads:
        assert (row["op"], row["xid"], row["before"], row["old_key"]) == ("read", None, None, None)
        for name in ("epoch", "commit_lsn", "end_lsn", "relation_id", "schema_id", "committed_at"):
            assert row[name] == marker[name]
        assert row["landed_at"] is not None


def watch(when: Callable[[CopyProgress], bool], act: Callable[[], object]) -> Any:
    """A progress callback that acts once, the first time `when` is true."""
    acted: list[bool] = []

    def on_progress(progress: CopyProgress) -> None:
        if not acted and when(progress):
            acted.append(True)
            act()

    on_progress.acted = acted  # type: ignore[attr-defined]
    return on_progress


SHAPES = [
    "create table orders (id int primary key, note text, paid bool default false)",
    "insert into orders select i, repeat('n', i % 50), i % 3 = 0 from generate_series(1, 5000) i",
    "create table nothing (id int primary key)",
    "create table one (id int primary key, v text)",
    "insert into one values (1, null)",
    "create table no_columns ()",
    "alter table no_columns replica identity full",
    "insert into no_columns select from generate_series(1, 3)",
    "create table no_key (a int, b text)",
    "alter table no_key replica identity full",
    "insert into no_key values (1, 'x'), (1, 'x'), (2, null)",
    'create schema "we""ird Näme"',
    'create table "we""ird Näme"."Tab le" ("Id.%s{}" int primary key, "ünï" text, "select" int)',
    """insert into "we""ird Näme"."Tab le" values (1, 'ä', 2)""",
    "create table measured (id int, day int, gone int, v text) partition by list (day)",
    "alter table measured add primary key (day, id)",
    "create table measured_1 partition of measured for values in (1)",
    "create table measured_2 (v text, id int not null, extra int, gone int, day int not null)",
    "alter table measured_2 drop extra",
    "alter table measured attach partition measured_2 for values in (2)",
    "alter table measured drop gone",
    "create table measured_3 partition of measured for values in (3) partition by range (id)",
    "create table measured_3a partition of measured_3 for values from (0) to (1000)",
    "insert into measured select i, 1 + i % 3, 'v' || i from generate_series(1, 900) i",
    "create table parent (id int primary key, v text)",
    "create table child (more int) inherits (parent)",
    "alter table child add primary key (id)",
    "insert into parent values (1, 'parent')",
    "insert into child values (2, 'child', 3)",
    "create table wide (id int primary key, doc text)",
    "insert into wide select i, repeat(chr(64 + i), 3000000) from generate_series(1, 8) i",
]


@pytest.mark.long
def test_setup_copies_tables_of_every_shape(pipeline: Pipeline, dsn: str) -> None:
    """P80, P81: what is there is copied once, also where there is no row."""
    psql(dsn, *SHAPES)
    reported: list[CopyProgress] = []
    copied = {done.table: done for done in setup(pipeline, on_progress=reported.append)}

    assert {name: done.rows for name, done in copied.items()} == {
        "public.orders": 5000,
        "public.nothing": 0,
        "public.one": 1,
        "public.no_columns": 3,
        "public.no_key": 3,
        '"we""ird Näme"."Tab le"': 1,
        "public.measured": 900,
        "public.parent": 1,
        "public.child": 1,
        "public.wide": 8,
    }
    for name in copied:
        assert_sound(newest_copy(pipeline, name.rpartition(".")[2].strip('"')), payload="first")
    rows = newest_copy(pipeline, "orders")[1:]
    expected = psql(dsn, "select id::text, note, left(paid::text, 1) from orders")
    assert sorted(tuple(image.values()) for image in images(rows)) == sorted(expected)
    assert all(row["key"] == [dict(row["after"])["id"]] for row in rows)
    assert len({row["ordinal"] >> 40 for row in rows}) == 4, "several ranges"
    assert images(newest_copy(pipeline, "one")) == [{"id": "1", "v": None}]
    assert images(newest_copy(pipeline, "no_columns")) == [{}, {}, {}]
    no_key = newest_copy(pipeline, "no_key")[1:]
    assert [row["key"] for row in no_key] == [None] * 3
    assert images(newest_copy(pipeline, "Tab le")) == [{"Id.%s{}": "1", "ünï": "ä", "select": "2"}]
    measured = newest_copy(pipeline, "measured")[1:]
    assert {row["namespace"] for row in measured} == {"public"}
    expected = [(str(i), str(1 + i % 3), f"v{i}") for i in range(1, 901)]
    rows = [(i["id"], i["day"], i["v"]) for i in images(measured)]
    assert sorted(rows) == sorted(expected)
    assert [row["key"] for row in measured] == [[i["day"], i["id"]] for i in images(measured)]
    assert images(newest_copy(pipeline, "parent")) == [{"id": "1", "v": "parent"}]
    wide = images(newest_copy(pipeline, "wide"))
    assert sorted(image["doc"] or "" for image in wide) == [
        chr(64 + i) * 3000000 for i in range(1, 9)
    ]

    last = reported[-1]
    assert (last.tables_done, last.tables, last.rows) == (10, 10, 5918)
    assert [p.rows for p in reported] == sorted(p.rows for p in reported)

    gateway = jvm.gateway(SETTINGS)
    records = Ledger(pipeline.lake, gateway).copies()
    with closing(connect(dsn)) as session:
        for table in published(session, "pgstream_shop"):
            record = records[table.relation_id]
            assert record.members == table.members
            assert (record.attnums, record.row_filter) == (table.attnums, table.row_filter)
            assert record.versions == table.versions
    recorded = SchemaLog(pipeline.lake, gateway).by_id()
    assert {row["schema_id"] for row in log_rows(pipeline.lake)} == recorded.keys()
    orders = recorded[newest_copy(pipeline, "orders")[0]["schema_id"]]
    assert [column.default for column in orders.columns] == [None, None, "false"]

    assert setup(pipeline) == [], "a second run has nothing to do"


def test_setup_records_where_the_slot_begins(pipeline: Pipeline, dsn: str) -> None:
    psql(dsn, "create table t (id int primary key)")
    (copied,) = setup(pipeline)
    gateway = jvm.gateway(SETTINGS)
    recorded = Ledger(pipeline.lake, gateway).identity(pipeline.name)
    assert recorded is not None
    assert (recorded.slot, recorded.publication, recorded.epoch) == (
        "pgstream_shop",
        "pgstream_shop",
        1,
    )
    watermark = ChangeLog(pipeline.lake, "shop", gateway).watermark(1)
    ((confirmed,),) = psql(
        dsn,
        "select confirmed_flush_lsn::text from pg_replication_slots"
        " where database = current_database() and not temporary",
    )
    assert watermark == copied.consistent_point == Lsn.parse(confirmed)


def test_the_publications_columns_and_rows_are_copied(pipeline: Pipeline, dsn: str) -> None:
    """P83, P84."""
    psql(
        dsn,
        "create table t (id int primary key, secret int, v int)",
        "insert into t select i, -i, i from generate_series(1, 10) i",
        "create publication pgstream_shop for table t (id, v) where (id > 7 and id <> 9)"
        " with (publish_via_partition_root = true)",
    )
    setup(pipeline)
    rows = newest_copy(pipeline, "t")
    assert images(rows) == [{"id": "8", "v": "8"}, {"id": "10", "v": "10"}]


def test_a_table_is_copied_again_at_a_later_point(pipeline: Pipeline, dsn: str) -> None:
    psql(dsn, "create table t (id int primary key)", "insert into t values (1)")
    (first,) = setup(pipeline)
    psql(dsn, "insert into t values (2)")
    (again,) = snapshot(pipeline, ["public.t"])
    assert again.consistent_point > first.consistent_point
    rows = log_rows(pipeline.lake, "t")
    assert_sound(
        [row for row in rows if row["commit_lsn"] == first.consistent_point], payload="first"
    )
    assert_sound(
        [row for row in rows if row["commit_lsn"] == again.consistent_point], payload="again"
    )
    assert images(rows) == [{"id": "1"}, {"id": "1"}, {"id": "2"}]


def test_a_table_that_joined_later_is_copied_by_setup(pipeline: Pipeline, dsn: str) -> None:
    psql(dsn, "create table t (id int primary key)")
    setup(pipeline)
    psql(dsn, "create table later (id int primary key)", "insert into later values (1)")
    assert [done.table for done in setup(pipeline)] == ["public.later"]


def test_rows_written_while_tables_are_copied_are_not_in_the_copy(
    pipeline: Pipeline, dsn: str
) -> None:
    psql(dsn, "create table t (id int primary key, v text)")
    psql(dsn, "insert into t select i, 'old' from generate_series(1, 3000) i")
    change = ["update t set v = 'new'", "delete from t where id % 2 = 0", "vacuum t"]
    begun = watch(lambda progress: progress.tables == 1, lambda: psql(dsn, *change))
    (done,) = setup(pipeline, on_progress=begun)
    assert begun.acted
    assert done.rows == 3000
    assert {image["v"] for image in images(newest_copy(pipeline, "t"))} == {"old"}


@pytest.mark.parametrize(
    "change", ["truncate t", "alter table t alter v type varchar(9)", "drop table t"]
)
def test_a_table_changed_before_its_turn_is_copied_from_a_new_snapshot(
    pipeline: Pipeline, dsn: str, change: str
) -> None:
    psql(dsn, "create table t (id int primary key, v text)", "create table u (id int primary key)")
    psql(dsn, "insert into t values (1, 'x')", "insert into u values (1)")
    begun = watch(lambda progress: progress.tables == 2, lambda: psql(dsn, change))
    points = {done.table: done.consistent_point for done in setup(pipeline, on_progress=begun)}
    assert begun.acted
    if change.startswith("drop"):
        assert points.keys() == {"public.u"}
    else:
        assert points["public.t"] > points["public.u"]
        expected = [] if change.startswith("truncate") else [{"id": "1", "v": "x"}]
        assert images(newest_copy(pipeline, "t")) == expected
    assert len(log_rows(pipeline.lake, "u")) == 2


@pytest.mark.long
@pytest.mark.parametrize("session", ["pgstream guard", "pgstream copy"])
def test_a_session_that_keeps_the_snapshot_is_ended_and_nothing_is_mixed(
    pipeline: Pipeline, dsn: str, session: str
) -> None:
    """P88."""
    psql(dsn, "create table t (id int primary key, v text)")
    psql(dsn, "insert into t select i, 'old' from generate_series(1, 2000) i")

    def end() -> None:
        psql(
            dsn,
            "select pg_terminate_backend(pid, 5000) from pg_stat_activity"
            f" where application_name = '{session}' and datname = current_database()",
            "update t set v = 'new'",
        )

    is_guard = session == "pgstream guard"
    moment = watch(
        lambda progress: bool(progress.running) if is_guard else progress.tables == 1, end
    )
    (done,) = setup(pipeline, on_progress=moment)
    assert moment.acted
    rows = newest_copy(pipeline, "t")
    assert done.rows == 2000
    assert {image["v"] for image in images(rows)} == {"new"}
    assert len(log_rows(pipeline.lake, "t")) == 2001, "nothing of the broken copy is in the log"
    watermark = ChangeLog(pipeline.lake, "shop", jvm.gateway(SETTINGS)).watermark(1)
    assert watermark is not None and done.consistent_point > watermark


@pytest.mark.long
def test_a_failed_task_leaves_nothing_in_the_log_and_the_other_tables_are_copied(
    pipeline: Pipeline, dsn: str
) -> None:
    psql(
        dsn,
        "create table bad (id int primary key)",
        "insert into bad select i from generate_series(0, 5000) i",
        "create table good (id int primary key)",
        "insert into good values (1)",
        "create publication pgstream_shop for table good, bad where (100 / (id - 4000) < 1000)"
        " with (publish_via_partition_root = true)",
    )
    with pytest.raises(CopyFailed, match=r"public\.bad.*division by zero"):
        setup(pipeline)
    assert log_rows(pipeline.lake, "bad") == []
    assert images(newest_copy(pipeline, "good")) == [{"id": "1"}]
    psql(dsn, "delete from bad where id = 4000")
    assert [done.rows for done in setup(pipeline)] == [5000]


def test_a_table_that_waiting_does_not_mend_is_tried_once_and_leaves_nothing_in_the_lake(
    pipeline: Pipeline, dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """P86."""
    psql(dsn, "create table bad (id int primary key)", "create table good (id int primary key)")
    describe, tried = copying.describe, list[str]()

    def refused(catalog: Any, epoch: int, oid: int, *columns: Any) -> Any:
        schema = describe(catalog, epoch, oid, *columns)
        tried.append(schema.name)
        if schema.name == "bad":
            raise AccessRefused("the server", "a right is missing", "grant it")
        return schema

    monkeypatch.setattr(copying, "describe", refused)
    with pytest.raises(AccessRefused):
        setup(pipeline)
    assert sorted(tried) == ["bad", "good"]
    assert log_rows(pipeline.lake, "bad") == []
    recorded = SchemaLog(pipeline.lake, jvm.gateway(SETTINGS)).by_id()
    assert [schema.name for schema in recorded.values()] == ["good"]
    due = {table.table: table.copy_due for table in status(pipeline).tables}
    assert due == {"public.bad": "it has no copy", "public.good": None}


@pytest.mark.long
def test_a_copy_that_fails_at_every_attempt_is_given_up_and_made_by_the_next_setup(
    pipeline: Pipeline, dsn: str
) -> None:
    """P89: the first attempt and one after each of the waits."""
    psql(dsn, "create table t (id int primary key)", "insert into t select generate_series(1, 900)")
    ended = list[int]()

    def end(progress: CopyProgress) -> None:
        if progress.running:
            ended.extend(
                pid
                for (pid,) in psql(
                    dsn,
                    "select pid from pg_stat_activity, pg_terminate_backend(pid, 5000)"
                    " where application_name = 'pgstream guard' and datname = current_database()",
                )
            )

    with pytest.raises((SnapshotLost, ConnectionLost)):
        setup(pipeline, on_progress=end)
    assert len(ended) == 1 + len(copying.WAITS_SECONDS)
    assert log_rows(pipeline.lake, "t") == []
    assert [table.copy_due for table in status(pipeline).tables] == ["it has no copy"]
    assert [done.rows for done in setup(pipeline)] == [900]
    assert_sound(newest_copy(pipeline, "t"), payload="first")


@pytest.mark.long
def test_a_hundred_connections_copy_every_row_once(
    dsn: str, tmp_path: Path, spark: SparkSession
) -> None:
    """P82."""
    psql(dsn, "create table t (id int primary key)", "insert into t select generate_series(1, 1e5)")
    config = parse("pipeline: shop\ncopy: {ranges: 100}")
    lake = Lake(str(tmp_path / "lake"))
    pipeline = Pipeline(config, dsn, lake, SETTINGS, tmp_path / "state")
    [done] = setup(pipeline)
    rows = newest_copy(pipeline, "t")
    assert_sound(rows, payload="first")
    assert (done.rows, len(rows)) == (100_000, 100_001)
    assert len({row["key"][0] for row in rows[1:]}) == 100_000
    assert len({row["ordinal"] >> 40 for row in rows[1:]}) == 100, "a connection each"


@pytest.mark.long
def test_tasks_whose_processes_are_killed_are_read_again(
    pipeline: Pipeline, dsn: str, gateway: JavaGateway
) -> None:
    """P88."""
    psql(
        dsn,
        "create table t (id int primary key, v text)",
        "insert into t select i, repeat('x', 200) from generate_series(1, 60000) i",
    )

    jvm_process = gateway.proc.pid

    def kill() -> None:
        for pid in python_workers(jvm_process):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    moment = watch(lambda progress: bool(progress.running and python_workers(jvm_process)), kill)
    (done,) = setup(pipeline, on_progress=moment)
    assert moment.acted
    rows = newest_copy(pipeline, "t")
    assert_sound(rows, payload="first")
    assert {row["after"][0] for row in rows[1:]} == {("id", str(i)) for i in range(1, 60001)}
    assert done.rows == 60000 and len(log_rows(pipeline.lake, "t")) == 60001


def python_workers(jvm: int) -> list[int]:
    """
    The processes that run Spark's tasks: children of a child of the JVM.

    Not that child, the daemon: without it Spark fails once for each idle worker, in later tests.
    """
    return [pid for daemon in children(jvm) for pid in children(daemon)]


@pytest.mark.long
def test_a_restart_of_the_server_starts_the_tables_left_again(
    own_postgres: OwnServer, tmp_path: Path, spark: SparkSession
) -> None:
    """P88."""
    dsn = own_postgres.dsn
    psql(
        dsn,
        "create table t (id int primary key)",
        "insert into t select generate_series(1, 5000)",
    )
    config = parse("pipeline: shop\ncopy: {ranges: 4, parallel: 1}")
    lake = Lake(str(tmp_path / "lake"))
    pipeline = Pipeline(config, dsn, lake, SETTINGS, tmp_path / "state")
    moment = watch(
        lambda progress: bool(progress.running), lambda: own_postgres.restart("immediate")
    )
    (done,) = setup(pipeline, on_progress=moment)
    assert moment.acted
    assert done.rows == 5000
    assert len(log_rows(pipeline.lake, "t")) == 5001


@pytest.mark.long
def test_a_table_that_stays_locked_is_named_and_the_others_are_copied(
    pipeline: Pipeline, dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    psql(dsn, "create table t (id int primary key)", "create table u (id int primary key)")
    setup(pipeline)
    monkeypatch.setattr(copying, "LOCK_SECONDS", 0.2)
    monkeypatch.setattr(copying, "WAITS_SECONDS", ())
    read = copying.published
    with closing(psycopg.connect(dsn)) as blocker:
        first: list[Any] = []

        def then_locked(*arguments: Any) -> Any:
            """The list as it was: the catalog does not answer while a table is locked."""
            if not first:
                first.append(read(*arguments))
            elif blocker.info.transaction_status == TransactionStatus.IDLE:
                # In the round, after the snapshot: its slot would wait for this transaction.
                blocker.execute("lock table t in access exclusive mode")
            return first[0]

        with exported(dsn) as point, pipeline.open() as opened:
            copier = Copier(
                pipeline, opened.ledger, opened.log, epoch=1, publication="pgstream_shop"
            )
            monkeypatch.setattr(copying, "published", then_locked)
            oids = [table.relation_id for table in copier.tables()]
            with copier, pytest.raises(TableLocked) as caught:
                copier.copy(oids, point)
        assert caught.value.held_by == [blocker.info.backend_pid]
        monkeypatch.setattr(copying, "published", read)
        with pytest.raises(TableLocked) as caught:
            snapshot(pipeline, ["public.u"])
        assert caught.value.table == "public.t"
        assert caught.value.held_by == [blocker.info.backend_pid]
    assert [row["payload"] for row in log_rows(pipeline.lake, "u")] == ["first", "again"]
    assert [row["payload"] for row in log_rows(pipeline.lake, "t")] == ["first"]


def test_a_prepared_transaction_that_locks_a_table_is_named(
    pipeline: Pipeline, dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    psql(dsn, "create table t (id int primary key)", "create table u (id int primary key)")
    setup(pipeline)
    monkeypatch.setattr(
        copying, "limit_lock_waits", lambda catalog: limit_lock_waits(catalog, seconds=0.2)
    )
    psql(dsn, "begin; truncate t; prepare transaction 'held'")
    try:
        with pytest.raises(TableLocked, match=r"'public.t' .* by a prepared transaction") as caught:
            snapshot(pipeline, ["public.u"])
    finally:
        psql(dsn, "rollback prepared 'held'")
    assert caught.value.held_by == [0]


def test_two_copiers_of_one_pipeline_take_turns(pipeline: Pipeline, dsn: str) -> None:
    psql(dsn, "create table t (id int primary key)")
    setup(pipeline)
    with (
        only_copier(pipeline, wait=False, on_progress=copying.silent),
        pytest.raises(CopyRunning),
    ):
        copy_relations(pipeline, [1])
    assert copy_relations(pipeline, [1]) == []


def test_a_relation_that_is_not_published_is_passed_over(pipeline: Pipeline, dsn: str) -> None:
    psql(dsn, "create table t (id int primary key)")
    setup(pipeline)
    assert copy_relations(pipeline, [1]) == []
    with pytest.raises(NoSuchTable):
        snapshot(pipeline, ["public.nowhere"])


def test_without_setup_nothing_can_be_copied(pipeline: Pipeline) -> None:
    with pytest.raises(NotSetUp):
        snapshot(pipeline, ["public.t"])


def test_a_slot_this_lake_knows_nothing_of_is_left_alone(pipeline: Pipeline, dsn: str) -> None:
    psql(dsn, "create table t (id int primary key)")
    psql(dsn, "select pg_create_logical_replication_slot('pgstream_shop', 'pgoutput')")
    with pytest.raises(SlotForeign):
        setup(pipeline)
    assert psql(dsn, "select from pg_replication_slots where slot_name = 'pgstream_shop'")


def test_a_pipeline_that_broke_is_not_set_up_again_silently(
    pipeline: Pipeline, dsn: str, tmp_path: Path
) -> None:
    psql(dsn, "create table t (id int primary key)")
    setup(pipeline)
    other = parse("pipeline: shop\nsource: {slot: another}")
    with pytest.raises(SetUpOtherwise):
        setup(Pipeline(other, dsn, pipeline.lake, SETTINGS, tmp_path))
    psql(dsn, "select pg_drop_replication_slot('pgstream_shop')")
    with pytest.raises(SlotMissing):
        setup(pipeline)


def test_tables_whose_names_differ_in_the_place_of_a_dot_are_two(
    pipeline: Pipeline, dsn: str
) -> None:
    psql(
        dsn,
        'create schema "a.b"',
        "create schema a",
        'create table "a.b".c (id int primary key)',
        'create table a."b.c" (id int primary key)',
        'insert into "a.b".c values (1)',
        'insert into a."b.c" values (1), (2)',
    )
    first = {copy.table: copy.rows for copy in setup(pipeline)}
    assert first == {'"a.b".c': 1, 'a."b.c"': 2}
    assert newest_copies(pipeline).keys() == first.keys()
    for written, table in (('"a.b"."c"', '"a.b".c'), ('a."b.c"', 'a."b.c"')):
        assert [copy.table for copy in snapshot(pipeline, [written])] == [table]
    with pytest.raises(NoSuchTable):
        snapshot(pipeline, ["a.b.c"])


@pytest.mark.long
def test_later_copies_hold_nothing_up_for_longer_than_a_group(
    pipeline: Pipeline, dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An index that is created concurrently while tables are copied is there before the last."""
    monkeypatch.setattr(copying, "SNAPSHOT_SECONDS", 0.0)
    names = [f"t{number}" for number in range(6)]
    psql(dsn, "create table indexed (id int primary key, note text)")
    psql(dsn, *(f"create table {name} (id int primary key)" for name in names))
    setup(pipeline)
    created = threading.Event()

    def create() -> None:
        with closing(psycopg.connect(dsn, autocommit=True)) as session:
            session.execute("create index concurrently on indexed (note)")
        created.set()

    index = threading.Thread(target=create)

    def on_progress(progress: CopyProgress) -> None:
        if progress.tables_done == 1 and index.ident is None:
            index.start()
            phase = "select phase from pg_stat_progress_create_index"
            until(lambda: psql(dsn, phase) == [("waiting for old snapshots",)])
        if progress.tables_done == 3:  # of the second group
            assert created.wait(60), "the index waits for the snapshot of tables that are copied"

    copied = snapshot(pipeline, [f"public.{name}" for name in names], on_progress=on_progress)
    index.join()
    assert len({copy.consistent_point for copy in copied}) == 3  # two tables at a time


def test_a_stop_between_due_and_begun_begins_no_copy(pipeline: Pipeline, dsn: str) -> None:
    psql(dsn, "create table t (id int primary key)")
    [copy] = setup(pipeline)
    stop = Stop()
    stop.set()
    with pytest.raises(Cancelled):
        copy_relations(pipeline, [copy.schema.relation_id], stop=stop)
    assert [row["payload"] for row in log_rows(pipeline.lake, "t")] == ["first"]
