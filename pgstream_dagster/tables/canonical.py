"""
The rows of a typed table as texts, so that two tables can be compared. DataFrames in and out.

Two values of a column have one text if and only if they are the same value. So NaN is NaN, 0.0 is
not -0.0, and a value is not equal to its text in `_rescued`.
"""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T

from pgstream_dagster.changelog.fold import entries
from pgstream_dagster.tables.columns import OWN, Layout, quoted
from pgstream_dagster.tables.types import RESCUED, RESCUED_TYPE


def canonical(rows: DataFrame, layout: Layout) -> DataFrame:
    """
    Rows of a typed table by key, with all of its columns.

    Shape:
        result: `key` ARRAY<STRING>, null if the table has none, and `row` MAP<STRING,STRING>.
    """
    types = {column.name: layout.types[n] for n, column in layout.columns.items()} | dict(OWN)
    texts = [_text(F.col(quoted(name)), types[name]) for name in layout.names]
    row = F.map_from_arrays(F.array(*map(F.lit, layout.names)), F.array(*texts))
    return rows.select(_key(layout, types).alias("key"), row.alias("row"))


def _key(layout: Layout, types: dict[str, T.DataType]) -> Column:
    """The texts of the key's columns, those that are rescued as they are."""
    if not layout.key:
        return F.lit(None).cast("array<string>")
    parts = [
        F.coalesce(_text(F.col(quoted(name)), types[name]), F.try_element_at(RESCUED, F.lit(name)))
        for name in layout.key
    ]
    return F.array(*parts)


def _text(value: Column, type_: T.DataType) -> Column:
    if type_ == RESCUED_TYPE:  # of _rescued and of a map: without an order
        return _json(entries(value))
    if isinstance(type_, T.ArrayType | T.StructType):
        return _json(_leaves(value, type_))
    return _leaf(value, type_)


def _leaves(value: Column, type_: T.DataType) -> Column:
    """A nested value with texts in place of its values."""
    match type_:
        case T.ArrayType():
            return F.transform(value, lambda item: _leaves(item, type_.elementType))
        case T.StructType():
            fields = [
                _leaves(value[field.name], field.dataType).alias(field.name)
                for field in type_.fields
            ]
            return F.when(value.isNotNull(), F.struct(*fields))
        case _:
            return _leaf(value, type_)


def _leaf(value: Column, type_: T.DataType) -> Column:
    match type_:
        case T.BinaryType():
            return F.hex(value)
        case T.VariantType():
            return F.to_json(value)
        case _:
            return value.cast("string")


def _json(value: Column) -> Column:
    return F.to_json(value, {"ignoreNullFields": "false"})
