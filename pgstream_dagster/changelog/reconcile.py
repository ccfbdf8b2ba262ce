"""
The comparison of two sets of rows, such as the source at a snapshot and the fold up to it.

Two DataFrames in, counts and a few keys out. Values of columns are compared and never told.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

Key: TypeAlias = tuple[str | None, ...]

SAMPLE: Final = 10
"""Keys told of each kind of difference: enough to look at, and no copy of the table."""


@dataclass(frozen=True, slots=True)
class TableDifference:
    """
    How the rows of a table differ between source and log.

    The counts are exact, the keys a sample of the lowest. Rows without a key are only counted: one
    that differs counts on both sides.
    """

    source_rows: int
    log_rows: int
    only_in_source_count: int = 0
    only_in_log_count: int = 0
    differing_count: int = 0
    only_in_source: tuple[Key, ...] = ()
    only_in_log: tuple[Key, ...] = ()
    differing: tuple[tuple[Key, tuple[str, ...]], ...] = ()  # with the columns that differ

    @property
    def identical(self) -> bool:
        """The same rows, each as often."""
        return self.source_rows == self.log_rows and not (
            self.only_in_source_count or self.only_in_log_count or self.differing_count
        )


def compare(source: DataFrame, log: DataFrame, *, sample: int = SAMPLE) -> TableDifference:
    """
    Compare row by row and column by column; a column that is missing is not one that is NULL.

    Rows are matched by key; those without one as a multiset of whole rows. Runs one Spark job, and
    one more for each kind of difference found.

    Shape:
        source, log: `key` ARRAY<STRING> (null: the table has none) and `row` MAP<STRING,STRING>;
            further columns are passed over.
    """
    matched = _matched(source, log)
    total = matched.agg(
        *(
            F.coalesce(F.sum(name), F.lit(0)).alias(name)
            for name in ("in_source", "in_log", *_KINDS)
        ),
    ).first()
    assert total is not None
    sampled = {name: _sampled(matched, name, sample) if total[name] else () for name in _KINDS}
    return TableDifference(
        source_rows=total["in_source"],
        log_rows=total["in_log"],
        only_in_source_count=total["only_in_source"],
        only_in_log_count=total["only_in_log"],
        differing_count=total["differing"],
        only_in_source=sampled["only_in_source"],
        only_in_log=sampled["only_in_log"],
        differing=sampled["differing"],
    )


_KINDS: Final = ("only_in_source", "only_in_log", "differing")


def _matched(source: DataFrame, log: DataFrame) -> DataFrame:
    """One row per key (or per whole row without one): how often it is on each side, and how."""
    sides = _side(source, F.lit(1), F.lit(0)).unionByName(_side(log, F.lit(0), F.lit(1)))
    whole = F.when(F.col("key").isNull(), F.col("entries"))
    matched = (
        sides.withColumn("whole", whole)
        .groupBy("key", "whole")
        .agg(
            F.sum("in_source").alias("in_source"),
            F.sum("in_log").alias("in_log"),
            *(
                F.array_sort(
                    F.collect_set(F.when(F.col(f"in_{side}") > 0, F.col("entries")))
                ).alias(side)
                for side in ("source", "log")
            ),
        )
    )
    in_source, in_log = F.col("in_source"), F.col("in_log")
    in_both = F.least(in_source, in_log)
    differs = (F.col("key").isNotNull()) & (in_both > 0) & (F.col("source") != F.col("log"))
    return matched.select(
        "*",
        (in_source - in_both).alias("only_in_source"),
        (in_log - in_both).alias("only_in_log"),
        F.when(differs, in_both).otherwise(F.lit(0)).alias("differing"),
    )


def _side(rows: DataFrame, in_source: Column, in_log: Column) -> DataFrame:
    entries = F.array_sort(F.map_entries("row"))  # comparable, as maps are not
    return rows.select(
        "key", entries.alias("entries"), in_source.alias("in_source"), in_log.alias("in_log")
    )


def _sampled(matched: DataFrame, kind: str, sample: int) -> tuple[Any, ...]:
    found = matched.where((F.col(kind) > 0) & F.col("key").isNotNull()).orderBy("key").limit(sample)
    if kind != "differing":
        return tuple(tuple(row["key"]) for row in found.select("key").collect())
    named = found.select("key", _differing_columns().alias("columns")).collect()
    return tuple((tuple(row["key"]), tuple(row["columns"])) for row in named)


def _differing_columns() -> Column:
    """Names of the entries that are on one side only: other values, or missing there."""
    source, log = F.flatten("source"), F.flatten("log")
    differing = F.array_union(F.array_except(source, log), F.array_except(log, source))
    return F.array_sort(F.array_distinct(F.transform(differing, lambda entry: entry["key"])))
