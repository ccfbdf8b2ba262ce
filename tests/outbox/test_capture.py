"""What becomes an event, and when: the cases P01 to P19 and B20 to B32 of postgres-stream."""

from __future__ import annotations

from datetime import UTC, datetime

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from tests.support.plugins.cluster import psql

ALL = ("INSERT", "UPDATE", "DELETE")


def test_insert_gives_the_payload_of_the_seed(outbox) -> None:
    """P01."""
    before = int(datetime.now(UTC).timestamp() * 1000)
    outbox.subscribe("k1", column_names=["id", "b"])
    outbox.run("insert into t (a, b) values (5, 'a')")
    [event] = outbox.events()
    payload = event["payload"]
    assert before - 1000 <= payload.pop("timestamp") <= before + 60_000
    assert payload == {
        "tg_name": "k1",
        "tg_op": "INSERT",
        "tg_table_name": "t",
        "tg_table_schema": "public",
        "new": {"id": 1, "b": "a"},
        "old": None,
    }
    assert event["stream_id"] == 1
    assert event["metadata"] is None


@pytest.mark.parametrize("on_error", ["null", "fail"])
def test_condition_selects_rows(outbox, on_error) -> None:
    """P02; null is not true."""
    outbox.subscribe(when_clause="new.a > 10", on_error=on_error)
    outbox.run("insert into t (a) values (1), (11), (null)")
    assert [payload["new"]["a"] for payload in outbox.payloads()] == [11]


def test_conditions_share_one_trigger_whose_when_is_their_or(outbox) -> None:
    """P03, P04: for subscriptions that are to fail; the others have no WHEN, as it could fail."""
    outbox.subscribe("x", when_clause="new.a > 10", on_error="fail")
    outbox.subscribe("y", when_clause="new.b = 'z'", on_error="fail")
    rows = "insert into t (a, b) values (1, 'q'), (20, 'q'), (1, 'z'), (20, 'z')"
    outbox.run(rows)
    seen = [(payload["tg_name"], payload["new"]["id"]) for payload in outbox.payloads()]
    assert seen == [("x", 2), ("y", 3), ("x", 4), ("y", 4)]
    [definition] = outbox.triggers().values()
    assert "WHEN (((new.a > 10) OR (new.b = 'z'::text)))" in definition

    outbox.subscribe("w", when_clause="", on_error="fail")
    assert "WHEN" not in "".join(outbox.triggers().values())
    outbox.run(rows)
    assert [p["tg_name"] for p in outbox.payloads()].count("w") == 4
    outbox.run("delete from pgstream.subscriptions where key = 'w'")
    [definition] = outbox.triggers().values()
    assert "WHEN" in definition


def test_update_compares_old_and_new(outbox) -> None:
    """P05."""
    outbox.run("insert into t (a) values (1)")
    outbox.subscribe(
        operation="UPDATE", when_clause="old.a is distinct from new.a", column_names=["id", "a"]
    )
    for value in (2, 2, 3):
        outbox.run(f"update t set a = {value}")
    images = [(payload["old"], payload["new"]) for payload in outbox.payloads()]
    assert images == [
        ({"id": 1, "a": 1}, {"id": 1, "a": 2}),
        ({"id": 1, "a": 2}, {"id": 1, "a": 3}),
    ]


def test_delete_has_the_old_row_alone(outbox) -> None:
    """P06."""
    outbox.run("insert into t (a) values (3)")
    outbox.subscribe(operation="DELETE", column_names=["id", "a"])
    outbox.run("delete from t where a = 3")
    [payload] = outbox.payloads()
    assert (payload["new"], payload["old"]) == (None, {"id": 1, "a": 3})


@pytest.mark.parametrize("timing", ["deferred", "immediate"])
def test_one_transaction_gives_its_events_in_order_with_one_time(outbox, timing) -> None:
    """P07."""
    for operation in ALL:
        outbox.subscribe(operation=operation, timing=timing)
    with outbox.session.transaction():
        outbox.run("insert into t (a) values (1)", "update t set a = 2", "update t set a = 3")
        outbox.run("delete from t")
    payloads = outbox.payloads()
    assert [p["tg_op"] for p in payloads] == ["INSERT", "UPDATE", "UPDATE", "DELETE"]
    assert len({p["timestamp"] for p in payloads}) == 1


def test_what_is_rolled_back_gives_no_event(outbox) -> None:
    """P08, P09."""
    outbox.subscribe()
    with outbox.session.transaction():
        outbox.run("insert into t (a) values (1)")
        with pytest.raises(psycopg.errors.DivisionByZero), outbox.session.transaction():
            outbox.run("insert into t (a) values (2)", "select 1/0")
    assert [p["new"]["a"] for p in outbox.payloads()] == [1]
    with pytest.raises(psycopg.errors.DivisionByZero), outbox.session.transaction():
        outbox.run("insert into t (a) values (2)", "select 1/0")
    assert outbox.payloads() == []


def test_deferred_events_appear_at_commit_or_when_constraints_are_set_immediate(outbox) -> None:
    """P10."""
    outbox.subscribe()
    count = "select count(*) from pgstream.events"
    with outbox.session.transaction():
        outbox.run("insert into t (a) values (1)")
        assert psql(outbox.dsn, count) == [(0,)]
        assert outbox.value(count) == 0
        outbox.run("set constraints all immediate")
        assert outbox.value(count) == 1
        assert psql(outbox.dsn, count) == [(0,)]
    assert psql(outbox.dsn, count) == [(1,)]


def test_upsert_gives_insert_then_update(outbox) -> None:
    """P11."""
    for operation in ALL:
        outbox.subscribe(operation=operation)
    for value in (1, 2):
        outbox.run(
            f"insert into t (id, a) values (7, {value})"
            " on conflict (id) do update set a = excluded.a"
        )
    images = [(p["tg_op"], p["old"] and p["old"]["a"], p["new"]["a"]) for p in outbox.payloads()]
    assert images == [("INSERT", None, 1), ("UPDATE", 1, 2)]


def test_copy_gives_events_and_truncate_one_of_its_own(outbox) -> None:
    """P12, with the TRUNCATE that postgres-stream has not."""
    outbox.subscribe()
    outbox.subscribe(operation="TRUNCATE", payload_extensions={"who": "session_user"})
    with outbox.session.cursor() as cursor, cursor.copy("copy t (a) from stdin") as copy:
        copy.write_row((5,))
    outbox.run("truncate t")
    inserted, truncated = outbox.payloads()
    assert inserted["new"]["a"] == 5
    assert (truncated["tg_op"], truncated["new"], truncated["old"]) == ("TRUNCATE", None, None)
    assert truncated["who"]


def test_rows_of_one_statement_and_subscriptions_of_one_row_give_an_event_each(outbox) -> None:
    """P13, P14."""
    outbox.subscribe("one")
    outbox.subscribe("two")
    outbox.run("insert into t (a) values (1), (2), (3)")
    seen = [(p["tg_name"], p["new"]["a"]) for p in outbox.payloads()]
    assert seen == [("one", 1), ("two", 1), ("one", 2), ("two", 2), ("one", 3), ("two", 3)]


def test_deleted_subscription_leaves_nothing(outbox) -> None:
    """P15."""
    outbox.subscribe()
    outbox.run("delete from pgstream.subscriptions", "insert into t (a) values (1)")
    assert outbox.payloads() == []
    assert outbox.triggers() == {}
    assert outbox.functions() == {}


def test_disabled_subscription_is_kept_and_gives_no_event(outbox) -> None:
    outbox.subscribe(is_enabled=False)
    outbox.run("insert into t (a) values (1)")
    assert outbox.payloads() == []
    outbox.run("update pgstream.subscriptions set is_enabled = true")
    outbox.run("insert into t (a) values (2)")
    assert [p["new"]["a"] for p in outbox.payloads()] == [2]


def test_other_columns_come_with_the_next_event(outbox) -> None:
    """P16, its first half."""
    outbox.subscribe(column_names=["id"])
    trigger = outbox.run("select oid from pg_trigger where tgname ~ '^pgstream'")
    outbox.run("update pgstream.subscriptions set column_names = '{a,b}'")
    outbox.run("insert into t (a, b) values (1, 'x')")
    assert [p["new"] for p in outbox.payloads()] == [{"a": 1, "b": "x"}]
    assert outbox.run("select oid from pg_trigger where tgname ~ '^pgstream'") == trigger


def test_same_subscription_twice_is_refused(outbox) -> None:
    """P18."""
    outbox.subscribe()
    with pytest.raises(psycopg.errors.UniqueViolation):
        outbox.subscribe()
    outbox.subscribe(operation="UPDATE")
    outbox.subscribe(stream_id=2)


def test_moved_subscription_leaves_its_former_table(outbox) -> None:
    """D1, B20."""
    outbox.run("create table u (id int, a int)")
    outbox.subscribe()
    outbox.run("update pgstream.subscriptions set table_name = 'u'")
    outbox.run("insert into t (a) values (1)", "insert into u values (1, 2)")
    assert [p["tg_table_name"] for p in outbox.payloads()] == ["u"]
    assert outbox.triggers() == {}
    assert len(outbox.functions()) == 1


def test_same_name_in_two_schemas_works(outbox) -> None:
    """D2, B21."""
    outbox.run("drop schema if exists s2 cascade", "create schema s2", "create table s2.t (id int)")
    outbox.subscribe()
    outbox.subscribe(schema_name="s2")
    outbox.run("insert into t (a) values (1)", "insert into s2.t values (2)")
    assert [p["tg_table_schema"] for p in outbox.payloads()] == ["public", "s2"]
    outbox.run("delete from pgstream.subscriptions", "drop schema s2 cascade")


def test_each_stream_gets_its_event(outbox) -> None:
    """D3, B22."""
    outbox.subscribe()
    outbox.subscribe(stream_id=2)
    outbox.run("insert into t (a) values (1)")
    assert [event["stream_id"] for event in outbox.events()] == [1, 2]


@pytest.mark.parametrize("column_names", [None, ["id", "c7"]])
def test_sixty_columns_and_many_extensions_work(outbox, column_names) -> None:
    """D10, B26."""
    columns = [f"c{number}" for number in range(60)]
    outbox.run(f"create table wide (id int, {', '.join(f'{c} int' for c in columns)})")
    names = column_names and ["id", *columns]
    extensions = {f"e{number}": f"new.c{number % 60} + 1" for number in range(120)}
    extensions |= {f"deep.e{number}": "new.id" for number in range(120)}
    outbox.subscribe(table="wide", column_names=names, payload_extensions=extensions)
    outbox.run(f"insert into wide select 1, {', '.join(map(str, range(60)))}")
    [payload] = outbox.payloads()
    assert payload["new"] == {"id": 1} | {f"c{number}": number for number in range(60)}
    assert [payload[f"e{number}"] for number in range(60)] == list(range(1, 61))
    assert payload["deep"] == {f"e{number}": 1 for number in range(120)}


def test_odd_and_long_names_do_not_collide(outbox) -> None:
    """D9, B27; names are compared as they are written."""
    long = "t" * 50
    names = [
        "Weird-Tbl",
        "Upper",
        "upper",
        f"{long}_1",
        f"{long}_2",
        'quo"te',
        "semi;colon",
        "it's",
    ]
    for name in names:
        quoted = name.replace('"', '""')
        outbox.run(f'create table "{quoted}" ("The Id" int)')
        outbox.subscribe(f"key of '{name}'", table=name, column_names=["The Id"])
        outbox.run(f'insert into "{quoted}" values (1)')
    payloads = outbox.payloads()
    assert [p["tg_table_name"] for p in payloads] == names
    assert [p["tg_name"] for p in payloads] == [f"key of '{name}'" for name in names]
    assert all(p["new"] == {"The Id": 1} for p in payloads)
    with pytest.raises(psycopg.errors.UndefinedTable):
        outbox.subscribe(table="weird-tbl")


def test_all_columns_include_later_ones_and_an_empty_list_none(outbox) -> None:
    """B29."""
    outbox.subscribe("all")
    outbox.subscribe("none", column_names=[])
    outbox.run("alter table t add c int", "insert into t (a, c) values (1, 5)")
    everything, nothing = outbox.payloads()
    assert everything["new"] == {"id": 1, "a": 1, "b": None, "c": 5}
    assert nothing["new"] == {}


@pytest.mark.parametrize("timing", ["deferred", "immediate"])
def test_partitioned_table_is_named_and_its_partition_in_the_metadata(outbox, timing) -> None:
    """B30."""
    outbox.run(
        "create table parent (id int, a int) partition by list (a)",
        "create table leaf_1 partition of parent for values in (1)",
    )
    for operation in (*ALL, "TRUNCATE"):
        outbox.subscribe(operation=operation, table="parent", timing=timing, metadata={"m": 1})
    outbox.run("create table leaf_2 (a int, id int)")
    outbox.run("alter table parent attach partition leaf_2 for values in (2)")
    outbox.run("insert into parent values (1, 1), (2, 2)", "update parent set id = 3 where a = 2")
    outbox.run("delete from parent where a = 1", "truncate parent")
    events = outbox.events()
    assert {event["payload"]["tg_table_name"] for event in events} == {"parent"}
    leaves = [event["metadata"].get("tg_leaf") for event in events]
    assert leaves == ["leaf_1", "leaf_2", "leaf_2", "leaf_1", None]
    outbox.run("delete from pgstream.subscriptions")
    assert outbox.triggers("leaf_2") == {}


@pytest.mark.parametrize("timing", ["deferred", "immediate"])
def test_subscribed_table_becomes_a_partition_of_a_subscribed_one(outbox, timing) -> None:
    """B30: both subscriptions hold, and each ends by itself."""
    outbox.run(
        "create table parent (id int, a int) partition by list (a)",
        "create table leaf (id int, a int)",
    )
    outbox.subscribe("of_leaf", table="leaf", timing=timing)
    outbox.subscribe("of_parent", table="parent", timing=timing)
    outbox.run("alter table parent attach partition leaf for values in (1)")
    outbox.run("insert into parent values (1, 1)")
    assert {p["tg_name"] for p in outbox.payloads()} == {"of_leaf", "of_parent"}
    outbox.run("delete from pgstream.subscriptions where key = 'of_leaf'")
    outbox.run("insert into parent values (2, 1)", "alter table parent detach partition leaf")
    outbox.run("insert into leaf values (3, 1)")
    assert [p["tg_name"] for p in outbox.payloads()] == ["of_parent"]
    assert outbox.triggers("leaf") == {}


def test_times_are_in_utc_whatever_the_session_has(outbox) -> None:
    """D18, B31."""
    outbox.run("create table times (at timestamptz)")
    outbox.subscribe(table="times", payload_extensions={"text": "new.at::text"})
    for zone in ("UTC", "America/New_York", "Asia/Kolkata"):
        with outbox.session.transaction():
            outbox.run(f"set local timezone = '{zone}'")
            outbox.run("insert into times values ('2026-03-01 12:00:00+00')")
    seen = {(p["new"]["at"], p["text"]) for p in outbox.payloads()}
    assert seen == {("2026-03-01T12:00:00+00:00", "2026-03-01 12:00:00+00")}


@pytest.fixture
def writer(outbox):
    """A role that may write `t` and nothing of the outbox."""
    name = f"writer_{psql(outbox.dsn, 'select current_database()')[0][0]}"
    psql(outbox.dsn, f"create role {name} login", f"grant insert, update on t to {name}")
    psql(outbox.dsn, f"grant usage on schema public to {name}")
    psql(outbox.dsn, f"grant usage on sequence t_id_seq to {name}")
    yield name
    psql(outbox.dsn, f"drop owned by {name}", f"drop role {name}")


def test_writer_needs_no_right_on_the_outbox(outbox, writer) -> None:
    """B32, P76: the context shows the role that has logged in."""
    outbox.subscribe(payload_extensions={"session": "session_user", "current": "current_user"})
    outbox.subscribe("slow", payload_extensions={"x": "1 / (new.a - 1)"})
    psql(make_conninfo(outbox.dsn, user=writer), "insert into t (a) values (1)")
    payload, slow = outbox.payloads()
    assert payload["session"] == writer
    assert payload["current"] != writer
    assert slow["x"] is None
    for denied in ("select from pgstream.events", "select pgstream.repair()"):
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            psql(make_conninfo(outbox.dsn, user=writer), denied)
    right = f"select has_table_privilege('{writer}', 't', 'TRIGGER')"
    assert psql(outbox.dsn, right) == [(False,)]


def test_temporary_type_of_the_writer_is_not_taken_for_a_built_in_one(outbox, writer) -> None:
    outbox.subscribe(when_clause="new.a::text = '1'", payload_extensions={"d": "new.a::text"})
    with psycopg.connect(make_conninfo(outbox.dsn, user=writer)) as connection:
        connection.execute("create domain pg_temp.text as pg_catalog.text check (value is null)")
        connection.execute("insert into public.t (a) values (1)")
    [event] = outbox.events()
    assert event["payload"]["d"] == "1"
    assert event["metadata"] is None


def test_application_inserts_events_of_its_own(outbox, writer) -> None:
    """P70, the half on the source."""
    psql(
        outbox.dsn,
        f"grant usage on schema pgstream to {writer}",
        f"grant insert on pgstream.events to {writer}",
    )
    theirs = make_conninfo(outbox.dsn, user=writer)
    psql(
        theirs,
        "insert into pgstream.events (stream_id, payload, metadata)"
        """ values (1, '{"job": 7}', '{"topic": "jobs"}')""",
    )
    with pytest.raises(psycopg.errors.InsufficientPrivilege):
        psql(theirs, "select pgstream.follow()")
    [event] = outbox.events()
    assert (event["payload"], event["metadata"]) == ({"job": 7}, {"topic": "jobs"})


def test_event_ids_are_of_version_7_and_its_xid_is_its_transaction(outbox) -> None:
    outbox.subscribe()
    with outbox.session.transaction():
        outbox.run("insert into t (a) values (1), (2)")
        xid = outbox.value("select pg_current_xact_id()::text")
    rows = outbox.run("select id, created_at, xid::text from pgstream.events")
    assert {row["xid"] for row in rows} == {xid}
    for row in rows:
        assert (row["id"].version, row["id"].variant) == (7, "specified in RFC 4122")
        milliseconds = row["id"].int >> 80
        assert abs(milliseconds - row["created_at"].timestamp() * 1000) < 1000
    outbox.events()
