"""`set_subscriptions`, streams, and writers at the same time."""

from __future__ import annotations

import threading
import time

import psycopg
import pytest
from psycopg import errors

FIRST = "pgstream.subscription(key => 'one', operation => 'INSERT', table_name => 't')"
SECOND = (
    "pgstream.subscription(key => 'two', operation => 'INSERT', table_name => 't',"
    " when_clause => 'new.a > 1', column_names => '{id}')"
)
SAME_KEY = "pgstream.subscription(key => 'one', operation => 'DELETE', table_name => 't')"


def apply(outbox, *subscriptions: str, stream: int = 1) -> None:
    given = f"array[{', '.join(subscriptions)}]::pgstream.subscriptions[]"
    outbox.run(f"select pgstream.set_subscriptions({stream}, {given})")


def made(outbox) -> list:
    """What tells one trigger or function from another of its name, and each row's last writer."""
    return outbox.run(
        "select tgname::text as name, oid::text, xmin::text from pg_trigger where tgname ~ '^pgs'"
        " union all select proname, oid::text, xmin::text from pg_proc"
        " where proname ~ '^capture_[0-9]'"
        " union all select key || operation, id::text, xmin::text from pgstream.subscriptions"
        " order by 1"
    )


def test_unchanged_definitions_keep_rows_triggers_and_functions(outbox) -> None:
    """P16; a key for two operations can be reconciled."""
    apply(outbox, FIRST, SECOND, SAME_KEY)
    before = made(outbox)
    assert len(before) == 7
    apply(outbox, FIRST, SECOND, SAME_KEY)
    assert made(outbox) == before

    changed = SECOND.replace("new.a > 1", "new.a > 5")
    apply(outbox, FIRST, changed, SAME_KEY)
    after = {row["name"]: row for row in made(outbox)}
    differing = {row["name"] for row in before if row != after[row["name"]]}
    [function] = [name for name in differing if name.startswith("capture_")]
    assert differing == {function, "twoINSERT"}
    assert after[function]["oid"] == next(r["oid"] for r in before if r["name"] == function)
    outbox.run("insert into t (a) values (2), (6)")
    assert [p["tg_name"] for p in outbox.payloads()] == ["one", "one", "two"]


def test_empty_list_removes_all_of_the_stream_and_no_other(outbox) -> None:
    """P17."""
    apply(outbox, FIRST, SECOND, SAME_KEY)
    apply(outbox, FIRST, stream=2)
    apply(outbox)
    outbox.run("insert into t (a) values (2)", "delete from t")
    assert [event["stream_id"] for event in outbox.events()] == [2]
    apply(outbox, stream=2)
    assert outbox.triggers() == outbox.functions() == {}


def test_refused_definition_changes_nothing(outbox) -> None:
    apply(outbox, FIRST)
    before = made(outbox)
    with pytest.raises(errors.UndefinedColumn):
        apply(outbox, SECOND, SAME_KEY.replace("'t')", "'t', when_clause => 'old.x')"))
    assert made(outbox) == before


def test_stream_can_be_deleted_and_its_subscriptions_go(outbox) -> None:
    """D17, B51 on the source."""
    outbox.subscribe()
    outbox.subscribe(stream_id=2)
    outbox.run("delete from pgstream.streams where id = 1", "insert into t (a) values (1)")
    assert [event["stream_id"] for event in outbox.events()] == [2]
    outbox.run("delete from pgstream.streams")
    assert outbox.triggers() == outbox.functions() == {}


def test_subscriptions_cannot_be_truncated(outbox) -> None:
    with pytest.raises(errors.FeatureNotSupported, match="truncated"):
        outbox.run("truncate pgstream.subscriptions")


def test_two_writers_of_subscriptions_both_count(outbox) -> None:
    insert = (
        "insert into pgstream.subscriptions (key, stream_id, operation, schema_name, table_name)"
        " values ('{}', 1, 'INSERT', 'public', 't')"
    )
    with psycopg.connect(outbox.dsn) as first, psycopg.connect(outbox.dsn) as second:
        first.execute(insert.format("first"))
        waiting = threading.Thread(target=second.execute, args=(insert.format("second"),))
        waiting.start()
        wait_until_blocked(outbox, second.info.backend_pid)
        first.commit()
        waiting.join()
        second.commit()
    outbox.run("insert into t (a) values (1)")
    assert [p["tg_name"] for p in outbox.payloads()] == ["first", "second"]


def wait_until_blocked(outbox, pid: int) -> None:
    deadline = time.monotonic() + 20
    while not outbox.value(f"select cardinality(pg_blocking_pids({pid})) > 0"):
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_writer_with_a_snapshot_from_before_another_change_is_refused(outbox) -> None:
    with psycopg.connect(outbox.dsn) as stale:
        stale.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        stale.execute("select 1")
        outbox.subscribe("first")
        with pytest.raises(errors.SerializationFailure):
            stale.execute("delete from pgstream.subscriptions")


def test_rebuild_gives_up_a_lock_and_never_makes_the_application_wait(outbox) -> None:
    with psycopg.connect(outbox.dsn) as application:
        application.execute("insert into public.t (a) values (1)")
        slowest: list[float] = []

        def write() -> None:
            with psycopg.connect(outbox.dsn, autocommit=True) as other:
                while not slowest or slowest[-1] >= 0:
                    began = time.monotonic()
                    other.execute("insert into public.t (a) values (2)")
                    slowest.insert(0, time.monotonic() - began)

        slowest.append(0.0)
        writer = threading.Thread(target=write)
        writer.start()
        try:
            outbox.run("set pgstream.lock_timeout = '400ms'")
            with pytest.raises(errors.LockNotAvailable, match="not free for") as raised:
                outbox.subscribe()
        finally:
            slowest.append(-1.0)
            writer.join()
            outbox.run("reset pgstream.lock_timeout")
    assert "pgstream.lock_timeout" in raised.value.diag.message_hint
    assert len(slowest) > 20
    assert max(slowest) < 0.3  # each attempt waits 50 ms
    assert outbox.run("select from pgstream.subscriptions") == []
    outbox.subscribe()


def test_change_that_needs_no_lock_succeeds_while_the_table_is_written(outbox) -> None:
    outbox.subscribe()
    with psycopg.connect(outbox.dsn) as application:
        application.execute("insert into public.t (a) values (1)")
        outbox.run("update pgstream.subscriptions set column_names = '{id}'")
        outbox.subscribe("second")
    assert [p["tg_name"] for p in outbox.payloads()] == ["k", "second"]
