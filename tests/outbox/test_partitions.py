"""Daily partitions: made ahead, dropped when delivered, the default emptied: P45 to P49, B50."""

from __future__ import annotations

import threading
import time
from contextlib import closing
from datetime import UTC, date, datetime, timedelta

import psycopg
import pytest

from pgstream_dagster.config.outbox import OutboxConfig
from pgstream_dagster.lsn import Lsn
from pgstream_dagster.outbox.check import check
from pgstream_dagster.outbox.days import (
    Day,
    KeptDay,
    Partition,
    SinkPosition,
    day_of,
    expiry,
    missing,
)
from pgstream_dagster.outbox.maintain import Maintained, maintain
from pgstream_dagster.source.connect import connect
from pgstream_dagster.source.query import query

NOON = datetime(2024, 3, 15, 12, tzinfo=UTC)
TODAY = NOON.date()


def day(number: int, closed: int | None = 1, size: int = 10) -> Day:
    """A day of March 2024."""
    return Day(date(2024, 3, number), size, None if closed is None else Lsn(closed))


def dropped(days: list[Day], *sinks: SinkPosition, **more) -> list[int]:
    due = expiry(days, sinks, today=TODAY, keep_days=7, **{"total_bytes": 0} | more)
    return [dropped_day.day for dropped_day in due.drop]


def test_days_before_the_ones_to_keep_are_dropped() -> None:
    """P45, P48: exactly seven days old is kept."""
    assert dropped([day(1), day(15), day(16)]) == [1]
    assert dropped([day(8), day(7)]) == [7]


def test_today_and_the_days_ahead_are_made_once() -> None:
    """P46, P47."""
    assert [d.day for d in missing(TODAY, 6, [TODAY])] == [16, 17, 18, 19, 20, 21]
    assert missing(TODAY, 6, [TODAY + timedelta(days=n) for n in range(7)]) == []


def test_day_stays_until_every_sink_has_delivered_it() -> None:
    behind = SinkPosition("shop", "events", Lsn(4))
    beyond = SinkPosition("shop", "other", Lsn(9))
    assert dropped([day(1, 5)], beyond) == [1]
    assert dropped([day(1, 5)], SinkPosition("shop", "new", None)) == []
    assert dropped([day(1, None)]) == []
    due = expiry([day(1, 5)], [behind, beyond], today=TODAY, keep_days=7, total_bytes=0)
    assert due.kept == (
        KeptDay(date(2024, 3, 1), "sink 'events' of pipeline 'shop' has not delivered it"),
    )
    assert "stays" in due.alerts[0]


def test_undelivered_days_go_by_force_or_above_a_size_with_an_alert() -> None:
    behind = SinkPosition("shop", "events", Lsn(4))
    days = [day(1, 5), day(2, 5), day(3, 5), day(14, 5)]
    assert dropped(days, behind, force=True) == [1, 2, 3]
    assert dropped(days, behind, max_bytes=25, total_bytes=40) == [1, 2]
    due = expiry(days, [behind], today=TODAY, keep_days=7, total_bytes=40, max_bytes=25)
    assert [alert[:14] for alert in due.alerts] == [f"day 2024-03-0{n}" for n in (1, 2, 3)]
    assert "more than 25 bytes" in due.alerts[0]


@pytest.mark.parametrize(
    ("name", "bounds"),
    [
        ("events_20240315", "FOR VALUES FROM ('2024-03-15 00:00:00+00') TO (MAXVALUE)"),
        ("events_foo", "FOR VALUES FROM ('2024-03-15 00:00:00+00') TO ('2024-03-16 00:00:00+00')"),
        ("events_20249999", "DEFAULT"),
        ("events_2024315", "FOR VALUES FROM ('2024-03-15 00:00:00+00') TO ('2024-03-16 00:00:00')"),
    ],
)
def test_other_partition_is_no_day(name, bounds) -> None:
    assert day_of(Partition(name, bounds, 0)) is None


@pytest.fixture
def maintained(outbox):
    """Maintenance of the outbox; the partitions of before the test are gone."""
    for row in outbox.run(
        "select c.oid::regclass::text as name from pg_inherits join pg_class c on c.oid = inhrelid"
        " where inhparent = 'pgstream.events'::regclass and relname <> 'events_default'"
    ):
        outbox.run(f"drop table {row['name']}")
    outbox.run("delete from pgstream.event_days", "delete from pgstream.outbox_sinks")

    def run(**settings) -> Maintained:
        config = OutboxConfig.model_construct(
            **{name: settings.pop(name) for name in OutboxConfig.model_fields if name in settings}
        )
        with closing(connect(outbox.dsn)) as session:
            fixed = {"now": NOON, "lock_seconds": 1.0, "register": lambda: None}
            return maintain(session, config, **fixed | settings)

    return run


def parts(outbox) -> list[str]:
    rows = outbox.run(
        "select relname::text as name from pg_inherits join pg_class c on c.oid = inhrelid"
        " where inhparent = 'pgstream.events'::regclass order by 1"
    )
    return [row["name"].removeprefix("events_") for row in rows]


def event(outbox, at: str, number: int = 1) -> None:
    outbox.run(
        "insert into pgstream.events (stream_id, payload, created_at)"
        f" select 1, to_jsonb(n), '{at}' from generate_series(1, {number}) n"
    )


def test_maintenance_makes_days_and_does_nothing_the_second_time(outbox, maintained) -> None:
    """P46, P47, P49."""
    done = maintained(days_ahead=6)
    assert len(done.created) == 7
    assert parts(outbox) == [*(f"202403{n}" for n in range(15, 22)), "default"]
    assert maintained(days_ahead=6) == Maintained((), 0, (), (), (), ())
    event(outbox, "2024-03-15 23:59:59.999999+00")
    event(outbox, "2024-03-16 00:00:00+00")
    names = [e["part"] for e in outbox.events()]
    assert names == ["pgstream.events_20240315", "pgstream.events_20240316"]


def test_no_partition_fails_no_write_and_maintenance_heals_it(outbox, maintained) -> None:
    """D13, B50: rows of the default partition move to days of their own."""
    outbox.subscribe()
    outbox.run("insert into t (a) values (1)")
    for at in ("2024-03-08 10:00+00", "2024-03-14 10:00+00", "2024-03-15 11:00+00"):
        event(outbox, at, 100)
    with closing(connect(outbox.dsn)) as session:
        facts = {finding.check: str(finding) for finding in check(session, now=NOON)}
    assert "events of 4 days" in facts["default_rows"]
    assert "pgstream outbox maintain" in facts["partitions"]
    done = maintained()
    assert done.moved_rows == 300
    assert date(2024, 3, 8) in done.created
    assert outbox.value("select count(*) from only pgstream.events_default") == 1
    assert outbox.value("select count(*) from pgstream.events") == 301
    assert maintained(now=None).moved_rows == 1
    assert outbox.value("select count(*) from only pgstream.events_default") == 0
    assert (
        outbox.run(
            "select relpersistence from pg_class where relname ~ '^events_2'"
            " and relpersistence <> 'p'"
        )
        == []
    )
    outbox.events()


def test_rows_that_move_are_not_sent_again(outbox, maintained) -> None:
    """Logical replication has sent an event once, when it was written."""
    outbox.run(
        "create publication events for table pgstream.events"
        " with (publish = 'insert', publish_via_partition_root)"
    )
    slot = f"moved_{outbox.value('select current_database()')}"
    outbox.run(f"select pg_create_logical_replication_slot('{slot}', 'pgoutput')")
    try:
        event(outbox, "2024-03-15 10:00+00", 3)
        assert maintained().moved_rows == 3
        messages = outbox.run(
            f"select data from pg_logical_slot_get_binary_changes('{slot}', null, null,"
            " 'proto_version', '1', 'publication_names', 'events')"
        )
    finally:
        outbox.run(f"select pg_drop_replication_slot('{slot}')", "drop publication events")
    assert [bytes(row["data"])[:1] for row in messages].count(b"I") == 3


def test_days_are_dropped_once_closed_and_delivered(outbox, maintained) -> None:
    """B62: undelivered events are not dropped, and an alert says so."""
    maintained(now=datetime(2024, 3, 1, 12, tzinfo=UTC), days_ahead=1)
    outbox.run("insert into pgstream.outbox_sinks (pipeline, sink, stream_id) values ('p', 's', 1)")
    done = maintained()
    assert done.dropped == ()
    assert [kept.day.day for kept in done.kept] == [1, 2]
    assert len(done.alerts) == 2
    with closing(connect(outbox.dsn)) as session:
        facts = [str(f) for f in check(session, now=NOON) if f.check == "undelivered_day"]
    assert len(facts) == 2
    assert "--force" in facts[0]
    outbox.run("update pgstream.outbox_sinks set delivered_lsn = '0/1'")
    assert maintained().dropped == ()
    outbox.run("update pgstream.outbox_sinks set delivered_lsn = pg_current_wal_lsn()")
    assert [d.day for d in maintained().dropped] == [1, 2]
    assert outbox.run("select from pgstream.event_days where day < '2024-03-10'") == []
    assert maintained() == Maintained((), 0, (), (), (), ())


def test_force_drops_what_is_not_delivered(outbox, maintained) -> None:
    maintained(now=datetime(2024, 3, 1, 12, tzinfo=UTC), days_ahead=0)
    outbox.run("insert into pgstream.outbox_sinks (pipeline, sink) values ('p', 's')")
    done = maintained(force=True)
    assert done.dropped == (date(2024, 3, 1),)
    assert "by force" in done.alerts[0]


def test_day_is_not_closed_while_a_transaction_may_have_written_to_it(outbox, maintained) -> None:
    maintained(now=datetime(2024, 3, 1, 12, tzinfo=UTC), days_ahead=0)
    with psycopg.connect(outbox.dsn) as application:
        application.execute("insert into public.t (a) values (1)")
        done = maintained()
        assert done.dropped == ()
        assert "still open" in done.kept[0].reason
        before = outbox.value("select pg_current_wal_insert_lsn()")
    assert maintained().dropped == (date(2024, 3, 1),)
    assert before is not None


def test_other_partitions_and_tables_are_left_alone(outbox, maintained) -> None:
    outbox.run(
        "create table pgstream.events_foo partition of pgstream.events"
        " for values from ('2024-03-16 06:00+00') to ('2024-03-16 12:00+00')",
        "create table pgstream.events_20240317 (id int)",
    )
    done = maintained(days_ahead=3)
    assert [d.day for d in done.created] == [15, 18]
    assert len(done.alerts) == 2
    assert "events_foo" in done.alerts[0]
    assert "events_20240317 exists" in done.alerts[1]
    assert parts(outbox) == ["20240315", "20240318", "default", "foo"]
    outbox.run("drop table pgstream.events_20240317")
    assert outbox.run("select from pg_class where relname = 'events_20240316'") == []


def test_maintenance_that_was_interrupted_is_continued(outbox, maintained) -> None:
    event(outbox, "2024-03-15 10:00+00", 5)
    outbox.run(
        "create unlogged table pgstream.events_20240315 (like pgstream.events including all)",
        "insert into pgstream.events_20240315 select * from pgstream.events limit 2",
        "comment on table pgstream.events_20240315 is"
        " 'pgstream: being filled, not a partition yet'",
    )
    assert maintained().moved_rows == 5
    assert outbox.value("select count(*) from pgstream.events_20240315") == 5
    outbox.events()


def test_lock_that_is_taken_is_left_to_the_next_run(outbox, maintained) -> None:
    maintained(now=datetime(2024, 3, 1, 12, tzinfo=UTC), days_ahead=0)
    maintained(days_ahead=0, keep_days=100)
    with psycopg.connect(outbox.dsn) as reader:
        reader.execute("select from pgstream.events")
        done = maintained(days_ahead=1, lock_seconds=0.2)
    assert (done.created, done.dropped) == ((), ())
    assert len(done.postponed) == 2
    assert parts(outbox) == ["20240301", "20240315", "default"]
    done = maintained(days_ahead=1)
    assert (len(done.created), len(done.dropped)) == (1, 1)


def test_writers_do_not_wait_for_maintenance(outbox, maintained) -> None:
    """Days are dropped and the default partition is emptied while four sessions write."""
    outbox.subscribe()
    for number in range(1, 7):
        maintained(now=datetime(2024, 3, number, 12, tzinfo=UTC), days_ahead=0, keep_days=100)
    maintained(days_ahead=0, keep_days=100)  # closes the last day, before there are writers
    event(outbox, "2024-03-14 10:00+00", 20_000)
    stop, waits = threading.Event(), list[float]()

    def write() -> None:
        with psycopg.connect(outbox.dsn, autocommit=True) as session:
            while not stop.is_set():
                began = time.monotonic()
                session.execute("insert into public.t (a) values (1)")
                waits.append(time.monotonic() - began)

    writers = [threading.Thread(target=write) for _ in range(4)]
    for writer in writers:
        writer.start()
    try:
        done = maintained(lock_seconds=20)
    finally:
        stop.set()
        for writer in writers:
            writer.join()
    assert len(done.dropped) == 6
    assert done.moved_rows == 20_000
    assert done.postponed == ()
    assert max(waits) < 1.0
    written = outbox.value("select count(*) from t")
    assert written == len(waits)
    assert outbox.value("select count(*) from pgstream.events") == written + 20_000
    outbox.events()


def test_days_are_made_and_none_is_dropped_while_the_sinks_cannot_be_asked(
    outbox, maintained
) -> None:
    maintained(now=NOON - timedelta(days=20), days_ahead=0)

    def away() -> None:
        raise OSError("the lake is away")

    with pytest.raises(OSError, match="away"):
        maintained(days_ahead=1, register=away)
    assert parts(outbox) == ["20240224", "20240315", "20240316", "default"]
    maintained(days_ahead=1)
    assert parts(outbox) == ["20240315", "20240316", "default"]


def test_what_another_cluster_has_noted_drops_no_day_of_a_restored_dump(outbox, maintained) -> None:
    maintained(now=NOON - timedelta(days=20), days_ahead=0)
    outbox.run(
        "insert into pgstream.event_days values ('2024-02-24', '5', 'F/0', now())",
        "insert into pgstream.outbox_sinks values ('shop', 'far', 1, 'F0/0', now())",
        "update pgstream.outbox_version set home = 'another/1'",
    )
    maintained(now=NOON - timedelta(days=19), days_ahead=0)
    [noted] = outbox.run("select sink, delivered_lsn::text as at from pgstream.outbox_sinks")
    assert noted == {"sink": "far", "at": "0/0"}
    [closed] = outbox.run("select day, closed_lsn < 'F/0' as is_here from pgstream.event_days")
    assert closed == {"day": date(2024, 2, 24), "is_here": True}
    assert maintained(days_ahead=0).dropped == ()
    outbox.run("delete from pgstream.outbox_sinks")


def test_nothing_is_dropped_where_the_sinks_are_not_asked(outbox, maintained) -> None:
    """As `outbox install` and the upgrade do."""
    maintained(now=NOON - timedelta(days=20), days_ahead=0)
    maintained(days_ahead=0, register=None)
    assert parts(outbox) == ["20240224", "20240315", "default"]
    assert maintained(days_ahead=0).dropped == (date(2024, 2, 24),)


def test_position_that_the_server_has_yet_to_reach_confirms_nothing(outbox, maintained) -> None:
    """The server was restored, and the lake is ahead of it."""
    ahead = {"pipeline": "shop", "log_id": "log", "sinks": ["out"], "stream_ids": [1]}
    ahead |= {"generations": [1], "lsns": ["FF/0"], "has_all": [True]}
    with closing(connect(outbox.dsn)) as session:
        for _ in range(3):
            query(session, "outbox/register_sinks", **ahead)
    [noted] = outbox.run("select * from pgstream.outbox_sinks")
    outbox.run("delete from pgstream.outbox_sinks")
    assert (noted["delivered_lsn"], noted["delivered_before"]) == ("0/0", None)
