"""The comparison of rows finds every planted difference, and nothing else."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import reduce
from typing import Final

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from pgstream_dagster.upkeep.differences import TableDifference, compare, identical

Rows = Sequence[tuple[Sequence[str] | None, Mapping[str, str | None]]]

KEYED: Rows = [((str(n),), {"id": str(n), "a": "x", "b": None}) for n in range(30)]
KEYLESS: Rows = [(None, {"a": "x"}), (None, {"a": "x"}), (None, {"a": None})]


def frame(spark: SparkSession, rows: Rows) -> DataFrame:
    keys = [None if key is None else list(key) for key, _ in rows]
    images = [list(image.items()) for _, image in rows]
    return spark.createDataFrame(
        pa.table(
            {
                "key": pa.array(keys, pa.list_(pa.string())),
                "row": pa.array(images, pa.map_(pa.string(), pa.string())),
            }
        )
    )


def tables(spark: SparkSession, sides: Mapping[int, Rows]) -> DataFrame:
    """Rows of several tables."""
    frames = [frame(spark, rows).withColumn("relation_id", F.lit(n)) for n, rows in sides.items()]
    return reduce(DataFrame.unionByName, frames)


def changed(rows: Rows, number: int, image: Mapping[str, str | None]) -> Rows:
    return [*rows[:number], (rows[number][0], image), *rows[number + 1 :]]


def difference(spark: SparkSession, source: Rows, log: Rows) -> TableDifference:
    return compare(frame(spark, source), frame(spark, log), ["id", "a", "b"])


@pytest.mark.parametrize("rows", [KEYED, KEYLESS, []])
def test_same_rows_in_another_order_are_identical(spark: SparkSession, rows: Rows) -> None:
    turned = [(key, dict(reversed(image.items()))) for key, image in reversed(rows)]
    comparison = difference(spark, rows, turned)
    assert comparison == TableDifference(len(rows), len(rows))
    assert comparison.identical


NAMES: Final = ("z", "\U00010000", "\uffff", "A", "a", "ä", "a.b", "1")
"""Java, Postgres and people order them differently."""


def test_values_of_rows_in_another_order_are_compared_by_the_names_of_columns(
    spark: SparkSession,
) -> None:
    image = {name: None if name == "a" else str(at) for at, name in enumerate(NAMES)}
    turned = dict(sorted(image.items(), key=lambda item: item[0].encode("utf-16-be")))
    swapped = turned | {"\U00010000": image["\uffff"], "\uffff": image["\U00010000"]}
    source, log = [(("k",), image), (("m",), image)], [(("k",), turned), (("m",), swapped)]
    assert compare(frame(spark, source), frame(spark, log), NAMES) == TableDifference(
        2, 2, differing_count=1, differing=((("m",), ("\uffff", "\U00010000")),)
    )


def test_each_differing_row_is_named_with_its_columns(spark: SparkSession) -> None:
    another_value = changed(KEYED, 1, {"id": "1", "a": "y", "b": None})
    empty_for_null = changed(another_value, 2, {"id": "2", "a": "x", "b": ""})
    column_missing = changed(empty_for_null, 3, {"id": "3", "a": "x"})
    column_too_many = changed(column_missing, 4, {"id": "4", "a": "x", "b": None, "c": None})
    swapped = changed(column_too_many, 5, {"id": "5", "a": None, "b": "x"})
    comparison = difference(spark, KEYED, swapped)
    columns = {"1": ("a",), "2": ("b",), "3": ("b",), "4": ("c",), "5": ("a", "b")}
    differing = tuple(((key,), names) for key, names in columns.items())
    assert comparison == TableDifference(30, 30, differing_count=5, differing=differing)
    assert not comparison.identical


def test_missing_and_extra_rows_are_named_by_key(spark: SparkSession) -> None:
    comparison = difference(spark, KEYED[1:], KEYED[:-1])
    assert comparison == TableDifference(
        29,
        29,
        only_in_source_count=1,
        only_in_log_count=1,
        only_in_source=(("29",),),
        only_in_log=(("0",),),
    )


def test_row_that_is_there_twice_is_found(spark: SparkSession) -> None:
    assert difference(spark, KEYED, [*KEYED, KEYED[0]]).only_in_log_count == 1
    comparison = difference(spark, KEYLESS, [*KEYLESS, KEYLESS[0]])
    assert comparison == TableDifference(3, 4, only_in_log_count=1)
    assert not comparison.identical


def test_differing_row_without_key_counts_on_both_sides(spark: SparkSession) -> None:
    comparison = difference(spark, KEYLESS, changed(KEYLESS, 2, {"a": ""}))
    assert comparison == TableDifference(3, 3, only_in_source_count=1, only_in_log_count=1)


def test_keys_reported_are_bounded_and_counts_are_not(spark: SparkSession) -> None:
    comparison = compare(frame(spark, KEYED), frame(spark, []), ["id", "a", "b"], sample=4)
    assert comparison.only_in_source_count == 30
    assert len(comparison.only_in_source) == 4


def test_of_several_tables_those_are_named_that_are_identical(spark: SparkSession) -> None:
    """Their keys are the same texts, and so are most of their rows."""
    names = ("id", "a", "b")
    turned = [(key, dict(reversed(image.items()))) for key, image in reversed(KEYED)]
    image = {name: str(at) for at, name in enumerate(NAMES)}
    by_name = [(("k",), image)], [(("k",), dict(sorted(image.items())))]
    swapped = [(("k",), image | {"A": image["a"], "a": image["A"]})]
    sides: dict[int, tuple[Rows, Rows, Sequence[str]]] = {
        1: (KEYED, turned, names),
        2: (KEYED, changed(KEYED, 3, {"id": "3", "a": "y", "b": None}), names),
        3: (KEYED, changed(KEYED, 3, {"id": "3", "a": "x"}), names),
        4: (KEYED, changed(KEYED, 3, {"id": "3", "a": "x", "b": None, "c": None}), names),
        5: (KEYED[1:], KEYED[:-1], names),
        6: (KEYED, [*KEYED, KEYED[0]], names),
        7: ([], [], names),
        8: ([], KEYED, names),
        9: (KEYED, [], names),
        10: (*by_name, NAMES),
        11: (by_name[0], swapped, NAMES),
        12: ([*KEYED, KEYED[0]], [*KEYED, KEYED[1]], names),
    }
    named = identical(
        tables(spark, {n: source for n, (source, _, _) in sides.items()}),
        tables(spark, {n: log for n, (_, log, _) in sides.items()}),
        {n: columns for n, (_, _, columns) in sides.items()},
    )
    assert named == {
        1: TableDifference(30, 30),
        7: TableDifference(0, 0),
        10: TableDifference(1, 1),
    }
