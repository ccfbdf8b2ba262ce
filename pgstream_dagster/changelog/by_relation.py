"""
Rows of several relations that are kept together, and those of some among them.

Spark writes the numbers of a query into the code that it generates, but not its texts. Were one
relation chosen by its number, it would have code of its own, which Java compiles.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

RELATION: Final = "_pgstream_relation"
"""The column that has the `relation_id` as text."""


def sorted_by_relation(rows: DataFrame) -> DataFrame:
    """
    Rows with a `relation_id`, and RELATION, each partition sorted by it.

    Where they are persisted, `of_relation` passes over the others.
    """
    named = rows.withColumn(RELATION, F.col("relation_id").cast("string"))
    return named.sortWithinPartitions("relation_id")  # Spark sorts numbers faster


def of_relation(rows: DataFrame, relation_id: int) -> DataFrame:
    """The rows of one relation, of those that `sorted_by_relation` gave."""
    return of_relations(rows, [relation_id]).drop(RELATION)


def of_relations(rows: DataFrame, relation_ids: Collection[int]) -> DataFrame:
    """The rows of some relations, of those that `sorted_by_relation` gave; with RELATION."""
    return rows.where(F.col(RELATION).isin(list(map(str, relation_ids))))
