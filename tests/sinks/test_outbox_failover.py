"""
Targets of events that are away, come back and are away again: the cases P52 to P58, B59 to B65.

What postgres-stream calls a checkpoint is the position of the sink in the change log.
"""

from __future__ import annotations

from pathlib import Path

import psycopg
import pytest

from pgstream_dagster import resnapshot, setup
from pgstream_dagster.lsn import Lsn
from pgstream_dagster.pipeline import Pipeline
from pgstream_dagster.sinks.base import NotNow
from tests.support.harness.outbox_receiver import SINK, Events, outbox_pipeline
from tests.support.harness.outbox_writers import write, write_in
from tests.support.harness.runner import streaming
from tests.support.harness.sink_receiver import delivering, status_of
from tests.support.plugins.cluster import psql
from tests.support.plugins.wait import until

pytestmark = [pytest.mark.slow, pytest.mark.one_major("newest")]

OTHER = {"stdout": {}, "outbox": {"stream": 2}}


@pytest.fixture
def pipeline(dsn: str, tmp_path: Path, spark: object) -> Pipeline:
    made = outbox_pipeline(dsn, tmp_path, out=SINK, other=OTHER)
    setup(made)
    return made


def wait_until_confirmed(pipeline: Pipeline, dsn: str) -> None:
    """Until the slot is past everything that is committed now: no sink holds back WAL."""
    [(end,)] = psql(dsn, "select pg_current_wal_lsn()::text")
    name = pipeline.config.source.slot
    query = f"select confirmed_flush_lsn >= '{end}' from pg_replication_slots"
    until(lambda: psql(dsn, f"{query} where slot_name = '{name}'") == [(True,)], every=0.2)


def position(pipeline: Pipeline) -> Lsn | None:
    return status_of(pipeline, "out").position


@pytest.mark.long
def test_sink_that_is_away_again_and_again_gets_the_rest_in_commit_order(
    pipeline, dsn, monkeypatch
) -> None:
    """P52 to P55, P57, P58, B59, B60, P69."""
    out, other = Events(), Events()
    out.takes = 1
    with (
        delivering(pipeline, monkeypatch, out=out, other=other),
        streaming(pipeline),
        psycopg.connect(dsn) as slow,
    ):
        write(dsn, 1)
        out.wait_for_numbers(1)
        write_in(slow, 4)  # before the event that fails, and committed after it
        write(dsn, 2)
        out.wait_for_attempts(2)
        wait_until_confirmed(pipeline, dsn)
        until(lambda: "away" in (status_of(pipeline, "out").error or ""), every=0.2)
        before = position(pipeline)
        write(dsn, 3)
        slow.commit()
        write(dsn, *range(5, 50))
        write(dsn, 100, stream=2)
        other.wait_for_numbers(100)
        out.wait_for_attempts(2)
        assert position(pipeline) == before
        assert "away" in (status_of(pipeline, "out").error or "")

        out.takes = 20  # and away again in the middle of what it has missed
        out.wait_for_numbers(*range(1, 21))
        out.wait_for_attempts(2)
        out.takes = None  # no event comes any more
        out.wait_for_numbers(*range(1, 50))
        until(lambda: status_of(pipeline, "out").error is None)
        assert out.commits == sorted(out.commits)


@pytest.mark.long
def test_one_event_of_a_thousand_is_tried_again_alone(pipeline, dsn, monkeypatch) -> None:
    """B63."""
    out = Events()
    out.planned[500] = [NotNow("try again")]
    with delivering(pipeline, monkeypatch, out=out, other=Events()), streaming(pipeline):
        write(dsn, *range(1000))
        until(lambda: len(out.numbers) >= 1000, progress=lambda: len(out.numbers))
    assert sorted(out.numbers) == list(range(1000))


@pytest.mark.long
def test_slot_that_is_lost_while_a_sink_is_away_loses_nothing(pipeline, dsn, monkeypatch) -> None:
    """P64, P65."""
    out = Events()
    out.takes = 1
    with delivering(pipeline, monkeypatch, out=out, other=Events()):
        with streaming(pipeline):
            write(dsn, 1)
            write(dsn, 2)
            out.wait_for_numbers(1)
            out.wait_for_attempts(1)
        write(dsn, 3)
        psql(dsn, f"select pg_drop_replication_slot('{pipeline.config.source.slot}')")
        write(dsn, 4)
        resnapshot(pipeline)
        with streaming(pipeline):
            write(dsn, 5)
            out.wait_for_attempts(1)
            out.takes = None
            until(lambda: len(out.numbers) >= 5, progress=lambda: out.numbers)
    assert sorted(out.numbers) == [1, 2, 3, 4, 5]


@pytest.mark.long
def test_events_of_one_transaction_have_the_position_of_its_commit(
    pipeline, dsn, monkeypatch
) -> None:
    """P68."""
    extension = '[{"json_path": "n", "expression": "new.n"}]'
    subscriptions = (
        "insert into pgstream.subscriptions"
        " (key, stream_id, operation, schema_name, table_name, payload_extensions)"
        f" select op, 1, op::pgstream.operation_type, 'public', 't', '{extension}'"
        " from unnest('{INSERT, UPDATE}'::text[]) as op"
    )
    psql(dsn, "create table t (id int primary key, n int)", subscriptions)
    out = Events()
    with delivering(pipeline, monkeypatch, out=out, other=Events()), streaming(pipeline):
        psql(dsn, "begin; insert into t values (1, 1); update t set n = 2; commit")
        out.wait_for_numbers(1, 2)
        write(dsn, 3)
        out.wait_for_numbers(1, 2, 3)
    assert out.commits[0] == out.commits[1] < out.commits[2]
