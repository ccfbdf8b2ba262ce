r"""
How a value's text becomes JSON: regular expressions, as data.

Pure. The live indexer runs them with Python's `re`, a re-index with Java's in Spark, and both must
give the same bytes. So everything here means the same in both: ASCII classes (`[0-9]`; in Python
`\d` matches digits of any script), `[\s\S]` for any character, groups named `$1`, and every
repetition of a group possessive: Java matches others recursively, and a long value would overflow
its stack.

A text that its type's output function would not write, such as one from before a column was
retyped, is not accepted: so a document is always valid JSON. (json and jsonb are not checked.)
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from pgstream_dagster.values.kinds import Kind


@dataclass(frozen=True, slots=True)
class Rendering:
    """
    A text whose whole does not match `accepts` (empty: any does) cannot be indexed.

    With `escapes` it becomes a JSON string; then every rewrite (pattern and replacement) is applied
    to all matches, in order.
    """

    accepts: str = ""
    rewrites: tuple[tuple[str, str], ...] = ()
    escapes: bool = False


_INTEGER: Final = r"-?(?:0|[1-9][0-9]{0,18}+)"
_FLOAT: Final = r"-?(?:0|[1-9][0-9]*+)(?:\.[0-9]++)?+(?:[eE][-+]?[0-9]++)?+"
# 10^308 is the last power of ten in a double; engines read no number of over 1000 characters.
_NUMERIC: Final = r"(?![-.0-9]{1001})-?(?:0|[1-9][0-9]{0,307}+)(?:\.[0-9]++)?+"
_DATE: Final = r"[0-9]{4}-[0-9]{2}-[0-9]{2}"  # neither infinity, nor BC, nor past the year 9999
_TIME: Final = r"[0-9]{2}:[0-9]{2}:[0-9]{2}(?:\.[0-9]{1,6})?+"
_QUOTED: Final = r'"(?:[^"\\]++|\\[\s\S])*+"'
_VECTOR: Final = rf"\[{_FLOAT}(?:,{_FLOAT})*+\]"
# No number of over 1000 characters. Such a run in a string counts too; nothing is lost, as the
# field is not searched.
_NO_LONG_NUMBER: Final = r"(?:[^0-9]++|[0-9][-+.0-9eE]{0,998}+(?![-+.0-9eE]))*+(?![\s\S])"
_JSON: Final = rf"(?=[\s\S]){_NO_LONG_NUMBER}"
_TEXT_ELEMENT: Final = rf'(?:{_QUOTED}|[^{{}},"\\]++)'
_JSON_ELEMENT: Final = rf'(?:(?!""){_QUOTED}|[^{{}},"\\]++)'

_MOST_DIMENSIONS: Final = 6
"""Of an array (MAXDIM of Postgres)."""

# Placeholders while an array is rewritten: no text contains them, control characters are escaped.
_BARE, _BRACE, _OBJECT = "\x01", "\x02", "\x03"


def _array(element: str) -> str:
    """An array with any bounds whose elements match or are NULL: `{..}`, `[0:1]={..}`."""
    level, levels = rf"(?:{element}|NULL)", list[str]()
    for _ in range(_MOST_DIMENSIONS):
        level = rf"\{{(?:(?:(?<=\{{)|,){level})*+\}}"
        levels.append(level)
    return rf"(?:(?:\[-?[0-9]++:-?[0-9]++\])++=)?+(?:{'|'.join(levels)})"


def _hstore(quote: str, escape: str) -> str:
    """An hstore; in an array its quotes and escapes are escaped."""
    text = rf'{quote}(?:[^"\\]++|{escape}["\\])*+{quote}'
    pair = f"{text}=>(?:{text}|NULL)"
    return f"(?:{pair}(?:, {pair})*+)?+"


# In an array: a quote with its escape; an escaped character with the escape's and its own.
_HSTORE_ELEMENT: Final = '"' + _hstore(r'\\"', r"\\\\\\") + '"'
_IN_BRACES: Final = (r"^([\s\S]*)(?![\s\S])", "{$1}")

_WITHOUT_BOUNDS: Final = (r"^\[[^{]*+\{", "{")
# For arrays without strings: no element has a brace, or the letters of NULL.
_PLAIN_ARRAY: Final = (_WITHOUT_BOUNDS, (r"\{", "["), (r"\}", "]"), ("NULL", "null"))

# Removes the quotes of a JSON string, and its escapes except those of control characters. The types
# that use this write no other escapes than these two.
_CONTROLS: Final = ((r'^"([\s\S]*)"', "$1"), (r'\\(["\\])', "$1"))

_TEXT_ARRAY: Final = (
    *_CONTROLS,
    _WITHOUT_BOUNDS,
    (rf'({_QUOTED})|([^{{}},"]++)|([{{}}])', f"$1{_BARE}$2{_BARE}{_BRACE}$3{_BRACE}"),
    (r"\x01\x01|\x02\x02", ""),
    (r"\x02\{\x02", "["),
    (r"\x02\}\x02", "]"),
    (r"\x01NULL\x01", "null"),
    (r"\x01", '"'),
)
_JSON_LINE: Final = (r"[\x00-\x1f]", " ")  # between tokens: Postgres takes none in a string
_JSON_ARRAY: Final = (
    _JSON_LINE,
    _WITHOUT_BOUNDS,
    (
        r'"((?:[^"\\]++|\\[\s\S])++)"|([^{},"]++)|([{}])',
        f"$1{_BARE}$2{_BARE}{_BRACE}$3{_BRACE}",
    ),
    (r"\x01\x01|\x02\x02", ""),
    (r"\x02\{\x02", "["),
    (r"\x02\}\x02", "]"),
    (r"\x01NULL\x01", "null"),
    (r"\x01", ""),
    (r'\\(["\\])', "$1"),
)
_PAIRS: Final = (
    (rf"({_QUOTED})=>(?:({_QUOTED})|NULL)", f"$1:{_BARE}$2{_BARE}"),
    (r"\x01\x01", "null"),
    (r"\x01", ""),
)
_HSTORE_ARRAY: Final = (
    *_CONTROLS,
    _WITHOUT_BOUNDS,
    (
        rf"({_QUOTED})|([{{}}])|N(U)LL",
        f"{_OBJECT}$1{_OBJECT}{_BRACE}$2{_BRACE}{_BARE}$3{_BARE}",
    ),
    (r"\x01\x01|\x02\x02|\x03\x03", ""),
    (r"\x02\{\x02", "["),
    (r"\x02\}\x02", "]"),
    (r"\x01U\x01", "null"),
    (r'\x03"', "{"),
    (r'"\x03', "}"),
    (r'\\(["\\])', "$1"),
    *_PAIRS,
)


def _range(bound: str, infinity: str, quote: str = "") -> str:
    """A range; in an array its quotes are escaped."""
    value = f"{quote}{bound}{quote}"
    return rf"[\[(](?:{value}|-{infinity})?+,(?:{value}|{infinity})?+[\])]"


def _ranges(bound: tuple[tuple[str, str], ...]) -> tuple[tuple[str, str], ...]:
    """Ranges, in any brackets, as objects; a missing or infinite bound is no limit."""
    return (
        (r'[\\"]++', ""),
        *bound,
        (r"-[Ii]nfinity,", ","),
        (r",[Ii]nfinity", ","),
        (r"\{", _BRACE),
        (r"\}", _OBJECT),
        (r"\[([^,\[(]++),", '{"gte":$1,'),
        (r"\(([^,\[(]++),", '{"gt":$1,'),
        (r"[\[(],", "{,"),
        (r",([^,\])]++)\]", ',"lte":$1}'),
        (r",([^,\])]++)\)", ',"lt":$1}'),
        (r",[\])]", "}"),
        (r"\{,", "{"),
        (r"\x02", "["),
        (r"\x03", "]"),
        ("NULL", "null"),
    )


def _of_range(
    name: str, bound: str, infinity: str, rewrites: tuple[tuple[str, str], ...], quote: str = ""
) -> dict[tuple[Kind, bool], Rendering]:
    """The renderings of a range and of its multirange, and of their arrays."""
    alone, inside = (_range(bound, infinity, q) for q in (quote, rf"\\{quote}" if quote else ""))
    steps = _ranges(rewrites)
    in_array = (_WITHOUT_BOUNDS, *steps)
    single, multiple = Kind(f"{name} range"), Kind(f"{name} multirange")

    def multirange(element: str) -> str:
        return rf"\{{(?:{element}(?:,{element})*+)?+\}}"

    return {
        (single, False): Rendering(alone, steps),
        (single, True): Rendering(_array(f'"{inside}"'), in_array),
        (multiple, False): Rendering(multirange(alone), steps),
        (multiple, True): Rendering(_array(f'"{multirange(inside)}"'), in_array),
    }


_AS_DATE: Final = (rf"({_DATE})", '"$1"')
_AS_TIMESTAMP: Final = (rf'"?({_DATE}) ({_TIME})"?', '"$1T$2"')
_AS_TIMESTAMPTZ: Final = (rf'"?({_DATE}) ({_TIME})\+00"?', '"$1T$2Z"')
_STAMP: Final = f"{_DATE} {_TIME}"
_STAMPTZ: Final = rf"{_STAMP}\+00"  # our sessions have TimeZone UTC
_BOOLEAN: Final = (("t", "true"), ("f", "false"))

RENDERINGS: Final[Mapping[tuple[Kind, bool], Rendering]] = {
    (Kind.TEXT, False): Rendering(escapes=True),
    (Kind.TEXT, True): Rendering(_array(_TEXT_ELEMENT), _TEXT_ARRAY, escapes=True),
    (Kind.INTEGER, False): Rendering(_INTEGER),
    (Kind.INTEGER, True): Rendering(_array(_INTEGER), _PLAIN_ARRAY),
    (Kind.FLOAT, False): Rendering(_FLOAT),
    (Kind.FLOAT, True): Rendering(_array(_FLOAT), _PLAIN_ARRAY),
    (Kind.NUMERIC, False): Rendering(_NUMERIC),
    (Kind.NUMERIC, True): Rendering(_array(_NUMERIC), _PLAIN_ARRAY),
    (Kind.BOOLEAN, False): Rendering("[tf]", _BOOLEAN),
    (Kind.BOOLEAN, True): Rendering(_array("[tf]"), (*_BOOLEAN, *_PLAIN_ARRAY)),
    (Kind.DATE, False): Rendering(_DATE, (_AS_DATE,)),
    (Kind.DATE, True): Rendering(_array(_DATE), (*_PLAIN_ARRAY, _AS_DATE)),
    (Kind.TIMESTAMP, False): Rendering(_STAMP, (_AS_TIMESTAMP,)),
    (Kind.TIMESTAMP, True): Rendering(_array(f'"{_STAMP}"'), (*_PLAIN_ARRAY, _AS_TIMESTAMP)),
    (Kind.TIMESTAMPTZ, False): Rendering(_STAMPTZ, (_AS_TIMESTAMPTZ,)),
    (Kind.TIMESTAMPTZ, True): Rendering(_array(f'"{_STAMPTZ}"'), (*_PLAIN_ARRAY, _AS_TIMESTAMPTZ)),
    (Kind.JSON, False): Rendering(_JSON, (_JSON_LINE,)),
    (Kind.JSON, True): Rendering(f"(?={_NO_LONG_NUMBER}){_array(_JSON_ELEMENT)}", _JSON_ARRAY),
    (Kind.HSTORE, False): Rendering(
        _hstore('"', r"\\"), (*_CONTROLS, *_PAIRS, _IN_BRACES), escapes=True
    ),
    (Kind.HSTORE, True): Rendering(_array(_HSTORE_ELEMENT), _HSTORE_ARRAY, escapes=True),
    (Kind.VECTOR, False): Rendering(_VECTOR),
    (Kind.VECTOR, True): Rendering(
        _array(f'(?:"{_VECTOR}"|{_VECTOR})'), (*_PLAIN_ARRAY, ('"', ""))
    ),
    **_of_range("integer", _INTEGER, "infinity", ()),
    **_of_range("numeric", _NUMERIC, "Infinity", ()),
    **_of_range("date", _DATE, "infinity", (_AS_DATE,)),
    **_of_range("timestamp", _STAMP, "infinity", (_AS_TIMESTAMP,), '"'),
    **_of_range("timestamptz", _STAMPTZ, "infinity", (_AS_TIMESTAMPTZ,), '"'),
}
"""By kind, and whether the value is an array."""
