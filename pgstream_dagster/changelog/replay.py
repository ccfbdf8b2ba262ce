"""
The change log read by position, with Spark: one relation's history, or a stretch of all of it.

Lazy: each returns a DataFrame over the table version that is newest now, rows in no order (order is
the position). Files are skipped by `commit_lsn`; never by a relation's name, which may change.
"""

from __future__ import annotations

from collections.abc import Collection, Generator
from contextlib import contextmanager

from pyspark import StorageLevel
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from pgstream_dagster.changelog.fold import in_front_of
from pgstream_dagster.changelog.lake import Lake
from pgstream_dagster.changes import Op
from pgstream_dagster.lsn import Lsn


def relation_changes(
    spark: SparkSession, lake: Lake, epoch: int, relation_id: int, *, before: Lsn | None = None
) -> DataFrame:
    """
    Every change of one relation, copied rows and markers too.

    With `before`: those in front of that point. A snapshot with this consistent point shows exactly
    what they fold to; the watermark must have reached it.
    """
    changes = _history(spark, lake, epoch, [relation_id])
    return changes if before is None else changes.where(in_front_of(epoch, before))


@contextmanager
def kept(
    spark: SparkSession, lake: Lake, epoch: int, relation_ids: Collection[int], *, before: Lsn
) -> Generator[DataFrame]:
    """
    The changes of several relations in front of a point, read from the log once.

    A fold looks at its changes several times, and a landing's file holds every relation it
    touched. So they are kept on Spark's disks until the block ends, each part sorted by relation:
    a `where` on `relation_id` then reads what it needs.
    """
    changes = _history(spark, lake, epoch, relation_ids)
    kept = changes.where(in_front_of(epoch, before)).sortWithinPartitions("relation_id")
    kept.persist(StorageLevel.DISK_ONLY)
    try:
        yield kept
    finally:
        kept.unpersist()


def changes(spark: SparkSession, lake: Lake, epoch: int, after: Lsn, upto: Lsn) -> DataFrame:
    """
    What was landed past one watermark and up to another, of all relations: no copied rows.

    For readers too far behind to follow the log entry by entry. A copied row has no commit record
    of its own, so it ends where it begins; so does a gap, which is landed all the same.
    """
    is_landed = (F.col("end_lsn") > F.col("commit_lsn")) | (F.col("op") == Op.GAP.value)
    return _read(spark, lake).where(
        (F.col("epoch") == epoch)
        & (F.col("commit_lsn") >= int(after))  # a transaction that ends past a watermark
        & (F.col("commit_lsn") <= int(upto))  # begins its commit record at or past it
        & (F.col("end_lsn") > int(after))
        & (F.col("end_lsn") <= int(upto))
        & is_landed
    )


def _history(
    spark: SparkSession, lake: Lake, epoch: int, relation_ids: Collection[int]
) -> DataFrame:
    wanted = F.col("relation_id").isin(list(relation_ids))
    return _read(spark, lake).where((F.col("epoch") == epoch) & wanted)


def _read(spark: SparkSession, lake: Lake) -> DataFrame:
    return spark.read.format("delta").load(lake.change_log)
