"""Members and elements of JSON as they are written."""

from __future__ import annotations

import json

from hypothesis import given
from hypothesis import strategies as st

from pgstream_dagster.values.raw_json import elements, members

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
).map(json.dumps)


def test_members_are_as_written() -> None:
    text = '{"took": 1.10, "d\\u0022": [{"_source": {"a": "}\\"," }}] ,"e":{},"n":null}'
    assert members(text) == {
        "took": "1.10",
        'd"': '[{"_source": {"a": "}\\"," }}]',
        "e": "{}",
        "n": "null",
    }
    assert members("{}") == members(" { } ") == {}


def test_of_a_name_given_twice_the_last_counts() -> None:
    assert members('{"a":1,"a":2}') == {"a": "2"}


def test_elements_are_as_written() -> None:
    assert elements('[1.0, "],", [2,3],{"a":[4]} ]') == ["1.0", '"],"', "[2,3]", '{"a":[4]}']
    assert elements("[]") == elements(" [ ] ") == []


def test_deep_nesting_overflows_nothing() -> None:
    deep = "[" * 50_000 + "]" * 50_000
    assert members(f'{{"a":{deep}}}') == {"a": deep}


def test_what_engines_take_is_taken() -> None:
    half = r'"\ud800 half a pair"'
    assert members(f'{{"a":{half},"b":1.10}}') == {"a": half, "b": "1.10"}
    assert elements(f"[{half},1.10]") == [half, "1.10"]


@given(JSON, st.sampled_from(["1.10", r'"\ud800"']))
def test_a_value_is_the_text_it_was(value: str, beside: str) -> None:
    """By either cutter: what is next to it decides."""
    assert members(f'{{"a":{value},"b":{beside}}}') == {"a": value, "b": beside}
    assert elements(f"[{value},{beside}]") == [value, beside]
