r"""
From a value's text to the value, as Spark expressions: the JVM runs them, no Python.

An expression gives null for NULL, and for every text that the type does not hold exactly: never an
error, in whatever mode and time zone the session is. Each type has a pattern of what its output
function writes, because Spark's own casts take more (blanks, `1d`, `2024-2`, the year 0) and round.
In the patterns every repetition of a group is possessive: Java matches others recursively, and a
long value would overflow its stack.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Final

from pyspark.sql import Column
from pyspark.sql import functions as F

from pgstream_dagster.tables.forms import Form
from pgstream_dagster.values.types import LakeType

_NUMBER: Final = r"-?(?:0|[1-9][0-9]*+)(?:\.[0-9]++)?+(?:e[-+][0-9]++)?+"
_FLOAT: Final = rf"{_NUMBER}|NaN|-?Infinity"
_VECTOR: Final = rf"\[{_NUMBER}(?:,{_NUMBER})*+\]"
_DATE: Final = r"(?!0000)[0-9]{4}-[0-9]{2}-[0-9]{2}"  # neither BC, nor past the year 9999
_TIME: Final = r"[0-9]{2}:[0-9]{2}:[0-9]{2}(?:\.[0-9]{0,5}[1-9])?+"
_TIMESTAMP: Final = f"{_DATE} {_TIME}"
_TIMESTAMPTZ: Final = rf"{_TIMESTAMP}\+00"  # our sessions have TimeZone UTC
_BYTES: Final = r"\\x[0-9a-f]*+"

_QUOTED: Final = r'"(?:[^"\\]++|\\[\s\S])*+"'
_ELEMENT: Final = rf'{_QUOTED}|[^{{}},"\\]++'
# Without quotes only what needs none: NULL is NULL, and no blank is around it.
_WRITTEN: Final = rf'(?:{_QUOTED}|NULL(?=[,}}])|(?!(?i:null)[,}}])[^\s{{}},"\\]++)'
_ARRAY: Final = rf"\{{(?:{_WRITTEN}(?:,{_WRITTEN})*+)?+\}}"  # one dimension, from index 1
_PAIR: Final = rf"({_QUOTED})=>({_QUOTED}|NULL)"
_PAIRS: Final = f"(?:{_PAIR}(?:, {_PAIR})*+)?+"

_BOUND: Final = r'(?:"[^",\\\[\](){}]++"|[^\s",\\\[\](){}]++)'
_RANGE: Final = rf"(?:\[{_BOUND}|\({_BOUND}?+),(?:{_BOUND}[\])]|\))"
_RANGES: Final = rf"\{{(?:{_RANGE}(?:,{_RANGE})*+)?+\}}"

# A variant has decimals of 38 digits; longer numbers, and those with an exponent, would become
# doubles. A run of 38 digits and points is 37 digits if it has a point: the check stays simple.
_EXACT_NUMBER: Final = r"[0-9.]{1,38}+(?![0-9.eE])"
_HALF_PAIRS: Final = r"\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F]|\\u(?![dD][89a-fA-F])|\\[^u]"
_EXACT_JSON: Final = rf'(?:"(?:[^"\\]++|{_HALF_PAIRS})*+"|[^"0-9]++|{_EXACT_NUMBER})*+'

EMPTY: Final = "empty"
"""The text of a range without values: both bounds are null, neither is inclusive."""

RANGE_FIELDS: Final = ("lower", "upper", "lower_inclusive", "upper_inclusive", "is_empty")

Cast = Callable[[Column, Form], Column]


def value(text: Column, form: Form) -> Column:
    """The value of a text; null if it is NULL or cannot be held exactly."""
    return _CASTS[form.lake](text, form)


def _matches(text: Column, pattern: str) -> Column:
    return F.rlike(text, F.lit(rf"^(?:{pattern})\z"))


def _string(text: Column, _: Form) -> Column:
    return text


def _boolean(text: Column, _: Form) -> Column:
    return F.when(text == "t", F.lit(True)).when(text == "f", F.lit(False))  # noqa: FBT003


def _integer(name: str, text: Column, _: Form) -> Column:
    number = text.try_cast(name)
    return F.when(number.cast("string") == text, number)


def _unsigned(text: Column, form: Form) -> Column:
    number = _integer("bigint", text, form)
    return F.when(number.between(0, 0xFFFFFFFF), number)


def _float(name: str, text: Column, _: Form) -> Column:
    """Not what is too large, which Java reads as infinite, or too small, which it reads as 0."""
    number = text.try_cast(name)
    is_in_range = (F.abs(number) != float("inf")) | text.isin("Infinity", "-Infinity")
    is_not_rounded_off = (number != 0) | text.isin("0", "-0")
    return F.when(_matches(text, _FLOAT) & is_in_range & is_not_rounded_off, number)


def _decimal(text: Column, form: Form) -> Column:
    whole = rf"(?:0|[1-9][0-9]{{0,{form.digits - 1}}}+)" if form.digits else "0"
    fraction = ""
    if form.scale:
        least = 1 if form.is_padded else form.scale
        fraction = rf"(?:\.[0-9]{{{least},{form.scale}}}+)" + ("?+" if form.is_padded else "")
    precision = form.digits + form.scale
    is_exact = _matches(text, rf"(?!-[0.]*+\z)-?{whole}{fraction}")
    return F.when(is_exact, text.try_cast(f"decimal({precision},{form.scale})"))


def _patterned(pattern: str, name: str, text: Column, _: Form) -> Column:
    return F.when(_matches(text, pattern), text.try_cast(name))


def _binary(text: Column, _: Form) -> Column:
    is_hexadecimal = _matches(text, _BYTES) & (F.length(text) % 2 == 0)
    digits = F.substr(text, F.lit(3))
    return F.when(is_hexadecimal, F.try_to_binary(digits, F.lit("hex")))


def _variant(text: Column, _: Form) -> Column:
    """Parsed with brackets around it too, as the parser overlooks what follows a document."""
    count = F.json_array_length(F.concat(F.lit("["), text, F.lit("]")))
    return F.when(_matches(text, _EXACT_JSON) & (count == 1), F.try_parse_json(text))


def _array(text: Column, form: Form) -> Column:
    accepted = F.when(_matches(text, _ARRAY), text)
    texts = F.transform(_all(accepted, _ELEMENT), _unquoted)
    values = F.transform(texts, lambda item: value(item, form.element))
    return texts if form.element.lake is LakeType.STRING else _if_whole(values, texts)


def _map(text: Column, _: Form) -> Column:
    accepted = F.when(_matches(text, _PAIRS), text)
    keys, values = (F.transform(_all(accepted, _PAIR, group), _unquoted) for group in (1, 2))
    are_unique = F.size(F.array_distinct(keys)) == F.size(keys)  # Spark raises an error otherwise
    return F.when(are_unique, F.map_from_arrays(keys, values))


def _vector(text: Column, form: Form) -> Column:
    inner = F.when(_matches(text, _VECTOR), F.substring(text, 2, F.length(text) - 2))
    texts = F.split(inner, ",")
    return _if_whole(F.transform(texts, lambda item: _float("float", item, form)), texts)


def _range(text: Column, form: Form) -> Column:
    """
    A bound that is not there is null, and not inclusive.

    The pattern is checked once, at the end: what is no range has sides too, which nobody sees.
    """
    is_empty = text == EMPTY
    inner = F.when(~is_empty, F.substring(text, 2, F.length(text) - 2))
    sides = [F.btrim(F.split_part(inner, F.lit(","), F.lit(n)), F.lit('"')) for n in (1, 2)]
    lower, upper = (F.when(side != "", value(side, form.element)) for side in sides)
    has_sides = ((sides[0] == "") | lower.isNotNull()) & ((sides[1] == "") | upper.isNotNull())
    flags = [F.startswith(text, F.lit("[")), F.endswith(text, F.lit("]")), is_empty]
    whole = F.struct(*_named(RANGE_FIELDS, [lower, upper, *flags]))
    return F.when((_matches(text, _RANGE) & has_sides) | is_empty, whole)


def _named(names: Sequence[str], columns: Sequence[Column]) -> list[Column]:
    return [column.alias(name) for name, column in zip(names, columns, strict=True)]


def _multirange(text: Column, form: Form) -> Column:
    texts = _all(F.when(_matches(text, _RANGES), text), _RANGE)
    return _if_whole(F.transform(texts, lambda item: _range(item, form.element)), texts)


def _all(text: Column, pattern: str, group: int = 0) -> Column:
    return F.regexp_extract_all(text, F.lit(pattern), F.lit(group))


def _unquoted(item: Column) -> Column:
    """The text of an element as an array or an hstore writes it; null for NULL."""
    inner = F.substring(item, 2, F.length(item) - 2)
    plain = F.when(item != "NULL", item)
    return F.when(F.startswith(item, F.lit('"')), _unescaped(inner)).otherwise(plain)


def _unescaped(text: Column) -> Column:
    return F.regexp_replace(text, r"\\([\s\S])", "$1")


def _if_whole(values: Column, texts: Column) -> Column:
    """The values, if all texts that are not NULL have one."""
    has_all = F.size(F.array_compact(values)) == F.size(F.array_compact(texts))
    return F.when(has_all, values)


_CASTS: Final[Mapping[LakeType, Cast]] = {
    LakeType.STRING: _string,
    LakeType.BOOLEAN: _boolean,
    LakeType.SMALLINT: partial(_integer, "smallint"),
    LakeType.INT: partial(_integer, "int"),
    LakeType.BIGINT: partial(_integer, "bigint"),
    LakeType.UNSIGNED: _unsigned,
    LakeType.FLOAT: partial(_float, "float"),
    LakeType.DOUBLE: partial(_float, "double"),
    LakeType.DECIMAL: _decimal,
    LakeType.DATE: partial(_patterned, _DATE, "date"),
    LakeType.TIMESTAMP_NTZ: partial(_patterned, _TIMESTAMP, "timestamp_ntz"),
    LakeType.TIMESTAMP: partial(_patterned, _TIMESTAMPTZ, "timestamp"),
    LakeType.BINARY: _binary,
    LakeType.VARIANT: _variant,
    LakeType.MAP: _map,
    LakeType.VECTOR: _vector,
    LakeType.RANGE: _range,
    LakeType.MULTIRANGE: _multirange,
    LakeType.ARRAY: _array,
}
