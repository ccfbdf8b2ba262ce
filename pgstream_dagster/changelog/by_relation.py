"""
Rows of several relations that are kept together, and those of one among them.

Spark writes the numbers of a query into the code that it generates, but not its texts. Were a
relation chosen by its number, each would have code of its own, which Java compiles.
"""

from __future__ import annotations

from typing import Final

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

_RELATION: Final = "_pgstream_relation"


def sorted_by_relation(rows: DataFrame) -> DataFrame:
    """Rows with a `relation_id`, each partition sorted so that `of_relation` skips the others."""
    relation = F.col("relation_id").cast("string")
    return rows.withColumn(_RELATION, relation).sortWithinPartitions(_RELATION)


def of_relation(rows: DataFrame, relation_id: int) -> DataFrame:
    """The rows of one relation, of those that `sorted_by_relation` gave."""
    return rows.where(F.col(_RELATION) == str(relation_id)).drop(_RELATION)
