r"""
The Postgres text of a value from its JSON: the inverse of `exact`. Pure.

What `exact` writes comes back as the text it was, with two exceptions: line ends between the tokens
of type json are blanks, and an array of json or of vectors is taken to have one dimension, with
`null` for NULL.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from typing import Any, Final, TypeAlias

from pgstream_dagster.values.kinds import Kind, kind_of
from pgstream_dagster.values.raw_json import elements

Parse: TypeAlias = Callable[[str], "str | None"]
"""From a value's JSON to its text; `None` for `null`."""

_NEEDS_QUOTES: Final = re.compile(r'[\s{}",\\]|^$|^null$', re.IGNORECASE)
_QUOTED: Final = re.compile(r'(["\\])')


@cache
def parse(value_type: str) -> Parse:
    """
    The function for a type's values, by `Column.value_type`.

    Raises:
        ValueError: the JSON is none that `exact` writes for the type.
    """
    kind, is_array = kind_of(value_type)
    scalar = _SCALARS.get(kind, _text)
    if not is_array:
        return lambda value: None if value == "null" else scalar(value)
    is_flat = kind in {Kind.JSON, Kind.VECTOR}
    return lambda value: None if value == "null" else _array_or_text(value, scalar, is_flat=is_flat)


def _text(value: str) -> str:
    text: Any = json.loads(value)
    if not isinstance(text, str):
        raise ValueError("a text must be a JSON string")  # noqa: TRY004 - one kind for the caller
    return text


def _number(value: str) -> str:
    if value.startswith('"'):
        return _text(value)
    if value[0] not in "-0123456789":
        raise ValueError("a number must be a JSON number or string")
    return value


def _boolean(value: str) -> str:
    return _BOOLEANS[value] if value in _BOOLEANS else _text(value)


def _vector(value: str) -> str:
    return _text(value) if value.startswith('"') else value


def _array_or_text(value: str, scalar: Parse, *, is_flat: bool) -> str:
    if value.startswith('"'):  # what JSON cannot hold, such as bounds of its own
        return _text(value)
    if not value.startswith("["):
        raise ValueError("an array must be a JSON array or string")
    return _array(value, scalar, is_flat=is_flat)


def _array(value: str, scalar: Parse, *, is_flat: bool) -> str:
    return "{" + ",".join(_elements(elements(value), scalar, is_flat=is_flat)) + "}"


def _elements(values: Iterable[str], scalar: Parse, *, is_flat: bool) -> Iterable[str]:
    for value in values:
        if value == "null":
            yield "NULL"
        elif value.startswith("[") and not is_flat:
            yield _array(value, scalar, is_flat=False)
        else:
            text = scalar(value) or ""
            is_plain = _NEEDS_QUOTES.search(text) is None
            yield text if is_plain else '"' + _QUOTED.sub(r"\\\1", text) + '"'


_BOOLEANS: Final = {"true": "t", "false": "f"}

_SCALARS: Final[Mapping[Kind, Parse]] = {
    Kind.BOOLEAN: _boolean,
    Kind.INTEGER: _number,
    Kind.FLOAT: _number,
    Kind.NUMERIC: _number,
    Kind.JSON: lambda value: value,
    Kind.VECTOR: _vector,
}
