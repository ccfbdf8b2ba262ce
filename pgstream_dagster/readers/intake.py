"""
What a reader takes in of a table that was copied: its rows, or the differences to what it has.

Lazy DataFrames with the columns of the log. The rows of a copy keep their positions. A difference
is no change of the log: its position is that of the reader's watermark, with an ordinal that no
landed change has, so it comes after everything that was delivered and before what follows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pyspark.sql import Column, DataFrame, SparkSession, Window
from pyspark.sql import functions as F

from pgstream_dagster.changelog.fold import entries, fold, renamed
from pgstream_dagster.changelog.lake import Lake
from pgstream_dagster.changelog.replay import history, relation_changes
from pgstream_dagster.lsn import Lsn
from pgstream_dagster.schema.changes import DIFFERENCE_ORDINAL, Op
from pgstream_dagster.schema.table import TableSchema

_COPIED = [Op.COPY.value, Op.READ.value]


def copied_rows(
    spark: SparkSession, lake: Lake, epoch: int, points: Mapping[int, Lsn], watermark: Lsn
) -> DataFrame:
    """
    The rows of copies, and the landed changes of their relations from there to a watermark.

    Shape:
        points: relation -> consistent point of its copy, at or below the watermark.
    """
    rows = [(relation_id, int(point)) for relation_id, point in points.items()]
    copies = spark.createDataFrame(rows, "relation_id BIGINT, point BIGINT")
    changes = history(spark, lake, epoch, points.keys())
    joined = changes.join(F.broadcast(copies), "relation_id")
    # Plain comparisons, which files are skipped by.
    is_between = F.col("commit_lsn").between(int(min(points.values())), int(watermark))
    return joined.where(is_between & _since_copy(watermark))


def differences(
    spark: SparkSession,
    lake: Lake,
    versions: Sequence[TableSchema],
    watermark: Lsn,
    *,
    delivered: Lsn,
    copied: Lsn,
) -> DataFrame:
    """
    What turns the rows as delivered into those that the copy at `copied` says; both at a watermark.

    Shape:
        versions: every version of the relation, oldest first.
        delivered: the consistent point of the copy that the delivered rows come from.
    """
    newest = versions[-1]
    history = relation_changes(spark, lake, newest.epoch, newest.relation_id, before=watermark)
    before, after = (
        fold(history.where(copies_until(point)), versions) for point in (delivered, copied)
    )
    same_key = [v.schema_id for v in versions if v.key_attnums == newest.key_attnums]
    changes = _keyed(before, after, same_key) if newest.key else _keyless(before, after)
    return _as_changes(changes, versions, watermark, same_key)


def _since_copy(watermark: Lsn) -> Column:
    """The copy at `point`, and what landed after it and up to the watermark."""
    is_copied, at = F.col("op").isin(_COPIED), F.col("commit_lsn")
    is_landed = (F.col("end_lsn") > at) & (F.col("end_lsn") <= int(watermark))
    # A gap that a new slot leaves belongs to no transaction.
    is_gap = (F.col("op") == Op.GAP.value) & (at > F.col("point")) & (at <= int(watermark))
    is_later = ~is_copied & (at >= F.col("point")) & is_landed
    return (is_copied & (at == F.col("point"))) | is_later | is_gap


def copies_until(point: Lsn) -> Column:
    """All changes but those of later copies."""
    return ~F.col("op").isin(_COPIED) | (F.col("commit_lsn") <= int(point))


def _keyed(before: DataFrame, after: DataFrame, same_key: Sequence[int]) -> DataFrame:
    """
    One change per key whose rows differ; a row under another key is removed and added.

    So is one whose key was of other columns: it may have the values of another row's key.
    """
    is_same = F.col("schema_id").isin(list(same_key)).alias("is_same")
    old = before.select(
        "key", is_same, F.col("row").alias("old"), F.col("schema_id").alias("old_schema")
    )
    new = after.select("key", F.lit(True).alias("is_same"), F.col("row").alias("new"))  # noqa: FBT003
    differs = ~entries("old").eqNullSafe(entries("new"))
    return old.join(new, ["key", "is_same"], "full_outer").where(differs).drop("is_same")


def _keyless(before: DataFrame, after: DataFrame) -> DataFrame:
    """Removals and additions of whole rows, as often as their counts differ."""
    counted = [
        side.groupBy(entries("row").alias("entries")).agg(
            F.count("*").alias(name), F.max("schema_id").alias(f"{name}_schema")
        )
        for side, name in ((before, "old"), (after, "new"))
    ]
    joined = counted[0].join(counted[1], "entries", "full_outer")
    excess = F.coalesce("new", F.lit(0)) - F.coalesce("old", F.lit(0))
    row = F.map_from_entries("entries")
    repeated = joined.where(excess != 0).select(
        F.explode(F.array_repeat(F.lit(1), F.abs(excess).cast("int"))),
        F.when(excess < 0, row).alias("old"),
        F.when(excess > 0, row).alias("new"),
        "old_schema",
        F.lit(None).cast("array<string>").alias("key"),
    )
    return repeated.drop("col")


def _as_changes(
    changes: DataFrame, versions: Sequence[TableSchema], watermark: Lsn, same_key: Sequence[int]
) -> DataFrame:
    """
    The differences with positions: removals first, then by key and content.

    So a second computation gives the same. A removed row that has the key of an older version is of
    that version.
    """
    newest = versions[-1]
    # Without a key a row is what its columns say, under the newest names.
    has_other_key = F.col("new").isNull() & ~F.col("old_schema").isin(list(same_key))
    has_other_key &= F.lit(bool(newest.key))
    own_image = _as_named_in([v for v in versions if v.schema_id not in same_key], newest)
    op = (
        F.when(F.col("new").isNull(), Op.DELETE.value)
        .when(F.col("old").isNull(), Op.INSERT.value)
        .otherwise(Op.UPDATE.value)
    )
    order = Window.orderBy(
        F.col("new").isNotNull(), "key", F.to_json(entries("old")), F.to_json(entries("new"))
    )
    number = F.row_number().over(order).cast("bigint")
    text, numbers = F.lit(None).cast("string"), F.lit(None).cast("bigint")
    return changes.select(
        F.lit(newest.epoch).cast("int").alias("epoch"),
        F.lit(int(watermark)).cast("bigint").alias("commit_lsn"),
        (F.lit(DIFFERENCE_ORDINAL).cast("bigint") + number).alias("ordinal"),
        F.lit(int(watermark)).cast("bigint").alias("end_lsn"),
        numbers.alias("xid"),
        F.lit(None).cast("timestamp").alias("committed_at"),
        op.alias("op"),
        F.lit(newest.namespace).alias("namespace"),
        F.lit(newest.name).alias("relation"),
        F.lit(newest.relation_id).cast("bigint").alias("relation_id"),
        F.when(has_other_key, F.col("old_schema"))
        .otherwise(F.lit(newest.schema_id))
        .cast("bigint")
        .alias("schema_id"),
        "key",
        F.lit(None).cast("array<string>").alias("old_key"),
        F.when(has_other_key, own_image).otherwise(F.col("old")).alias("before"),
        F.col("new").alias("after"),
        text.alias("payload"),
        F.lit(None).cast("timestamp").alias("landed_at"),
    )


def _as_named_in(versions: Sequence[TableSchema], newest: TableSchema) -> Column:
    """
    The old image, whose names are the newest, with those of its own version; null of another one.

    Without columns that this lacks: a row is masked by the rules of its version's columns.
    """
    image = F.lit(None).cast("map<string, string>")
    for version in versions:
        own = {column.attnum: column.name for column in version.columns}
        pairs = ((c.name, own[c.attnum]) for c in newest.columns if c.attnum in own)
        if names := [F.lit(name) for pair in pairs for name in pair]:
            own_image = renamed(F.col("old"), F.create_map(*names))
            image = F.when(F.col("old_schema") == version.schema_id, own_image).otherwise(image)
    return image
