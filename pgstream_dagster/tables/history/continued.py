"""
Versions that follow each other without a difference are one. DataFrames in, DataFrames out.

So a row goes on across a copy, an update that writes the values that are there, and a row that is
deleted and inserted again in one transaction.
"""

from __future__ import annotations

from functools import reduce
from operator import and_
from typing import Final

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F
from pyspark.sql import types as T

from pgstream_dagster.tables.columns import INTERNAL, may_be_rescued, quoted
from pgstream_dagster.tables.history.columns import (
    ENDED_BY,
    FROM_EPOCH,
    FROM_LSN,
    FROM_ORDINAL,
    KEY_TEXTS,
    TO,
    TO_EPOCH,
    TO_LSN,
    TO_ORDINAL,
    HistoryLayout,
)
from pgstream_dagster.tables.history.versions import VERSION
from pgstream_dagster.tables.types import RESCUED, TypedColumn

_BEFORE, _BEGINS, _GROUP = (f"{INTERNAL}{name}" for name in ("before", "begins", "group"))

_ENDS: Final = (TO_EPOCH, TO_LSN, TO_ORDINAL, TO, ENDED_BY)

_EXACT: Final = {
    "timestampFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX",
    "timestampNTZFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSS",
}
"""As text, times have milliseconds unless it is said otherwise."""


def continued(versions: DataFrame, layout: HistoryLayout) -> DataFrame:
    """
    The versions, those that differ in nothing from the one before as a part of it.

    A column that was dropped before a version is not compared.

    Shape:
        versions: the columns of a history, VERSION, and any others; of each key they do not
            overlap. The result has the same; of several that are one, the first with the last end.
    """
    of_key = Window.partitionBy(KEY_TEXTS).orderBy(FROM_EPOCH, FROM_LSN, FROM_ORDINAL)
    columns = list(layout.columns.items())
    cells = [_cell(column, layout.types[n]).alias(f"cell{n}") for n, column in columns]
    ends = [F.col(name) for name in _ENDS]
    shown = versions.withColumn(f"{INTERNAL}cells", F.struct(*cells, *ends))
    before = F.lag(f"{INTERNAL}cells").over(of_key)
    same = [_is_adjacent(F.col(_BEFORE)), *(_is_same(n, layout) for n, _ in columns)]
    begins = ~F.coalesce(reduce(and_, same), F.lit(False))  # noqa: FBT003
    compared = shown.withColumn(_BEFORE, before).withColumn(_BEGINS, begins)
    grouped = compared.withColumn(_GROUP, F.sum(F.col(_BEGINS).cast("int")).over(of_key))
    together = Window.partitionBy(KEY_TEXTS, _GROUP).orderBy(FROM_EPOCH, FROM_LSN, FROM_ORDINAL)
    together = together.rowsBetween(Window.unboundedPreceding, Window.unboundedFollowing)
    last = F.last(F.struct(*_ENDS)).over(together)
    merged = grouped.withColumn(f"{INTERNAL}last", last).where(_BEGINS)
    kept = [name for name in versions.columns if name not in _ENDS]
    return merged.select(
        *(F.col(quoted(name)) for name in kept),
        *(F.col(f"{INTERNAL}last")[name].alias(name) for name in _ENDS),
    )


def _cell(column: TypedColumn, type_: T.DataType) -> Column:
    """What is compared of a column: its value, and its text where the value cannot be held."""
    value = _comparable(F.col(quoted(column.name)), type_)
    if not may_be_rescued(column):
        return value
    return F.struct(value, F.try_element_at(F.col(RESCUED), F.lit(column.name)))


def _comparable(value: Column, type_: T.DataType) -> Column:
    """Equal for equal values only: not for 0 and -0."""
    match type_:
        case T.FloatType() | T.DoubleType():
            return value.cast("string")
        case T.ArrayType() | T.MapType() | T.StructType() | T.VariantType():
            return F.to_json(value, _EXACT)
        case _:
            return value


def _is_adjacent(before: Column) -> Column:
    """Whether the version before ended where this one begins, in the same transaction or copy."""
    return (
        (before[TO_EPOCH] == F.col(FROM_EPOCH))
        & (before[TO_LSN] == F.col(FROM_LSN))
        & ((before[TO_ORDINAL] < 0) == (F.col(FROM_ORDINAL) < 0))
    )


def _is_same(number: int, layout: HistoryLayout) -> Column:
    cell = f"cell{number}"
    same = F.col(_BEFORE)[cell].eqNullSafe(F.col(f"{INTERNAL}cells")[cell])
    lacking = list(layout.lacking.get(number, ()))
    return same | F.coalesce(F.col(VERSION).isin(lacking), F.lit(False)) if lacking else same  # noqa: FBT003
