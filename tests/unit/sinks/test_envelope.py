"""Our message of a change, and its published schema."""

from __future__ import annotations

import json
from decimal import Decimal
from typing import Any, Final

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pgstream_dagster.readers.change import Change
from pgstream_dagster.schema.changes import Op
from pgstream_dagster.sinks.envelope import Envelope, json_schema
from tests.support.changes import ORDERS, change, schema

VALIDATOR: Final = jsonschema.Draft202012Validator(
    json_schema(), format_checker=jsonschema.FormatChecker()
)


def message(subject: Change) -> dict[str, Any]:
    """The message of a change, valid by the schema, with every digit."""
    text = Envelope("shop")(subject).decode()
    VALIDATOR.validate(json.loads(text))
    assert "\n" not in text
    return json.loads(text, parse_float=Decimal)


def test_an_insert_carries_its_position_its_names_and_its_row() -> None:
    row = {"id": "9007199254740993", "amount": "12345678901234567890.10", "note": None}
    assert message(change(after=row)) == {
        "event_id": "1-0/1A2B3C-0",
        "pipeline": "shop",
        "epoch": 1,
        "commit_lsn": "0/1A2B3C",
        "ordinal": 0,
        "xid": 731,
        "committed_at": "2026-01-01T00:00:00.000001Z",
        "op": "insert",
        "namespace": "public",
        "relation": "orders",
        "schema_id": str(ORDERS.schema_id),
        "key": {"id": 9007199254740993},
        "old_key": None,
        "before": None,
        "after": {
            "id": 9007199254740993,
            "amount": Decimal("12345678901234567890.10"),
            "note": None,
        },
        "missing": [],
    }


def test_a_column_that_was_not_sent_is_missing_and_not_null() -> None:
    update = message(change("update", after={"id": "1", "amount": None}))
    assert update["after"] == {"id": 1, "amount": None}
    assert update["missing"] == ["note"]


def test_an_update_of_the_key_has_both_keys() -> None:
    update = message(
        change("update", after={"id": "2", "amount": "1", "note": "a"}, old_key=("1",))
    )
    assert (update["old_key"], update["key"]) == ({"id": 1}, {"id": 2})


def test_a_delete_has_the_key_and_what_the_identity_sends() -> None:
    delete = message(change("delete", before={"id": "1"}))
    assert (delete["before"], delete["after"], delete["missing"]) == ({"id": 1}, None, [])


def test_a_copied_row_belongs_to_no_transaction() -> None:
    row = {"id": "1", "amount": "1", "note": "a"}
    read = message(
        change("read", after=row, xid=None, committed_at_us=None, ordinal=-(1 << 62) + 1)
    )
    assert (read["xid"], read["committed_at"]) == (None, None)
    assert read["event_id"] == "1-0/1A2B3C-16400.1"


@pytest.mark.parametrize("op", Op)
def test_every_operation_has_a_valid_message(op: Op) -> None:
    table = None if op is Op.MESSAGE else ORDERS
    payload = '{"a": "b\n"}' if op in {Op.COPY, Op.DDL, Op.MESSAGE} else None
    marker = message(change(op, table, payload=payload))
    assert marker.get("payload") == payload
    assert (marker["key"], marker["schema_id"] is None) == (None, table is None)


def test_a_table_without_a_key_has_null_as_key() -> None:
    table = schema({"id": "int8"}, key=())
    assert message(change(table=table, after={"id": "1"}))["key"] is None


def test_the_members_are_in_the_order_of_the_columns() -> None:
    row = {"note": "a", "amount": "1", "id": "1"}
    assert list(message(change(after=row))["after"]) == ["id", "amount", "note"]


def test_a_column_that_a_modifier_added_is_a_string() -> None:
    row = {"id": "1", "amount": "1", "note": "a", "masked": "yes", "empty": None}
    assert message(change(after=row))["after"] == {
        "id": 1,
        "amount": 1,
        "note": "a",
        "empty": None,
        "masked": "yes",
    }


def test_names_are_escaped() -> None:
    table = schema({'i"d\\': "int4"}, key=('i"d\\',), namespace='s"', name="t\n")
    insert = message(change(table=table, after={'i"d\\': "1"}))
    assert (insert["namespace"], insert["relation"]) == ('s"', "t\n")
    assert insert["key"] == insert["after"] == {'i"d\\': 1}


def test_a_renamed_table_has_its_name_of_then() -> None:
    envelope = Envelope("shop")
    renamed = schema({"id": "int8", "amount": "numeric", "note": "text"}, name="purchases")
    assert renamed.schema_id == ORDERS.schema_id
    relations = [
        json.loads(envelope(change(table=table, after={"id": "1"})))["relation"]
        for table in (ORDERS, renamed, ORDERS)
    ]
    assert relations == ["orders", "purchases", "orders"]


@given(
    row=st.dictionaries(
        st.sampled_from(["id", "amount", "note"]),
        st.none() | st.text(st.characters(exclude_categories=["Cs"])),
    )
)
def test_any_row_gives_a_valid_message_that_says_what_is_missing(
    row: dict[str, str | None],
) -> None:
    update = message(change("update", after=row, key=None))
    assert set(update["after"]) == set(row)
    assert set(update["missing"]) == {"id", "amount", "note"} - set(row)
    assert {name for name, value in update["after"].items() if value is None} == {
        name for name, value in row.items() if value is None
    }
