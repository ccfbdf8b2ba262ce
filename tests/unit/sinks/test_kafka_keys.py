"""The keys and topics of records."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pgstream_dagster.readers.change import Change
from pgstream_dagster.sinks.kafka.keys import STRATEGIES, row_key
from pgstream_dagster.sinks.kafka.topics import MAX_TOPIC, topic
from tests.support.changes import change, schema

TEST = schema({"id": "int4"}, namespace="test_schema", name="test_table")
PAIR = schema({"a": "text", "b": "text"}, ("a", "b"), namespace="s", name="t")


def pair(a: str | None, b: str | None) -> Change:
    return change(table=PAIR, after={"a": a, "b": b})


@pytest.mark.parametrize(
    ("strategy", "op", "expected"),
    [
        ("schema", "insert", b"test_schema"),
        ("table", "insert", b"test_schema.test_table"),
        ("primary_key", "insert", b"test_schema.test_table:1"),
        ("primary_key", "read", b"test_schema.test_table:1"),
        ("schema", "ddl", b"test_schema"),
        ("table", "ddl", b"test_schema"),
        ("primary_key", "ddl", b"test_schema"),
        ("primary_key", "truncate", b"test_schema.test_table"),
        ("primary_key", "copy", b"test_schema.test_table"),
    ],
)
def test_a_strategy_gives(strategy: str, op: str, expected: bytes) -> None:
    image = {"id": "1"} if op in {"insert", "read"} else None
    assert STRATEGIES[strategy](change(op, TEST, after=image)) == expected


def test_a_delete_has_the_key_of_its_identity() -> None:
    assert row_key(change("delete", TEST, before={"id": "7"})) == (b"test_schema.test_table:7")


def test_a_change_without_a_key_has_that_of_its_table() -> None:
    keyless = schema({"id": "int4"}, key=(), namespace="s", name="t")
    assert row_key(change(table=keyless, after={"id": "1"})) == b"s.t"


@pytest.mark.parametrize(
    ("a", "b", "expected"),
    [
        ("a,b", "c", rb"s.t:a\,b,c"),
        ("a", "b,c", rb"s.t:a,b\,c"),
        ("a\\", "b", rb"s.t:a\\,b"),
        (None, "\\N", rb"s.t:\N,\\N"),
        ("", "", rb"s.t:,"),
    ],
)
def test_values_are_escaped(a: str | None, b: str | None, expected: bytes) -> None:
    assert row_key(pair(a, b)) == expected


def test_names_are_escaped() -> None:
    table = schema({"id": "int4"}, namespace="a.b", name="c:d\\")
    assert row_key(change(table=table, after={"id": "1"})) == rb"a\.b.c\:d\\:1"


VALUE = st.none() | st.text(st.sampled_from(",\\N.:a"), max_size=4)


@given(first=st.tuples(VALUE, VALUE), second=st.tuples(VALUE, VALUE))
def test_two_rows_never_share_a_key(
    first: tuple[str | None, str | None], second: tuple[str | None, str | None]
) -> None:
    keys = {row_key(pair(*first)), row_key(pair(*second))}
    assert len(keys) == (1 if first == second else 2)


def test_a_template_names_the_topic() -> None:
    assert topic("shop.{namespace}.{relation}", "p", "public", "orders") == "shop.public.orders"
    assert topic("all", "p", "public", "orders") == "all"
    assert topic("{pipeline}-{relation}", "p", "a b", "orders") == "p-orders"


NAME = st.text(st.sampled_from('a._- é💶"A'), min_size=1, max_size=6)


@given(first=st.tuples(NAME, NAME), second=st.tuples(NAME, NAME))
def test_two_relations_share_no_topic_and_kafka_takes_every_name(
    first: tuple[str, str], second: tuple[str, str]
) -> None:
    names = {topic("{namespace}.{relation}", "p", *relation) for relation in (first, second)}
    assert len(names) == (1 if first == second else 2)
    allowed = set("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-")
    assert all(set(name) <= allowed for name in names)


def test_a_long_name_is_cut_and_stays_unique() -> None:
    template = "x" * 200 + ".{namespace}.{relation}"
    names = [topic(template, "p", "n" * 63, "r" * 62 + end) for end in "ab"]
    assert len(set(names)) == 2 and all(len(name) <= MAX_TOPIC for name in names)
