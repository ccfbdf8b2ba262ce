"""The text and the JSON of values, by the engine itself."""

from __future__ import annotations

import json

import pytest

from pgstream_dagster.query import rendering

duckdb = pytest.importorskip("duckdb")

DIGITS = "12345678901234567890.1234567891"

VALUES = {
    "null": (None, None),
    "true": ("true", "true"),
    "9223372036854775807": ("9223372036854775807", "9223372036854775807"),
    f"{DIGITS}::decimal(38,10)": (DIGITS, DIGITS),
    "1.50::decimal(4,2)": ("1.50", "1.50"),
    "1.1::float": ("1.1", "1.1"),
    "1e-30::float": ("1e-30", "1e-30"),
    "'NaN'::double": ("NaN", '"NaN"'),
    "'-inf'::float": ("-Infinity", '"-Infinity"'),
    "'\\x00\\xFF'::blob": ("\\x00ff", '"\\\\x00ff"'),
    "'a\"b'": ('a"b', '"a\\"b"'),
    "'[1, 2.50]'::json": ("[1, 2.50]", "[1, 2.50]"),
    "timestamptz '2026-02-28 12:34:56.789012+02'": (
        "2026-02-28 10:34:56.789012+00",
        '"2026-02-28 10:34:56.789012+00"',
    ),
    "timestamp '290000-01-01 00:00:00'": ("290000-01-01 00:00:00", '"290000-01-01 00:00:00"'),
    "interval '1 month 2 days'": ("1 month 2 days", '"1 month 2 days"'),
    "['a', null, 'NULL']": ('["a",null,"NULL"]', '["a",null,"NULL"]'),
    f"[{DIGITS}::decimal(38,10)]": (f"[{DIGITS}]", f"[{DIGITS}]"),
    "[1.1::float, 'inf'::float, null]": ('[1.1,"Infinity",null]', '[1.1,"Infinity",null]'),
    "[[1.1::float], []]": ("[[1.1],[]]", "[[1.1],[]]"),
    "{'lower': date '2026-01-01', 'raw': '\\x01'::blob, 'no': null}": (
        '{"lower":"2026-01-01","raw":"\\\\x01","no":null}',
        '{"lower":"2026-01-01","raw":"\\\\x01","no":null}',
    ),
    f"{{'a': {DIGITS}::decimal(38,10), 'b': '\\x01'::blob}}": (
        f'{{"a":{DIGITS},"b":"\\\\x01"}}',
        f'{{"a":{DIGITS},"b":"\\\\x01"}}',
    ),
    "null::struct(a blob)": (None, None),
    "map {'a': null, 'b': 'x'}": ('{"a":null,"b":"x"}', '{"a":null,"b":"x"}'),
    "map {'a': 'nan'::double}": ('{"a":"NaN"}', '{"a":"NaN"}'),
    "null::variant": (None, None),
    "{'n': 1}::variant": ('{"n":1}', '{"n":1}'),
}


@pytest.mark.parametrize(("value", "expected"), VALUES.items(), ids=VALUES)
def test_value_is_printed(value: str, expected: tuple[str | None, str | None]) -> None:
    with duckdb.connect() as connection:
        connection.execute("set timezone = 'UTC'")
        described = connection.execute(f"select {value} as c").description
        type_ = described[0][1]
        texts = f"{rendering.text('c', type_)}, {rendering.json('c', type_)}"
        [printed] = connection.execute(f"select {texts} from (select {value} as c)").fetchall()
    assert printed == expected
    if expected[1] is not None:
        json.loads(expected[1])
