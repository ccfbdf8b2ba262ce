"""Values and context in an event: the cases P33 to P44."""

from __future__ import annotations

from decimal import Decimal

import psycopg
import pytest

from tests.support.plugins.cluster import psql


def test_extensions_keep_the_types_of_their_values(outbox) -> None:
    """P33, P34, P35."""
    outbox.run("create table people (name text, age int)")
    outbox.subscribe(
        table="people",
        payload_extensions={
            "custom_field": "'v'",
            "metadata.source": "'web'",
            "metadata.version": "'1.0'",
            "user_name_upper": "upper(new.name)",
            "is_senior": "new.age >= 30",
            "age_doubled": "new.age * 2",
            "nothing": "null",
        },
    )
    outbox.run("insert into people values ('Frank', 40)")
    [payload] = outbox.payloads()
    assert payload["custom_field"] == "v"
    assert payload["metadata"] == {"source": "web", "version": "1.0"}
    assert payload["user_name_upper"] == "FRANK"
    assert payload["is_senior"] is True
    assert payload["age_doubled"] == 80
    assert payload["nothing"] is None


def test_metadata_is_what_is_given_with_what_the_row_gives_over_it(outbox) -> None:
    """P36; D14 in the metadata: objects are merged at every depth."""
    outbox.run("create table users (region text)")
    outbox.subscribe(
        table="users",
        metadata={"priority": "high", "topic": "users", "deep": {"a": 1, "b": {"c": 2}}},
        metadata_extensions={"topic": "'users-' || new.region", "deep.b.d": "3"},
    )
    outbox.subscribe("plain", table="users", metadata={"m": 1}, metadata_extensions={"n": "2"})
    outbox.run("insert into users values ('eu')")
    merged, plain = outbox.events()
    assert merged["metadata"] == {
        "priority": "high",
        "topic": "users-eu",
        "deep": {"a": 1, "b": {"c": 2, "d": 3}},
    }
    assert plain["metadata"] == {"m": 1, "n": 2}


def test_setting_of_the_transaction_is_taken_and_an_unset_one_is_null(outbox) -> None:
    """P37."""
    outbox.subscribe(payload_extensions={"ctx.tenant": "current_setting('app.tenant', true)"})
    outbox.run("insert into t (a) values (1)")
    with outbox.session.transaction():
        outbox.run("set local app.tenant = 't9'", "insert into t (a) values (2)")
    assert [p["ctx"] for p in outbox.payloads()] == [{"tenant": None}, {"tenant": "t9"}]


def test_immediate_takes_the_setting_when_the_row_is_written(outbox) -> None:
    """B38; a deferred subscription takes the last one, at the commit."""
    tenant = {"tenant": "current_setting('app.tenant', true)"}
    outbox.subscribe("now", timing="immediate", payload_extensions=tenant)
    outbox.subscribe("later", payload_extensions=tenant)
    with outbox.session.transaction():
        outbox.run("set local app.tenant = 't9'", "insert into t (a) values (1)")
        outbox.run("set local app.tenant = 'OTHER'")
    seen = {p["tg_name"]: p["tenant"] for p in outbox.payloads()}
    assert seen == {"now": "t9", "later": "OTHER"}
    assert len(outbox.functions()) == 2


def test_extensions_of_one_object_are_merged_at_every_depth(outbox) -> None:
    """D14, B39."""
    outbox.subscribe(payload_extensions={"a.b.c": "1", "a.b.d": "2", "a.x": "3", "n.x": "4"})
    outbox.run("insert into t (a) values (1)")
    [payload] = outbox.payloads()
    assert payload["a"] == {"b": {"c": 1, "d": 2}, "x": 3}
    assert payload["n"] == {"x": 4}


@pytest.mark.parametrize("extensions", [None, {}])
def test_no_extensions_give_the_plain_payload(outbox, extensions) -> None:
    """P43."""
    outbox.subscribe(payload_extensions=extensions, metadata_extensions=extensions)
    outbox.run("insert into t (a) values (1)")
    [event] = outbox.events()
    assert event["metadata"] is None
    assert len(event["payload"]) == 7


def test_values_are_exact(outbox) -> None:
    """P44, B125 as far as the table."""
    outbox.run(
        "create table matrix (n numeric, nan numeric, d date, b bytea, i int[], ii int[][],"
        " j jsonb, u uuid, big bigint, v interval, r int4range)"
    )
    columns = ["n", "nan", "d", "b", "i", "ii", "j", "u", "big", "v", "r"]
    outbox.subscribe("all", table="matrix")
    outbox.subscribe("picked", table="matrix", column_names=columns)
    outbox.run(
        "insert into matrix values (12345678901234567890.123456789, 'NaN', 'infinity', '\\x01ff',"
        " '{1,null,3}', '{{1,2},{3,4}}', '{\"k\": [1, null]}',"
        " '00000000-0000-0000-0000-000000000001', 9007199254740993, '1 day 02:00', '[1,5)')"
    )
    rows = outbox.run(
        "select payload -> 'new' as row, payload #>> '{new,n}' as n from pgstream.events"
    )
    assert [Decimal(row["n"]) for row in rows] == [Decimal("12345678901234567890.123456789")] * 2
    for row in (row["row"] for row in rows):
        del row["n"]
        assert row == {
            "nan": "NaN",
            "d": "infinity",
            "b": "\\x01ff",
            "i": [1, None, 3],
            "ii": [[1, 2], [3, 4]],
            "j": {"k": [1, None]},
            "u": "00000000-0000-0000-0000-000000000001",
            "big": 9007199254740993,
            "v": "1 day 02:00:00",
            "r": "[1,5)",
        }
    outbox.events()


def test_condition_that_fails_gives_an_event_with_the_reason(outbox) -> None:
    """B25: the application's commit succeeds; the delivery makes it a dead letter."""
    outbox.subscribe("bad", when_clause="1 / (new.id - 3) >= -10", metadata={"m": 1})
    outbox.subscribe("other", payload_extensions={"x": "1 / (new.id - 3)", "y": "new.a"})
    outbox.run("insert into t (id, a) values (2, 7), (3, 8)")
    by_key = {(e["payload"]["tg_name"], e["payload"]["new"]["id"]): e for e in outbox.events()}
    assert by_key["bad", 2]["metadata"] == {"m": 1}
    assert by_key["bad", 3]["metadata"] == {
        "m": 1,
        "pgstream_error": {
            "subscription": "bad",
            "expression": "1 / (new.id - 3) >= -10",
            "message": "division by zero",
            "sqlstate": "22012",
        },
    }
    assert by_key["bad", 3]["payload"]["new"] == {"id": 3, "a": 8, "b": None}
    assert by_key["other", 3]["metadata"] is None
    assert (by_key["other", 3]["payload"]["x"], by_key["other", 3]["payload"]["y"]) == (None, 8)


def test_on_error_fail_lets_the_error_reach_the_application(outbox) -> None:
    outbox.subscribe(payload_extensions={"x": "1 / new.a"}, on_error="fail")
    outbox.subscribe("other", when_clause="1 / new.a > 0")
    with pytest.raises(psycopg.errors.DivisionByZero):
        outbox.run("insert into t (a) values (0)")
    assert outbox.payloads() == []


def test_session_of_the_writer_does_not_change_how_values_are_written(outbox) -> None:
    """D18, B31."""
    outbox.run("create table v (f float8, b bytea, i interval, r daterange)")
    outbox.subscribe(table="v")
    number, days = "0.1::float8 + 0.2::float8", "'[2026-02-01,2026-02-02)'"
    row = f"insert into v values ({number}, '\\x00ff', '26 hours', {days})"
    psql(outbox.dsn, row)
    settings = ("extra_float_digits = 0", "bytea_output = escape", "intervalstyle = sql_standard")
    with psycopg.connect(outbox.dsn, autocommit=True) as connection:
        for setting in (*settings, "datestyle = 'SQL, DMY'"):
            connection.execute(f"set {setting}".encode())
        connection.execute(row.encode())
    first, second = (payload["new"] for payload in outbox.payloads())
    assert first == second
    assert second["f"] == 0.30000000000000004


@pytest.mark.parametrize("columns", [None, ["id", "j"]], ids=["all", "named"])
@pytest.mark.parametrize("timing", ["deferred", "immediate"])
def test_column_that_has_no_json_is_null_and_the_write_succeeds(outbox, columns, timing) -> None:
    """B25: `json` takes what `jsonb` refuses."""
    outbox.run("create table docs (id int, j json, b text)")
    for operation in ("INSERT", "UPDATE", "DELETE"):
        outbox.subscribe(operation=operation, table="docs", column_names=columns, timing=timing)
    outbox.run(
        """insert into docs values (1, '"\\u0000"', 'b'), (2, '{"k": 1}', 'b')""",
        "update docs set id = id + 2",
        "delete from docs",
    )
    images = [(p["old"], p["new"]) for p in outbox.payloads()]
    rest = {} if columns else {"b": "b"}
    rows = {n: {"id": n, "j": None if n % 2 else {"k": 1}} | rest for n in range(1, 5)}
    assert images == [
        *((None, rows[n]) for n in (1, 2)),
        *((rows[n], rows[n + 2]) for n in (1, 2)),
        *((rows[n + 2], None) for n in (1, 2)),
    ]


def test_type_whose_cast_to_json_fails_is_null(outbox) -> None:
    outbox.run(
        "create type mood as enum ('bad', 'good')",
        "create function as_json(mood) returns json language plpgsql as $$ begin"
        " return to_json(1 / (case $1 when 'good' then 1 else 0 end)); end $$",
        "create cast (mood as json) with function as_json(mood)",
        "create table moods (id int, m mood)",
    )
    outbox.subscribe(table="moods")
    outbox.run("insert into moods values (1, 'bad'), (2, 'good')")
    assert [p["new"] for p in outbox.payloads()] == [{"id": 1, "m": None}, {"id": 2, "m": 1}]


@pytest.mark.long
def test_payload_that_is_too_large_is_an_event_with_the_reason(outbox) -> None:
    """A JSON value of Postgres has at most 256 MB."""
    outbox.run("create table large (id int, b bytea)")
    outbox.subscribe(table="large")
    outbox.subscribe("twice", table="large", payload_extensions={"x": "new.b", "y": "new.b"})
    outbox.run(
        "insert into large select n, convert_to(repeat('x', n), 'UTF8')"
        " from unnest('{1, 70000000, 140000000}'::int[]) as n"
    )
    seen = outbox.run(
        "select payload -> 'tg_name' as key, payload -> 'new' -> 'id' as id,"
        " length(payload -> 'new' ->> 'b') as size,"
        " metadata #>> '{pgstream_error,sqlstate}' as state"
        " from pgstream.events order by 1, 2"
    )
    outbox.run("truncate pgstream.events", "drop table large")
    assert [tuple(row.values()) for row in seen] == [
        ("k", 1, 4, None),
        ("k", 70_000_000, 140_000_002, None),
        ("k", 140_000_000, None, None),
        ("twice", 1, 4, None),
        ("twice", 140_000_000, None, None),
        (None, None, None, "54000"),
    ]


@pytest.mark.long
def test_reason_of_a_failure_may_be_longer_than_json_takes(outbox) -> None:
    outbox.subscribe(when_clause="new.b::int > 0", timing="immediate")
    outbox.run("insert into t (b) select repeat('a', 300000000)")
    [error] = outbox.run("select metadata -> 'pgstream_error' as error from pgstream.events")
    outbox.run("truncate pgstream.events", "truncate t")
    assert error["error"]["sqlstate"] == "22P02"
    assert len(error["error"]["message"]) == 1000


def test_assertion_of_a_function_of_an_expression_fails_no_write(outbox) -> None:
    outbox.run(
        "create function public.checked(int) returns int language plpgsql as"
        " $$begin assert $1 > 0; return $1; end$$"
    )
    for timing in ("deferred", "immediate"):
        outbox.subscribe(timing, timing=timing, payload_extensions={"x": "public.checked(new.a)"})
    outbox.run("insert into t (a) values (-1), (1)")
    assert sorted((p["tg_name"], p["x"] or 0) for p in outbox.payloads()) == [
        *(("deferred", 0), ("deferred", 1)),
        *(("immediate", 0), ("immediate", 1)),
    ]


@pytest.mark.majors(since=18)
def test_column_that_is_generated_when_it_is_read_has_no_value_in_a_trigger(outbox) -> None:
    outbox.run(
        "create table v (id int, twice int generated always as (id * 2) virtual, j json,"
        " kept int generated always as (id * 3) stored)"
    )
    for number, expression in enumerate(("new.twice > 1", '(new)."twice" > 1', "NEW.twice > 1")):
        with pytest.raises(psycopg.errors.FeatureNotSupported, match="generated when it is read"):
            outbox.subscribe(str(number), table="v", when_clause=expression)
    with pytest.raises(psycopg.errors.FeatureNotSupported, match="generated when it is read"):
        outbox.subscribe(table="v", payload_extensions={"x": "new.twice"})
    outbox.subscribe(table="v")
    outbox.run("""insert into v (id, j) values (1, '2'), (2, '"\\u0000"')""")
    assert [p["new"] for p in outbox.payloads()] == [
        {"id": 1, "j": 2, "kept": 3},
        {"id": 2, "j": None, "kept": 6},
    ]
