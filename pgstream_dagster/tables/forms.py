"""
What the values of a column become in a typed table, from its type and the file's options.

Pure: no Spark. `types` makes a data type of a form, `casts` the expression from text to value.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from pgstream_dagster.config.column_types import MAX_PRECISION, ColumnTypes
from pgstream_dagster.schema.table import Column
from pgstream_dagster.values.types import SEPARATED_OTHERWISE, TYPES, UNKNOWN, LakeType

_UNLIMITED: Final = -1
_HEADER: Final = 4
"""What the modifier of a numeric begins with (VARHDRSZ)."""


@dataclass(frozen=True, slots=True)
class Form:
    """
    The form of one column's values.

    `inner`: of the elements of an array, the bounds of a range, the ranges of a multirange.
    `digits` and `scale`: of a decimal, before and after the point. `is_padded`: its values may have
    been written with fewer digits after the point than it has.
    """

    lake: LakeType
    inner: Form | None = None
    digits: int = 0
    scale: int = 0
    is_padded: bool = False

    @property
    def element(self) -> Form:
        """What it is made of; only of an array, a range and a multirange."""
        assert self.inner is not None
        return self.inner


STRING: Final = Form(LakeType.STRING)
DEFAULTS: Final = ColumnTypes()


def form_of(column: Column, options: ColumnTypes = DEFAULTS) -> Form:
    """The form of a column; a string if the type, or how its arrays are written, is not known."""
    if options.text:
        return STRING
    element, is_array = _element(column)
    form = _single(element, column.typmod, options)
    return Form(LakeType.ARRAY, form) if is_array else form


def misplaced(column: Column, options: ColumnTypes) -> Iterable[str]:
    """
    The options that say nothing about a column of this type, each with the reason.

    Shape:
        result: `key: reason`, to be put behind the column's path in the file.
    """
    name, _ = _element(column)
    entry = TYPES.get(name, UNKNOWN)
    if options.numeric is not None and "numeric" not in (name, entry.bound):
        yield f"numeric: the column is {column.type_name}, not numeric"
    if options.is_variant and entry.lake is not LakeType.JSON:
        yield f"json: the column is {column.type_name}, not json or jsonb"


def _element(column: Column) -> tuple[str, bool]:
    """The type of a column's values, and whether the column has arrays of them."""
    element, bracket, more = column.value_type.partition("[]")
    is_array = bool(bracket) and not more and element in TYPES
    if bracket and (not is_array or element in SEPARATED_OTHERWISE):
        return "", False  # no comma between the elements, or arrays of a domain over arrays
    return element, is_array


def _single(name: str, typmod: int, options: ColumnTypes) -> Form:
    entry = TYPES.get(name, UNKNOWN)
    match entry.lake:
        case LakeType.DECIMAL:
            return _numeric(typmod, options)
        case LakeType.JSON:
            return Form(LakeType.VARIANT) if options.is_variant else STRING
        case LakeType.RANGE:
            return Form(LakeType.RANGE, _single(entry.bound, _UNLIMITED, options))
        case LakeType.MULTIRANGE:
            bound = _single(entry.bound, _UNLIMITED, options)
            return Form(LakeType.MULTIRANGE, Form(LakeType.RANGE, bound))
        case _:
            return Form(entry.lake)


def _numeric(typmod: int, options: ColumnTypes) -> Form:
    if options.decimal is not None:
        precision, scale = options.decimal
        return Form(LakeType.DECIMAL, digits=precision - scale, scale=scale, is_padded=True)
    if options.numeric is not None or typmod == _UNLIMITED:
        return STRING
    precision, scale = numeric_modifier(typmod)
    # numeric(2,-3) has numbers of five digits that end with 000; numeric(3,5) begins with 0.00
    digits, scale = max(precision - scale, 0), max(scale, 0)
    if digits + scale > MAX_PRECISION:
        return STRING
    return Form(LakeType.DECIMAL, digits=digits, scale=scale)


def numeric_modifier(typmod: int) -> tuple[int, int]:
    """
    Precision and scale of a numeric; the scale has 11 bits, one of them its sign.

    Source:
        make_numeric_typmod in src/backend/utils/adt/numeric.c
    """
    bits = typmod - _HEADER
    return bits >> 16 & 0xFFFF, ((bits & 0x7FF) ^ 0x400) - 0x400
