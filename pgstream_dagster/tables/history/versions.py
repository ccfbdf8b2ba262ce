"""
From the changes of a relation to the versions of its rows. DataFrames in, DataFrames out.

A version is what a transaction left at a key; what a transaction did in between is in none. A copy
counts as a transaction before those that commit at its point. Equal versions in a row are not yet
one here: see `continued`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import pyarrow as pa
from pyspark.sql import Column, DataFrame, SparkSession, Window
from pyspark.sql import functions as F

from pgstream_dagster.changelog.fold import states
from pgstream_dagster.schema.change import Place
from pgstream_dagster.tables.columns import INTERNAL
from pgstream_dagster.tables.history.columns import (
    ENDED_BY,
    TO,
    TO_EPOCH,
    TO_LSN,
    TO_ORDINAL,
    HistoryLayout,
    Image,
)
from pgstream_dagster.tables.history.periods import Marker, Period
from pgstream_dagster.tables.increment import KEY

VERSION: Final = f"{INTERNAL}version"
"""The schema that the last change of a row was decoded with."""

_IMAGES: Final = pa.schema(
    [
        ("schema_id", pa.int64()),
        ("size", pa.int32()),
        ("names", pa.map_(pa.string(), pa.string())),
        ("younger", pa.map_(pa.string(), pa.string())),
    ]
)

_IS_LANDED: Final = "is_landed"
"""Whether a state is of a transaction of the source, not of a copy."""


def in_periods(changes: DataFrame, parts: Sequence[Period]) -> DataFrame:
    """
    The row changes that count, with the number of their period, from 1, as `period`.

    Shape:
        changes: of one relation.
    """
    starts = F.array(*(_place(part.start.place) for part in parts))
    here = F.struct("commit_lsn", "ordinal")
    number = F.size(F.filter(starts, lambda start: start <= here))
    are_open = F.array(*(F.lit(part.is_open) for part in parts))
    numbered = changes.withColumn("period", number).where(F.col("period") > 0)
    return numbered.where(F.element_at(are_open, F.col("period")))


def ends(changes: DataFrame, parts: Sequence[Period]) -> DataFrame:
    """Where the row of each key ends with its period, if it is there then; as `states` takes it."""
    ended = {n: part.end for n, part in enumerate(parts, 1) if part.end is not None}
    keys = [F.col("key"), F.col("old_key")]
    touched = (
        changes.where(F.col("period").isin(list(ended)))
        .select("period", F.explode(F.array(*keys)).alias("key"))
        .where(F.col("key").isNotNull())
        .distinct()
    )
    rows = [_end_row(number, end) for number, end in ended.items()]
    schema = "period INT, commit_lsn BIGINT, ordinal BIGINT, at_us BIGINT, removed_by STRING"
    marks = F.broadcast(changes.sparkSession.createDataFrame(rows, schema))
    return touched.join(marks, "period").withColumns(
        {"schema_id": F.lit(None).cast("bigint"), "committed_at": F.timestamp_micros("at_us")}
    )


@dataclass(frozen=True)
class Part:
    """
    Changes of one relation with a key, all of which count.

    `ended`: as `ends` gives it. `has_parts`: whether any update leaves out columns. `end`: the copy
    of the next relation, with its epoch, that ends the rows that are left; `None`: none does.
    """

    epoch: int
    changes: DataFrame
    ended: DataFrame
    has_parts: bool
    end: tuple[int, Marker] | None = None


def row_versions(part: Part, layout: HistoryLayout) -> DataFrame:
    """
    Every version of every row.

    Shape:
        result: KEY, `row`, VERSION; position and time of the change that began it; TO_EPOCH,
            TO_LSN, TO_ORDINAL, TO and ENDED_BY where it has ended, else nulls.
    """
    described = F.broadcast(_images(part.changes.sparkSession, layout.images))
    named = part.changes.join(described, "schema_id")
    shown = states(named, part.ended, has_parts=part.has_parts)
    rows = _filled(shown, layout) if part.has_parts else _whole(shown)
    return _versions(_last_of_transactions(rows), part)


def _images(spark: SparkSession, images: Sequence[Image]) -> DataFrame:
    """How the fold reads images of each version."""
    rows = [
        {
            "schema_id": image.schema_id,
            "size": image.size,
            "names": None
            if all(name == ours for name, ours in image.names.items())
            else list(image.names.items()),
            "younger": list(image.absent.items()) or None,
        }
        for image in images
    ]
    return spark.createDataFrame(pa.Table.from_pylist(rows, _IMAGES))


def _place(place: Place) -> Column:
    lsn, ordinal = (F.lit(int(n)).cast("bigint") for n in place)
    return F.struct(lsn.alias("commit_lsn"), ordinal.alias("ordinal"))


def _end_row(number: int, end: Marker) -> tuple[object, ...]:
    lsn, ordinal = end.place
    return number, int(lsn), ordinal, end.committed_at_us, end.op.value


def _whole(shown: DataFrame) -> DataFrame:
    """Every image is a row."""
    return shown.withColumn("row", F.when(F.col("lifetime").isNotNull(), F.col("image")))


def _filled(shown: DataFrame, layout: HistoryLayout) -> DataFrame:
    """
    Each state with its whole row: of every column the last value that was carried.

    A column that was dropped has what a full row of the same version has for it: none, but for a
    version that was there before the column.
    """
    upto = Window.partitionBy("lifetime").orderBy("commit_lsn", "ordinal")
    upto = upto.rowsBetween(Window.unboundedPreceding, Window.currentRow)
    values = list[Column]()
    for number, column in layout.columns.items():
        name = F.lit(column.source.name)
        sent = F.struct(F.try_element_at("image", name).alias("text"))
        is_sent = F.map_contains_key("image", name)
        last = F.last(F.when(is_sent, sent), ignorenulls=True).over(upto)["text"]
        values.append(_shown(number, last, layout))
    names = F.array(*(F.lit(column.source.name) for column in layout.columns.values()))
    is_there = F.col("lifetime").isNotNull()
    texts = shown.where(is_there).withColumn("texts", F.array(*values))
    rows = texts.withColumn("row", F.map_from_arrays(names, F.col("texts"))).drop("texts")
    none = shown.where(~is_there).withColumn("row", F.lit(None).cast("map<string,string>"))
    return rows.unionByName(none)


def _shown(number: int, last: Column, layout: HistoryLayout) -> Column:
    """The last value of a column; of versions without it what their full rows have."""
    lacking, name = layout.lacking.get(number, frozenset()), layout.columns[number].source.name
    without = {i.schema_id: i.absent[name] for i in layout.images if i.schema_id in lacking}
    shown = last
    for text in dict.fromkeys(without.values()):
        theirs = [schema_id for schema_id, absent in without.items() if absent == text]
        shown = F.when(F.col("schema_id").isin(theirs), F.lit(text)).otherwise(shown)
    return shown


def _last_of_transactions(rows: DataFrame) -> DataFrame:
    """
    What each transaction left at each key, and ENDED_BY, what ended the version before it.

    The last removal counts, whatever came to the key afterwards.
    """
    landed = rows.withColumn(_IS_LANDED, F.col("ordinal") >= 0)
    of_key = Window.partitionBy("key").orderBy("commit_lsn", _IS_LANDED, "ordinal")
    together = Window.partitionBy("key", "commit_lsn", _IS_LANDED).orderBy("ordinal")
    removed_by = F.last("removed_by", ignorenulls=True).over(together)
    change = F.when(F.col(_IS_LANDED), "update").otherwise("copy")
    following = [F.lead(name).over(of_key) for name in ("commit_lsn", _IS_LANDED)]
    is_same = (following[0] == F.col("commit_lsn")) & (following[1] == F.col(_IS_LANDED))
    last = landed.withColumns(
        {ENDED_BY: F.coalesce(removed_by, change), "is_same": F.coalesce(is_same, F.lit(False))}  # noqa: FBT003
    )
    return last.where("NOT is_same")


def _versions(rows: DataFrame, part: Part) -> DataFrame:
    """What is between two states of a key, where there is a row."""
    of_key = Window.partitionBy("key").orderBy("commit_lsn", _IS_LANDED, "ordinal")
    epoch = F.lit(part.epoch).cast("int").alias("epoch")
    state = F.struct(epoch, "commit_lsn", "ordinal", "committed_at", F.col(ENDED_BY).alias("by"))
    end = F.coalesce(F.lead(state).over(of_key), _end(part.end))
    ended = rows.withColumn("end", end).where(F.col("row").isNotNull())
    return ended.select(
        F.col("key").alias(KEY),
        "row",
        F.col("schema_id").alias(VERSION),
        *("commit_lsn", "ordinal", "committed_at"),
        F.col("end.epoch").alias(TO_EPOCH),
        F.col("end.commit_lsn").alias(TO_LSN),
        F.col("end.ordinal").alias(TO_ORDINAL),
        F.col("end.committed_at").alias(TO),
        F.col("end.by").alias(ENDED_BY),
    )


def _end(end: tuple[int, Marker] | None) -> Column:
    """The copy of the next relation, as a state."""
    if end is None:
        type_ = (
            "struct<epoch:int,commit_lsn:bigint,ordinal:bigint,committed_at:timestamp,by:string>"
        )
        return F.lit(None).cast(type_)
    epoch, marker = end
    lsn, ordinal = marker.place
    return F.struct(
        F.lit(epoch).cast("int").alias("epoch"),
        F.lit(int(lsn)).cast("bigint").alias("commit_lsn"),
        F.lit(ordinal).cast("bigint").alias("ordinal"),
        F.timestamp_micros(F.lit(marker.committed_at_us)).alias("committed_at"),
        F.lit(marker.op.value).alias("by"),
    )
