"""Changes in Debezium's form."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest

from pgstream_dagster.readers.change import Change
from pgstream_dagster.schema.table import Column, ReplicaIdentity, TableSchema
from pgstream_dagster.sinks.debezium import UNAVAILABLE, Debezium
from tests.support.changes import ORDERS, change


def value(subject: Change) -> dict[str, Any]:
    return json.loads(Debezium("shop", "shopdb").value(subject))


def typed(type_name: str, value_type: str, *, not_null: bool = False) -> TableSchema:
    """A table of a key and one column of this type."""
    columns = (
        Column("id", 1, 23, "integer", value_type="int4"),
        Column("v", 2, 20, type_name, value_type=value_type, not_null=not_null),
    )
    return TableSchema(1, 7, "public", "t", ReplicaIdentity.DEFAULT, columns, ("id",))


def rendered(type_name: str, value_type: str, text: str | None, decimals: Any = "string") -> Any:
    insert = change(table=typed(type_name, value_type), after={"id": "1", "v": text})
    return json.loads(Debezium("shop", "shopdb", decimals).value(insert))["after"]["v"]


def test_a_copied_row_has_no_time_and_is_json() -> None:
    copied = value(change(op="read", committed_at_us=None, after={"id": "1"}))
    assert (copied["op"], copied["ts_ms"], copied["ts_ns"]) == ("r", 0, 0)
    assert (copied["source"]["ts_ns"], copied["source"]["snapshot"]) == (0, "true")


def test_an_insert_has_the_envelope_of_the_connector() -> None:
    row = {"id": "1", "amount": "1.10", "note": None}
    assert value(change(after=row)) == {
        "before": None,
        "after": {"id": 1, "amount": "1.10", "note": None},
        "source": {
            "version": "3.0.0.Final",
            "connector": "postgresql",
            "name": "shop",
            "ts_ms": 1767225600000,
            "ts_us": 1767225600000001,
            "ts_ns": 1767225600000001000,
            "snapshot": "false",
            "db": "shopdb",
            "sequence": '["1715004","1715004"]',
            "schema": "public",
            "table": "orders",
            "txId": 731,
            "lsn": 1715004,
            "xmin": None,
        },
        "transaction": None,
        "op": "c",
        "ts_ms": 1767225600000,
        "ts_us": 1767225600000001,
        "ts_ns": 1767225600000001000,
    }


def test_the_key_is_an_object_of_the_key_columns() -> None:
    insert = change(after={"id": "9007199254740993"})
    assert Debezium("shop", "db").key(insert, insert.key) == b'{"id":9007199254740993}'


def test_a_copied_row_is_read_in_a_snapshot() -> None:
    read = value(change("read", after={"id": "1", "amount": None, "note": None}, xid=None))
    assert (read["op"], read["source"]["snapshot"], read["source"]["txId"]) == ("r", "true", None)


def test_a_delete_has_the_key_and_nulls() -> None:
    delete = value(change("delete", before={"id": "1"}))
    assert delete["before"] == {"id": 1, "amount": None, "note": None}
    assert (delete["op"], delete["after"]) == ("d", None)


def test_a_truncate_has_no_rows_and_no_key() -> None:
    truncate = change("truncate")
    assert value(truncate)["op"] == "t"
    assert not {"before", "after"} & set(value(truncate))
    assert Debezium("shop", "db").key(truncate, truncate.key) is None


def test_an_update_of_the_key_is_a_delete_and_a_create() -> None:
    form = Debezium("shop", "db")
    update = change("update", after={"id": "2", "amount": "1", "note": "a"}, old_key=("1",))
    deleted, created = json.loads(form.deleted(update)), json.loads(form.created(update))
    assert (deleted["op"], deleted["before"]["id"], deleted["after"]) == ("d", 1, None)
    assert (created["op"], created["before"], created["after"]["id"]) == ("c", None, 2)


@pytest.mark.parametrize(
    ("value_type", "placeholder"),
    [
        ("text", UNAVAILABLE),
        ("jsonb", UNAVAILABLE),
        ("bytea", base64.b64encode(UNAVAILABLE.encode()).decode()),
        ("text[]", [UNAVAILABLE]),
        ("int4[]", list(UNAVAILABLE.encode())),
        ("int8[]", list(UNAVAILABLE.encode())),
    ],
)
def test_a_value_that_was_not_sent_is_the_placeholder(value_type: str, placeholder: Any) -> None:
    update = change("update", typed(value_type, value_type), after={"id": "1"})
    assert value(update)["after"] == {"id": 1, "v": placeholder}


@pytest.mark.parametrize(
    ("type_name", "value_type", "text", "expected"),
    [
        ("boolean", "bool", "t", True),
        ("bit(1)", "bit", "1", True),
        ("bit(10)", "bit", "1000000001", base64.b64encode(bytes([1, 2])).decode()),
        ("bit varying(5)", "varbit", "101", base64.b64encode(bytes([5])).decode()),
        ("bigint", "int8", "9007199254740993", 9007199254740993),
        ("real", "float4", "1.5", 1.5),
        ("double precision", "float8", "NaN", "NaN"),
        ("numeric(10,2)", "numeric", "1.10", "1.10"),
        ("numeric", "numeric", "NaN", "NAN"),
        ("money", "money", "$1,234.50", "1234.50"),
        ("bytea", "bytea", "\\x00ff", base64.b64encode(b"\x00\xff").decode()),
        ("date", "date", "1970-01-02", 1),
        ("date", "date", "1969-12-31", -1),
        ("date", "date", "infinity", "infinity"),
        ("time(3) without time zone", "time", "00:00:01.5", 1500),
        ("time without time zone", "time", "23:59:59.999999", 86399999999),
        ("timestamp(3) without time zone", "timestamp", "1970-01-01 00:00:01.5", 1500),
        (
            "timestamp without time zone",
            "timestamp",
            "2018-06-20 15:13:16.945104",
            1529507596945104,
        ),
        ("timestamp without time zone", "timestamp", "1969-12-31 23:59:59", -1000000),
        ("timestamp without time zone", "timestamp", "infinity", 9223372036825200000),
        ("timestamp without time zone", "timestamp", "-infinity", -9223372036832400000),
        (
            "timestamp with time zone",
            "timestamptz",
            "2018-06-20 13:37:03.5+00",
            "2018-06-20T13:37:03.500000Z",
        ),
        ("time with time zone", "timetz", "13:51:30+02", "11:51:30Z"),
        ("time with time zone", "timetz", "00:30:00.25+05:30", "19:00:00.25Z"),
        ("interval", "interval", "1 day 00:00:01", 86401000000),
        ("interval", "interval", "-00:00:01.5", -1500000),
        ("interval", "interval", "1 mon", 2629800000000),
        (
            "interval",
            "interval",
            "1 year 2 mons 3 days 04:05:06.78",
            14 * 2629800000000 + 3 * 86400000000 + 14706780000,
        ),
        ("json", "json", '{"a": 1}', '{"a": 1}'),
        ("hstore", "hstore", '"a"=>"1", "b"=>NULL', '{"a":"1","b":null}'),
        ("uuid", "uuid", "a0eebc99", "a0eebc99"),
        ("point", "point", "(1.5,-2)", {"x": 1.5, "y": -2}),
        ("int4range", "int4range", "[1,5)", "[1,5)"),
        ("text[]", "text[]", '{a,NULL,"b,c"}', ["a", None, "b,c"]),
        ("integer[]", "int4[]", "{1,NULL}", [1, None]),
        ("date[]", "date[]", "{1970-01-02}", [1]),
        ("numeric[]", "numeric[]", "{1.10}", ["1.10"]),
        ("text", "text", None, None),
    ],
)
def test_a_value_becomes(type_name: str, value_type: str, text: str | None, expected: Any) -> None:
    assert rendered(type_name, value_type, text) == expected


def test_decimals_can_be_doubles() -> None:
    assert rendered("numeric(10,2)", "numeric", "1.10", "double") == 1.1
    assert rendered("numeric", "numeric", "NaN", "double") == "NaN"
    assert rendered("money", "money", "-$1.50", "double") == -1.5


def test_the_same_table_in_our_form_has_the_same_columns() -> None:
    assert set(value(change(after={"id": "1"}))["after"]) == {c.name for c in ORDERS.columns}
