"""Tables and columns that are renamed, moved or dropped: D4, D5, D7, D8, B23, B28, with and without
event triggers."""

from __future__ import annotations

import threading
from contextlib import closing

import psycopg
import pytest

from pgstream_dagster.outbox.check import check
from pgstream_dagster.source.connect import connect
from pgstream_dagster.source.preflight import Severity


def findings(outbox) -> dict[str, str]:
    """What `check` finds about subscriptions and triggers: check -> fact."""
    with closing(connect(outbox.dsn)) as session:
        return {
            finding.check: str(finding)
            for finding in check(session)
            if finding.check not in ("partitions", "event_triggers")
        }


@pytest.fixture
def untriggered(outbox):
    """The outbox of a role that may make no event triggers."""
    names = ("pgstream_outbox_ddl", "pgstream_outbox_drop")
    outbox.run(*(f"alter event trigger {name} disable" for name in names))
    yield outbox
    outbox.run(*(f"alter event trigger {name} enable" for name in names))


def test_renamed_column_is_followed(outbox) -> None:
    """D4, B23."""
    outbox.subscribe(
        operation="UPDATE",
        when_clause="new.a > 1 and (old).a > 0 and new.b <> 'new.a'",
        column_names=["id", "a"],
        payload_extensions={"x": 'new."a" + old.a'},
        metadata_extensions={"y": "NEW.a"},
    )
    outbox.run("insert into t (a, b) values (1, 'x')", 'alter table t rename a to "The A"')
    [row] = outbox.run("select * from pgstream.subscriptions")
    assert row["when_clause"] == """new."The A" > 1 and (old)."The A" > 0 and new.b <> 'new.a'"""
    assert row["column_names"] == ["id", "The A"]
    assert row["broken"] is None
    outbox.run('update t set "The A" = 5')
    [event] = outbox.events()
    assert event["payload"]["new"] == {"id": 1, "The A": 5}
    assert (event["payload"]["x"], event["metadata"]) == (6, {"y": 5})
    assert findings(outbox) == {}


def test_columns_that_swap_names_are_followed(outbox) -> None:
    outbox.run("alter table t add c int")
    outbox.subscribe(when_clause="new.a = 1", column_names=["a", "c"])
    with outbox.session.transaction():
        outbox.run("alter table t rename a to x", "alter table t rename c to a")
        outbox.run("alter table t rename x to c")
    [row] = outbox.run("select when_clause, column_names from pgstream.subscriptions")
    assert (row["when_clause"], row["column_names"]) == ("new.c = 1", ["c", "a"])


def test_dropped_column_of_a_condition_takes_the_subscription_out_of_force(outbox) -> None:
    """D5: the DDL succeeds, and so do the application's writes."""
    outbox.subscribe(when_clause="new.a > 1")
    outbox.subscribe("picks", column_names=["id", "a"])
    outbox.run("alter table t drop a", "insert into t (b) values ('x')")
    rows = outbox.run("select key, broken, column_names from pgstream.subscriptions order by key")
    assert "'a' does not exist" in rows[0]["broken"]
    assert (rows[1]["broken"], rows[1]["column_names"]) == (None, ["id"])
    assert [p["new"] for p in outbox.payloads()] == [{"id": 1}]
    assert "is not in force" in findings(outbox)["subscription"]
    outbox.run("update pgstream.subscriptions set when_clause = null where key = 'k'")
    outbox.run("insert into t (b) values ('y')")
    assert [p["tg_name"] for p in outbox.payloads()] == ["k", "picks"]
    assert findings(outbox) == {}


def test_renamed_column_fails_no_write_without_event_triggers(untriggered) -> None:
    """D4, D5 where the installing role is no superuser."""
    outbox = untriggered
    outbox.subscribe("condition", when_clause="new.a > 1")
    outbox.subscribe("picks", column_names=["id", "a"], payload_extensions={"x": "new.a"})
    outbox.subscribe("all")
    outbox.run("alter table t rename a to z", "insert into t (z) values (5)")
    outbox.run("alter table t drop z", "insert into t (b) values ('x')")
    events = outbox.events()
    assert [e["payload"]["tg_name"] for e in events] == ["all", "condition", "picks"] * 2
    error = events[1]["metadata"]["pgstream_error"]
    assert (error["subscription"], error["sqlstate"]) == ("condition", "42703")
    assert events[2]["payload"]["new"] == {"id": 1, "z": 5}
    assert events[5]["payload"]["new"] == {"id": 2}
    assert "does not exist" in findings(outbox)["subscription"]
    outbox.run("select pgstream.repair()")
    broken = outbox.run("select key from pgstream.subscriptions where broken is not null")
    assert {row["key"] for row in broken} == {"condition", "picks"}


def test_repair_follows_what_was_renamed_without_event_triggers(untriggered) -> None:
    outbox = untriggered
    outbox.subscribe(when_clause="new.a > 1")
    outbox.run("alter table t rename a to z", "alter table t rename to renamed")
    assert "pgstream.repair()" in findings(outbox)["drift"]
    outbox.run("select pgstream.repair()", "insert into renamed (z) values (1), (2)")
    assert [(p["tg_table_name"], p["new"]["z"]) for p in outbox.payloads()] == [("renamed", 2)]
    assert findings(outbox) == {}


@pytest.mark.parametrize("fixture", ["outbox", "untriggered"])
def test_renamed_and_moved_table_keeps_its_subscription(request, postgres, fixture) -> None:
    """D8, B28: and it can be deleted."""
    outbox = request.getfixturevalue(fixture)
    outbox.subscribe()
    outbox.run("drop schema if exists s2 cascade", "create schema s2")
    outbox.run("alter table t rename to renamed", "alter table renamed set schema s2")
    outbox.run("insert into s2.renamed (a) values (1)")
    [payload] = outbox.payloads()
    assert (payload["tg_table_schema"], payload["tg_table_name"]) == ("s2", "renamed")
    if fixture == "outbox":
        [row] = outbox.run("select schema_name, table_name from pgstream.subscriptions")
        assert row == {"schema_name": "s2", "table_name": "renamed"}
        outbox.run("alter schema s2 rename to s3")
        assert outbox.value("select schema_name from pgstream.subscriptions") == "s3"
        outbox.run("alter schema s3 rename to s2")
    outbox.run("update pgstream.subscriptions set metadata = '{}'")
    outbox.run("delete from pgstream.subscriptions")
    assert outbox.triggers("s2.renamed") == outbox.functions() == {}
    outbox.run("drop schema s2 cascade")


def test_renamed_parent_of_partitions_is_named_as_it_is(outbox) -> None:
    outbox.run("create table parent (a int) partition by list (a)")
    outbox.run("create table leaf partition of parent for values in (1)")
    outbox.subscribe(table="parent")
    outbox.run("alter table parent rename to elder", "insert into elder values (1)")
    assert [p["tg_table_name"] for p in outbox.payloads()] == ["elder"]


@pytest.mark.parametrize("fixture", ["outbox", "untriggered"])
def test_subscription_of_a_dropped_table_can_be_changed_and_deleted(
    request, postgres, fixture
) -> None:
    """D7, B28."""
    outbox = request.getfixturevalue(fixture)
    outbox.run("create table u (id int)")
    outbox.subscribe("stays")
    outbox.subscribe("moves")
    outbox.run("drop table t")
    assert "public.t does not exist" in findings(outbox)["subscription"]
    outbox.run("update pgstream.subscriptions set metadata = '{}' where key = 'stays'")
    outbox.run("update pgstream.subscriptions set table_name = 'u' where key = 'moves'")
    outbox.run("insert into u values (1)")
    assert [p["tg_name"] for p in outbox.payloads()] == ["moves"]
    outbox.run("delete from pgstream.subscriptions", "select pgstream.repair()")
    assert outbox.functions() == {}


AGAIN = {
    "made": "create table t (id int)",
    "as": "create table t as select 0 as id",
    "renamed": "create table u (id int); alter table u rename to t",
    "with a schema": "create schema s create table t (id int); alter table s.t set schema public",
    "moved": "create schema s; create table s.t (id int); alter table s.t set schema public",
}


@pytest.mark.parametrize("statements", AGAIN.values(), ids=AGAIN)
@pytest.mark.parametrize("fixture", ["outbox", "untriggered"])
def test_table_that_is_made_again_is_subscribed_again(
    request, postgres, fixture, statements
) -> None:
    """With event triggers at once, so that no row after it is missed."""
    outbox = request.getfixturevalue(fixture)
    outbox.subscribe()
    with outbox.session.transaction():
        outbox.run("drop table t", *statements.split("; "))
        if fixture == "untriggered":
            outbox.run("select pgstream.repair()")
        outbox.run("insert into t values (1)")
    assert [p["new"] for p in outbox.payloads()] == [{"id": 1}]
    assert findings(outbox) == {}
    outbox.run("drop schema if exists s cascade")


def test_table_made_again_without_a_column_that_is_needed_is_reported(outbox) -> None:
    outbox.subscribe(when_clause="new.a > 1")
    outbox.run("drop table t", "create table t (id int)", "insert into t values (1)")
    assert outbox.payloads() == []
    assert "column" in findings(outbox)["subscription"]
    outbox.run("alter table t add a int", "insert into t values (1, 2)")
    assert [p["new"] for p in outbox.payloads()] == [{"id": 1, "a": 2}]
    assert findings(outbox) == {}


def test_trigger_dropped_or_disabled_by_hand_is_found_and_repaired(outbox) -> None:
    outbox.subscribe()
    outbox.run("alter table t disable trigger user")
    assert "is disabled" in findings(outbox)["trigger_disabled"]
    outbox.run("alter table t enable trigger user")
    [name] = outbox.triggers()
    outbox.run(f"drop trigger {name} on t")
    assert "missing" in findings(outbox)["trigger"]
    outbox.run("select pgstream.repair()", "insert into t (a) values (1)")
    assert len(outbox.payloads()) == 1
    assert findings(outbox) == {}


def test_restored_dump_is_repaired_by_the_names_of_its_tables(outbox) -> None:
    """Its tables have other oids, and the old one may be that of another table."""
    outbox.subscribe(when_clause="new.a > 1", column_names=["id"])
    [name] = outbox.functions()
    outbox.run("create table other (x int)")
    other = outbox.value("select 'other'::regclass::oid")
    outbox.run(
        "alter table pgstream.subscriptions disable trigger user",
        f"update pgstream.subscriptions set table_oid = {other}",
        "alter table pgstream.subscriptions enable trigger user",
        f"alter function pgstream.{name} rename to capture_{other}_insert_deferred",
    )
    assert findings(outbox) != {}
    outbox.run("select pgstream.repair()", "insert into t (a) values (2)")
    assert [p["new"] for p in outbox.payloads()] == [{"id": 1}]
    assert outbox.functions().keys() == {name}
    assert findings(outbox) == {}


@pytest.mark.parametrize("order", [("t", "other"), ("other", "t")], ids=" first ".join)
@pytest.mark.parametrize("on_error", ["null", "fail"])
def test_tables_that_got_each_others_oids_in_a_restore_are_repaired(
    outbox, order, on_error
) -> None:
    outbox.run("create table other (x int)")
    conditions = {"t": "new.a > 1", "other": "new.x > 1"}
    for table in order:
        outbox.subscribe(table, table=table, when_clause=conditions[table], on_error=on_error)
    first, second = (outbox.value(f"select '{name}'::regclass::oid") for name in ("t", "other"))
    moves = [(first, 0), (second, first), (0, second)]
    outbox.run(
        "alter table pgstream.subscriptions disable trigger user",
        f"update pgstream.subscriptions set table_oid = {first} + {second} - table_oid::int8",
        "alter table pgstream.subscriptions enable trigger user",
        *(
            f"alter function pgstream.capture_{old}_insert_deferred"
            f" rename to capture_{new}_insert_deferred"
            for old, new in moves
        ),
    )
    assert findings(outbox) != {}
    outbox.run("select pgstream.repair()")
    assert findings(outbox) == {}
    outbox.run("insert into t (a) values (1), (2)", "insert into other values (1), (2)")
    assert [p["tg_name"] for p in outbox.payloads()] == ["t", "other"]


def test_ddl_beside_a_change_of_subscriptions_takes_none_out_of_force(outbox) -> None:
    """The wait for the lock may end in the middle: a warning, and nothing is marked as broken."""
    outbox.subscribe(column_names=["id"])
    with psycopg.connect(outbox.dsn) as other:
        for attempt in range(4):
            other.execute("update pgstream.outbox_version set revision = revision + 1")
            freed = threading.Timer(0.03 * attempt, other.commit)
            freed.start()
            outbox.run(f"alter table t rename column b to b{attempt}")
            freed.join()
            outbox.run(
                f"alter table t rename column b{attempt} to b", "insert into t default values"
            )
            assert outbox.value("select broken from pgstream.subscriptions") is None
            assert len(outbox.payloads()) == 1


def test_table_that_was_dropped_beside_a_change_of_subscriptions_is_subscribed_again(
    outbox,
) -> None:
    outbox.subscribe()
    with psycopg.connect(outbox.dsn) as other:
        other.execute("update pgstream.outbox_version set revision = revision + 1")
        outbox.run("drop table t")
    outbox.run("create table t (id int)", "insert into t values (1)")
    assert [p["new"] for p in outbox.payloads()] == [{"id": 1}]
    assert findings(outbox) == {}


def test_table_that_was_made_again_beside_a_change_of_subscriptions_is_an_error(outbox) -> None:
    outbox.subscribe()
    with psycopg.connect(outbox.dsn) as other:
        other.execute("update pgstream.outbox_version set revision = revision + 1")
        outbox.run("drop table t", "create table t (id int)")
    with closing(connect(outbox.dsn)) as session:
        [finding] = [f for f in check(session) if f.check == "subscription"]
    assert finding.severity is Severity.ERROR
    assert "made again" in finding.fact
    outbox.run("select pgstream.repair()", "insert into t values (1)")
    assert len(outbox.payloads()) == 1


def test_partition_that_got_the_oid_of_its_parent_in_a_restore_is_not_taken_for_it(outbox) -> None:
    outbox.run("create table parent (id int, a int) partition by list (a)")
    outbox.run("create table leaf (id int, a int)")
    leaf, parent = (outbox.value(f"select '{name}'::regclass::oid") for name in ("leaf", "parent"))
    outbox.subscribe("of_parent", table="parent")
    outbox.run("alter table parent attach partition leaf for values in (1)")
    outbox.run(
        f"alter function pgstream.capture_{parent}_insert_deferred"
        f" rename to capture_{leaf}_insert_deferred",
        "alter table pgstream.subscriptions disable trigger user",
        f"update pgstream.subscriptions set table_oid = {leaf}",
        "alter table pgstream.subscriptions enable trigger user",
        "select pgstream.repair()",
        "insert into parent values (1, 1)",
    )
    assert [p["tg_table_name"] for p in outbox.payloads()] == ["parent"]
    assert outbox.value("select table_name from pgstream.subscriptions") == "parent"
