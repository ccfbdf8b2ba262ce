"""The stream as users run it: connections one after the other, the recopier, what it refuses."""

from __future__ import annotations

import os
import shutil
import signal
import threading
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import psycopg
import pytest

from pgstream_dagster import heartbeat
from pgstream_dagster.capture import recopier
from pgstream_dagster.capture import stream as stream_module
from pgstream_dagster.capture.recopier import Recopier
from pgstream_dagster.capture.stream import stream
from pgstream_dagster.changelog.lake import Lake
from pgstream_dagster.changelog.schema_log import SchemaLog
from pgstream_dagster.config import CaptureConfig
from pgstream_dagster.copy import copy_plan, copying
from pgstream_dagster.copy.copying import only_copier, silent
from pgstream_dagster.delta import jvm
from pgstream_dagster.errors import (
    CopiesDue,
    CopyRunning,
    NotSetUp,
    OtherSystem,
    SlotLost,
    StateTaken,
)
from pgstream_dagster.lsn import Lsn
from pgstream_dagster.pipeline import Pipeline
from pgstream_dagster.schema.changes import Op
from pgstream_dagster.source import slot, snapshot
from pgstream_dagster.source.connect import Session
from pgstream_dagster.source.prepare import unfit_tables
from pgstream_dagster.source.publication import limit_lock_waits
from pgstream_dagster.upkeep.reconcile import reconcile
from pgstream_dagster.upkeep.resnapshot import resnapshot
from pgstream_dagster.upkeep.status import status
from tests.support.harness import oracle, rows, runner
from tests.support.harness.background import in_thread
from tests.support.harness.stream_pipelines import (
    FULL,
    TABLE,
    copies_of,
    publication_name,
    set_up_pipeline,
    set_up_table,
    wait_until_landed,
    wait_until_recopier_polled,
)
from tests.support.lake.log_reader import log_rows
from tests.support.plugins.cluster import OwnServer, Server, psql
from tests.support.plugins.lake import SETTINGS
from tests.support.plugins.wait import until

pytestmark = pytest.mark.slow


def copy_failed(pipeline: Pipeline) -> str | None:
    """Why tables that need a copy have none, as the stream reports it."""
    sign = heartbeat.read(pipeline.heartbeat_file)
    return sign.facts["copy_failed"] if sign is not None and sign.facts else None


def test_the_stream_outlives_restarts_and_crashes_of_the_server(
    own_postgres: OwnServer, tmp_path: Path
) -> None:
    dsn = own_postgres.dsn
    pipeline = set_up_table(dsn, tmp_path)
    with runner.streaming(pipeline):
        psql(dsn, "insert into t values (2, 'before')")
        wait_until_landed(pipeline)
        own_postgres.restart("fast")
        psql(dsn, "insert into t values (3, 'after a restart')")
        wait_until_landed(pipeline)
        own_postgres.kill()
        own_postgres.start()
        psql(dsn, "insert into t values (4, 'after a crash')")
        wait_until_landed(pipeline)
    assert rows.assert_log_folds_to_source(pipeline, ["t"]) == 4


@pytest.mark.long
def test_a_transaction_that_postgres_cannot_send_in_parts_is_taken_whole(
    dsn: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    pipeline = set_up_table(dsn, tmp_path)
    [(database,)] = psql(dsn, "select quote_ident(current_database())")
    psql(dsn, f"alter database {database} set logical_decoding_work_mem = '64kB'")
    fill = "insert into t select i, repeat('y', 100) from generate_series({}, {}) i"
    with runner.streaming(pipeline):
        wait_until_landed(pipeline)
        psql(
            dsn,
            f"begin; {fill.format(2, 3_000)}; savepoint s; truncate t; {fill.format(1, 3_000)};"
            f" rollback to s; {fill.format(3_001, 6_000)}; truncate t;"
            f" {fill.format(1, 3_000)}; commit",
        )
        wait_until_landed(pipeline)
        assert rows.assert_log_folds_to_source(pipeline, ["t"]) == 3_000
        psql(dsn, "insert into t values (-1, 'after')")
        wait_until_landed(pipeline)
    assert rows.assert_log_folds_to_source(pipeline, ["t"]) == 3_001
    assert [r for r in caplog.messages if "large transactions are now sent whole" in r]


def test_a_state_folder_that_is_deleted_does_not_stop_capture(dsn: str, tmp_path: Path) -> None:
    pipeline = set_up_table(dsn, tmp_path)
    with runner.streaming(pipeline):
        psql(dsn, "insert into t values (2, 'before')")
        wait_until_landed(pipeline)
        shutil.rmtree(pipeline.state)
        psql(dsn, "insert into t values (3, 'after')")
        wait_until_landed(pipeline)
        until(lambda: heartbeat.read(pipeline.heartbeat_file), seconds=runner.END_SECONDS)
    assert rows.assert_log_folds_to_source(pipeline, ["t"]) == 3


def test_two_pipelines_of_one_name_do_not_share_a_state_folder(dsn: str, tmp_path: Path) -> None:
    pipeline = set_up_table(dsn, tmp_path)
    other = replace(pipeline, lake=Lake(str(tmp_path / "other")))
    with runner.streaming(pipeline):
        wait_until_landed(pipeline)
        with pytest.raises(StateTaken, match="PGSTREAM_STATE"):
            stream(other, stop=threading.Event())


def test_a_table_made_while_the_stream_runs_is_copied_by_itself(dsn: str, tmp_path: Path) -> None:
    pipeline = set_up_table(dsn, tmp_path)
    with runner.streaming(pipeline):
        psql(
            dsn,
            "create table u (id int primary key)",
            "insert into u select generate_series(1, 100)",
        )
        until(lambda: copies_of(pipeline, "u") == 1, seconds=runner.END_SECONDS, every=0.2)
        psql(dsn, "insert into u values (101)", "delete from u where id = 5")
        wait_until_landed(pipeline)
    assert rows.assert_log_folds_to_source(pipeline, ["t", "u"]) == 101


def test_rows_written_between_a_copy_and_its_stream_come_once(dsn: str, tmp_path: Path) -> None:
    """P85."""
    psql(dsn, TABLE, "insert into t select i, 'copied' from generate_series(1, 3) i")
    pipeline = set_up_pipeline(dsn, tmp_path)
    psql(dsn, "insert into t values (4, 'streamed'), (5, 'streamed')")
    runner.catch_up(pipeline)
    ops = Counter(row["op"] for row in log_rows(pipeline.lake, "t"))
    assert ops == {"copy": 1, "read": 3, "insert": 2}
    assert rows.assert_log_folds_to_source(pipeline, ["t"]) == 5


@pytest.mark.long
def test_rows_and_columns_of_a_publication_are_those_of_copy_stream_and_schema(
    dsn: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """P83, P84."""
    monkeypatch.setattr(copy_plan, "TASK_PAGES", 2)
    psql(
        dsn,
        "create table t (id int primary key, age int, height int, secret int)",
        "insert into t select i, i, i, i from generate_series(1, 1000) i",
        f"create publication {publication_name(dsn, tmp_path)}"
        f" for table t (id, age) where (id % 2 = 0) {FULL}",
    )
    pipeline = set_up_pipeline(dsn, tmp_path)
    psql(dsn, "insert into t values (1001, 1), (1002, 2)", "update t set age = 7 where id < 3")
    runner.catch_up(pipeline)
    changes = log_rows(pipeline.lake, "t")
    reads = [row for row in changes if row["op"] == "read"]
    assert sorted(int(row["key"][0]) for row in reads) == list(range(2, 1001, 2))
    assert len({row["ordinal"] >> 40 for row in reads}) > 1, "several ranges"
    streamed = [(row["op"], row["key"]) for row in changes if row["op"] not in ("copy", "read")]
    assert streamed == [("insert", ["1002"]), ("update", ["2"])]
    assert {name for row in changes for name, _ in row["after"] or ()} == {"id", "age"}
    versions = SchemaLog(pipeline.lake, jvm.gateway(SETTINGS)).by_id().values()
    assert [[column.name for column in version.columns] for version in versions] == [["id", "age"]]


@pytest.mark.long
def test_a_table_that_cannot_be_copied_holds_up_no_other(
    dsn: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """P92: the reason is shown, and the table is copied once it is gone."""
    monkeypatch.setattr(copying, "WAITS_SECONDS", ())
    monkeypatch.setattr(recopier, "AGAIN_SECONDS", 0.2)
    name = publication_name(dsn, tmp_path)
    psql(dsn, TABLE, "create table bad (id int primary key)", "insert into bad values (5)")
    psql(dsn, f"create publication {name} for table t {FULL}")
    pipeline = set_up_table(dsn, tmp_path, table=())
    with runner.streaming(pipeline):
        psql(dsn, f"alter publication {name} add table bad where (1 / (id - 5) < 9)")
        until(lambda: "division by zero" in (copy_failed(pipeline) or ""))
        psql(dsn, "insert into t values (2, 'streamed')")
        wait_until_landed(pipeline)
        due = {table.table: table.copy_due for table in status(pipeline).tables}
        assert due == {"public.bad": "it has no copy", "public.t": None}
        psql(dsn, f"alter publication {name} set table t, bad")
        wait_until_copied(pipeline, "bad", 1)
        until(lambda: copy_failed(pipeline) is None)
    assert rows.assert_log_folds_to_source(pipeline, ["t", "bad"]) == 3


@pytest.mark.long
def test_tables_come_to_a_published_schema_and_go_while_the_stream_runs(
    dsn: str, tmp_path: Path
) -> None:
    """P102."""
    name = publication_name(dsn, tmp_path)
    psql(dsn, TABLE, "create table gone (id int primary key)", "insert into gone values (7)")
    psql(dsn, f"create publication {name} for tables in schema public {FULL}")
    pipeline = set_up_table(dsn, tmp_path, table=())
    with runner.streaming(pipeline):
        psql(dsn, "drop table gone", "create table new (id int primary key)")
        psql(dsn, "insert into new values (1), (2)")
        wait_until_copied(pipeline, "new", 1)
        psql(dsn, "insert into new values (3)", "insert into t values (2, 'streamed')")
        wait_until_landed(pipeline)
        assert {table.table for table in status(pipeline).tables} == {"public.new", "public.t"}
    gone = [(row["op"], row["key"]) for row in log_rows(pipeline.lake, "gone")]
    assert gone == [("copy", None), ("read", ["7"]), ("ddl", None)]
    assert rows.assert_log_folds_to_source(pipeline, ["t", "new"]) == 5


@pytest.mark.long
def test_a_copy_that_waits_for_an_older_transaction_says_so(
    dsn: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    pipeline = set_up_table(dsn, tmp_path)
    with runner.streaming(pipeline) as require_alive:
        with psycopg.connect(dsn) as writer:
            writer.execute("insert into t values (2, 'open')")
            waited_for = snapshot.waited_for([writer.info.backend_pid])
            psql(dsn, "create table later (id int primary key)")

            def is_logged() -> bool:
                require_alive()
                return waited_for in caplog.text

            until(is_logged, seconds=runner.END_SECONDS)
        until(lambda: copies_of(pipeline, "later") == 1, seconds=runner.END_SECONDS, every=0.2)


def test_another_key_brings_a_gap_and_a_copy(dsn: str, tmp_path: Path) -> None:
    pipeline = set_up_table(dsn, tmp_path)
    psql(dsn, "insert into t select g, 'x' from generate_series(2, 50) as g")
    with runner.streaming(pipeline):
        wait_until_landed(pipeline)
        psql(
            dsn,
            "alter table t drop constraint t_pkey, alter column x set not null,"
            " add primary key (x, id)",
            "update t set x = 'y' where id = 7",
        )
        until(lambda: copies_of(pipeline, "t") == 2, seconds=runner.END_SECONDS, every=0.2)
        psql(dsn, "update t set id = 1007 where id = 8")
        wait_until_landed(pipeline)
    assert rows.assert_log_folds_to_source(pipeline, ["t"]) == 50


CODED = (
    "create table t (id int primary key, code int not null unique, x text)",
    "insert into t values (1, 10, 'a'), (2, 20, 'b'), (3, 30, 'c')",
)
KEY_BY_CODE = "alter table t drop constraint t_pkey, add primary key (code)"
KEY_BY_ID = "alter table t drop constraint t_pkey, add primary key (id)"


def coded(dsn: str, folder: Path) -> Pipeline:
    psql(dsn, *CODED)
    return set_up_pipeline(dsn, folder)


def gaps_of(pipeline: Pipeline, table: str) -> int:
    """How many gaps the log has of a table."""
    log = runner.change_log(pipeline)
    return sum(
        change.op is Op.GAP and change.relation == table
        for file in rows.active_files(log)
        for change in oracle.rows(log, file)
    )


def wait_until_copied(pipeline: Pipeline, table: str, copies: int) -> None:
    until(lambda: copies_of(pipeline, table) >= copies, seconds=runner.END_SECONDS, every=0.2)
    wait_until_landed(pipeline)


def test_a_key_changed_before_the_first_streamed_row_brings_a_gap_and_a_copy(
    dsn: str, tmp_path: Path
) -> None:
    pipeline = coded(dsn, tmp_path)
    with runner.streaming(pipeline):
        psql(dsn, KEY_BY_CODE, "update t set code = 11 where id = 1", "delete from t where id = 2")
        wait_until_copied(pipeline, "t", 2)
        psql(dsn, "update t set code = 12 where id = 1")
        wait_until_landed(pipeline)
    assert (gaps_of(pipeline, "t"), copies_of(pipeline, "t")) == (1, 2)
    assert rows.assert_log_folds_to_source(pipeline, ["t"]) == 2


@pytest.mark.long
def test_a_key_changed_for_one_copy_and_back_brings_a_gap_and_a_copy(
    dsn: str, tmp_path: Path
) -> None:
    """The stream itself sees the first key only."""
    pipeline = coded(dsn, tmp_path)
    with runner.streaming(pipeline):
        psql(dsn, "update t set x = 'seen' where id = 1")
        wait_until_landed(pipeline)
        psql(dsn, KEY_BY_CODE, "alter table t alter x type text using x || '!'")
        wait_until_copied(pipeline, "t", 2)
        psql(dsn, KEY_BY_ID, "update t set id = 9 where id = 1", "delete from t where id = 2")
        wait_until_copied(pipeline, "t", copies_of(pipeline, "t") + 1)
        wait_until_recopier_polled(pipeline)
    assert rows.assert_log_folds_to_source(pipeline, ["t"]) == 2


def test_the_order_of_a_key_is_that_of_its_copies(dsn: str, tmp_path: Path) -> None:
    psql(dsn, "create table t (id int, x text, primary key (id, x))")
    pipeline = set_up_table(dsn, tmp_path, table=())
    with runner.streaming(pipeline):
        psql(dsn, "insert into t values (2, 'b')")
        wait_until_landed(pipeline)
        psql(
            dsn,
            "alter table t drop constraint t_pkey, add primary key (x, id)",
            "update t set id = 3 where id = 2",
        )
        wait_until_copied(pipeline, "t", 2)
        psql(dsn, "delete from t where id = 1")
        wait_until_landed(pipeline)
    assert rows.assert_log_folds_to_source(pipeline, ["t"]) == 1


@pytest.mark.long
@pytest.mark.parametrize(
    ("table", "retype", "gaps"),
    [
        ("id bigint primary key, x timestamp", "alter x type timestamptz", 0),
        ("id bigint primary key, x oid", "alter x type int", 0),
        ("x timestamp primary key, id bigint", "alter x type timestamptz", 1),
    ],
)
def test_text_that_changes_without_a_rewrite_brings_a_copy(
    dsn: str, tmp_path: Path, table: str, retype: str, gaps: int
) -> None:
    value = "'2026-01-01 12:00'" if "timestamp" in table else "4000000000"
    psql(dsn, f"create table t ({table})", f"insert into t (id, x) values (1, {value})")
    pipeline = set_up_pipeline(dsn, tmp_path)
    file = "select pg_relation_filenode('t')"
    before = psql(dsn, file)
    with runner.streaming(pipeline):
        psql(dsn, "set timezone = 'UTC'", f"alter table t {retype}")
        assert psql(dsn, file) == before
        psql(dsn, "update t set id = 2")
        wait_until_copied(pipeline, "t", 2)
    assert (gaps_of(pipeline, "t"), copies_of(pipeline, "t")) == (gaps, 2)
    assert rows.assert_log_folds_to_source(pipeline, ["t"]) == 1


@pytest.mark.long
@pytest.mark.parametrize(
    "change", ["alter x type timestamptz", "add y float default random()"], ids=["text", "rewrite"]
)
def test_a_stream_with_an_end_makes_the_copies_that_are_due_there(
    dsn: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    """The table is changed after the last check of the catalog, and no row of it follows."""
    psql(dsn, "create table t (id bigint primary key, x timestamp)")
    psql(dsn, "insert into t values (1, '2026-01-01 12:00')")
    pipeline = checked_seldom(set_up_pipeline(dsn, tmp_path))
    end = Lsn(runner.flushed(dsn) + (1 << 20))
    checked, ended = threading.Event(), threading.Event()
    check = Recopier._round

    def checking(checked_by: Recopier) -> bool:
        is_settled = check(checked_by)
        checked.set()
        return is_settled

    def work(stop: threading.Event) -> None:
        stream(pipeline, stop=stop, until=end)
        ended.set()

    monkeypatch.setattr(Recopier, "_round", checking)
    with in_thread(work, "stream") as require_running:
        until(lambda: require_running() or checked.is_set())
        psql(dsn, f"alter table t {change}")
        psql(dsn, "select pg_logical_emit_message(true, 'pgstream', repeat('x', 2 << 20))")
        until(ended.is_set, seconds=runner.END_SECONDS)
    report = status(pipeline)
    assert [table.copy_due for table in report.tables] == [None]
    assert report.watermark >= report.tables[0].copied_at > end
    assert copies_of(pipeline, "t") == 2
    assert rows.assert_log_folds_to_source(pipeline, ["t"]) == 1


@pytest.mark.long
def test_a_stream_with_an_end_does_not_wait_for_transactions_without_limit(
    dsn: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recopier, "LASTING_SECONDS", 0.5)
    monkeypatch.setattr(snapshot, "SLOW_SECONDS", 0.2)
    psql(dsn, "create table other (id int)")
    pipeline = set_up_table(dsn, tmp_path)
    psql(dsn, "alter table t add column z float default random()")
    with psycopg.connect(dsn) as older:
        older.execute("insert into other values (1)")
        with pytest.raises(CopiesDue, match=rf"older transactions .* {older.info.backend_pid}"):
            runner.catch_up(pipeline)
        assert copies_of(pipeline, "t") == 1
    runner.catch_up(pipeline)
    assert copies_of(pipeline, "t") == 2
    assert rows.assert_log_folds_to_source(pipeline, ["t"]) == 1


@pytest.mark.long
def test_a_stream_with_an_end_that_cannot_read_a_locked_table_says_so_and_has_landed(
    dsn: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The catalog does not answer for any table while another one is locked."""
    monkeypatch.setattr(
        recopier, "limit_lock_waits", lambda catalog: limit_lock_waits(catalog, 0.2)
    )
    psql(dsn, "create table u (id int primary key)")
    pipeline = set_up_table(dsn, tmp_path)
    psql(dsn, "alter table t add column z float default random()", "insert into u values (7)")
    with psycopg.connect(dsn) as holder:
        holder.execute("lock table u in access exclusive mode")
        with pytest.raises(CopiesDue, match=rf"'public.u' .* {holder.info.backend_pid}"):
            runner.catch_up(pipeline)
    assert [row["key"] for row in log_rows(pipeline.lake, "u")][-1] == ["7"]
    runner.catch_up(pipeline)
    assert rows.assert_log_folds_to_source(pipeline, ["t", "u"]) == 2


def test_a_stream_with_an_end_waits_for_another_copier(
    dsn: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recopier, "AGAIN_SECONDS", 0.1)
    refused, ended = threading.Event(), threading.Event()
    pipeline = set_up_table(dsn, tmp_path)
    copy = recopier.copy_relations

    def copying(*arguments: Any, **options: Any) -> Any:
        try:
            return copy(*arguments, **options)
        except CopyRunning:
            refused.set()
            raise

    monkeypatch.setattr(recopier, "copy_relations", copying)
    psql(dsn, "alter table t add column z float default random()")
    target = runner.flushed(dsn)

    def work(stop: threading.Event) -> None:
        stream(pipeline, stop=stop, until=target)
        ended.set()

    with in_thread(work, "stream") as require_running:
        with only_copier(pipeline, wait=False, on_progress=silent):
            until(lambda: require_running() or refused.is_set(), seconds=runner.END_SECONDS)
            refused.clear()
            until(lambda: require_running() or refused.is_set(), seconds=runner.END_SECONDS)
        until(ended.is_set, seconds=runner.END_SECONDS)
    assert rows.assert_log_folds_to_source(pipeline, ["t"]) == 1


def test_a_resnapshot_between_two_steps_of_a_connecting_stream_is_no_loss(
    dsn: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pipeline = set_up_table(dsn, tmp_path)
    psql(dsn, "insert into t values (2, 'before')")
    take_over, repaired = slot.take_over, threading.Event()

    def after_a_resnapshot(*arguments: Any) -> None:
        if not repaired.is_set():
            repaired.set()
            resnapshot(pipeline)
        take_over(*arguments)

    monkeypatch.setattr(slot, "take_over", after_a_resnapshot)
    runner.catch_up(pipeline)
    assert repaired.is_set()
    assert rows.assert_log_folds_to_source(pipeline, ["t"]) == 2


@pytest.mark.long
def test_a_long_wait_for_another_copier_is_reported_until_it_ends(
    dsn: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recopier, "LASTING_SECONDS", 0.5)
    monkeypatch.setattr(recopier, "AGAIN_SECONDS", 0.2)
    pipeline = set_up_table(dsn, tmp_path)
    psql(dsn, "alter table t add column z float default random()")

    with only_copier(pipeline, wait=False, on_progress=silent), runner.streaming(pipeline):
        until(lambda: "select pg_terminate_backend(" in (copy_failed(pipeline) or ""))
        assert copies_of(pipeline, "t") == 1
    with runner.streaming(pipeline):
        until(lambda: copies_of(pipeline, "t") == 2)
        until(lambda: copy_failed(pipeline) is None)


@pytest.mark.long
@pytest.mark.parametrize("identity", ["default", "full"])
def test_a_retype_that_keeps_every_text_costs_no_copy(
    dsn: str, tmp_path: Path, identity: str
) -> None:
    psql(
        dsn,
        "create table t (id varchar(10) primary key, x varchar(10))",
        f"alter table t replica identity {identity}",
    )
    pipeline = set_up_table(dsn, tmp_path, table=())
    with runner.streaming(pipeline):
        psql(
            dsn,
            "update t set x = 'a'",
            "alter table t alter id type varchar(20), alter x type varchar",
            "update t set x = 'b'",
            "alter table t alter id type text, alter x type text",
            "update t set id = '2'",
        )
        wait_until_recopier_polled(pipeline)
    assert (gaps_of(pipeline, "t"), copies_of(pipeline, "t")) == (0, 1)
    assert rows.assert_log_folds_to_source(pipeline, ["t"]) == 1


@pytest.mark.long
def test_an_index_that_is_built_again_costs_no_copy(dsn: str, tmp_path: Path) -> None:
    pipeline = set_up_table(dsn, tmp_path)
    psql(dsn, "alter table t replica identity full")
    with runner.streaming(pipeline):
        wait_until_recopier_polled(pipeline)
        copies = copies_of(pipeline, "t")
        psql(dsn, "reindex table concurrently t", "drop table mark")
        wait_until_recopier_polled(pipeline)
    assert copies_of(pipeline, "t") == copies


@pytest.mark.timeout(600)  # reconcile takes its time on a busy machine
def test_values_that_are_not_utf_8_are_copied_streamed_and_reconciled_alike(
    dsn: str, tmp_path: Path
) -> None:
    psql(
        dsn,
        "create cast (bytea as text) without function",  # octets as they are
        "create table t (id text primary key, x text)",
        "insert into t values ('1', 'plain'), ('\\x32ff'::bytea::text, '\\x61fe'::bytea::text)",
    )
    pipeline = set_up_pipeline(dsn, tmp_path)
    with runner.streaming(pipeline):
        psql(
            dsn,
            "insert into t select '\\x33ff'::bytea::text, x from t where x <> 'plain'",
            "update t set id = '1' || id where x = 'plain'",
        )
        wait_until_landed(pipeline)
        reconciliation = reconcile(pipeline, ["public.t"], timeout_seconds=runner.END_SECONDS)
        assert reconciliation.identical, reconciliation
    log = runner.change_log(pipeline)
    changes = [c for file in rows.active_files(log) for c in oracle.rows(log, file)]
    escaped = [(c.op, c.key) for c in changes if c.payload == '{"escaped": ["id", "x"]}']
    assert sorted(escaped) == [(Op.INSERT, ("3\\xff",)), (Op.READ, ("2\\xff",))]


@pytest.mark.long
def test_a_rewrite_with_other_values_brings_a_copy(dsn: str, tmp_path: Path) -> None:
    """No row of it is in the stream."""
    pipeline = set_up_table(dsn, tmp_path)
    psql(dsn, "insert into t select g, 'x' from generate_series(2, 50) as g")
    with runner.streaming(pipeline):
        wait_until_landed(pipeline)
        psql(dsn, "alter table t alter column x type text using x || ' rewritten'")
        until(lambda: copies_of(pipeline, "t") == 2, seconds=runner.END_SECONDS, every=0.2)
        wait_until_landed(pipeline)
    assert rows.assert_log_folds_to_source(pipeline, ["t"]) == 50


@pytest.mark.long
@pytest.mark.timeout(600)  # reconcile takes its time on a busy machine
def test_columns_that_come_and_change_names_cost_no_copy(dsn: str, tmp_path: Path) -> None:
    tables = [
        TABLE,
        "create table bag (a int, gone int)",
        "alter table bag replica identity full",
        "insert into bag select i % 3, i from generate_series(1, 9) i",
        "create table tree (id int primary key, v text) partition by range (id)",
        "create table tree_1 partition of tree for values from (0) to (10)",
        "insert into tree select i, 'x' from generate_series(1, 5) i",
    ]
    pipeline = set_up_table(dsn, tmp_path, table=tables)
    psql(dsn, "insert into t select g, 'x' from generate_series(2, 50) as g")
    with runner.streaming(pipeline):
        wait_until_landed(pipeline)
        psql(
            dsn,
            "alter table bag add column filled int default 3, drop column gone",
            "delete from bag where ctid in (select min(ctid) from bag group by a)",
            "alter table tree add column filled text default 'f'",
            "update tree set v = 'changed' where id = 2",
            "alter table t add column plain int, add column filled text default 'f'",
            "alter table t rename x to y",
            "update t set y = 'changed', plain = 7 where id = 5",
            "alter table t add column silent text default 'seen by no change'",
        )
        wait_until_recopier_polled(pipeline)
        reconciliation = reconcile(pipeline, ["public.t"], timeout_seconds=runner.END_SECONDS)
        assert reconciliation.identical, reconciliation
        psql(dsn, "update t set filled = null where id = 6", "insert into t (id) values (51)")
        wait_until_landed(pipeline)
    assert [copies_of(pipeline, table) for table in ("t", "bag", "tree")] == [1, 1, 1]
    assert rows.assert_log_folds_to_source(pipeline, ["t", "bag", "tree"]) == 51 + 6 + 5


def test_a_column_that_a_list_hid_brings_a_copy(dsn: str, tmp_path: Path) -> None:
    """Made, filled and shown between two looks: nothing of that is in the stream."""
    name = runner.new_pipeline(dsn, tmp_path).config.source.publication
    psql(dsn, TABLE, f"create publication {name} for table t (id, x)")
    pipeline = set_up_table(dsn, tmp_path, table=())
    with runner.streaming(pipeline):
        psql(
            dsn,
            "alter table t add column hidden int default 1",
            "update t set hidden = 2",
            f"alter publication {name} set table t",
        )
        until(lambda: copies_of(pipeline, "t") == 2, seconds=runner.END_SECONDS, every=0.2)
        wait_until_landed(pipeline)
    assert rows.assert_log_folds_to_source(pipeline, ["t"]) == 1


def test_a_table_that_was_not_published_for_a_while_is_copied(dsn: str, tmp_path: Path) -> None:
    name = runner.new_pipeline(dsn, tmp_path).config.source.publication
    psql(dsn, TABLE, f"create publication {name} for table t")
    pipeline = set_up_table(dsn, tmp_path, table=())
    psql(
        dsn,
        f"alter publication {name} drop table t",
        "insert into t values (2, 'never sent')",
        f"alter publication {name} add table t",
    )
    with runner.streaming(pipeline):
        until(lambda: copies_of(pipeline, "t") == 2, seconds=runner.END_SECONDS, every=0.2)
        wait_until_landed(pipeline)
    assert rows.assert_log_folds_to_source(pipeline, ["t"]) == 2


LOAD = "begin; truncate t; insert into t select g, 'night {}' from generate_series(1, 9) g; commit"


@pytest.mark.long
@pytest.mark.timeout(600)  # reconcile takes its time on a busy machine
def test_a_table_that_is_emptied_and_filled_is_not_copied(dsn: str, tmp_path: Path) -> None:
    pipeline = set_up_table(dsn, tmp_path)
    with runner.streaming(pipeline):
        psql(dsn, LOAD.format(1))
        wait_until_recopier_polled(pipeline)
        psql(dsn, LOAD.format(2), "truncate t", "insert into t values (1, 'alone')")
        reconciliation = reconcile(pipeline, ["public.t"], timeout_seconds=runner.END_SECONDS)
        assert reconciliation.identical, reconciliation
    with runner.streaming(pipeline):  # what it was told is known to another process, too
        psql(dsn, "drop table mark")
        wait_until_recopier_polled(pipeline)
    assert copies_of(pipeline, "t") == 1
    assert rows.assert_log_folds_to_source(pipeline, ["t"]) == 1


RETYPE = "alter table t alter x type text using x || '!'"
UNLOGGED = "begin; truncate t; alter table t set unlogged; {}; alter table t set logged; commit"


@pytest.mark.long
@pytest.mark.parametrize(
    "change",
    [
        LOAD.format(1).replace("commit", f"{RETYPE}; commit"),
        f"{LOAD.format(1)}; {RETYPE}",
        UNLOGGED.format("insert into t values (1, 'not in the WAL')"),
    ],
)
def test_a_rewrite_after_a_truncate_brings_a_copy(dsn: str, tmp_path: Path, change: str) -> None:
    pipeline = set_up_table(dsn, tmp_path)
    with runner.streaming(pipeline):
        psql(dsn, change)
        until(lambda: copies_of(pipeline, "t") == 2, seconds=runner.END_SECONDS, every=0.2)
        wait_until_landed(pipeline)
    rows.assert_log_folds_to_source(pipeline, ["t"])


TREE = (
    TABLE.removesuffix(")") + ") partition by range (id)",
    "create table t1 partition of t for values from (0) to (10)",
    "create table t2 partition of t for values from (10) to (20)",
)
LEAVES = ("t1", "t2")


@pytest.mark.long
@pytest.mark.parametrize(
    "change",
    [
        "truncate t1",
        "begin; truncate t; insert into t values (2, 'never seen'), (12, 'b'); truncate t1; commit",
    ],
)
def test_a_partition_emptied_on_its_own_brings_a_copy(
    dsn: str, tmp_path: Path, change: str
) -> None:
    """Under its root's name Postgres sends nothing of it."""
    pipeline = set_up_table(dsn, tmp_path, table=TREE)
    with runner.streaming(pipeline):
        psql(dsn, "insert into t values (11, 'stays')")
        wait_until_landed(pipeline)
        psql(dsn, change)
        until(lambda: copies_of(pipeline, "t") == 2, seconds=runner.END_SECONDS, every=0.2)
        wait_until_landed(pipeline)
    assert rows.assert_log_folds_to_source(pipeline, ["t"]) == 1


@pytest.mark.long
@pytest.mark.parametrize(
    ("rename", "renamed"),
    [
        # Described again only beside a leaf that is new, or was analyzed.
        ("alter table t rename to renamed", "public.renamed"),
        # Before Postgres 16 none of its tables is described again.
        ("alter schema public rename to renamed", "renamed.t"),
    ],
)
def test_rows_of_a_renamed_tree_or_schema_come_under_the_new_name(
    dsn: str, tmp_path: Path, rename: str, renamed: str
) -> None:
    without_analyze = [f"alter table {leaf} set (autovacuum_enabled = off)" for leaf in LEAVES]
    pipeline = set_up_table(dsn, tmp_path, table=[*TREE, *without_analyze])
    with runner.streaming(pipeline):
        psql(dsn, "insert into t values (11, 'before')")
        wait_until_landed(pipeline)
        wait_until_recopier_polled(pipeline)
        psql(dsn, rename)

        def is_renamed() -> bool:
            psql(dsn, f"update {renamed} set x = 'after' where id = 11")
            wait_until_landed(pipeline)
            return renamed in names_of_rows(pipeline)

        until(is_renamed, seconds=runner.END_SECONDS, every=0.2)
    assert set(names_of_rows(pipeline)) == {"public.t", renamed}
    assert rows.assert_log_folds_to_source(pipeline, [renamed]) == 2


def checked_seldom(pipeline: Pipeline) -> Pipeline:
    """The recopier looks at the catalog once, when it connects."""
    capture = CaptureConfig(flush_seconds=0.1, idle_advance_seconds=1, catalog_check_seconds=600)
    return replace(pipeline, config=pipeline.config.model_copy(update={"capture": capture}))


def names_of_rows(pipeline: Pipeline) -> list[str]:
    """The names that streamed rows came under."""
    commits = oracle.landed(runner.change_log(pipeline), runner.app(pipeline))
    streamed = [row for _, changes in commits for row in changes if row.op in oracle.STREAMED]
    return [f"{row.namespace}.{row.relation}" for row in streamed]


def test_a_recopier_that_ends_ends_the_stream(
    dsn: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """P87: else tables would wait for their copies for ever, and no person would know."""
    pipeline = set_up_table(dsn, tmp_path)

    def fail(_: Recopier) -> None:
        raise LookupError("a defect")

    monkeypatch.setattr(Recopier, "_round", fail)
    with pytest.raises(LookupError, match="a defect"):
        stream(pipeline, stop=threading.Event())


@pytest.mark.long
def test_a_catalog_that_does_not_answer_is_given_up(
    own_postgres: OwnServer,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The kernel acknowledges the query for a server process that stands still."""
    monkeypatch.setattr(stream_module, "ANSWER_SECONDS", 3.0)
    dsn = own_postgres.dsn
    pipeline = checked_seldom(set_up_table(dsn, tmp_path))
    idle = "select pid from pg_stat_activity where application_name = 'pgstream'"
    reading = "select 1 from pg_replication_slots where active"
    alone = list[tuple[int]]()

    def is_alone() -> bool:
        """Asked once: a check of the catalog may open another session the next moment."""
        alone[:] = psql(dsn, idle)
        return bool(psql(dsn, reading)) and len(alone) == 1

    with runner.streaming(pipeline):
        until(is_alone)
        [(catalog,)] = alone
        os.kill(catalog, signal.SIGSTOP)
        try:
            psql(dsn, "insert into t values (2, 'described')")
            until(lambda: "no answer to a query for 3 s" in caplog.text)
            wait_until_landed(pipeline)
        finally:
            os.kill(catalog, signal.SIGCONT)
    assert rows.assert_log_folds_to_source(pipeline, ["t"]) == 2


@pytest.mark.long
def test_a_catalog_that_does_not_answer_the_copier_of_a_stream_is_given_up(
    own_postgres: OwnServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a table that needs a copy would wait for ever, and `status` would be silent."""
    dsn, pids = own_postgres.dsn, list[int]()
    pipeline = checked_seldom(set_up_table(dsn, tmp_path))

    def stop_answering(_: Pipeline, connection: Session, __: object) -> tuple[str, ...]:
        if not pids:
            pids.append(connection.info.backend_pid)
            os.kill(pids[0], signal.SIGSTOP)
        return unfit_tables(pipeline, connection, ())

    monkeypatch.setattr(recopier, "ANSWER_SECONDS", 3.0)
    monkeypatch.setattr(recopier, "AGAIN_SECONDS", 0.1)
    monkeypatch.setattr(recopier, "unfit_tables", stop_answering)
    with runner.streaming(pipeline):
        until(lambda: bool(pids))
        try:
            until(lambda: "no answer to a query for 3 s" in (copy_failed(pipeline) or ""))
        finally:
            os.kill(pids[0], signal.SIGCONT)
        until(lambda: copy_failed(pipeline) is None)


def test_another_server_is_refused(
    own_postgres: OwnServer, postgres: Server, dsn: str, tmp_path: Path
) -> None:
    pipeline = set_up_table(own_postgres.dsn, tmp_path)
    psql(dsn, TABLE)
    with pytest.raises(OtherSystem):
        stream(replace(pipeline, dsn=dsn), stop=threading.Event())


def test_a_lake_without_a_pipeline_is_refused(dsn: str, tmp_path: Path) -> None:
    with pytest.raises(NotSetUp):
        stream(runner.new_pipeline(dsn, tmp_path), stop=threading.Event())


def lose_slot(pipeline: Pipeline) -> None:
    """Write WAL to the table `t` until the server has removed what the slot needs."""
    dsn, slot = pipeline.dsn, pipeline.config.source.slot
    psql(dsn, "alter system set max_slot_wal_keep_size = '1MB'", "select pg_reload_conf()")
    lost = f"select from pg_replication_slots where slot_name = '{slot}' and wal_status = 'lost'"

    def is_lost() -> bool:
        psql(
            dsn,
            "insert into t select g, repeat('x', 500)"
            " from generate_series((select max(id) + 1 from t), (select max(id) + 40000 from t)) g",
            "select pg_switch_wal()",
            "checkpoint",
        )
        return bool(psql(dsn, lost))

    until(is_lost, seconds=60)


def test_a_slot_whose_wal_is_gone_is_refused(own_postgres: OwnServer, tmp_path: Path) -> None:
    """P100: with what to do."""
    pipeline = set_up_table(own_postgres.dsn, tmp_path)
    lose_slot(pipeline)
    with pytest.raises(SlotLost, match="pgstream resnapshot"):
        stream(pipeline, stop=threading.Event())


@pytest.mark.long
def test_a_resnapshot_after_a_lost_slot_copies_the_tables_and_the_stream_goes_on(
    own_postgres: OwnServer, tmp_path: Path
) -> None:
    """P100."""
    dsn = own_postgres.dsn
    pipeline = set_up_table(dsn, tmp_path)
    lose_slot(pipeline)
    psql(dsn, "delete from t where id > 5")
    assert [copied.rows for copied in resnapshot(pipeline)] == [5]
    with runner.streaming(pipeline):
        psql(dsn, "insert into t values (6, 'streamed')")
        wait_until_landed(pipeline)
        report = status(pipeline)
        assert report.problem is None
        assert report.slot is not None
        assert report.slot.active_pid is not None
    assert rows.assert_log_folds_to_source(pipeline, ["t"]) == 6
