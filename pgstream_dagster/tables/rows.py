"""The rows of a fold as rows of a typed table. DataFrames in, DataFrames out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F
from pyspark.sql import types as T

from pgstream_dagster.tables.columns import (
    COMMIT_LSN,
    COMMITTED_AT,
    EPOCH,
    INTERNAL,
    ORDINAL,
    Layout,
    quoted,
)
from pgstream_dagster.tables.increment import IS_THERE, KEY, ORIGIN, REFERRED, key_row
from pgstream_dagster.tables.types import RESCUED, RESCUED_TYPE, TypedColumn, with_types

_FORMER: Final = f"{INTERNAL}former"
_RANK: Final = f"{INTERNAL}rank"


def typed_rows(rows: DataFrame, layout: Layout, epoch: int) -> DataFrame:
    """
    Rows with the columns of the table.

    Shape:
        rows: as `fold` gives them, or `outcome`; other columns stay.
    """
    dropped = {"relation_id", "row", "key", "schema_id", "commit_lsn", "ordinal", "committed_at"}
    others = [name for name in rows.columns if name not in dropped]
    named = rows.select(
        *others,
        F.lit(epoch).cast("int").alias(EPOCH),
        F.col("commit_lsn").alias(COMMIT_LSN),
        F.col("ordinal").alias(ORDINAL),
        F.col("committed_at").alias(COMMITTED_AT),
        "row",
    )
    return with_types(named, list(layout.columns.values()))


def keyed_rows(outcomes: DataFrame, layout: Layout, epoch: int) -> DataFrame:
    """
    The outcome at each key as rows of the table; a key without a row has its own columns only.

    Two keys that Postgres distinguishes as texts may be equal as typed values (1.0 and 1.00, when
    a row's key changed so): then the row counts.
    """
    names = [column.source.name for column in _key_columns(layout)]
    row = F.when(F.col(IS_THERE), F.col("row")).otherwise(key_row(names, F.col(KEY)))
    rows = typed_rows(outcomes.withColumn("row", row), layout, epoch)
    if not has_equal_keys(layout):
        return rows
    rescued = [F.try_element_at(RESCUED, F.lit(name)) for name in layout.rescuable(layout.key)]
    columns = [F.col(quoted(name)) for name in layout.key]
    same_key = Window.partitionBy(*columns, *rescued).orderBy(F.desc(IS_THERE))
    return rows.withColumn(_RANK, F.row_number().over(same_key)).where(f"{_RANK} = 1").drop(_RANK)


def has_equal_keys(layout: Layout) -> bool:
    """Whether keys that Postgres distinguishes as texts may be equal as typed values."""
    types = [layout.types[n] for n, c in layout.columns.items() if c.name in layout.key]
    return any(map(_has_equal_texts, types))


def resolved(
    rows: DataFrame,
    table: DataFrame,
    layout: Layout,
    referred: Sequence[str],
    *,
    is_small: bool = True,
) -> DataFrame:
    """
    The rows with the values that they refer to, from the rows of the table; a scan of its key.

    A row whose origin is not in the table, which never happens in a sound log, is left out: half a
    row is worse than none.

    Shape:
        referred: the columns that any row refers to, by name in the source.
        is_small: whether every task can hold the keys of the rows that refer to any.
    """
    columns = [c for c in layout.columns.values() if c.source.name in set(referred)]
    former = _former(rows, table, layout, columns, is_small=is_small)
    joined = rows.join(former, ORIGIN, "left")
    is_there = F.col(IS_THERE) & (F.col(ORIGIN).isNull() | F.col(_FORMER).isNotNull())
    values = {IS_THERE: is_there, RESCUED: _rescued(columns)}
    for column in columns:
        is_referred = F.array_contains(REFERRED, F.lit(column.source.name))
        value = F.col(_FORMER)[column.name]
        values[column.name] = F.when(is_referred, value).otherwise(F.col(quoted(column.name)))
    return joined.select(
        *(values.get(name, F.col(quoted(name))).alias(name) for name in rows.columns)
    )


def _former(
    rows: DataFrame,
    table: DataFrame,
    layout: Layout,
    columns: Sequence[TypedColumn],
    *,
    is_small: bool,
) -> DataFrame:
    """ORIGIN, and the values of `columns` in the row of the table with that key."""
    keys = _key_columns(layout)
    named = [TypedColumn(f"{INTERNAL}{n}", c.source, c.options) for n, c in enumerate(keys)]
    origins = rows.where(F.col(ORIGIN).isNotNull()).select(ORIGIN).distinct()
    row = key_row([column.source.name for column in keys], F.col(ORIGIN))
    typed = with_types(origins.select(ORIGIN, row.alias("row")), named)
    typed = typed.withColumnRenamed(RESCUED, f"{INTERNAL}{RESCUED}")
    same = [
        F.col(quoted(column.name)).eqNullSafe(F.col(key.name))
        for column, key in zip(keys, named, strict=True)
    ]
    same += [
        F.try_element_at(F.col(RESCUED), F.lit(column.name)).eqNullSafe(
            F.try_element_at(F.col(f"{INTERNAL}{RESCUED}"), F.lit(key.name))
        )
        for column, key in zip(keys, named, strict=True)
        if layout.rescuable([column.name])
    ]
    condition = same[0]
    for comparison in same[1:]:
        condition = condition & comparison
    former = F.struct(*(F.col(quoted(column.name)) for column in columns), F.col(RESCUED))
    held = F.broadcast(typed) if is_small else typed
    return table.join(held, condition).select(ORIGIN, former.alias(_FORMER))


def _rescued(columns: Sequence[TypedColumn]) -> Column:
    """The texts of the row, and those of the columns that it takes from its former self."""
    empty = F.create_map().cast(RESCUED_TYPE)
    names = F.create_map(*(F.lit(n) for c in columns for n in (c.source.name, c.name)))
    taken = F.transform(REFERRED, lambda name: F.element_at(names, name))
    former = F.map_filter(F.col(_FORMER)[RESCUED], lambda name, _: F.array_contains(taken, name))
    both = F.map_concat(F.coalesce(RESCUED, empty), F.coalesce(former, empty))
    return F.when(F.size(both) > 0, both)


def _has_equal_texts(type_: T.DataType) -> bool:
    """Whether several texts may be one value of the type, or of a part of it."""
    text = type_.simpleString()
    return any(number in text for number in ("decimal", "float", "double"))


def _key_columns(layout: Layout) -> list[TypedColumn]:
    by_name = {column.name: column for column in layout.columns.values()}
    return [by_name[name] for name in layout.key]
