"""Members and elements of JSON as they are written."""

from __future__ import annotations

from pgstream_dagster.search.raw_json import elements, members


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
