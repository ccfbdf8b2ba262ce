"""How far a subscription is while a batch is under way: what a stop, a pause and a crash leave."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
from psycopg.conninfo import conninfo_to_dict

from pgstream_dagster import Pipeline
from pgstream_dagster.sinks import control, follow
from pgstream_dagster.sinks import run as sinks_run
from pgstream_dagster.sinks.webhook import delivery
from tests.support.harness import sinks_run as process
from tests.support.harness.runner import catch_up
from tests.support.harness.webhook_sinks import (
    FILE,
    by_name,
    delivering,
    pipeline_of_t,
    webhook,
    with_sinks,
)
from tests.support.plugins.cluster import psql
from tests.support.plugins.wait import until
from tests.support.webhooks import SECRET, Call, Receiver, Reply

pytestmark = [pytest.mark.slow, pytest.mark.one_major("newest")]


@pytest.fixture
def pipeline(dsn: str, tmp_path: Path, spark: object) -> Pipeline:
    return pipeline_of_t(dsn, tmp_path, "insert into t select generate_series(1, 9)")


@pytest.mark.long
@pytest.mark.parametrize("calls", [3, 7])
def test_a_stop_and_a_start_repeat_no_call(pipeline, dsn, calls):
    """In the rows of a copy, in a transaction and between two."""
    stop, count = threading.Event(), 9 + 1 + 5 + 1

    def stopping(call: Call) -> Reply:
        made = len(receiver.calls) + 1
        if made % calls == 0 or made >= count:
            stop.set()
        return Reply()

    with Receiver(stopping) as receiver:
        sink = webhook({"erp": receiver.url}) | {"start": "copy"}
        pipeline = with_sinks(pipeline, hooks=sink)
        psql(dsn, "insert into t values (10)", "delete from t where id <= 5", "truncate t")
        catch_up(pipeline)
        while len(receiver.calls) < count:
            stop.clear()
            sinks_run.run(pipeline, stop=stop, environment={"SECRET": SECRET})
    received = [(call.json["op"], (call.json["key"] or {}).get("id")) for call in receiver.calls]
    assert received == [
        *(("read", n) for n in range(1, 10)),
        ("insert", 10),
        *(("delete", n) for n in range(1, 6)),
        ("truncate", None),
    ]
    assert len(set(receiver.ids)) == count
    assert by_name(pipeline)["hooks.erp"].changes == count


@pytest.mark.long
def test_a_pause_and_the_status_see_a_batch_that_is_under_way(pipeline, dsn, monkeypatch):
    monkeypatch.setattr(delivery, "PART_SECONDS", 0.0)
    monkeypatch.setattr(follow, "SAVE_SECONDS", 0.0)
    monkeypatch.setattr(follow, "REQUEST_SECONDS", 0.0)
    gate = threading.Event()

    def held(call: Call) -> Reply:
        return Reply(after=gate if len(receiver.calls) == 9 else None)

    with Receiver(held) as receiver:
        pipeline = with_sinks(pipeline, hooks=webhook({"erp": receiver.url}))
        with delivering(pipeline, SECRET=SECRET):
            until(lambda: "hooks.erp" in by_name(pipeline), every=0.3)
            psql(dsn, "insert into t select generate_series(101, 120)")
            catch_up(pipeline)
            until(lambda: by_name(pipeline)["hooks.erp"].changes == 9, every=0.3)
            control.pause(pipeline, "hooks")
            gate.set()
            until(lambda: by_name(pipeline)["hooks.erp"].changes == 10, every=0.3)
            assert by_name(pipeline)["hooks.erp"].state == "paused"
            assert len(receiver.calls) == 10
            control.resume(pipeline, "hooks")
            until(lambda: len(receiver.calls) == 20)
        assert [call.json["key"]["id"] for call in receiver.calls] == list(range(101, 121))


@pytest.mark.long
def test_a_process_that_is_killed_in_a_call_makes_it_again(pipeline, dsn, tmp_path):
    gate = threading.Event()

    def held(call: Call) -> Reply:
        return Reply(after=gate if len(receiver.calls) == 30 else None)

    environment = {
        "PGSTREAM_DSN": dsn,
        "PGSTREAM_LAKE": str(tmp_path / "lake"),
        "PGSTREAM_STATE": str(tmp_path / "state"),
        "SECRET": SECRET,
    }
    psql(dsn, "delete from t", "insert into t select generate_series(1, 100)")
    catch_up(pipeline)
    with Receiver(held) as receiver:
        name = f"p_{conninfo_to_dict(dsn)['dbname']}"
        (tmp_path / "pgstream.yaml").write_text(FILE.format(name=name, url=receiver.url))
        with process.delivering(tmp_path, environment) as killed:
            until(lambda: receiver.most_at_once and len(receiver.calls) == 30)
            until(lambda: receiver.at_once)
            killed.kill()
            killed.wait()
        gate.set()
        until(lambda: len(receiver.calls) == 31)
        with process.delivering(tmp_path, environment):
            until(lambda: len(set(receiver.ids)) == 9 + 9 + 100, progress=lambda: receiver.ids)
    assert receiver.ids.count(receiver.ids[30]) == 2
    # In the order of the log, and again from where the progress was stored.
    first = list(dict.fromkeys(receiver.ids))
    assert receiver.ids[:31] == first[:31]
    again = receiver.ids[31:]
    assert again == first[first.index(again[0]) :]
