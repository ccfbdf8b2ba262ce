"""What people ask of sinks: what is delivered then, and what is refused by name."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pgstream_dagster import setup, snapshot
from pgstream_dagster.errors import InvalidPattern, SinkPaused, TooManyRefused
from pgstream_dagster.pipeline import Pipeline
from pgstream_dagster.readers.change import ChangeBatch
from pgstream_dagster.sinks import control, follow, state
from pgstream_dagster.sinks import delivery as delivery_module
from pgstream_dagster.sinks import run as sinks_run
from pgstream_dagster.sinks.base import Refused, Verdicts
from pgstream_dagster.sinks.delivery import HELD, OTHER_RULES
from pgstream_dagster.sinks.state import Request
from tests.support.harness.runner import catch_up, flushed, new_pipeline, streaming
from tests.support.harness.sink_receiver import (
    TABLES,
    Receiver,
    delivering,
    error,
    letters,
    masking,
    with_sinks,
)
from tests.support.plugins.cluster import psql
from tests.support.plugins.wait import until

pytestmark = [pytest.mark.slow, pytest.mark.one_major("newest")]

OUT: dict[str, Any] = {"stdout": {}, "tables": ["t"]}


@pytest.fixture
def pipeline(dsn: str, tmp_path: Path, spark: object) -> Pipeline:
    psql(dsn, *TABLES)
    pipeline = new_pipeline(dsn, tmp_path)
    setup(pipeline)
    return with_sinks(pipeline, out=OUT)


def request(pipeline: Pipeline) -> Request:
    with sinks_run.opened(pipeline) as session:
        return state.request(session.log, "out")


def notes(receiver: Receiver, key: str) -> list[str | None]:
    return [row["after"]["note"] for row in receiver.received if row["key"] == (key,)]


@pytest.mark.long
@pytest.mark.parametrize("start", ["start", "position"])
def test_a_replay_has_what_was_delivered_of_a_table_that_was_copied_since(
    pipeline, dsn, monkeypatch, start
) -> None:
    receiver = Receiver()
    with delivering(pipeline, monkeypatch, out=receiver):
        receiver.wait_for(2)
        begin = "start" if start == "start" else str(flushed(dsn))
        psql(dsn, "insert into t values (11, 'before the copy')")
        catch_up(pipeline)
        receiver.wait_for(3)
        snapshot(pipeline, ["t"])
        psql(dsn, "insert into t values (12, 'after it')")
        catch_up(pipeline)
        receiver.wait_for(4)
        control.replay(pipeline, "out", begin)
    again = receiver.ops()[4:]
    if start == "start":  # as a sink that begins now: with the rows of the newest copy
        assert again == [("read", "1"), ("read", "2"), ("read", "11"), ("insert", "12")]
    else:
        assert again == [("insert", "11"), ("insert", "12")]


@pytest.mark.long
def test_no_older_state_comes_last_when_a_sink_delivers_before_it_serves_a_replay(
    pipeline, dsn, monkeypatch
) -> None:
    receiver = Receiver()
    with delivering(pipeline, monkeypatch, out=receiver), streaming(pipeline):
        receiver.wait_for(2)
        monkeypatch.setattr(follow, "REQUEST_SECONDS", 3600.0)
        asking = threading.Thread(target=control.replay, args=(pipeline, "out", "start"))
        asking.start()
        until(lambda: request(pipeline).replay is not None)
        psql(dsn, "update t set note = 'newest' where id = 1")
        receiver.wait_for(3)
        monkeypatch.setattr(follow, "REQUEST_SECONDS", 0.1)
        asking.join()
    assert notes(receiver, "1") == ["one", "newest", "one", "newest"]


@pytest.mark.long
def test_a_replay_has_the_differences_that_a_copy_showed(pipeline, dsn, monkeypatch) -> None:
    receiver = Receiver()
    with delivering(pipeline, monkeypatch, out=receiver):
        receiver.wait_for(2)
        begin = str(flushed(dsn))
        delete = "delete from t where id = 1"
        psql(dsn, "alter table t set unlogged", delete, "alter table t set logged")
        catch_up(pipeline)
        snapshot(pipeline, ["t"])
        catch_up(pipeline)
        receiver.wait_for(3)
        until = str(flushed(dsn))
        psql(dsn, "insert into t values (12, 'later')")
        catch_up(pipeline)
        receiver.wait_for(4)
        control.replay(pipeline, "out", begin, until)
    assert receiver.ops()[2:] == [("delete", "1"), ("insert", "12"), ("delete", "1")]


@pytest.mark.long
def test_a_replay_brings_no_table_that_the_sink_does_not_receive(pipeline, monkeypatch) -> None:
    receiver = Receiver()
    with delivering(pipeline, monkeypatch, out=receiver):
        receiver.wait_for(2)
    control.replay(pipeline, "out", "start", tables=("*.*",))
    assert receiver.ops() == [("read", "1"), ("read", "2")] * 2
    control.replay(pipeline, "out", "start", tables=("other",))
    assert len(receiver.received) == 4
    with pytest.raises(InvalidPattern, match="'no pattern' is no table pattern"):
        control.replay(pipeline, "out", "start", tables=("no pattern",))
    last = request(pipeline).replay
    assert last is not None and last.tables == ("other",)


@pytest.mark.parametrize("runs", [False, True])
def test_a_paused_sink_is_asked_for_nothing(pipeline, monkeypatch, runs) -> None:
    receiver = Receiver()
    asked: list[Callable[[], object]] = [
        lambda: control.redrive(pipeline, "out"),
        lambda: control.replay(pipeline, "out", "start"),
    ]

    def refused() -> None:
        [status] = control.pause(pipeline, "out")
        assert status.state == "paused"
        for ask in asked:
            with pytest.raises(SinkPaused, match=r"is paused .*'pgstream sink resume out' first"):
                ask()

    with delivering(pipeline, monkeypatch, out=receiver):
        receiver.wait_for(2)
        if runs:
            refused()
    if not runs:
        refused()
    assert (request(pipeline).redrives, request(pipeline).replay) == (0, None)
    [status] = control.resume(pipeline, "out")
    assert not status.is_paused


class RefusesAll(Receiver):
    """Refuses everything but what it received before."""

    def __init__(self) -> None:
        super().__init__()
        self.refuses, self.openings = False, 0

    def open(self) -> None:
        self.openings += 1
        super().open()

    def deliver(self, batch: ChangeBatch) -> Verdicts:
        if self.refuses:
            return {index: Refused("no") for index, _ in enumerate(batch.changes)}
        return super().deliver(batch)


@pytest.mark.long
def test_a_sink_whose_target_refuses_everything_waits_for_a_person(
    pipeline, dsn, monkeypatch
) -> None:
    monkeypatch.setattr(delivery_module, "REFUSED_IN_A_ROW", 5)
    monkeypatch.setattr(follow, "REQUEST_SECONDS", 0.05)
    monkeypatch.setattr(follow, "AGAIN_SECONDS", 0.05)
    receiver, looks = RefusesAll(), list[object]()
    with delivering(pipeline, monkeypatch, out=receiver):
        receiver.wait_for(2)
        receiver.refuses = True
        psql(dsn, "insert into t select g from generate_series(3, 22) g")
        catch_up(pipeline)
        until(lambda: "refused 5 changes in a row" in str(error(pipeline)))
        real = follow.state.request
        monkeypatch.setattr(follow.state, "request", lambda *a: looks.append(a) or real(*a))
        until(lambda: len(looks) > 20)  # so many times it could have continued
        assert (len(letters(pipeline)), receiver.openings) == (5, 1)
        [status] = control.sink_status(pipeline)
        assert (status.state, status.refused) == ("failed", 5)
        receiver.refuses = False
        control.redrive(pipeline, "out")
        receiver.wait_for(22)
        until(lambda: error(pipeline) is None)
    assert sorted(int(key or 0) for _, key in receiver.ops()) == list(range(1, 23))
    assert letters(pipeline) == []


@pytest.mark.long
def test_a_replay_that_is_refused_as_a_whole_stops_once(pipeline, dsn, monkeypatch) -> None:
    monkeypatch.setattr(delivery_module, "REFUSED_IN_A_ROW", 2)
    monkeypatch.setattr(follow, "REQUEST_SECONDS", 0.05)
    receiver = RefusesAll()
    with delivering(pipeline, monkeypatch, out=receiver):
        receiver.wait_for(2)
    receiver.refuses = True
    with pytest.raises(TooManyRefused):
        control.replay(pipeline, "out", "start")
    with delivering(pipeline, monkeypatch, out=receiver):
        until(lambda: "refused 2 changes in a row" in str(error(pipeline)))
        assert len(letters(pipeline)) == 2


def masked(pipeline: Pipeline) -> Pipeline:
    return masking(pipeline, {"name": "literal_string", "literal": "***"})


@pytest.mark.long
@pytest.mark.parametrize("remedy", ["replay", pytest.param("reset", marks=pytest.mark.long)])
def test_a_letter_from_before_a_rule_leaves_masked_or_not_at_all(
    pipeline, dsn, monkeypatch, remedy
) -> None:
    receiver = Receiver()
    receiver.verdicts["1", "plain"] = [Refused("too long")]
    with delivering(pipeline, monkeypatch, out=receiver):
        receiver.wait_for(2)
        start = str(control.sink_status(pipeline)[0].position)
        psql(dsn, "update t set note = 'plain' where id = 1")
        catch_up(pipeline)
        until(lambda: letters(pipeline) == [("1", "refused", "too long")])
    pipeline = masked(pipeline)
    psql(dsn, "update t set note = 'later' where id = 1")
    catch_up(pipeline)
    with delivering(pipeline, monkeypatch, out=receiver):
        [status] = control.redrive(pipeline, "out")
        until(lambda: letters(pipeline) == [("1", "refused", OTHER_RULES), ("1", "held", HELD)])
    assert status.refused == 1
    assert notes(receiver, "1") == ["one"]
    if remedy == "replay":
        control.replay(pipeline, "out", start, tables=("t",))
        assert notes(receiver, "1") == ["one", "***", "***"]
        assert letters(pipeline) == []
    else:
        control.reset(pipeline, "out", "start")
        with delivering(pipeline, monkeypatch, out=receiver):
            until(lambda: len(notes(receiver, "1")) == 4)
            until(lambda: letters(pipeline) == [])
        assert notes(receiver, "1") == ["one", "***", "***", "***"]
