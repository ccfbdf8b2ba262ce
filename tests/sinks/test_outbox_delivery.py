"""Events of the outbox, from the table to a sink: each once, in commit order, whatever happens."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import psycopg
import pytest

from pgstream_dagster import reconcile, resnapshot, setup
from pgstream_dagster.errors import NoSuchEvent
from pgstream_dagster.lsn import Lsn
from pgstream_dagster.pipeline import Pipeline
from pgstream_dagster.sinks import control
from pgstream_dagster.sinks import run as sinks_run
from pgstream_dagster.sinks.base import Refused
from pgstream_dagster.upkeep.maintain_outbox import maintain_outbox
from tests.support.harness.background import in_thread
from tests.support.harness.outbox_receiver import Events, outbox_pipeline
from tests.support.harness.outbox_writers import write, write_in
from tests.support.harness.runner import catch_up, streaming
from tests.support.harness.sink_receiver import delivering, letters, with_sinks
from tests.support.plugins.cluster import psql
from tests.support.plugins.wait import until

pytestmark = [pytest.mark.slow, pytest.mark.one_major("newest")]


@pytest.fixture
def pipeline(dsn: str, tmp_path: Path, spark: object) -> Pipeline:
    return outbox_pipeline(dsn, tmp_path)


@contextmanager
def running_sinks(pipeline: Pipeline) -> Iterator[None]:
    """The sinks of the pipeline run in a thread."""
    with in_thread(lambda stop: sinks_run.run(pipeline, stop=stop)):
        yield


def copied_at(pipeline: Pipeline, dsn: str) -> Lsn:
    """Where the newest copy of the table of events is."""
    [(oid,)] = psql(dsn, "select 'pgstream.events'::regclass::oid")
    with pipeline.open() as opened:
        return opened.ledger.copies(opened.epoch)[oid].consistent_point


def test_events_of_the_stream_are_delivered_in_commit_order(pipeline, dsn, monkeypatch):
    write(dsn, 1, 2)
    receiver = Events()
    setup(pipeline)
    with delivering(pipeline, monkeypatch, out=receiver), streaming(pipeline):
        receiver.wait_for_numbers(1, 2)
        write(dsn, 99, stream=2)
        write(dsn, 3, 4)
        with psycopg.connect(dsn) as slow:
            write_in(slow, 6)
            write(dsn, 5)
        receiver.wait_for_numbers(1, 2, 3, 4, 5, 6)
        with psycopg.connect(dsn) as undone:
            undone.execute("insert into pgstream.events (stream_id, payload) values (1, '{}')")
            undone.rollback()
        write(dsn, 7)
        receiver.wait_for_numbers(1, 2, 3, 4, 5, 6, 7)
        [(end,)] = psql(dsn, "select pg_current_wal_lsn()::text")
        until(lambda: control.delivered_events(pipeline)["out"].before >= Lsn.parse(end), every=0.3)


@pytest.mark.long
def test_days_come_and_go_without_a_copy_or_a_second_delivery(pipeline, dsn, monkeypatch):
    receiver = Events()
    setup(pipeline)
    with delivering(pipeline, monkeypatch, out=receiver), streaming(pipeline):
        write(dsn, 1)
        receiver.wait_for_numbers(1)
        copied = copied_at(pipeline, dsn)
        psql(
            dsn,
            "begin; create table pgstream.day (like pgstream.events including defaults);"
            " with moved as (delete from pgstream.events_default returning *)"
            " insert into pgstream.day select * from moved;"
            " alter table pgstream.events attach partition pgstream.day"
            " for values from ('2020-01-01') to ('2099-01-01'); commit",
        )
        write(dsn, 2)
        receiver.wait_for_numbers(1, 2)
        psql(
            dsn,
            "begin; alter table pgstream.events detach partition pgstream.day;"
            " insert into pgstream.events_default select * from pgstream.day; commit",
        )
        write(dsn, 3)
        receiver.wait_for_numbers(1, 2, 3)
        psql(dsn, "drop table pgstream.day")
        write(dsn, 4)
        receiver.wait_for_numbers(1, 2, 3, 4)
        result = reconcile(pipeline, ["pgstream.events"])
    assert result.identical, result
    assert copied_at(pipeline, dsn) == copied


@pytest.mark.long
def test_events_dropped_after_delivery_are_no_difference(pipeline, dsn, monkeypatch):
    psql(
        dsn,
        "create table pgstream.old partition of pgstream.events"
        " for values from ('2020-01-01') to ('2020-01-02')",
        "insert into pgstream.events (stream_id, payload, created_at)"
        " values (1, '{\"n\": 1}', '2020-01-01 12:00:00+00')",
    )
    receiver = Events()
    setup(pipeline)
    with delivering(pipeline, monkeypatch, out=receiver), streaming(pipeline):
        receiver.wait_for_numbers(1)
        psql(dsn, "alter table pgstream.events detach partition pgstream.old")
        psql(dsn, "drop table pgstream.old")
        write(dsn, 2)
        receiver.wait_for_numbers(1, 2)
        [table] = reconcile(pipeline, ["pgstream.events"]).tables
    assert table.identical, table


@pytest.mark.long
def test_events_that_a_lost_slot_did_not_bring_come_from_the_table(pipeline, dsn, monkeypatch):
    """P64, B66, B67: also one whose transaction began before others were delivered."""
    receiver = Events()
    setup(pipeline)
    with delivering(pipeline, monkeypatch, out=receiver):
        with streaming(pipeline), psycopg.connect(dsn) as slow:
            write(dsn, 1)
            write_in(slow, 2)
            write(dsn, 3)
            receiver.wait_for_numbers(1, 3)
        psql(dsn, f"select pg_drop_replication_slot('{pipeline.config.source.slot}')")
        write(dsn, 4)
        resnapshot(pipeline)
        with streaming(pipeline):
            write(dsn, 5)
            until(lambda: len(receiver.numbers) >= 5, progress=lambda: receiver.numbers)
    assert sorted(receiver.numbers) == [1, 2, 3, 4, 5]
    assert receiver.numbers[-1] == 5


@pytest.mark.long
def test_poison_event_is_a_dead_letter_and_holds_back_its_group_only(pipeline, dsn, monkeypatch):
    """B61."""
    receiver = Events()
    receiver.planned[1] = [Refused("never")]
    setup(pipeline)
    with delivering(pipeline, monkeypatch, out=receiver):
        write(dsn, 1, group_id="a")
        write(dsn, 2, group_id="b")
        write(dsn, 3, group_id="a")
        write(dsn, 4)
        catch_up(pipeline)
        receiver.wait_for_numbers(2, 4)
    assert [(state, reason) for _, state, reason in letters(pipeline)] == [
        ("refused", "never"),
        ("held", "it waits behind an earlier change of its key"),
    ]


@pytest.mark.long
def test_dead_letter_is_kept_when_the_table_is_copied_again(pipeline, dsn, monkeypatch):
    receiver = Events()
    receiver.planned[1] = [Refused("never")]
    setup(pipeline)
    with delivering(pipeline, monkeypatch, out=receiver):
        write(dsn, 1)
        write(dsn, 2)
        catch_up(pipeline)
        receiver.wait_for_numbers(2)
        resnapshot(pipeline)
        write(dsn, 3)
        catch_up(pipeline)
        until(lambda: 3 in receiver.numbers)
        control.redrive(pipeline, "out")
        until(lambda: 1 in receiver.numbers)
    assert sorted(receiver.numbers) == [1, 2, 3]


@pytest.mark.long
def test_rows_of_the_stream_reach_a_postgres(pipeline, dsn, replica):
    """The target has the table of events as one table; days that go here stay there."""
    settings = {"postgres": {"dsn_variable": "REPLICA"}, "outbox": {"stream": 1}}
    pipeline = replace(with_sinks(pipeline, out=settings), environment={"REPLICA": replica})
    write(dsn, 1)
    write(dsn, 99, stream=2)
    setup(pipeline)
    read = "select array_agg((payload ->> 'n')::int order by created_at) from pgstream.events"
    with running_sinks(pipeline), streaming(pipeline):
        until(
            lambda: psql(replica, "select to_regclass('pgstream.events') is not null") == [(True,)]
        )
        write(dsn, 2)
        write(dsn, 98, stream=2)
        write(dsn, 3)
        until(lambda: psql(replica, read) == [([1, 2, 3],)], every=0.3)


@pytest.mark.long
def test_events_are_delivered_again_from_an_id(pipeline, dsn, monkeypatch):
    receiver = Events()
    setup(pipeline)
    write(dsn, 1)
    write(dsn, 2)
    write(dsn, 3)
    catch_up(pipeline)
    [(second,)] = psql(dsn, "select id::text from pgstream.events where payload = '{\"n\": 2}'")
    with delivering(pipeline, monkeypatch, out=receiver):
        receiver.wait_for_numbers(1, 2, 3)
        control.replay(pipeline, "out", second)
    assert receiver.numbers == [1, 2, 3, 2, 3]
    unknown = "00000000-0000-7000-8000-000000000000"
    with pytest.raises(NoSuchEvent, match=unknown):
        control.replay(pipeline, "out", unknown)


@pytest.mark.long
def test_maintenance_notes_how_far_the_sinks_are_and_keeps_what_they_lack(
    pipeline, dsn, monkeypatch
):
    """B62."""
    old = "(now() at time zone 'UTC')::date - 20"
    [(name, begin, end)] = psql(
        dsn, f"select to_char({old}, '\"events_\"YYYYMMDD'), ({old})::text, ({old} + 1)::text"
    )
    psql(
        dsn,
        f"create table pgstream.{name} partition of pgstream.events"
        f" for values from ('{begin} 00:00+00') to ('{end} 00:00+00')",
        "insert into pgstream.events (stream_id, payload, created_at)"
        f" values (1, '{{\"n\": 1}}', '{begin} 12:00+00')",
    )
    assert maintain_outbox(pipeline).dropped == ()
    assert psql(dsn, "select sink, delivered_lsn::text from pgstream.outbox_sinks") == [
        ("out", "0/0")
    ]
    setup(pipeline)
    receiver = Events()
    with delivering(pipeline, monkeypatch, out=receiver), streaming(pipeline):
        receiver.wait_for_numbers(1)
        until(lambda: maintain_outbox(pipeline).dropped != (), every=1.0)
        write(dsn, 2)
        receiver.wait_for_numbers(1, 2)
    assert psql(dsn, f"select to_regclass('pgstream.{name}') is null") == [(True,)]
    maintain_outbox(with_sinks(pipeline))
    assert psql(dsn, "select * from pgstream.outbox_sinks") == []
