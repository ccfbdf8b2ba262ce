"""Values as JSON, documents, and documents merged with partial images."""

from __future__ import annotations

import json

import pytest

from pgstream_dagster.search.fields import Field
from pgstream_dagster.search.render import document, fragments, merged
from pgstream_dagster.search.types import KEYWORD, form_of
from pgstream_dagster.values.render import renderer, string


def rendered(value_type: str, text: str) -> str | None:
    form = form_of(value_type)
    return renderer(form.kind, form.is_array)(text)


@pytest.mark.parametrize(
    ("value_type", "text", "expected"),
    [
        ("int4", "-7", "-7"),
        ("oid", "4294967295", "4294967295"),
        ("xid8", "18446744073709551615", '"18446744073709551615"'),
        ("float8", "1e+20", "1e+20"),
        ("float8", "-0", "-0"),
        ("float8", "5e-324", "5e-324"),
        ("numeric", "1.10", "1.10"),
        ("numeric", "9" * 308 + "." + "1" * 600, "9" * 308 + "." + "1" * 600),
        ("money", "$1,234.50", '"$1,234.50"'),
        ("bool", "t", "true"),
        ("bool", "f", "false"),
        ("date", "0001-01-01", '"0001-01-01"'),
        ("timestamp", "2020-01-01 12:00:00.123456", '"2020-01-01T12:00:00.123456"'),
        ("timestamptz", "2020-01-01 12:00:00+00", '"2020-01-01T12:00:00Z"'),
        ("time", "24:00:00", '"24:00:00"'),
        ("timetz", "12:00:00.5+05:30", '"12:00:00.5+05:30"'),
        ("interval", "1 year -2 days +03:00:00", '"1 year -2 days +03:00:00"'),
        ("uuid", "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11", '"a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11"'),
        ("bytea", "\\x00ff", '"\\\\x00ff"'),
        ("inet", "10.0.0.0/8", '"10.0.0.0/8"'),
        ("composite", '(1,"a ""b""",)', '"(1,\\"a \\"\\"b\\"\\"\\",)"'),
        ("range", "[a,b)", '"[a,b)"'),
        ("", "anything", '"anything"'),
        ("geography", "0101", '"0101"'),
        ("geography[]", "{01:02}", '"{01:02}"'),
        ("box[]", "{(1,1),(0,0);(2,2),(1,1)}", '"{(1,1),(0,0);(2,2),(1,1)}"'),
        ("int4[][]", '{"{1,2}"}', '"{\\"{1,2}\\"}"'),
        ("jsonb", "null", "null"),
        ("jsonb", "1.10", "1.10"),
        ("jsonb", '"a\\u0000"', '"a\\u0000"'),
        ("json", '{"a":\n\t1e400,\r\n"a": 2}', '{"a":  1e400,  "a": 2}'),
        ("hstore", "", "{}"),
        ("hstore", '"a\\"b"=>"\n", "c"=>NULL', '{"a\\"b":"\\n", "c":null}'),
        ("hstore", '"=>NULL, "=>"NULL"', '{"=>NULL, ":"NULL"}'),
        ("vector", "[1,2.5,-3e-05]", "[1,2.5,-3e-05]"),
        ("int4[]", "{}", "[]"),
        ("int4[]", "{1,NULL,-3}", "[1,null,-3]"),
        ("int4[]", "[0:1][2:2]={{1},{2}}", "[[1],[2]]"),
        ("bool[]", "{t,f,NULL}", "[true,false,null]"),
        ("text[]", '{a,"b,c",NULL,"NULL",null,""}', '["a","b,c",null,"NULL","null",""]'),
        ("text[]", '{"q\\"u\\\\o","{}",é}', '["q\\"u\\\\o","{}","é"]'),
        ("text[]", '{{a,"\n"},{NULL,"[1:2]="}}', '[["a","\\n"],[null,"[1:2]="]]'),
        ("enum[]", "{sad,NULL}", '["sad",null]'),
        ("timestamptz[]", '{"2020-01-01 00:00:00+00",NULL}', '["2020-01-01T00:00:00Z",null]'),
        ("jsonb[]", '{"{\\"a\\": \\"\\\\\\"{\\"}",1,NULL,"null"}', '[{"a": "\\"{"},1,null,null]'),
        ("hstore[]", '{"\\"a\\"=>\\"NULL,\\"",NULL,""}', '[{"a":"NULL,"},null,{}]'),
        ("int4range", "[1,5)", '{"gte":1,"lt":5}'),
        ("int4range", "(,)", "{}"),
        ("numrange", "(0.5,1.10]", '{"gt":0.5,"lte":1.10}'),
        ("numrange", "[-Infinity,1]", '{"lte":1}'),
        ("daterange", "[2020-01-01,infinity)", '{"gte":"2020-01-01"}'),
        (
            "tstzrange",
            '["2020-01-01 00:00:00+00","2020-01-02 00:00:00.5+00")',
            '{"gte":"2020-01-01T00:00:00Z","lt":"2020-01-02T00:00:00.5Z"}',
        ),
        (
            "tsrange[]",
            '{"[\\"2020-01-01 00:00:00\\",)",NULL}',
            '[{"gte":"2020-01-01T00:00:00"},null]',
        ),
        ("int8multirange", "{}", "[]"),
        ("int8multirange", "{(,3),[7,)}", '[{"lt":3},{"gte":7}]'),
    ],
)
def test_a_value_is_written_so(value_type: str, text: str, expected: str) -> None:
    assert rendered(value_type, text) == expected
    json.loads(expected)


@pytest.mark.parametrize(
    ("value_type", "text"),
    [
        ("float4", "NaN"),
        ("float8", "-Infinity"),
        ("numeric", "NaN"),
        ("numeric", "Infinity"),
        ("numeric", "1" + "0" * 308),
        ("numeric", "0." + "1" * 999),
        ("numeric[]", "{1,NaN}"),
        ("date", "infinity"),
        ("date", "0044-03-15 BC"),
        ("date", "10000-01-01"),
        ("timestamp", "-infinity"),
        ("timestamptz", "0044-03-15 00:00:00+00 BC"),
        ("timestamptz[]", "{infinity}"),
        ("int4range", "empty"),
        ("daterange", "[0044-03-15 BC,2020-01-01)"),
        ("numrange", "[1,NaN)"),
        ("jsonb", "1" * 1001),
        ("jsonb[]", "{" + "1" * 1001 + "}"),
        ("int4", "was a text"),
        ("int4", "007"),
        ("int4", "٣"),
        ("int4", "1\n"),
        ("int4[]", "{1,2"),
        ("int4[]", "{1}}"),
        ("text[]", '{a"b}'),
        ("hstore", "a=>b"),
        ("jsonb", ""),
    ],
)
def test_a_value_that_cannot_be_indexed_is_reported(value_type: str, text: str) -> None:
    assert rendered(value_type, text) is None


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('"\\/', '"\\"\\\\/"'),
        ("\b\t\n\f\r", '"\\b\\t\\n\\f\\r"'),
        ("\x01\x1f\x7f\x85\u2028\u2029", '"\\u0001\\u001F\x7f\x85\u2028\u2029"'),
        ('\x0b"\n', '"\\u000B\\"\\n"'),
        ("\\u001f", '"\\\\u001f"'),
        ("\U0001f40d", '"\U0001f40d"'),
    ],
)
def test_a_string_is_escaped_as_in_java(text: str, expected: str) -> None:
    assert string(text) == expected
    assert json.loads(expected) == text


@pytest.mark.long
@pytest.mark.parametrize("value_type", ["text", "text[]", "jsonb", "hstore", "bytea"])
def test_a_value_of_megabytes_is_rendered(value_type: str) -> None:
    long = "a1 \\\\" * 1_000_000
    texts = {"text[]": f'{{"{long}"}}', "jsonb": f'"{long}"', "hstore": f'"{long}"=>NULL'}
    fragment = rendered(value_type, texts.get(value_type, long))
    assert fragment is not None
    assert len(json.dumps(json.loads(fragment))) >= len(long)


def fields(**types: str) -> list[Field]:
    return [
        Field(name.upper(), name, at, form_of(it).kind, form_of(it).is_array, KEYWORD)
        for at, (name, it) in enumerate(types.items(), start=1)
    ]


FIELDS = fields(a="int4", n="numeric", j="jsonb", t="text")


def test_a_document_has_every_field_and_apart_what_they_cannot_hold() -> None:
    image = {"t": 'x"', "a": "1", "n": "NaN", "j": None}
    assert document(FIELDS, image) == '{"A":1,"J":null,"T":"x\\"","_rescued":{"N":"NaN"}}'
    assert document([], image) == "{}"


def test_a_partial_image_has_only_what_was_sent() -> None:
    values, rescued = fragments(FIELDS, {"a": None, "n": "Infinity"})
    assert (values, rescued) == ({"A": "null"}, {"N": '"Infinity"'})


def test_what_is_merged_keeps_stored_values_as_they_were_written() -> None:
    stored = (
        '{ "A" : 1, "N": 1.10,"J":{"x": 1e400, "x": 123456789012345678901234567890,'
        ' "y": [",}", "\\""]} , "T":"\\u00e9", "gone": {"A": 2} }'
    )
    assert merged(FIELDS, stored, {"a": "2"}) == (
        '{"A":2,"N":1.10,"J":{"x": 1e400, "x": 123456789012345678901234567890,'
        ' "y": [",}", "\\""]},"T":"\\u00e9"}'
    )


def test_a_value_moves_to_the_rescued_and_back() -> None:
    stored = document(FIELDS, {"a": "1", "n": "1.0", "j": "[]", "t": "x"})
    once = merged(FIELDS, stored, {"n": "NaN", "a": "x"})
    assert once == '{"J":[],"T":"x","_rescued":{"A":"x","N":"NaN"}}'
    assert merged(FIELDS, once, {"n": "2"}) == '{"N":2,"J":[],"T":"x","_rescued":{"A":"x"}}'


def test_nothing_to_merge_leaves_the_document() -> None:
    stored = document(FIELDS, {"a": "1", "n": "NaN", "j": "[]", "t": "x"})
    assert merged(FIELDS, stored, {}) == stored
