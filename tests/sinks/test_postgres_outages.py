"""A target that goes away, or does not answer now: the batch comes again, and is there once."""

from __future__ import annotations

from contextlib import closing

import psycopg
import pytest

from pgstream_dagster.errors import SinkRefused, SinkUnreachable
from pgstream_dagster.sinks.postgres import PostgresSink, Target
from tests.support.harness.sink_changes import History, batch, version
from tests.support.plugins.cluster import OwnServer, psql

LOG = version("log", {"a": "text"}, key=())


def test_a_target_that_was_killed_is_unreachable_until_it_is_back(own_postgres: OwnServer) -> None:
    h, dsn = History(), own_postgres.dsn
    psql(dsn, "create table log (a text)")
    with closing(PostgresSink(Target("shop", "replica", dsn))) as sink:
        sink.open()
        assert sink.deliver(batch(h.insert(LOG, a="1"), cursor="1")) == {}
        assert sink.deliver(batch(h.insert(LOG, a="2"), cursor="2", ends=False)) == {}
        own_postgres.kill()
        with pytest.raises(SinkUnreachable):
            sink.deliver(batch(h.insert(LOG, a="3"), cursor="3"))
        with pytest.raises(SinkUnreachable):
            sink.open()
        own_postgres.start()
        assert sink.open() == "1"
        changes = [h.insert(LOG, a=a) for a in ("2", "3")]
        assert sink.deliver(batch(*changes, cursor="3")) == {}
    assert psql(dsn, "select a from log order by a") == [("1",), ("2",), ("3",)]


def test_a_lock_that_is_held_is_waited_for_later(dsn: str) -> None:
    h = History()
    psql(dsn, "create table log (a text)")
    with closing(PostgresSink(Target("shop", "replica", dsn, lock_seconds=0.1))) as sink:
        sink.open()
        with psycopg.connect(dsn) as other:
            other.execute("lock table log")
            with pytest.raises(SinkUnreachable, match="55P03"):
                sink.deliver(batch(h.insert(LOG, a="1"), cursor="1"))
        assert sink.open() is None
        assert sink.deliver(batch(h.insert(LOG, a="1"), cursor="1")) == {}
    assert psql(dsn, "select a from log") == [("1",)]


@pytest.mark.parametrize("code", ["53100", "53200", "53400"])
def test_a_target_without_disk_or_memory_is_waited_for_and_makes_no_dead_letter(
    dsn: str, code: str
) -> None:
    h = History()
    psql(
        dsn,
        "create table log (a text)",
        "create function fail() returns trigger language plpgsql as"
        f" $$ begin raise exception using errcode = '{code}'; end $$",
        "create trigger fails before insert on log execute function fail()",
        "alter table log enable always trigger fails",
    )
    changes = batch(*(h.insert(LOG, a=a) for a in ("1", "2", "3")))
    with closing(PostgresSink(Target("shop", "replica", dsn))) as sink:
        sink.open()
        with pytest.raises(SinkUnreachable, match=code):
            sink.deliver(changes)
        psql(dsn, "drop trigger fails on log")
        assert sink.open() is None
        assert sink.deliver(changes) == {}
    assert psql(dsn, "select count(*) from log") == [(3,)]


def test_a_session_that_was_ended_is_opened_again(dsn: str) -> None:
    h = History()
    psql(dsn, "create table log (a text)")
    with closing(PostgresSink(Target("shop", "replica", dsn))) as sink:
        sink.open()
        psql(
            dsn,
            "select pg_terminate_backend(pid, 10000) from pg_stat_activity"
            " where application_name = 'pgstream sink replica'"
            " and datname = current_database()",
        )
        with pytest.raises(SinkUnreachable):
            sink.deliver(batch(h.insert(LOG, a="1"), cursor="1"))
        sink.open()
        assert sink.deliver(batch(h.insert(LOG, a="1"), cursor="1")) == {}
    assert psql(dsn, "select a from log") == [("1",)]


@pytest.mark.parametrize(
    ("change", "reason"),
    [(" user=nobody_here", "nobody_here"), (" dbname=no_such_database", "no_such_database")],
)
def test_a_wrong_role_or_database_names_the_variable(dsn: str, change: str, reason: str) -> None:
    target = Target("shop", "replica", dsn + change, dsn_variable="REPLICA_DSN")
    with pytest.raises(SinkRefused, match="in REPLICA_DSN") as caught:
        PostgresSink(target).open()
    assert reason in caught.value.reason


def test_a_connection_string_that_cannot_be_read_is_not_shown() -> None:
    target = Target("shop", "replica", "password=hunter2 what", dsn_variable="REPLICA_DSN")
    with pytest.raises(SinkRefused, match="REPLICA_DSN is no connection string") as caught:
        PostgresSink(target).open()
    assert "hunter2" not in str(caught.value) + repr(target)


def test_on_conflict_without_a_key_in_the_target_names_the_statement(dsn: str) -> None:
    h, items = History(), version("items", {"id": "integer", "name": "text"})
    psql(dsn, "create table items (id int, name text)")
    target = Target("shop", "replica", dsn, on_conflict="update")
    with closing(PostgresSink(target)) as sink:
        sink.open()
        with pytest.raises(Exception, match="add primary key") as caught:
            sink.deliver(batch(h.insert(items, id="1", name="a")))
        psql(dsn, caught.value.statement)  # type: ignore[attr-defined]
        sink.open()
        assert sink.deliver(batch(h.insert(items, id="1", name="a"))) == {}
