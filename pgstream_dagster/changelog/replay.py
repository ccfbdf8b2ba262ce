"""
The change log read by position, with Spark: the history of a relation, or a range of positions.

Lazy, unless a function says that it runs a job: a DataFrame over the table version that is newest
now. Rows are in no order; the position orders them. Files are skipped by `commit_lsn` and
`relation_id`, never by the relation's name, which may change.
"""

from __future__ import annotations

from collections.abc import Collection, Generator, Mapping
from contextlib import contextmanager
from datetime import date, datetime

from pyspark import StorageLevel
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from pgstream_dagster.changelog.by_relation import sorted_by_relation
from pgstream_dagster.changelog.lake import Lake
from pgstream_dagster.changelog.log_files import read_few, read_log, read_version
from pgstream_dagster.changelog.spans import Span, group_of_file, is_before, spans
from pgstream_dagster.delta.statistics import Within
from pgstream_dagster.lsn import Lsn
from pgstream_dagster.schema.changes import Op


def relation_changes(
    spark: SparkSession, lake: Lake, epoch: int, relation_id: int, *, before: Lsn | None = None
) -> DataFrame:
    """
    Every change of one relation, copied rows and markers too.

    With `before`: those before that point. A snapshot with this consistent point shows exactly what
    they fold to; the watermark must have reached it.
    """
    changes = history(spark, lake, epoch, [relation_id])
    return changes if before is None else changes.where(is_before(epoch, before))


@contextmanager
def kept(
    spark: SparkSession, lake: Lake, epoch: int, relation_ids: Collection[int], *, before: Lsn
) -> Generator[DataFrame]:
    """The changes of several relations before a point, as `read_once` gives them."""
    changes = history(spark, lake, epoch, relation_ids)
    with read_once(changes.where(is_before(epoch, before))) as rows:
        yield rows


@contextmanager
def read_once(changes: DataFrame) -> Generator[DataFrame]:
    """
    Changes of several relations, read from the log when they are used first.

    A fold reads its changes several times, and the file of a landing holds every relation that it
    touched. So the changes are kept on Spark's disks until the block ends, for `of_relation`.
    """
    rows = sorted_by_relation(changes)
    rows.persist(StorageLevel.DISK_ONLY)
    try:
        yield rows
    finally:
        rows.unpersist()


def changes(spark: SparkSession, lake: Lake, epoch: int, after: Lsn, upto: Lsn) -> DataFrame:
    """
    Everything landed after one watermark and up to another, of all relations; no copied rows.

    For readers too far behind to follow the log entry by entry. A copied row has no commit record
    of its own, so its `end_lsn` is its `commit_lsn`. The same holds for a gap, which is included.
    """
    is_landed = (F.col("end_lsn") > F.col("commit_lsn")) | (F.col("op") == Op.GAP.value)
    within = {"epoch": (epoch, epoch), "commit_lsn": (int(after), int(upto))}
    return read_log(spark, lake, within=within).where(
        (F.col("epoch") == epoch)
        & (F.col("commit_lsn") >= int(after))  # a transaction that ends past a watermark
        & (F.col("commit_lsn") <= int(upto))  # begins its commit record at or past it
        & (F.col("end_lsn") > int(after))
        & (F.col("end_lsn") <= int(upto))
        & is_landed
    )


def places(spark: SparkSession, lake: Lake, epoch: int) -> DataFrame:
    """
    Where the landed changes of an epoch are, without their rows; of the version that is newest now.

    Shape:
        result: commit_lsn, end_lsn, ordinal.
    """
    is_landed = (F.col("epoch") == epoch) & (F.col("ordinal") >= 0)
    return read_log(spark, lake).where(is_landed).select("commit_lsn", "end_lsn", "ordinal")


def count_places(places: DataFrame, watermark: Lsn) -> dict[str, int]:
    """Count rows, transactions, and rows `repeated`, `missing` or `past_the_watermark`; a job."""
    transactions = places.groupBy("commit_lsn").agg(
        F.count("*").alias("rows"),
        F.count_distinct("ordinal").alias("places"),
        (F.max("ordinal") + 1).alias("expected"),
        F.max("end_lsn").alias("end_lsn"),
    )
    past = F.when(F.col("end_lsn") > int(watermark), F.col("rows")).otherwise(0)
    [row] = transactions.select(
        F.coalesce(F.sum("rows"), F.lit(0)).alias("rows"),
        F.count("*").alias("transactions"),
        F.coalesce(F.sum(F.col("rows") - F.col("places")), F.lit(0)).alias("repeated"),
        F.coalesce(F.sum(F.col("expected") - F.col("places")), F.lit(0)).alias("missing"),
        F.coalesce(F.sum(past), F.lit(0)).alias("past_the_watermark"),
    ).collect()
    return {name: int(value) for name, value in row.asDict().items()}


def rebuild_days(spark: SparkSession, lake: Lake, first: date, last: date) -> None:
    """
    Replace the days from `first` to `last` (included) of `daily_changes` from the log; runs a job.

    Shape:
        daily_changes: the columns of the log and `commit_date`, the day of the commit in UTC. No
            copied rows: they belong to no day.
    """
    changes = _dated(spark, lake).where(F.col("commit_date").between(first, last))
    days = f"commit_date >= '{first}' AND commit_date <= '{last}'"
    (
        changes.write.format("delta")
        .mode("overwrite")
        .partitionBy("commit_date")
        .option("replaceWhere", days)
        .save(lake.daily_changes)
    )


def rows_of_days(spark: SparkSession, lake: Lake) -> dict[date, int]:
    """How many changes `daily_changes` has of each day that has any."""
    return _counted(spark.read.format("delta").load(lake.daily_changes))


def rows_of_days_in_log(spark: SparkSession, lake: Lake) -> dict[date, int]:
    """How many changes the log has of each day that has any."""
    return _counted(_dated(spark, lake))


def newest_commit(spark: SparkSession, lake: Lake, epoch: int) -> datetime | None:
    """The newest time of a commit of this epoch, in UTC."""
    of_epoch = _dated(spark, lake).where(F.col("epoch") == epoch)
    [(newest,)] = of_epoch.select(F.max("committed_at").cast("timestamp_ntz")).collect()
    return newest


def _counted(changes: DataFrame) -> dict[date, int]:
    counts = changes.groupBy("commit_date").count().collect()
    return {row["commit_date"]: row["count"] for row in counts}


def _dated(spark: SparkSession, lake: Lake) -> DataFrame:
    """The log with the day of each commit in UTC, without copied rows, which belong to no day."""
    copied = [Op.READ.value, Op.COPY.value]
    landed = read_log(spark, lake).where(~F.col("op").isin(copied))
    return landed.withColumn("commit_date", F.to_date("committed_at"))


def end_before(spark: SparkSession, lake: Lake, epoch: int, at: datetime) -> Lsn:
    """The end of the last transaction that was committed before a time; 0 without any."""
    before = (F.col("epoch") == epoch) & (F.col("committed_at") < F.lit(at))
    [(end_lsn,)] = _dated(spark, lake).where(before).select(F.max("end_lsn")).collect()
    return Lsn(end_lsn or 0)


def open_gaps(
    spark: SparkSession, lake: Lake, epoch: int, copies: Mapping[int, Lsn], upto: Lsn
) -> dict[int, Lsn]:
    """
    The relations of which changes are missing at a position, with the last gap's; runs a job.

    Shape:
        copies: relation -> consistent point of its last copy at or below `upto`.
    """
    if not copies:
        return {}
    gaps = history(spark, lake, epoch, copies.keys()).where(
        (F.col("op") == Op.GAP.value)
        & (F.col("commit_lsn") > int(min(copies.values())))
        & (F.col("commit_lsn") <= int(upto))
        & (F.col("end_lsn") <= int(upto))
    )
    last = gaps.groupBy("relation_id").agg(F.max("commit_lsn").alias("at")).collect()
    return {r: Lsn(at) for r, at in map(tuple, last) if at > copies[r]}


def history(
    spark: SparkSession, lake: Lake, epoch: int, relation_ids: Collection[int]
) -> DataFrame:
    """Every change of several relations, copied rows and markers too."""
    rows = read_log(spark, lake, within=_within(epoch, relation_ids))
    return rows.where(_is_of(epoch, relation_ids))


def history_and_spans(
    spark: SparkSession, lake: Lake, epoch: int, relation_ids: Collection[int], *, before: Lsn
) -> tuple[DataFrame, dict[int, Span]]:
    """
    Their changes before a point, and their spans; a job, if statistics of files do not say them.

    Both are of one version of the log, whenever the changes are read.
    """
    within = {**_within(epoch, relation_ids), "commit_lsn": (0, int(before))}
    version = read_version(spark, lake, within)
    is_chosen = _is_of(epoch, relation_ids) & is_before(epoch, before)
    rows = version.rows.where(is_chosen)
    if version.files is None:
        return rows, spans(rows)
    groups = [(file, group_of_file(file.statistics, epoch, before)) for file in version.files]
    others = [file for file, group in groups if group is None]
    counted = [group for _, group in groups if group and group.relation_id in set(relation_ids)]
    if not others:
        return rows, spans(None, counted)
    rest = read_few(spark, lake, others) if counted else None
    return rows, spans(rows) if rest is None else spans(rest.where(is_chosen), counted)


def _within(epoch: int, relation_ids: Collection[int]) -> Within:
    bounds = {"relation_id": (min(relation_ids), max(relation_ids))} if relation_ids else {}
    return {"epoch": (epoch, epoch), **bounds}


def _is_of(epoch: int, relation_ids: Collection[int]) -> Column:
    return (F.col("epoch") == epoch) & F.col("relation_id").isin(list(relation_ids))
