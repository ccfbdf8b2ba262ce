"""How a pipeline stands, and what teardown leaves: on a real source with a real lake."""

from __future__ import annotations

import json
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg.conninfo import make_conninfo
from pyspark.sql import SparkSession

from pgstream_dagster.capture import stream as stream_module
from pgstream_dagster.capture.stream import stream
from pgstream_dagster.changelog.lake import Lake
from pgstream_dagster.changelog.ledger import TORN_DOWN, Ledger
from pgstream_dagster.changelog.log import ChangeLog
from pgstream_dagster.config import parse
from pgstream_dagster.copy.copying import Copied
from pgstream_dagster.delta import jvm
from pgstream_dagster.errors import (
    NotSetUp,
    OtherSystem,
    SlotForeign,
    SlotInUse,
    SlotMissing,
    StreamRunning,
)
from pgstream_dagster.heartbeat import HeartbeatWriter
from pgstream_dagster.pipeline import Pipeline
from pgstream_dagster.schema.changes import Op
from pgstream_dagster.source import publication
from pgstream_dagster.source.connect import connect, replication
from pgstream_dagster.source.snapshot import exported
from pgstream_dagster.state_folder import claim
from pgstream_dagster.upkeep.resnapshot import _Repair, resnapshot
from pgstream_dagster.upkeep.setup import setup
from pgstream_dagster.upkeep.status import StreamHeartbeat, last_heartbeat, status
from pgstream_dagster.upkeep.teardown import teardown
from tests.support.harness import oracle, rows, runner
from tests.support.plugins.cluster import OwnServer, psql
from tests.support.plugins.lake import SETTINGS
from tests.support.plugins.wait import until


@pytest.fixture
def pipeline(dsn: str, tmp_path: Path, spark: SparkSession) -> Pipeline:
    """A pipeline over the test's database, nothing set up."""
    name = psql(dsn, "select current_database()")[0][0]
    psql(dsn, "create table t (id int primary key, x text)", "insert into t values (1, 'a')")
    config = parse(f"pipeline: {name}")
    return Pipeline(config, dsn, Lake(str(tmp_path / "lake")), SETTINGS, tmp_path / "state")


def leftovers(dsn: str) -> list[tuple[object, ...]]:
    """What a pipeline could leave in a database: named by kind."""
    return psql(
        dsn,
        "select 'slot', slot_name::text from pg_replication_slots"
        " where database = current_database()"
        " union all select 'publication', pubname from pg_publication"
        " union all select 'event trigger', evtname from pg_event_trigger"
        " union all select 'trigger', tgname from pg_trigger where not tgisinternal"
        " union all select 'function', proname from pg_proc p"
        "   join pg_namespace n on n.oid = pronamespace"
        "   where nspname not in ('pg_catalog', 'information_schema')"
        " union all select 'relation', relname from pg_class c"
        "   join pg_namespace n on n.oid = relnamespace"
        "   where relkind = 'r' and nspname not in ('pg_catalog', 'information_schema')",
    )


@contextmanager
def streaming(pipeline: Pipeline) -> Iterator[None]:
    """The same, once it reads the slot."""
    with runner.streaming(pipeline):
        until(lambda: psql(pipeline.dsn, SLOT_READ))
        yield


SLOT_READ = (
    "select 1 from pg_replication_slots where database = current_database() and active"
    " and active_pid in (select pid from pg_stat_replication where state = 'streaming')"
)


END_WALSENDER = (
    "select pg_terminate_backend(active_pid, 5000) from pg_replication_slots"
    " where database = current_database()"
)

DROP_SLOT = (
    "select pg_drop_replication_slot(slot_name) from pg_replication_slots"
    " where database = current_database()"
)
ADVANCE_SLOT = (
    "select pg_replication_slot_advance(slot_name, pg_current_wal_flush_lsn())"
    " from pg_replication_slots where database = current_database()"
)


# --- status -----------------------------------------------------------------------------------


def test_before_setup_status_says_so(pipeline: Pipeline) -> None:
    report = status(pipeline)
    assert report.problem is not None
    assert report.problem.error == "NotSetUp"
    assert report.watermark is None
    assert "password" not in report.source


def test_after_setup_status_shows_slot_tables_and_lag(pipeline: Pipeline) -> None:
    """P80: `status` says which tables have their copy, and why one is due."""
    setup(pipeline)
    report = status(pipeline)
    assert report.problem is None
    assert report.epoch == 1
    assert report.slot is not None
    assert report.slot.confirmed_lsn == report.watermark
    (table,) = report.tables
    assert (table.table, table.copied_at, table.copy_due) == ("public.t", report.watermark, None)
    before = report.lag_bytes
    assert before is not None
    psql(pipeline.dsn, "create table u (id int primary key)", "insert into t values (2, 'b')")
    again = status(pipeline)
    assert again.lag_bytes is not None
    assert again.lag_bytes > before
    due = {table.table: table.copy_due for table in again.tables}
    assert due == {"public.t": None, "public.u": "it has no copy"}


def test_a_stream_is_seen_and_is_no_problem(pipeline: Pipeline) -> None:
    setup(pipeline)
    psql(pipeline.dsn, "insert into t values (2, 'b')")
    with streaming(pipeline):
        until(lambda: (sign := status(pipeline).stream) is not None and sign.commits > 0)
        report = status(pipeline)
        assert report.problem is None
        assert report.slot is not None
        assert report.slot.active_pid is not None


@pytest.mark.long
@pytest.mark.parametrize(
    ("breaking", "error"),
    [
        (DROP_SLOT, "SlotMissing"),
        (ADVANCE_SLOT, "SlotAhead"),
        ("drop publication", "PublicationMissing"),
    ],
)
def test_what_would_stop_the_stream_is_the_problem(
    pipeline: Pipeline, breaking: str, error: str
) -> None:
    setup(pipeline)
    psql(pipeline.dsn, "insert into t values (2, 'b')")
    name = pipeline.config.source.publication
    psql(pipeline.dsn, f"drop publication {name}" if breaking == "drop publication" else breaking)
    report = status(pipeline)
    assert report.problem is not None
    assert report.problem.error == error
    assert "pgstream resnapshot" in report.problem.message
    assert report.watermark is not None


def test_a_source_that_is_away_is_part_of_the_answer(pipeline: Pipeline) -> None:
    setup(pipeline)
    away = Pipeline(
        pipeline.config,
        "host=127.0.0.1 port=1 password=hunter2",
        pipeline.lake,
        SETTINGS,
        pipeline.state,
    )
    report = status(away)
    assert report.problem is not None
    assert report.problem.error == "Unreachable"
    assert report.watermark is not None
    assert "hunter2" not in repr(report)


def test_a_transaction_that_keeps_wal_is_named(
    pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pgstream_dagster.upkeep.status.LONG_SECONDS", 0.0)
    setup(pipeline)
    with psycopg.connect(pipeline.dsn, application_name="nightly") as writing:
        writing.execute("insert into t values (3, 'c')")
        long = status(pipeline).long_transaction
        assert long is not None
        assert long.holder == f"server process {writing.info.backend_pid} (nightly)"


def test_the_snapshot_that_a_copy_holds_is_shown(pipeline: Pipeline) -> None:
    setup(pipeline)
    assert status(pipeline).held_snapshot is None
    with exported(pipeline.dsn):
        psql(pipeline.dsn, "insert into t values (3, 'c')")
        held = status(pipeline).held_snapshot
    assert held is not None
    assert held.transactions >= 1
    assert held.seconds > 0


def test_a_stream_that_never_ran_has_given_no_sign(tmp_path: Path) -> None:
    assert last_heartbeat(StreamHeartbeat, tmp_path / "none.json") is None


def test_torn_heartbeat_is_no_heartbeat(pipeline: Pipeline) -> None:
    setup(pipeline)
    pipeline.state.mkdir(exist_ok=True)
    for torn in ("", '{"state": "str'):
        pipeline.heartbeat_file.write_text(torn)
        report = status(pipeline)
        assert (report.problem, report.stream) == (None, None)
        assert report.heartbeat == str(pipeline.heartbeat_file)


def test_heartbeat_of_another_pipeline_is_not_shown(pipeline: Pipeline, tmp_path: Path) -> None:
    setup(pipeline)
    claim(replace(pipeline, lake=Lake(str(tmp_path / "other"))))
    HeartbeatWriter(pipeline.heartbeat_file).say("streaming")
    report = status(pipeline)
    assert report.stream is None
    assert report.problem is not None
    assert report.problem.error == "StateTaken"


def test_the_age_of_a_sign_is_shown(tmp_path: Path) -> None:
    record = {
        "state": "streaming",
        "reason": None,
        "pid": 7,
        "at": time.time() - 90,
        "rows": 1,
        "commits": 1,
        "copy_failed": None,
        "watermark": "0/1",
    }
    path = tmp_path / "s.json"
    path.write_text(json.dumps(record))
    sign = last_heartbeat(StreamHeartbeat, path)
    assert sign is not None
    assert 90 <= sign.seconds_ago < 100


# --- teardown ---------------------------------------------------------------------------------


def test_teardown_leaves_nothing_on_the_source_and_the_lake_as_it_was(pipeline: Pipeline) -> None:
    setup(pipeline)
    gateway = jvm.gateway(SETTINGS)
    with closing(ChangeLog(pipeline.lake, pipeline.name, gateway)) as log:
        watermark = log.watermark(1)
        done = teardown(pipeline)
        assert (done.slot_dropped, done.publication_dropped) == (True, True)
        assert done.schema_triggers_dropped
        assert leftovers(pipeline.dsn) == [("relation", "t")]
        assert log.watermark(1) == watermark
    with closing(Ledger(pipeline.lake, gateway)) as ledger:
        assert len(ledger.facts(TORN_DOWN)) == 1


def test_teardown_twice_is_fine(pipeline: Pipeline) -> None:
    setup(pipeline)
    teardown(pipeline)
    again = teardown(pipeline)
    assert (again.slot_dropped, again.publication_dropped) == (False, False)


def test_teardown_goes_on_where_a_crash_left_it(pipeline: Pipeline) -> None:
    setup(pipeline)
    psql(pipeline.dsn, f"select pg_drop_replication_slot('{pipeline.config.source.slot}')")
    assert teardown(pipeline).publication_dropped
    assert leftovers(pipeline.dsn) == [("relation", "t")]


def test_teardown_before_setup_drops_what_a_crashed_setup_left(pipeline: Pipeline) -> None:
    with connect(pipeline.dsn) as connection:
        publication.ensure(connection, pipeline.config.source.publication, "all")
    assert teardown(pipeline).publication_dropped
    assert leftovers(pipeline.dsn) == [("relation", "t")]


@pytest.mark.long
def test_setup_after_teardown_begins_again_behind_a_gap(pipeline: Pipeline) -> None:
    setup(pipeline)
    teardown(pipeline)
    psql(pipeline.dsn, "insert into t values (2, 'never streamed')")
    [copied] = setup(pipeline)
    assert (copied.table, copied.rows) == ("public.t", 2)
    report = status(pipeline)
    assert (report.problem, report.epoch) == (None, 1)
    assert [table.copy_due for table in report.tables] == [None]
    assert setup(pipeline) == []
    psql(pipeline.dsn, "insert into t values (3, 'streamed')")
    runner.catch_up(pipeline)
    log = runner.change_log(pipeline)
    ops = Counter(change.op for file in rows.active_files(log) for change in oracle.rows(log, file))
    assert (ops[Op.GAP], ops[Op.COPY]) == (1, 2)
    assert rows.assert_log_folds_to_source(pipeline, ["t"]) == 3
    teardown(pipeline)
    assert [copied.rows for copied in setup(pipeline)] == [3]


@pytest.mark.long
def test_setup_goes_on_where_a_crash_after_a_teardown_left_it(
    pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    setup(pipeline)
    teardown(pipeline)

    def crash(*_: object) -> None:
        raise LookupError("a crash")

    for step in ("_land_gap", "_drop_slot"):
        with monkeypatch.context() as broken:
            broken.setattr(_Repair, step, crash)
            with pytest.raises(LookupError):
                setup(pipeline)
    assert [copied.rows for copied in setup(pipeline)] == [1]
    assert status(pipeline).problem is None


@pytest.mark.long
def test_setup_after_teardown_does_not_begin_with_another_server(
    pipeline: Pipeline, own_postgres: OwnServer
) -> None:
    setup(pipeline)
    teardown(pipeline)
    psql(own_postgres.dsn, "create table t (id int primary key)")
    other = replace(pipeline, dsn=own_postgres.dsn)
    with pytest.raises(OtherSystem, match="pgstream resnapshot"):
        setup(other)
    assert leftovers(own_postgres.dsn) == [("relation", "t")]


@pytest.mark.long
@pytest.mark.parametrize("operation", [resnapshot, setup])
def test_new_epoch_goes_on_where_a_crash_left_it(
    operation: Callable[[Pipeline], list[Copied]],
    pipeline: Pipeline,
    own_postgres: OwnServer,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    setup(pipeline)
    psql(own_postgres.dsn, "create table t (id int primary key)", "insert into t values (7), (8)")
    moved = replace(pipeline, dsn=own_postgres.dsn)

    def crash(*_: object) -> None:
        raise LookupError("a crash")

    with monkeypatch.context() as broken:
        broken.setattr(_Repair, "_land_gap", crash)
        with pytest.raises(LookupError):
            resnapshot(moved)
    assert [copied.rows for copied in operation(moved)] == [2]
    report = status(moved)
    assert (report.problem, report.epoch) == (None, 2)
    psql(own_postgres.dsn, "insert into t values (9)")
    runner.catch_up(moved)
    assert rows.assert_log_folds_to_source(moved, ["t"], epoch=2) == 3


def test_a_slot_that_was_not_torn_down_is_missing_to_setup_too(pipeline: Pipeline) -> None:
    setup(pipeline)
    teardown(pipeline)
    setup(pipeline)
    psql(pipeline.dsn, DROP_SLOT)
    with pytest.raises(SlotMissing):
        setup(pipeline)


def test_a_publication_by_hand_stays(pipeline: Pipeline) -> None:
    name = pipeline.config.source.publication
    psql(
        pipeline.dsn,
        f"create publication {name} for all tables with (publish_via_partition_root = true)",
    )
    setup(pipeline)
    done = teardown(pipeline)
    assert (done.slot_dropped, done.publication_dropped) == (True, False)
    assert leftovers(pipeline.dsn) == [("publication", name), ("relation", "t")]


@pytest.mark.long
def test_teardown_does_not_end_a_stream(pipeline: Pipeline) -> None:
    setup(pipeline)
    with streaming(pipeline), pytest.raises(SlotInUse):
        teardown(pipeline)
    assert status(pipeline).slot is not None


@pytest.mark.long
@pytest.mark.parametrize("operation", [teardown, resnapshot])
def test_a_stream_that_waits_to_connect_again_is_running(
    operation: Callable[[Pipeline], object], pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stream_module, "FIRST_WAIT_SECONDS", 600.0)
    monkeypatch.setattr(stream_module, "LONGEST_WAIT_SECONDS", 600.0)
    setup(pipeline)
    with streaming(pipeline):
        psql(pipeline.dsn, END_WALSENDER)
        until(lambda: (sign := status(pipeline).stream) and sign.state == "reconnecting")
        with pytest.raises(StreamRunning, match="stop it first"):
            operation(pipeline)
        assert status(pipeline).problem is None
    assert operation(pipeline)


def test_after_a_teardown_the_stream_and_status_ask_for_setup(pipeline: Pipeline) -> None:
    setup(pipeline)
    teardown(pipeline)
    with pytest.raises(NotSetUp, match="pgstream setup"):
        stream(pipeline, stop=threading.Event())
    report = status(pipeline)
    assert report.problem is not None
    assert report.problem.error == "NotSetUp"


def test_a_stream_waits_for_a_resnapshot_that_runs(
    pipeline: Pipeline,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A stream with another state folder, as on another machine."""
    setup(pipeline)
    psql(pipeline.dsn, "insert into t values (2, 'missed')")
    elsewhere, land_gap = replace(pipeline, state=tmp_path / "elsewhere"), _Repair._land_gap

    def meet(*repair: Any) -> None:
        with runner.streaming(elsewhere):
            until(lambda: "another process copies" in caplog.text)
        land_gap(*repair)

    monkeypatch.setattr(_Repair, "_land_gap", meet)
    assert [copied.rows for copied in resnapshot(pipeline)] == [2]
    assert status(pipeline).problem is None


def test_teardown_waits_for_the_server_process_of_a_killed_stream(pipeline: Pipeline) -> None:
    setup(pipeline)
    source = pipeline.config.source
    dying = replication(pipeline.dsn)
    dying.send_query(
        f"START_REPLICATION SLOT {source.slot} LOGICAL 0/0"
        f" (proto_version '1', publication_names '{source.publication}')".encode()
    )
    until(lambda: psql(pipeline.dsn, SLOT_READ))
    ending = threading.Timer(1.0, dying.finish)
    ending.start()
    assert teardown(pipeline).slot_dropped
    ending.join()


def test_teardown_on_another_server_drops_nothing(
    pipeline: Pipeline, own_postgres: OwnServer
) -> None:
    setup(pipeline)
    other = Pipeline(pipeline.config, own_postgres.dsn, pipeline.lake, SETTINGS, pipeline.state)
    psql(
        own_postgres.dsn,
        f"select pg_create_logical_replication_slot('{pipeline.config.source.slot}', 'pgoutput')",
    )
    with pytest.raises(OtherSystem):
        teardown(other)
    assert leftovers(own_postgres.dsn) == [("slot", pipeline.config.source.slot)]


def test_a_slot_of_another_database_is_not_dropped(pipeline: Pipeline, dsn: str) -> None:
    name = pipeline.config.source.slot
    postgres = make_conninfo(dsn, dbname="postgres")
    psql(postgres, f"select pg_create_logical_replication_slot('{name}', 'pgoutput')")
    try:
        with pytest.raises(SlotForeign):
            teardown(pipeline)
    finally:
        psql(postgres, f"select pg_drop_replication_slot('{name}')")
