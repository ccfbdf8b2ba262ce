"""
Which changes of a column's type Delta makes in place, without a rewrite and with every value kept.

Source:
    https://docs.delta.io/latest/delta-type-widening.html
"""

from __future__ import annotations

from typing import Final

from pyspark.sql import types as T

_INTEGERS: Final = (T.ByteType, T.ShortType, T.IntegerType, T.LongType)
_SMALL_INTEGERS: Final = _INTEGERS[:3]  # a double has 53 bits, a BIGINT 63

_INT_DIGITS: Final = 10
_LONG_DIGITS: Final = 20
"""Digits before the point that Delta demands of a decimal for a BIGINT; 19 would do."""


def widened(before: T.DataType, after: T.DataType) -> bool:
    """
    Whether a column can become `after` in place: the same type, or one with all of its values.

    Also inside of arrays, maps and structs, whose fields must be the same by name and order. Types
    that differ in nothing but NOT NULL are the same.
    """
    match before, after:
        case T.ArrayType(), T.ArrayType():
            return widened(before.elementType, after.elementType)
        case T.MapType(), T.MapType():
            values = widened(before.valueType, after.valueType)
            return values and widened(before.keyType, after.keyType)
        case T.StructType(), T.StructType():
            return before.names == after.names and all(
                widened(old.dataType, new.dataType)
                for old, new in zip(before.fields, after.fields, strict=True)
            )
        case _:
            return before == after or _is_wider(before, after)


def _is_wider(before: T.DataType, after: T.DataType) -> bool:
    match before, after:
        case T.DecimalType(), T.DecimalType():
            scale = after.scale - before.scale
            return 0 <= scale <= after.precision - before.precision
        case T.LongType(), T.DecimalType():
            return after.precision - after.scale >= _LONG_DIGITS
        case T.ByteType() | T.ShortType() | T.IntegerType(), T.DecimalType():
            return after.precision - after.scale >= _INT_DIGITS
        case (T.FloatType(), T.DoubleType()) | (T.DateType(), T.TimestampNTZType()):
            return True
        case _, T.DoubleType():
            return isinstance(before, _SMALL_INTEGERS)
        case _:
            return _rank(before) < _rank(after) and _rank(before) >= 0


def _rank(type_: T.DataType) -> int:
    """The place of an integer type among them; -1 for others."""
    return next((n for n, integer in enumerate(_INTEGERS) if isinstance(type_, integer)), -1)
