"""
The rows of a typed table under newer columns, without the log. DataFrames in, DataFrames out.

That is exact where `evolution` plans it: a column that was added shows one value in all rows that
are older, and a wider type has every value of the narrower one.
"""

from __future__ import annotations

from collections.abc import Mapping

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from pgstream_dagster.tables.columns import OWN, Layout, existing, quoted
from pgstream_dagster.tables.types import RESCUED, RESCUED_TYPE, rescued, typed


def recast(rows: DataFrame, layout: Layout, missing: Mapping[int, str | None]) -> DataFrame:
    """
    All rows with the columns of `layout`, which are matched by attnum.

    Shape:
        rows: of the typed table as it is.
        missing: what rows older than a column show for it, by attnum.
    """
    before, types = existing(rows.schema.fields), layout.types
    values, kept = list[Column](), list[tuple[str, Column, Column]]()
    for attnum, column in layout.columns.items():
        if attnum in before:
            value = F.col(quoted(before[attnum][0])).cast(types[attnum])
        else:
            text = F.lit(missing.get(attnum)).cast("string")
            value, is_rescued = typed(text, column.source, column.options)
            kept.append((column.name, text, is_rescued))
        values.append(value.alias(column.name))
    own = [F.col(name) for name in OWN if name != RESCUED]
    return rows.select(*values, *own, _with_rescued(rescued(kept)).alias(RESCUED))


def _with_rescued(more: Column) -> Column:
    """The texts of a row that its columns cannot hold, and more of them."""
    empty = F.create_map().cast(RESCUED_TYPE)
    both = F.map_concat(F.coalesce(F.col(RESCUED), empty), F.coalesce(more, empty))
    return F.when(more.isNull(), F.col(RESCUED)).otherwise(both)
