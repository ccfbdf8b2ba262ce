"""
What new changes add to a history that has all before them. DataFrames in, DataFrames out.

As in `tables.increment`, a row from before stands at each key that the changes touch, of references
in place of its values; those that remain are replaced by values of the history's current rows.
"""

from __future__ import annotations

from typing import Final

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from pgstream_dagster.schema.table import TableSchema
from pgstream_dagster.tables.columns import INTERNAL, quoted
from pgstream_dagster.tables.history.columns import (
    ENDED_BY,
    IS_CURRENT,
    KEY_TEXTS,
    TO,
    TO_EPOCH,
    TO_LSN,
    TO_ORDINAL,
    HistoryLayout,
)
from pgstream_dagster.tables.history.continued import continued
from pgstream_dagster.tables.history.lineage import Relation
from pgstream_dagster.tables.history.typed import typed_versions, with_current
from pgstream_dagster.tables.history.versions import VERSION, Part, row_versions
from pgstream_dagster.tables.increment import (
    BEFORE_ALL,
    IS_THERE,
    KEY,
    ORIGIN,
    REFERRED,
    references_in,
    rows_before,
    unreferenced,
)
from pgstream_dagster.tables.rows import resolved

IS_FORMER: Final = f"{INTERNAL}is_former"
"""Whether a version is one that the history has as current, and that ends now."""

_ENDS: Final = (TO_EPOCH, TO_LSN, TO_ORDINAL, TO, ENDED_BY)


def added(
    changes: DataFrame,
    relation: Relation,
    layout: HistoryLayout,
    history: DataFrame,
    *,
    is_small: bool,
    has_parts: bool,
) -> DataFrame:
    """
    The versions that change a history: new ones, and current ones that have ended.

    Runs small jobs at once.

    Shape:
        changes: row changes of the relation, after the history's position; they are read twice.
        history: the table.
        is_small: whether every task can hold the changed rows.
        has_parts: whether any update leaves out columns.
        result: the columns of the history, and IS_FORMER.
    """
    keyed = changes.where(F.col("key").isNotNull())
    former = _former(keyed, relation.versions[-1], layout)
    everything = keyed.unionByName(former, allowMissingColumns=True)
    part = Part(relation.epoch, everything, _no_ends(keyed), has_parts)
    versions = row_versions(part, layout).localCheckpoint()
    is_former = F.col("commit_lsn") == int(BEFORE_ALL)
    current = history.where(IS_CURRENT)
    new = _typed(versions.where(~is_former), part, layout, current)
    former_ends = versions.where(is_former).select(F.col(KEY).alias(KEY_TEXTS), *_ENDS)
    ended = _ended(F.broadcast(former_ends) if is_small else former_ends, current)
    both = continued(new.unionByName(ended), layout)
    changed = both.where(~F.col(IS_FORMER) | F.col(TO_LSN).isNotNull())
    rows = with_current(changed).drop(VERSION)
    return F.broadcast(rows) if is_small else rows


def _former(changes: DataFrame, newest: TableSchema, layout: HistoryLayout) -> DataFrame:
    """A row from before at each key that the changes touch; kept, as each has its own place."""
    ends = F.explode(F.array("key", "old_key")).alias("key")
    keys = changes.select(ends).where(F.col("key").isNotNull()).distinct()
    present = {column.attnum for column in newest.columns}
    names = [c.source.name for n, c in layout.columns.items() if n in present]
    return rows_before(
        keys.select(
            F.lit(newest.relation_id).cast("bigint").alias("relation_id"),
            "key",
            F.lit(newest.schema_id).cast("bigint").alias("schema_id"),
            F.array(*map(F.lit, names)).alias("names"),
        )
    )


def _no_ends(changes: DataFrame) -> DataFrame:
    none = changes.where(F.lit(False))  # noqa: FBT003
    return none.select(
        "key", "commit_lsn", "ordinal", "schema_id", "committed_at", F.lit("").alias("removed_by")
    )


def _typed(versions: DataFrame, part: Part, layout: HistoryLayout, current: DataFrame) -> DataFrame:
    """New versions, with the values that they refer to."""
    marked = versions.withColumn("references", references_in("row"))
    others = [name for name in versions.columns if name != "row"]
    is_there = F.lit(True).alias(IS_THERE)  # noqa: FBT003
    split = marked.select(*others, *unreferenced(), is_there)
    typed = typed_versions(split, layout, part.epoch)
    names = typed.select(F.explode(REFERRED)).distinct().collect() if part.has_parts else []
    if names:
        typed = resolved(typed, current, layout, [name for (name,) in names]).where(IS_THERE)
    return typed.drop(ORIGIN, REFERRED, IS_THERE).withColumn(IS_FORMER, F.lit(False))  # noqa: FBT003


def _ended(ends: DataFrame, current: DataFrame) -> DataFrame:
    """The current rows of the keys that the changes touch, with where they end."""
    kept = [F.col(quoted(name)) for name in current.columns if name not in (*_ENDS, IS_CURRENT)]
    rows = current.select(*kept).join(ends, KEY_TEXTS)
    return rows.withColumns(
        {VERSION: F.lit(None).cast("bigint"), IS_FORMER: F.lit(True)}  # noqa: FBT003
    )
