"""What a subscription may say: refused where it is written, never in the application."""

from __future__ import annotations

import psycopg
import pytest
from psycopg import errors

EXPRESSIONS = {
    "old_in_insert": ("old.a > 1", errors.UndefinedTable, "there is new and no old"),
    "unknown_column": ("new.nothing > 1", errors.UndefinedColumn, "'nothing' does not exist"),
    "bare_column": ("a > 1", errors.UndefinedColumn, "Columns are new"),
    "no_boolean": ("new.a", errors.DatatypeMismatch, "of type boolean"),
    "unqualified_function": ("own(new.a)", errors.UndefinedFunction, "with their schema"),
    "subquery": ("exists (select 1)", errors.FeatureNotSupported, "subqueries"),
    "scalar_subquery": ("new.a = (select 1)", errors.FeatureNotSupported, "subqueries"),
    "aggregate": ("count(*) > 0", errors.FeatureNotSupported, "aggregates"),
    "set": ("generate_series(1, 2) > 0", errors.FeatureNotSupported, ""),
    "second_statement": ("true; drop table t", errors.SyntaxError, "one SQL expression"),
    "closed_parenthesis": ("true) or (select true", errors.SyntaxError, "one SQL expression"),
    "closed_statement": ("true); drop table t; select (true", errors.SyntaxError, ""),
    "closed_function": ("true $function$; drop table t --", errors.SyntaxError, ""),
    "query": ("select true", errors.SyntaxError, ""),
    "two": ("true, true", errors.SyntaxError, ""),
    "case": ("true end) or (case when true then true", errors.SyntaxError, ""),
    "open_comment": ("true /*", errors.SyntaxError, ""),
    "open_quote": ("true || '", errors.SyntaxError, ""),
    "unknown_type": ("new.a::nothing is null", errors.UndefinedObject, "with their schema"),
}


@pytest.mark.parametrize("name", EXPRESSIONS)
def test_condition_is_refused_where_it_is_written(outbox, name) -> None:
    """D6, D11, D12, P19, B24, and statements that an expression could smuggle."""
    expression, error, text = EXPRESSIONS[name]
    outbox.run("create function own(int) returns boolean language sql return true")
    with pytest.raises(error) as raised:
        outbox.subscribe(when_clause=expression)
    diag = raised.value.diag
    assert text in f"{diag.message_primary} {diag.message_hint}"
    assert expression in (diag.message_detail or "")
    assert diag.message_hint
    assert outbox.triggers() == outbox.functions() == {}
    with pytest.raises(errors.Error):
        outbox.subscribe(payload_extensions={"x": expression + " and old.a > 1"})


def test_new_in_a_delete_and_any_row_in_a_truncate_are_refused(outbox) -> None:
    for operation, expression in (("DELETE", "new.a > 1"), ("TRUNCATE", "old.a > 1")):
        with pytest.raises(errors.UndefinedTable, match="missing FROM-clause"):
            outbox.subscribe(operation=operation, when_clause=expression)
    with pytest.raises(errors.InvalidParameterValue, match="has no columns"):
        outbox.subscribe(operation="TRUNCATE", column_names=["id"])


@pytest.mark.parametrize(
    "expression",
    [
        "new.a > 1 -- a comment",
        "new.b = 'it''s; (' or new.b = $$)$$",
        "new.b ~ '\\d'",
        "(new).a > 1 and new.* is not null",
        "public.own(new.a) and public.of_row(new)",
    ],
)
@pytest.mark.parametrize("on_error", ["null", "fail"])
def test_any_single_expression_is_taken(outbox, expression, on_error) -> None:
    outbox.run(
        "create function own(int) returns boolean language sql return true",
        "create function of_row(t) returns boolean language sql return ($1).a > 1",
    )
    outbox.subscribe(when_clause=expression, on_error=on_error)
    with outbox.session.transaction():
        outbox.run("set local standard_conforming_strings = off")
        outbox.run("insert into t (a, b) values (2, '5')")
    [event] = [e for e in outbox.events() if "own" in expression or e] or [None]
    assert event is None or event["metadata"] is None


@pytest.mark.parametrize(
    ("extensions", "error", "text"),
    [
        ([{"expression": "1"}], errors.InvalidParameterValue, "malformed"),
        ([{"json_path": "a"}], errors.InvalidParameterValue, "malformed"),
        ([{"json_path": "a", "expression": 1}], errors.InvalidParameterValue, "malformed"),
        (
            [{"json_path": "a", "expression": "1", "x": 1}],
            errors.InvalidParameterValue,
            "malformed",
        ),
        ([{"json_path": "a..b", "expression": "1"}], errors.InvalidParameterValue, "malformed"),
        (["a"], errors.InvalidParameterValue, "malformed"),
        ({"json_path": "a", "expression": "1"}, errors.InvalidParameterValue, "an array"),
        *(
            ([{"json_path": field, "expression": "1"}], errors.ReservedName, "reserved")
            for field in (
                *("new", "old", "tg_name", "tg_op", "tg_table_name", "tg_table_schema"),
                *("timestamp", "new.x"),
            )
        ),
        (
            [{"json_path": "k", "expression": "1"}, {"json_path": "k.z", "expression": "2"}],
            errors.InvalidParameterValue,
            "conflict",
        ),
        (
            [{"json_path": "k.z", "expression": "1"}, {"json_path": "k", "expression": "2"}],
            errors.InvalidParameterValue,
            "conflict",
        ),
    ],
    ids=str,
)
def test_extensions_are_refused_as_a_whole(outbox, extensions, error, text) -> None:
    """D15, D16, B40, B41, B42."""
    outbox.session.adapters.register_dumper(dict, psycopg.types.json.JsonbDumper)
    value = psycopg.types.json.Jsonb(extensions)
    with pytest.raises(error, match=text) as raised:
        outbox.run(
            "insert into pgstream.subscriptions"
            " (key, stream_id, operation, schema_name, table_name, payload_extensions)"
            " values ('k', 1, 'INSERT', 'public', 't', %(value)s)",
            value=value,
        )
    assert raised.value.diag.message_hint


def test_paths_with_a_common_beginning_of_letters_do_not_conflict(outbox) -> None:
    outbox.subscribe(payload_extensions={"k": "1", "kz": "2", "k2.z": "3"})
    outbox.run("insert into t (a) values (1)")
    [payload] = outbox.payloads()
    assert (payload["k"], payload["kz"], payload["k2"]) == (1, 2, {"z": 3})


def test_only_tables_with_rows_can_be_subscribed(outbox) -> None:
    outbox.run("create view v as select * from t", "create temp table temporary (id int)")
    schema = outbox.value("select pg_my_temp_schema()::regnamespace::text")
    for name, table in (("public", "v"), (schema, "temporary"), ("pgstream", "events")):
        with pytest.raises(errors.WrongObjectType):
            outbox.subscribe(schema_name=name, table=table)
    with pytest.raises(errors.UndefinedTable, match=r"public\.nothing does not exist"):
        outbox.subscribe(table="nothing")
    with pytest.raises(errors.UndefinedColumn, match="'nothing' does not exist"):
        outbox.subscribe(column_names=["id", "nothing"])
    with pytest.raises(errors.DuplicateColumn):
        outbox.subscribe(column_names=["id", "id"])
    with pytest.raises(errors.ForeignKeyViolation):
        outbox.subscribe(stream_id=77)
    with pytest.raises(errors.InvalidParameterValue, match="must be an object"):
        outbox.run(
            "insert into pgstream.subscriptions"
            " (key, stream_id, operation, schema_name, table_name, metadata)"
            " values ('k', 1, 'INSERT', 'public', 't', '[1]')"
        )
    assert outbox.functions() == {}


def test_name_of_a_table_may_have_a_percent_sign(outbox) -> None:
    outbox.run('create table "50%d" (a int)')
    outbox.subscribe(table="50%d", when_clause="new.a > 0", payload_extensions={"x": "new.a"})
    outbox.run('insert into "50%d" values (1)')
    assert [p["x"] for p in outbox.payloads()] == [1]
