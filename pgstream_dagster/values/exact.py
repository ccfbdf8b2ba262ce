"""
Values as JSON that loses nothing. Pure.

Booleans, integers, floats, numeric, json, jsonb and vectors become what they are in JSON, with
every digit; arrays become JSON arrays. Everything else is its Postgres text, as a string, and so is
a value that its JSON type cannot hold: `NaN`, infinite numbers, an array with bounds of its own
(`[0:1]={7,8}`), and a text that its type's output function would not write.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping
from functools import cache, partial
from json.encoder import encode_basestring
from typing import Any, Final, TypeAlias

import msgspec

from pgstream_dagster.values.kinds import Kind, kind_of
from pgstream_dagster.values.render import renderer

Render: TypeAlias = Callable[[str], str]
"""From a value's text to JSON in one line; it accepts every text."""

string: Final[Render] = encode_basestring
"""A text as a JSON string: escaped is what JSON demands, and no more."""

_INTEGER: Final = re.compile(r"-?(?:0|[1-9][0-9]*+)").fullmatch
_NUMBER: Final = re.compile(r"-?(?:0|[1-9][0-9]*+)(?:\.[0-9]++)?+(?:[eE][-+]?[0-9]++)?+").fullmatch
_NOT_FINITE: Final = re.compile(r"NaN|-?Infinity")
_CONTROL: Final = re.compile(r"[\x00-\x1f]")
_BOOLEANS: Final = {"t": "true", "f": "false"}
_ANY: Final = msgspec.json.Decoder(msgspec.Raw)
_ARRAY: Final = msgspec.json.Decoder(list[msgspec.Raw])


@cache
def exact(value_type: str) -> Render:
    """The rendering of a type's values, by `Column.value_type`."""
    kind, is_array = kind_of(value_type)
    return _ARRAYS.get(kind, _text_array) if is_array else _SCALARS.get(kind, string)


def _integer(text: str) -> str:
    return text if _INTEGER(text) else string(text)


def _number(text: str) -> str:
    return text if _NUMBER(text) else string(text)


def _boolean(text: str) -> str:
    return _BOOLEANS.get(text) or string(text)


def _json(text: str) -> str:
    if not _is_json(text):
        return string(text)
    # Only type json keeps line ends; Postgres takes no control character in a string.
    return text if text.isprintable() else _CONTROL.sub(" ", text)


def are_json(texts: Iterable[str]) -> bool:
    """Whether all texts are JSON; false also for what only Postgres accepts."""
    try:
        for _ in map(_ANY.decode, texts):
            pass
    except (msgspec.DecodeError, RecursionError):
        return False
    return True


def _is_json(text: str) -> bool:
    try:
        _ANY.decode(text)
    except (msgspec.DecodeError, RecursionError):
        return _is_unusual_json(text)
    return True


def _is_unusual_json(text: str) -> bool:
    """Postgres accepts half a surrogate pair as an escape in type json; msgspec does not."""
    try:
        json.loads(text, parse_constant=_refuse)
    except (ValueError, RecursionError):
        return False
    return True


def _refuse(constant: str) -> None:
    raise ValueError(constant)


def _vector(text: str) -> str:
    return renderer(Kind.VECTOR, is_array=False)(text) or string(text)


def _number_array(text: str) -> str:
    array = text.replace("{", "[").replace("}", "]").replace("NULL", "null")
    if "N" in array or "I" in array:
        array = _NOT_FINITE.sub(r'"\g<0>"', array)
    return array if _is_array(text, array) else string(text)


def _boolean_array(text: str) -> str:
    array = text.replace("f", "false").replace("t", "true").replace("{", "[").replace("}", "]")
    array = array.replace("NULL", "null")
    return array if _is_array(text, array) else string(text)


def _is_array(text: str, array: str) -> bool:
    """Whether a text without strings was an array with the usual bounds, as Postgres writes it."""
    if not text.startswith("{"):
        return False
    try:
        _ARRAY.decode(array)
    except msgspec.DecodeError:
        return False
    return True


def _text_array(text: str) -> str:
    """An array of strings; each is its element's text."""
    array = None if text.startswith("[") else renderer(Kind.TEXT, is_array=True)(text)
    return string(text) if array is None else array


def _array_of(element: Render, text: str) -> str:
    """An array whose elements are more than strings."""
    array = _text_array(text)
    return _nested(json.loads(array), element) if array.startswith("[") else array


def _nested(value: Any, element: Render) -> str:
    if isinstance(value, list):
        return f"[{','.join(_nested(item, element) for item in value)}]"
    return "null" if value is None else element(value)


_SCALARS: Final[Mapping[Kind, Render]] = {
    Kind.BOOLEAN: _boolean,
    Kind.INTEGER: _integer,
    Kind.FLOAT: _number,
    Kind.NUMERIC: _number,
    Kind.JSON: _json,
    Kind.VECTOR: _vector,
}
_ARRAYS: Final[Mapping[Kind, Render]] = {
    Kind.BOOLEAN: _boolean_array,
    Kind.INTEGER: _number_array,
    Kind.FLOAT: _number_array,
    Kind.NUMERIC: _number_array,
    Kind.JSON: partial(_array_of, _json),
    Kind.VECTOR: partial(_array_of, _vector),
}
