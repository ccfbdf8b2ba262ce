"""What a sink receives, from the first copy on: each change once, in order, whatever happens."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from pgstream_dagster import read_changes, resnapshot, setup, snapshot
from pgstream_dagster.changelog import markers
from pgstream_dagster.changelog.lake import Lake
from pgstream_dagster.changelog.optimize import clean_log
from pgstream_dagster.changelog.sink_letters import SinkLetterState
from pgstream_dagster.errors import LogGone, OtherLog, SinkRefused, SinkUnreachable
from pgstream_dagster.pipeline import Pipeline
from pgstream_dagster.readers import change_reader
from pgstream_dagster.readers.change import ChangeBatch, changes_of
from pgstream_dagster.readers.cursor import Cursor
from pgstream_dagster.schema.layout import CHANGES
from pgstream_dagster.schema.table import TableSchema
from pgstream_dagster.sinks import control, follow, state
from pgstream_dagster.sinks import run as sinks_run
from pgstream_dagster.sinks.base import NotNow, Refused, Verdicts
from pgstream_dagster.sinks.start import beginning
from tests.support.harness.background import in_thread
from tests.support.harness.runner import catch_up, flushed, new_pipeline, streaming
from tests.support.harness.sink_receiver import (
    TABLES,
    Receiver,
    delivering,
    error,
    letters,
    masking,
    status_of,
    with_sinks,
)
from tests.support.harness.stream_pipelines import wait_until_landed
from tests.support.plugins.cluster import create_database, psql
from tests.support.plugins.wait import until

pytestmark = [pytest.mark.slow, pytest.mark.one_major("newest")]


@pytest.fixture
def pipeline(dsn: str, tmp_path: Path, spark: object) -> Pipeline:
    psql(dsn, *TABLES)
    return new_pipeline(dsn, tmp_path)


def test_a_sink_receives_the_copy_and_every_change_after_it(pipeline, dsn, monkeypatch):
    pipeline, receiver = with_sinks(pipeline, out={"stdout": {}, "tables": ["t"]}), Receiver()
    setup(pipeline)
    psql(dsn, "update t set note = 'ONE' where id = 1", "insert into other values (8)")
    catch_up(pipeline)
    with delivering(pipeline, monkeypatch, out=receiver), streaming(pipeline):
        receiver.wait_for(3)
        psql(dsn, "delete from t where id = 2", "truncate t")
        receiver.wait_for(5)
    assert receiver.ops() == [
        ("read", "1"),
        ("read", "2"),
        ("update", "1"),
        ("delete", "2"),
        ("truncate", None),
    ]
    # Stopped and started again: nothing comes twice, and nothing is left out.
    psql(dsn, "insert into t values (3, 'three')")
    catch_up(pipeline)
    with delivering(pipeline, monkeypatch, out=receiver):
        receiver.wait_for(6)
    assert receiver.ops()[5:] == [("insert", "3")]
    with sinks_run.opened(pipeline) as session:
        progress = state.progress(session.log, "out")
    assert (progress.changes, progress.holder, progress.error) == (6, None, None)


def test_changes_that_a_sink_does_not_receive_move_its_position(pipeline, dsn, monkeypatch):
    pipeline, receiver = with_sinks(pipeline, out={"stdout": {}, "tables": ["t"]}), Receiver()
    setup(pipeline)
    with delivering(pipeline, monkeypatch, out=receiver):
        receiver.wait_for(2)
        psql(dsn, "insert into other select generate_series(100, 200)")
        watermark = catch_up(pipeline).watermark
        until(lambda: control.sink_status(pipeline)[0].position == watermark, every=0.3)
        [status] = control.sink_status(pipeline)
    assert (len(receiver.received), status.changes, status.lag_bytes) == (2, 2, 0)


def test_now_begins_at_the_watermark_and_operations_are_chosen(pipeline, dsn, monkeypatch):
    sink = {"stdout": {}, "start": "now", "operations": ["insert", "delete"]}
    pipeline, receiver = with_sinks(pipeline, out=sink), Receiver()
    setup(pipeline)
    with delivering(pipeline, monkeypatch, out=receiver), streaming(pipeline):
        until(lambda: has_begun(pipeline))
        psql(dsn, "update t set note = 'x'", "insert into t values (9)", "delete from t")
        receiver.wait_for(4)
        assert receiver.ops() == [
            ("insert", "9"),
            ("delete", "1"),
            ("delete", "2"),
            ("delete", "9"),
        ]
        # A table of later is new to the sink: its rows come, too.
        psql(dsn, "create table late (id int primary key)", "insert into late values (5)")
        psql(dsn, "insert into t values (10)")
        until(lambda: ("insert", "10") in receiver.ops())


@pytest.mark.long
def test_tables_of_a_sink_come_with_their_copy_and_those_of_another_without(
    pipeline, dsn, monkeypatch
):
    """P103: whose rows are copied to a target is chosen by two sinks; both receive all changes."""
    sinks = {
        "copied": {"stdout": {}, "tables": ["t"]},
        "out": {"stdout": {}, "exclude": ["t"], "start": "now"},
    }
    pipeline, receiver = with_sinks(pipeline, **sinks), Receiver()
    setup(pipeline)
    receivers = {"copied": receiver, "out": receiver}
    with delivering(pipeline, monkeypatch, **receivers), streaming(pipeline):
        until(lambda: has_begun(pipeline))
        psql(dsn, "insert into t values (3, 'three')", "insert into other values (8)")
        receiver.wait_for(4)
    expected = [("insert", "3"), ("insert", "8"), ("read", "1"), ("read", "2")]
    assert sorted(receiver.ops()) == expected


def has_begun(pipeline: Pipeline) -> bool:
    with sinks_run.opened(pipeline) as session:
        return state.progress(session.log, "out").cursor is not None


def test_a_table_that_is_copied_again_comes_as_its_differences(pipeline, dsn, monkeypatch):
    pipeline, receiver = with_sinks(pipeline, out={"stdout": {}, "tables": ["t"]}), Receiver()
    setup(pipeline)
    with delivering(pipeline, monkeypatch, out=receiver):
        receiver.wait_for(2)
        # Rows change without a trace in the stream: only the next copy shows them.
        psql(
            dsn,
            "alter table t set unlogged",
            "insert into t values (3, 'three')",
            "delete from t where id = 1",
            "update t set note = 'TWO' where id = 2",
            "alter table t set logged",
        )
        catch_up(pipeline)
        snapshot(pipeline, ["t"])
        catch_up(pipeline)
        receiver.wait_for(5)
    assert receiver.ops()[2:] == [("delete", "1"), ("update", "2"), ("insert", "3")]
    assert receiver.received[3]["before"] == {"id": "2", "note": "two"}
    assert receiver.received[3]["after"] == {"id": "2", "note": "TWO"}
    places = [row["place"] for row in receiver.received]
    assert places == sorted(places)
    assert len(set(places)) == len(places)


@pytest.mark.long
def test_a_removed_row_is_masked_though_its_columns_were_renamed_and_its_key_is_another(
    pipeline, dsn, monkeypatch
):
    """A difference of an older version, from a copy that was made under the newest names."""
    pipeline, receiver = masking(pipeline, {"name": "masking", "type": "default"}), Receiver()
    psql(dsn, "alter table t add code int not null default 0")
    psql(dsn, "update t set code = id", "update t set note = 'plain ' || id")
    setup(pipeline)
    with delivering(pipeline, monkeypatch, out=receiver):
        receiver.wait_for(2)
        psql(
            dsn,
            "alter table t rename note to remark",
            "alter table t drop constraint t_pkey, add primary key (code)",
            "insert into t values (3, 'plain 3', 3)",
        )
        catch_up(pipeline)
        snapshot(pipeline, ["t"])
        catch_up(pipeline)
        until(lambda: ("insert", "3") in receiver.ops())
    assert "plain" not in json.dumps(receiver.received)
    removed = [row["before"] for row in receiver.received if row["op"] == "delete"]
    assert removed == [{"id": str(n), "note": "*******", "code": str(n)} for n in (1, 2)]


@pytest.mark.long
def test_differences_that_are_read_on_after_a_rename_are_those_that_they_were(pipeline, dsn):
    """Without a key their order, and so their positions, depend on the names of columns."""
    psql(dsn, "create table bag (a text, b text)", "alter table bag replica identity full")
    psql(dsn, "insert into bag values ('0', '0')")
    setup(pipeline)
    pipeline_cursor = differences(pipeline, None)[1]
    psql(dsn, "alter table bag set unlogged")
    psql(dsn, "insert into bag values ('1', '9'), ('2', '8'), ('3', '7')")
    psql(dsn, "alter table bag set logged")
    catch_up(pipeline)
    snapshot(pipeline, ["bag"])
    psql(dsn, "insert into other values (8)")
    catch_up(pipeline)
    whole, _ = differences(pipeline, pipeline_cursor)
    assert sorted(whole) == [["1", "9"], ["2", "8"], ["3", "7"]]
    first, middle = differences(pipeline, pipeline_cursor, at_most=1)
    psql(dsn, "alter table bag rename a to z", "insert into bag values ('5', '5')")
    catch_up(pipeline)
    rest, _ = differences(pipeline, middle)
    assert first + rest[: len(whole) - 1] == whole
    assert rest[len(whole) - 1 :] == [["5", "5"]]


def differences(pipeline, cursor, at_most=None) -> tuple[list[list[str]], Cursor]:
    """The rows of `bag` that come, one to a batch, and the cursor after them."""
    received = list[list[str]]()
    with pipeline.open() as opened:
        begun = cursor or beginning(opened, 0, "copy")
        reader = change_reader.ChangeReader(opened, "x/y", begun, change_reader.Selection(), 1)
        with closing(reader):
            while (batch := reader.read(0.5)) is not None:
                rows = [c.after for c in batch.changes if c.relation == "bag"]
                received += [list(row.values()) for row in rows if row is not None]
                if at_most is not None and len(received) >= at_most:
                    break
            return received, reader.cursor


@pytest.mark.long
def test_rows_of_every_copy_on_request(pipeline, dsn, monkeypatch):
    sink = {"stdout": {}, "tables": ["t"], "copies": "rows"}
    pipeline, receiver = with_sinks(pipeline, out=sink), Receiver()
    setup(pipeline)
    with delivering(pipeline, monkeypatch, out=receiver):
        receiver.wait_for(3)
        snapshot(pipeline, ["t"])
        catch_up(pipeline)
        receiver.wait_for(6)
    assert [op for op, _ in receiver.ops()] == ["copy", "read", "read"] * 2


def test_a_refused_change_is_a_dead_letter_and_its_key_waits(pipeline, dsn, monkeypatch):
    pipeline, receiver = with_sinks(pipeline, out={"stdout": {}, "tables": ["t"]}), Receiver()
    receiver.verdicts["1", "bad"] = [Refused("too long"), Refused("still too long")]
    setup(pipeline)
    with delivering(pipeline, monkeypatch, out=receiver), streaming(pipeline):
        receiver.wait_for(2)
        psql(dsn, "update t set note = 'bad' where id = 1", "update t set note = 'x' where id = 2")
        psql(dsn, "update t set note = 'good' where id = 1", "insert into t values (3, null)")
        receiver.wait_for(4)
    assert receiver.ops()[2:] == [("update", "2"), ("insert", "3")]
    assert letters(pipeline) == [("1", "refused", "too long"), ("1", "held", HELD)]
    with sinks_run.opened(pipeline) as session:
        state.ask(session.log, "out", redrives=1)
    with delivering(pipeline, monkeypatch, out=receiver):
        until(lambda: letters(pipeline)[0][2] == "still too long")
        with sinks_run.opened(pipeline) as session:
            state.ask(session.log, "out", redrives=2)
        until(lambda: not letters(pipeline))
    redriven = [row["after"] for row in receiver.received[4:]]
    assert redriven == [{"id": "1", "note": "bad"}, {"id": "1", "note": "good"}]


HELD = "it waits behind an earlier change of its key"


@pytest.mark.long
def test_a_change_that_fails_is_tried_again_in_its_place(pipeline, dsn, monkeypatch):
    sink = {"stdout": {}, "tables": ["t"], "retry": {"first_seconds": 0.01, "attempts": 4}}
    pipeline, receiver = with_sinks(pipeline, out=sink), Receiver()
    receiver.verdicts["1", "slow"] = [NotNow("busy"), NotNow("busy", 0.05)]
    receiver.verdicts["2", "never"] = [NotNow("away")] * 4
    setup(pipeline)
    with delivering(pipeline, monkeypatch, out=receiver), streaming(pipeline):
        receiver.wait_for(2)
        psql(dsn, "begin; update t set note = 'slow' where id = 1; delete from t where id = 1; end")
        receiver.wait_for(4)
        psql(dsn, "update t set note = 'never' where id = 2", "insert into t values (4)")
        receiver.wait_for(5)
    assert receiver.ops()[2:] == [("update", "1"), ("delete", "1"), ("insert", "4")]
    assert letters(pipeline) == [("2", SinkLetterState.REFUSED.value, "away")]


@pytest.mark.long
def test_a_pause_while_a_change_is_waited_for_is_no_error(pipeline, dsn, monkeypatch, caplog):
    sink = {"stdout": {}, "tables": ["t"], "retry": {"first_seconds": 0.1, "attempts": 1}}
    pipeline, receiver = with_sinks(pipeline, out=sink), Receiver()
    setup(pipeline)
    with delivering(pipeline, monkeypatch, out=receiver), streaming(pipeline):
        receiver.wait_for(2)
        receiver.verdicts["3", "x"] = [NotNow("it is away", is_away=True)] * 1_000
        psql(dsn, "insert into t values (3, 'x')")
        until(lambda: "it is away" in str(error(pipeline)))
        control.pause(pipeline, "out")
        until(lambda: error(pipeline) is None)
        receiver.verdicts.clear()
        control.resume(pipeline, "out")
        receiver.wait_for(3)
    assert "taken over" not in caplog.text
    assert letters(pipeline) == []


def test_an_outage_of_the_target_loses_nothing(pipeline, dsn, monkeypatch):
    pipeline, receiver = with_sinks(pipeline, out={"stdout": {}, "tables": ["t"]}), Receiver()
    receiver.errors = [SinkUnreachable("out", "it is away")] * 2
    setup(pipeline)
    psql(dsn, "insert into t values (3, 'three')")
    catch_up(pipeline)
    with delivering(pipeline, monkeypatch, out=receiver):
        receiver.wait_for(3)
        receiver.errors = [SinkRefused("out", "its password changed", "change it")]
        psql(dsn, "insert into t values (4, 'four')")
        catch_up(pipeline)
        until(lambda: not receiver.errors)
    # It would be tried again a minute later; ended before that, it continues where it was.
    with delivering(pipeline, monkeypatch, out=receiver):
        receiver.wait_for(4)
    assert [key for _, key in receiver.ops()] == ["1", "2", "3", "4"]


class Transactional(Receiver):
    """Keeps the cursor with the changes, and nothing of a transaction that has not ended."""

    keeps_cursor = True

    def __init__(self) -> None:
        super().__init__()
        self.cursor: str | None = None
        self.open_part = list[dict[str, Any]]()

    def open(self) -> str | None:
        super().open()
        self.open_part = []
        return self.cursor

    def deliver(self, batch: ChangeBatch) -> Verdicts:
        committed, self.received = self.received, self.open_part
        try:
            verdicts = super().deliver(batch)
        finally:
            self.open_part, self.received = self.received, committed
        if batch.ends_transaction:
            self.received += self.open_part
            self.open_part, self.cursor = [], batch.cursor
        return verdicts


@pytest.mark.long
def test_a_target_that_rolls_back_receives_the_whole_copy_again(pipeline, dsn, monkeypatch):
    sink = {"stdout": {}, "tables": ["t"], "max_queue_bytes": 1 << 20}
    pipeline, receiver = with_sinks(pipeline, out=sink), Transactional()
    psql(dsn, "insert into t select g, repeat(md5(g::text), 100) from generate_series(3, 500) g")
    setup(pipeline)
    monkeypatch.setattr(follow, "SAVE_SECONDS", 0.0)

    def fail_later(batch: ChangeBatch) -> Verdicts:
        if len(receiver.open_part) > 100 and not failed:
            failed.append(len(receiver.open_part))
            raise SinkUnreachable("out", "its connection broke")
        return deliver(batch)

    failed, deliver = list[int](), receiver.deliver
    monkeypatch.setattr(receiver, "deliver", fail_later)
    with delivering(pipeline, monkeypatch, out=receiver):
        receiver.wait_for(500)
    assert failed
    assert sorted(int(key or 0) for _, key in receiver.ops()) == list(range(1, 501))


@pytest.mark.long
def test_a_key_behind_a_change_that_waits_waits_too(pipeline, dsn, monkeypatch):
    pipeline, receiver = with_sinks(pipeline, out={"stdout": {}, "tables": ["t"]}), Receiver()
    receiver.verdicts["1", "bad"] = [Refused("no")]
    setup(pipeline)
    with delivering(pipeline, monkeypatch, out=receiver), streaming(pipeline):
        receiver.wait_for(2)
        psql(dsn, "update t set note = 'bad' where id = 1")
        until(lambda: letters(pipeline))
        psql(dsn, "update t set id = 9 where id = 1", "update t set note = 'x' where id = 9")
        psql(dsn, "update t set note = 'y' where id = 2")
        receiver.wait_for(3)
        until(lambda: len(letters(pipeline)) == 3)
    assert receiver.ops()[2:] == [("update", "2")]
    assert [(key, state_) for key, state_, _ in letters(pipeline)] == [
        ("1", "refused"),
        ("9", "held"),
        ("9", "held"),
    ]


@pytest.mark.long
def test_a_reset_to_now_goes_on_from_there_whatever_happens(pipeline, dsn, monkeypatch):
    pipeline, receiver = with_sinks(pipeline, out={"stdout": {}, "tables": ["t"]}), Transactional()
    setup(pipeline)
    with delivering(pipeline, monkeypatch, out=receiver):
        receiver.wait_for(2)
    control.reset(pipeline, "out", "now")
    receiver.errors = [SinkUnreachable("out", "it is away")] * 3
    with delivering(pipeline, monkeypatch, out=receiver):
        until(lambda: generation(pipeline) == 2)
        psql(dsn, "insert into t values (3, 'three')")
        catch_up(pipeline)
        receiver.wait_for(3)
    assert receiver.ops()[2:] == [("insert", "3")]


def generation(pipeline: Pipeline) -> int | None:
    with sinks_run.opened(pipeline) as session:
        cursor = state.progress(session.log, "out").cursor
    return None if cursor is None else cursor.generation


@pytest.mark.long
def test_a_slow_sink_holds_up_no_other(pipeline, dsn, monkeypatch):
    sinks = {name: {"stdout": {}, "tables": ["t"]} for name in ("fast", "slow", "down")}
    pipeline, fast, slow, down = with_sinks(pipeline, **sinks), Receiver(), Receiver(), Receiver()
    setup(pipeline)
    slow.may_go_on.clear()
    down.errors = [SinkUnreachable("down", "it is away")] * 10_000
    receivers = {"fast": fast, "slow": slow, "down": down}
    with delivering(pipeline, monkeypatch, **receivers), streaming(pipeline):
        psql(dsn, "insert into t select g, 'x' from generate_series(100, 1099) g")
        fast.wait_for(1002)
        assert (slow.received, down.received) == ([], [])
        until(lambda: "it is away" in (status_of(pipeline, "down").error or ""))
        assert [status_of(pipeline, sink).error for sink in ("slow", "fast")] == [None, None]
        slow.may_go_on.set()
        slow.wait_for(1002)
    assert fast.received == slow.received


def test_what_was_delivered_equals_the_log(pipeline, dsn, tmp_path):
    folder = tmp_path / "out"
    pipeline = with_sinks(pipeline, out={"files": {"folder": str(folder), "rotate_bytes": 4096}})
    setup(pipeline)
    with streaming(pipeline), in_thread(lambda stop: sinks_run.run(pipeline, stop=stop), "sinks"):
        for number in range(20):
            rows = f"select g, 'n' from generate_series({number}11, {number}40) g"
            psql(dsn, f"insert into t {rows}", f"update t set note = '{number}' where id % 7 = 0")
        until(lambda: len(lines(folder)) > 100)
    catch_up(pipeline)
    expected = event_ids(pipeline)
    with in_thread(lambda stop: sinks_run.run(pipeline, stop=stop), "sinks"):
        until(lambda: len(lines(folder)) >= sum(map(len, expected.values())))
    for relation, ids in expected.items():
        delivered = [line["event_id"] for line in lines(folder) if line["relation"] == relation]
        assert delivered == ids
    assert len(list(folder.iterdir())) > 1


def lines(folder: Path) -> list[dict[str, Any]]:
    """The whole lines of the files; one that is being written has no end yet."""
    texts = [path.read_text() for path in sorted(folder.glob("*.ndjson"))]
    return [json.loads(line) for text in texts for line in text.split("\n")[:-1] if line]


def event_ids(pipeline: Pipeline) -> dict[str, list[str]]:
    """The event ids of each table's changes, in order, from the log."""
    ids: dict[str, list[str]] = {}
    for table in ("t", "other"):
        changes = read_changes(pipeline, table).where("op <> 'copy'")
        rows = changes.orderBy("commit_lsn", "ordinal").toArrow()
        schemas = pipeline_schemas(pipeline)
        ids[table] = [change.event_id for change in changes_of(rows.cast(CHANGES), schemas)]
    return ids


def pipeline_schemas(pipeline: Pipeline) -> Mapping[int, TableSchema]:
    with pipeline.open() as opened:
        return opened.schema_log.by_id()


def land_gap(pipeline: Pipeline, relation: str) -> None:
    """A gap of a table, as the stream lands it when rows cannot be matched any more."""
    psql(pipeline.dsn, "select pg_logical_emit_message(true, 'test', '')")
    point = flushed(pipeline.dsn)
    with pipeline.open() as opened:
        [schema] = [s for s in opened.schema_log.all() if s.name == relation][-1:]
        writer = opened.log.writer(1)
        writer.commit([markers.rows_table([markers.gap(schema, point, 0)])], point)
        writer.close()


@pytest.mark.long
@pytest.mark.parametrize("start", ["now", pytest.param("position", marks=pytest.mark.long)])
def test_a_table_with_a_gap_at_the_start_waits_for_its_copy(pipeline, dsn, monkeypatch, start):
    pipeline, receiver = with_sinks(pipeline, out={"stdout": {}}), Receiver()
    setup(pipeline)
    land_gap(pipeline, "t")
    psql(dsn, "insert into t values (3, 'three')")
    catch_up(pipeline)
    with pipeline.open() as opened:
        position = str(opened.require_watermark())
    psql(dsn, "insert into t values (4, 'four')", "insert into other values (8)")
    if start == "position":
        catch_up(pipeline)
    control.reset(pipeline, "out", "now" if start == "now" else position)
    with delivering(pipeline, monkeypatch, out=receiver):
        until(lambda: generation(pipeline) == 2)
        catch_up(pipeline)
        receiver.wait_for(1)
        assert receiver.ops() == [("insert", "8")]
        snapshot(pipeline, ["t"])
        catch_up(pipeline)
        receiver.wait_for(3)
        psql(dsn, "update t set note = 'FOUR' where id = 4")
        catch_up(pipeline)
        receiver.wait_for(4)
    assert receiver.ops()[1:] == [("insert", "3"), ("insert", "4"), ("update", "4")]


@pytest.mark.long
@pytest.mark.parametrize("runs_on", [False, True])
def test_a_new_epoch_follows_the_end_of_the_former(pipeline, dsn, monkeypatch, runs_on):
    pipeline, receiver = with_sinks(pipeline, out={"stdout": {}, "tables": ["t"]}), Receiver()
    monkeypatch.setattr(sinks_run, "EPOCH_SECONDS", 0.5)
    setup(pipeline)
    with delivering(pipeline, monkeypatch, out=receiver):
        receiver.wait_for(2)
    name = f"{conninfo_to_dict(dsn)['dbname']}_other"
    create_database(dsn, name)
    moved = replace(pipeline, dsn=make_conninfo(dsn, dbname=name))
    psql(moved.dsn, TABLES[0], "insert into t values (7, 'seven'), (1, 'ONE')")

    def move() -> None:
        psql(dsn, "insert into t values (3, 'three')")
        catch_up(pipeline)
        slot = f"from pg_replication_slots where slot_name = '{pipeline.config.source.slot}'"
        # the server may notice a little later that its reader has gone
        until(lambda: psql(dsn, f"select 1 {slot} and not active"))
        psql(dsn, f"select pg_drop_replication_slot(slot_name) {slot}")
        resnapshot(moved)
        psql(moved.dsn, "insert into t values (8, 'eight')")
        catch_up(moved)

    if not runs_on:
        move()
    with delivering(pipeline, monkeypatch, out=receiver):
        if runs_on:
            move()
        receiver.wait_for(7)
    copied, rest = receiver.ops()[4:6], receiver.ops()[6:]
    assert receiver.ops()[2:4] == [("insert", "3"), ("copy", None)]
    assert (sorted(copied), rest) == ([("read", "1"), ("read", "7")], [("insert", "8")])


@pytest.mark.long
def test_files_that_vanish_while_a_batch_is_gathered_cost_nothing(pipeline, dsn, monkeypatch):
    pipeline, receiver = with_sinks(pipeline, out={"stdout": {}, "tables": ["t"]}), Receiver()
    setup(pipeline)
    with delivering(pipeline, monkeypatch, out=receiver):
        receiver.wait_for(2)
    with streaming(pipeline):
        for number in range(3, 9):
            psql(dsn, f"insert into t values ({number}, 'x')")
            wait_until_landed(pipeline)
    catch_up(pipeline)
    calls, real = list[object](), change_reader.pieces

    def vanish(paths: Any, max_bytes: int, table: str) -> Any:
        calls.append(paths)
        if len(calls) == 4:  # VACUUM has just taken the fourth commit's
            raise LogGone(table, -1)
        return real(paths, max_bytes, table)

    monkeypatch.setattr(change_reader, "pieces", vanish)
    with delivering(pipeline, monkeypatch, out=receiver):
        receiver.wait_for(8)
    assert len(calls) > 4
    assert [key for _, key in receiver.ops()] == [str(n) for n in range(1, 9)]


@pytest.mark.long
def test_a_sink_behind_what_the_log_keeps_reads_by_position(pipeline, dsn, monkeypatch, spark):
    pipeline, receiver = with_sinks(pipeline, out={"stdout": {}, "tables": ["t"]}), Receiver()
    setup(pipeline)
    table = f"delta.`{pipeline.lake.change_log}`"
    spark.sql(f"alter table {table} set tblproperties ('delta.checkpointInterval' = '5')")
    with delivering(pipeline, monkeypatch, out=receiver):
        receiver.wait_for(2)
    with streaming(pipeline):
        for number in range(3, 16):
            psql(dsn, f"insert into t values ({number}, 'x')")
            wait_until_landed(pipeline)
    later = time.time() + 365 * 86_400
    assert clean_log(pipeline.lake.change_log, now=later, days=0) > 0
    with delivering(pipeline, monkeypatch, out=receiver):
        receiver.wait_for(15)
    assert [key for _, key in receiver.ops()] == [str(n) for n in range(1, 16)]


@pytest.mark.long
@pytest.mark.parametrize("has_earlier_gap", [False, True])
def test_a_table_with_a_gap_after_its_copy_waits_for_the_next(
    pipeline, dsn, monkeypatch, has_earlier_gap
):
    pipeline, receiver = with_sinks(pipeline, out={"stdout": {}}), Receiver()
    setup(pipeline)
    with delivering(pipeline, monkeypatch, out=receiver):
        receiver.wait_for(3)
    if has_earlier_gap:
        land_gap(pipeline, "t")
    snapshot(pipeline, ["t"])
    land_gap(pipeline, "t")
    psql(dsn, "insert into other values (8)")
    catch_up(pipeline)
    with delivering(pipeline, monkeypatch, out=receiver):
        receiver.wait_for(4)
        until(lambda: has_taken_in(pipeline, "t"))
        psql(dsn, "update t set note = 'ONE' where id = 1", "insert into other values (9)")
        catch_up(pipeline)
        receiver.wait_for(5)
        assert receiver.ops()[3:] == [("insert", "8"), ("insert", "9")]
        snapshot(pipeline, ["t"])
        catch_up(pipeline)
        receiver.wait_for(6)
    assert receiver.ops()[5:] == [("update", "1")]


def has_taken_in(pipeline: Pipeline, table: str) -> bool:
    """Whether the sink has taken in the newest copy of a table."""
    with sinks_run.opened(pipeline) as session:
        cursor = state.progress(session.log, "out").cursor
        copied = session.opened.copied_relations().items()
    [(oid, point)] = [(oid, at) for oid, (at, versions) in copied if versions[-1].name == table]
    return cursor is not None and cursor.copies.get(oid) == point


def rows_of(receiver: Receiver) -> dict[str | None, str | None]:
    """The rows of `t` that a receiver has at the end, by key; a marker empties them."""
    rows: dict[str | None, str | None] = {}
    for row in receiver.received:
        if row["op"] == "copy":
            rows.clear()
        elif row["op"] == "delete":
            del rows[row["key"][0]]
        else:
            rows[row["key"][0]] = row["after"]["note"]
    return rows


@pytest.mark.long
def test_a_table_that_a_sink_did_without_begins_again(pipeline, dsn, monkeypatch):
    receiver = Receiver()
    both = with_sinks(pipeline, out={"stdout": {}, "tables": ["t", "other"]})
    fewer = with_sinks(pipeline, out={"stdout": {}, "tables": ["other"]})
    setup(both)
    with delivering(both, monkeypatch, out=receiver):
        receiver.wait_for(3)
    psql(dsn, "insert into other values (8)")
    catch_up(pipeline)
    with delivering(fewer, monkeypatch, out=receiver):
        receiver.wait_for(4)
    psql(dsn, "update t set note = 'two too' where id = 2")  # it missed nothing
    catch_up(pipeline)
    with delivering(both, monkeypatch, out=receiver):
        receiver.wait_for(5)
    psql(dsn, "update t set note = 'ONE' where id = 1", "insert into other values (9)")
    catch_up(pipeline)
    with delivering(fewer, monkeypatch, out=receiver):
        receiver.wait_for(6)
    assert receiver.ops()[3:] == [("insert", "8"), ("update", "2"), ("insert", "9")]
    with delivering(both, monkeypatch, out=receiver):
        receiver.wait_for(11)
        psql(dsn, "insert into t values (3, 'three')")
        catch_up(pipeline)
        receiver.wait_for(12)
    again = [("copy", None), ("read", "1"), ("read", "2"), ("update", "2"), ("update", "1")]
    assert receiver.ops()[6:] == [*again, ("insert", "3")]


@pytest.mark.long
@pytest.mark.parametrize("runs_on", [False, True])
def test_a_table_that_had_a_name_of_no_sink_begins_again(pipeline, dsn, monkeypatch, runs_on):
    pipeline, receiver = with_sinks(pipeline, out={"stdout": {}, "tables": ["t"]}), Receiver()
    setup(pipeline)
    with delivering(pipeline, monkeypatch, out=receiver):
        receiver.wait_for(2)

    def rename() -> None:
        psql(dsn, "update t set note = 'ONE' where id = 1", "alter table t rename to hidden")
        psql(dsn, "update hidden set note = 'TWO' where id = 2")
        catch_up(pipeline)
        psql(dsn, "insert into hidden values (3, 'three')")
        catch_up(pipeline)
        psql(dsn, "alter table hidden rename to t", "insert into t values (4, 'four')")
        catch_up(pipeline)

    if not runs_on:
        rename()
    with delivering(pipeline, monkeypatch, out=receiver):
        if runs_on:
            rename()
        until(lambda: receiver.ops()[-1:] == [("insert", "4")])
    assert rows_of(receiver) == dict(psql(dsn, "select id::text, note from t"))
    assert [op for op, _ in receiver.ops()].count("copy") == 1


def test_a_sink_begins_at_a_position_within_a_landing(pipeline, dsn, monkeypatch):
    pipeline, receiver = with_sinks(pipeline, out={"stdout": {}, "tables": ["t"]}), Receiver()
    setup(pipeline)
    psql(dsn, "insert into t values (3, 'three')")
    position = flushed(dsn)
    psql(dsn, "insert into t values (4, 'four')")
    catch_up(pipeline)
    control.reset(pipeline, "out", str(position))
    with delivering(pipeline, monkeypatch, out=receiver):
        receiver.wait_for(1)
        psql(dsn, "insert into t values (5, 'five')")
        catch_up(pipeline)
        receiver.wait_for(2)
    assert receiver.ops() == [("insert", "4"), ("insert", "5")]


@pytest.mark.long
def test_a_refused_difference_is_redriven_before_anything_lands(pipeline, dsn, monkeypatch):
    pipeline, receiver = with_sinks(pipeline, out={"stdout": {}, "tables": ["t"]}), Receiver()
    receiver.verdicts["2", "TWO"] = [Refused("no")]
    setup(pipeline)
    with delivering(pipeline, monkeypatch, out=receiver):
        receiver.wait_for(2)
    psql(
        dsn,
        "alter table t set unlogged",
        "update t set note = 'TWO' where id = 2",
        "alter table t set logged",
    )
    catch_up(pipeline)
    snapshot(pipeline, ["t"])
    catch_up(pipeline)
    with delivering(pipeline, monkeypatch, out=receiver):
        until(lambda: letters(pipeline))
        control.redrive(pipeline, "out")
    assert letters(pipeline) == []
    assert receiver.ops()[2:] == [("update", "2")]


@pytest.mark.long
def test_a_target_of_another_log_receives_nothing_until_a_reset(
    pipeline, dsn, tmp_path, monkeypatch
):
    pipeline, receiver = with_sinks(pipeline, out={"stdout": {}, "tables": ["t"]}), Transactional()
    setup(pipeline)
    with delivering(pipeline, monkeypatch, out=receiver):
        receiver.wait_for(2)
    psql(dsn, f"select pg_drop_replication_slot('{pipeline.config.source.slot}')")
    psql(dsn, "update t set note = 'ONE' where id = 1")
    again = replace(pipeline, lake=Lake(str(tmp_path / "again")), state=tmp_path / "state again")
    setup(again)
    psql(dsn, "insert into t values (3, 'three')")
    catch_up(again)
    with delivering(again, monkeypatch, out=receiver):
        until(lambda: "sink reset out --from start" in str(error(again)))
        with pytest.raises(OtherLog):
            control.redrive(again, "out")
    [status] = control.sink_status(again)
    assert (status.state, receiver.received[2:]) == ("failed", [])
    control.reset(again, "out", "start")
    with delivering(again, monkeypatch, out=receiver):
        receiver.wait_for(6)
    assert [op for op, _ in receiver.ops()[2:]] == ["copy", "read", "read", "insert"]
    assert rows_of(receiver) == dict(psql(dsn, "select id::text, note from t"))
    # A process that goes back to the former lake is told, too.
    with delivering(pipeline, monkeypatch, out=receiver):
        until(lambda: again.lake.root not in str(error(pipeline)) and error(pipeline))
    assert len(receiver.received) == 6


@pytest.mark.long
def test_a_target_that_names_no_log_is_of_this_one(pipeline, dsn, monkeypatch):
    pipeline, receiver = with_sinks(pipeline, out={"stdout": {}, "tables": ["t"]}), Transactional()
    setup(pipeline)
    with delivering(pipeline, monkeypatch, out=receiver):
        receiver.wait_for(2)
    kept = json.loads(receiver.cursor or "")
    receiver.cursor = json.dumps({name: kept[name] for name in kept.keys() - {"log"}})
    psql(dsn, "insert into t values (3, 'three')")
    catch_up(pipeline)
    with delivering(pipeline, monkeypatch, out=receiver):
        receiver.wait_for(3)
    assert receiver.ops()[2:] == [("insert", "3")]
    assert json.loads(receiver.cursor)["log"] == kept["log"] != ""
