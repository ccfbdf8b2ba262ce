"""Values as JSON that loses nothing, compared with Python's json and decimal."""

from __future__ import annotations

import json
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pgstream_dagster.values.exact import exact
from pgstream_dagster.values.kinds import KINDS


def loaded(text: str) -> Any:
    """JSON as Python reads it, with every digit of its numbers."""
    return json.loads(text, parse_float=Decimal, parse_int=Decimal)


@pytest.mark.parametrize(
    ("value_type", "text", "expected"),
    [
        ("bool", "t", "true"),
        ("bool", "f", "false"),
        ("int8", "9007199254740993", "9007199254740993"),
        ("int4", "-0", "-0"),
        ("numeric", "12345678901234567890.1234567891", "12345678901234567890.1234567891"),
        ("numeric", "1.10", "1.10"),
        ("numeric", "9" * 2000, "9" * 2000),
        ("numeric", "NaN", '"NaN"'),
        ("numeric", "-Infinity", '"-Infinity"'),
        ("float8", "Infinity", '"Infinity"'),
        ("float8", "1e-300", "1e-300"),
        ("float8", "-0", "-0"),
        ("jsonb", '{"a": 1234567890123456789}', '{"a": 1234567890123456789}'),
        ("json", '{"a":\n\t1.10}', '{"a":  1.10}'),
        ("json", '"\\ud800"', '"\\ud800"'),
        ("jsonb", "null", "null"),
        ("vector", "[1,2.5,-3e-05]", "[1,2.5,-3e-05]"),
        ("text", 'a "b" \\ \n', '"a \\"b\\" \\\\ \\n"'),
        ("bytea", "\\x00ff", '"\\\\x00ff"'),
        ("date", "0044-03-15 BC", '"0044-03-15 BC"'),
        ("timestamptz", "infinity", '"infinity"'),
        ("tstzrange", '["2024-01-01 00:00:00+00",)', '"[\\"2024-01-01 00:00:00+00\\",)"'),
        ("hstore", '"a"=>NULL', '"\\"a\\"=>NULL"'),
        ("", "of a type that is gone", '"of a type that is gone"'),
        ("int4[]", "{}", "[]"),
        ("int8[]", "{1,NULL,9007199254740993}", "[1,null,9007199254740993]"),
        ("int4[]", "{{1,2},{3,4}}", "[[1,2],[3,4]]"),
        ("float8[]", "{NaN,-Infinity,1.5,NULL}", '["NaN","-Infinity",1.5,null]'),
        ("numeric[]", "{1.10,NaN}", '[1.10,"NaN"]'),
        ("bool[]", "{t,NULL,f}", "[true,null,false]"),
        ("text[]", '{a,"b,c",NULL,"NULL","\\"\\\\"}', '["a","b,c",null,"NULL","\\"\\\\"]'),
        ("date[]", "{2024-01-01,infinity}", '["2024-01-01","infinity"]'),
        ("enum[]", "{sad,NULL}", '["sad",null]'),
        ("jsonb[]", '{"{\\"a\\": 1.10}",NULL,1}', '[{"a": 1.10},null,1]'),
        ("json[]", '{{"[1]"},{NULL}}', "[[[1]],[null]]"),
        ("vector[]", '{"[1,2]"}', "[[1,2]]"),
        ("int4[]", "[0:1]={7,8}", '"[0:1]={7,8}"'),
        ("text[]", "[0:0]={a}", '"[0:0]={a}"'),
        ("jsonb[]", "[0:0]={1}", '"[0:0]={1}"'),
    ],
)
def test_a_value_becomes(value_type: str, text: str, expected: str) -> None:
    rendered = exact(value_type)(text)
    assert rendered == expected
    json.loads(rendered)


@given(value=st.decimals(), value_type=st.sampled_from(["numeric", "float8"]))
def test_numbers_keep_every_digit(value: Decimal, value_type: str) -> None:
    text = str(value).replace("sNaN", "NaN")
    rendered = loaded(exact(value_type)(text))
    if value.is_finite() and not text.startswith("E"):
        assert isinstance(rendered, Decimal) and rendered.as_tuple() == value.as_tuple()
    else:
        assert rendered == text


@given(values=st.lists(st.none() | st.integers() | st.decimals(allow_nan=False, places=3)))
def test_arrays_of_numbers_keep_every_digit(values: list[int | Decimal | None]) -> None:
    text = f"{{{','.join('NULL' if value is None else str(value) for value in values)}}}"
    expected = [str(v) if isinstance(v, Decimal) and v.is_infinite() else v for v in values]
    assert loaded(exact("numeric[]")(text)) == expected


@given(
    value_type=st.sampled_from([*KINDS, *(f"{name}[]" for name in KINDS), "", "unknown[]"]),
    text=st.text(st.characters(exclude_categories=["Cs"])),
)
def test_any_text_of_any_type_is_json_in_one_line(value_type: str, text: str) -> None:
    rendered = exact(value_type)(text)
    value = loaded(rendered)
    assert "\n" not in rendered and "\r" not in rendered
    assert not isinstance(value, str) or value == text or value_type.startswith("json")


@given(value=st.recursive(st.none() | st.integers() | st.text() | st.booleans(), st.lists))
def test_json_is_embedded_as_it_is(value: Any) -> None:
    text = json.dumps(value)
    assert exact("jsonb")(text) == text


def test_json_of_more_levels_than_a_parser_takes_is_its_text() -> None:
    text = "[" * 100_000 + "]" * 100_000
    assert json.loads(exact("json")(text)) == text
