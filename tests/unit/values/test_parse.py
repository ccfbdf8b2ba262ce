"""From JSON back to the text of Postgres: what `exact` wrote comes back."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pgstream_dagster.values.exact import exact
from pgstream_dagster.values.parse import parse


@pytest.mark.parametrize(
    ("value_type", "text"),
    [
        ("bool", "t"),
        ("bool", "f"),
        ("int8", "9007199254740993"),
        ("numeric", "12345678901234567890.1234567891"),
        ("numeric", "1.10"),
        ("numeric", "NaN"),
        ("numeric", "-Infinity"),
        ("float8", "1e-300"),
        ("float8", "-0"),
        ("jsonb", '{"a": 1234567890123456789}'),
        ("jsonb", '"a string"'),
        ("json", '"\\ud800"'),
        ("vector", "[1,2.5,-3e-05]"),
        ("text", 'a "b" \\ \n'),
        ("text", "null"),
        ("bytea", "\\x00ff"),
        ("timestamptz", "infinity"),
        ("", "of a type that is gone"),
        ("int4[]", "{}"),
        ("int8[]", "{1,NULL,9007199254740993}"),
        ("int4[]", "{{1,2},{3,4}}"),
        ("float8[]", "{NaN,-Infinity,1.5,NULL}"),
        ("numeric[]", "{1.10,NaN}"),
        ("bool[]", "{t,NULL,f}"),
        ("text[]", '{a,"b,c",NULL,"NULL","","\\"\\\\"," "}'),
        ("text[]", '{{a,NULL},{"{}",é}}'),
        ("date[]", "{2024-01-01,infinity}"),
        ("timestamptz[]", '{"2024-01-01 00:00:00+00"}'),
        ("jsonb[]", '{"{\\"a\\": 1.10}",NULL,1,[1]}'),
        ("vector[]", '{"[1,2]"}'),
        ("int4[]", "[0:1]={7,8}"),
        ("text[]", "[0:0]={a}"),
    ],
)
def test_a_text_comes_back(value_type: str, text: str) -> None:
    assert parse(value_type)(exact(value_type)(text)) == text


@pytest.mark.parametrize(
    ("value_type", "value"),
    [("text", "7"), ("int4", "true"), ("int4[]", "{}"), ("bool", "7"), ("text", "{}")],
)
def test_json_of_another_type_is_refused(value_type: str, value: str) -> None:
    with pytest.raises(ValueError, match="must be"):
        parse(value_type)(value)


def test_null_is_null() -> None:
    assert parse("text")("null") is parse("int4[]")("null") is None


@given(st.text(st.characters(exclude_categories=["Cs"])))
def test_any_text_comes_back(text: str) -> None:
    for value_type in ("text", "int4", "numeric", "bool", "date", "unknown"):
        assert parse(value_type)(exact(value_type)(text)) == text
