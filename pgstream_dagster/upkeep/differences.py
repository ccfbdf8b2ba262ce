"""
The comparison of two sets of rows, such as the source at a snapshot and the fold up to it.

Two DataFrames in, counts and a few keys out. Values of columns are compared and never reported.
What travels between machines is a SHA-256 of each row: sorting and moving whole rows takes four
times as long.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from pgstream_dagster.changelog.fold import entries

Key: TypeAlias = tuple[str | None, ...]

SAMPLE: Final = 10
"""Keys reported for each kind of difference: enough to inspect, and no copy of the table."""


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
        return self.source_rows == self.log_rows and not self.count

    @property
    def count(self) -> int:
        """Rows that differ, or are on one side only."""
        return self.only_in_source_count + self.only_in_log_count + self.differing_count

    @property
    def sample(self) -> tuple[Key, ...]:
        """A few of the keys that differ."""
        differing = tuple(key for key, _ in self.differing)
        return (*self.only_in_source, *self.only_in_log, *differing)[:SAMPLE]


def compare(
    source: DataFrame, log: DataFrame, columns: Sequence[str], *, sample: int = SAMPLE
) -> TableDifference:
    """
    Compare row by row and column by column; a column that is missing is not one that is NULL.

    Rows are matched by key; those without a key as a multiset of whole rows. Runs one Spark job,
    and more for each kind of difference there is.

    Shape:
        source, log: `key` ARRAY<STRING> (null: the table has none) and `row` MAP<STRING,STRING>;
            further columns are ignored.
        columns: names that a row is expected to have, in the order that most rows have them in.
    """
    names = F.array(*map(F.lit, columns)).cast("array<string>")
    places = F.array(*map(F.lit, _places(columns))).cast("array<int>")
    sides = [_side(rows, names, places, at) for at, rows in enumerate((source, log))]
    matched = _matched(*sides)
    total = matched.agg(*_totals()).first()
    assert total is not None
    keys = {kind: _sampled(matched, kind, sample) if total[kind] else () for kind in _KINDS}
    return TableDifference(
        source_rows=total["in_source"],
        log_rows=total["in_log"],
        only_in_source_count=total["only_in_source"],
        only_in_log_count=total["only_in_log"],
        differing_count=total["differing"],
        only_in_source=keys["only_in_source"],
        only_in_log=keys["only_in_log"],
        differing=_named(source, log, keys["differing"]),
    )


def identical(
    source: DataFrame, log: DataFrame, columns: Mapping[int, Sequence[str]]
) -> dict[int, TableDifference]:
    """
    Those of several tables with keys that `compare` would find to be the same; one Spark job.

    Shape:
        source, log: as `compare` takes them, with `relation_id`.
        columns: relation -> its columns, as `compare` takes them.
    """
    orders = source.sparkSession.createDataFrame(
        pa.table(
            [
                pa.array(columns, pa.int64()),
                pa.array(map(list, columns.values()), pa.list_(pa.string())),
                pa.array(map(_places, columns.values()), pa.list_(pa.int32())),
            ],
            names=["relation_id", "names", "places"],
        )
    )
    sides = [
        _side(
            rows.join(F.broadcast(orders), "relation_id").withColumn("key", _of_all(F.col("key"))),
            *(F.col("names"), F.col("places"), at),
        )
        for at, rows in enumerate((source, log))
    ]
    relation = F.get("key", F.lit(0)).cast("bigint").alias("relation_id")
    totals = _matched(*sides).groupBy(relation).agg(*_totals()).collect()
    differences = dict.fromkeys(columns, TableDifference(0, 0)) | {
        total["relation_id"]: TableDifference(
            total["in_source"], total["in_log"], *(total[kind] for kind in _KINDS)
        )
        for total in totals
    }
    return {oid: difference for oid, difference in differences.items() if difference.identical}


def _of_all(key: Column) -> Column:
    """A key among those of other relations; a row without one is not left out."""
    without = F.array(F.lit(None).cast("string"))
    return F.concat(F.array(F.col("relation_id").cast("string")), F.coalesce(key, without))


_KINDS: Final = ("only_in_source", "only_in_log", "differing")


def _totals() -> list[Column]:
    names = ("in_source", "in_log", *_KINDS)
    return [F.coalesce(F.sum(name), F.lit(0)).alias(name) for name in names]


def _side(rows: DataFrame, names: Column, places: Column, at: int) -> DataFrame:
    """A row's key, its digest, and which of the two sides it is on."""
    counts = [F.lit(int(at == n)).alias(name) for n, name in enumerate(("source", "log"))]
    return rows.select("key", _digest(F.col("row"), names, places).alias("digest"), *counts)


def _places(columns: Sequence[str]) -> list[int]:
    """Of the columns in the order of their names: where each is."""
    place = {name: at for at, name in enumerate(columns)}
    return [place[name] for name in sorted(columns)]


def _digest(row: Column, names: Column, places: Column) -> Column:
    """
    The same for rows with the same columns and values, whatever their order in the map.

    Most rows have the expected columns in the expected order. Others cost more: those in another
    order (an update was laid over them, or they have no key), and most those with other columns.
    """
    keys = F.map_keys(row)
    values = F.when(keys == names, F.map_values(row)).when(
        F.sort_array(keys) == F.sort_array(names), _in_order(row, places)
    )
    odd = F.to_json(entries(row), {"ignoreNullFields": "false"})
    return F.sha2(F.coalesce(F.to_json(values), odd), 256)


def _in_order(row: Column, places: Column) -> Column:
    """
    The values of a row that has exactly the expected columns, in their order.

    Spark compiles sorting, and does not compile `transform`, which takes a hundred times as long.
    """
    by_name = entries(row)["value"]
    return F.sort_array(F.arrays_zip(places.alias("place"), by_name.alias("value")))["value"]


def _matched(source: DataFrame, log: DataFrame) -> DataFrame:
    """How many rows each key has on each side, and how many of them differ."""
    same = source.unionByName(log).groupBy("key", "digest")
    counted = same.agg(F.sum("source").alias("source"), F.sum("log").alias("log"))
    by_key = counted.groupBy("key").agg(
        F.sum("source").alias("in_source"),
        F.sum("log").alias("in_log"),
        F.sum(F.least("source", "log")).alias("equal"),
    )
    # Rows without a key all have the key null: what has no equal is on one side only.
    paired = F.least("in_source", "in_log")
    matched = F.when(F.col("key").isNull(), F.col("equal")).otherwise(paired)
    return by_key.select(
        "*",
        (F.col("in_source") - matched).alias("only_in_source"),
        (F.col("in_log") - matched).alias("only_in_log"),
        (matched - F.col("equal")).alias("differing"),
    )


def _sampled(matched: DataFrame, kind: str, sample: int) -> tuple[Key, ...]:
    rows = matched.where((F.col(kind) > 0) & F.col("key").isNotNull()).orderBy("key").limit(sample)
    return tuple(tuple(row["key"]) for row in rows.select("key").collect())


def _named(
    source: DataFrame, log: DataFrame, keys: Sequence[Key]
) -> tuple[tuple[Key, tuple[str, ...]], ...]:
    """Each of a few keys with the columns that differ: other values, or missing on one side."""
    if not keys:
        return ()
    left, right = (_values(rows, keys) for rows in (source, log))
    differing = {key: {name for name, _ in left[key] ^ right[key]} for key in keys}
    return tuple((key, tuple(sorted(names))) for key, names in differing.items())


def _values(rows: DataFrame, keys: Sequence[Key]) -> dict[Key, set[tuple[str, str | None]]]:
    """Names and values of the rows of a few keys."""
    listed = [F.array(*map(F.lit, key)).cast("array<string>") for key in keys]
    values: dict[Key, set[tuple[str, str | None]]] = {key: set() for key in keys}
    for row in rows.where(F.col("key").isin(listed)).select("key", "row").collect():
        values[tuple(row["key"])] |= set(row["row"].items())
    return values
