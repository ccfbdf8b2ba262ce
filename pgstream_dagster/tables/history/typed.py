"""The versions of rows with the columns of a history. DataFrames in, DataFrames out."""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from pgstream_dagster.tables.columns import COMMIT_LSN, COMMITTED_AT, EPOCH, ORDINAL
from pgstream_dagster.tables.history.columns import (
    FROM,
    FROM_EPOCH,
    FROM_LSN,
    FROM_ORDINAL,
    IS_CURRENT,
    KEY_TEXTS,
    TO_LSN,
    HistoryLayout,
)
from pgstream_dagster.tables.increment import KEY
from pgstream_dagster.tables.rows import typed_rows


def typed_versions(versions: DataFrame, layout: HistoryLayout, epoch: int) -> DataFrame:
    """
    The versions with typed columns, without IS_CURRENT.

    Shape:
        versions: as `row_versions` gives them; other columns stay.
    """
    keyed = versions.withColumnRenamed(KEY, KEY_TEXTS)
    return typed_rows(keyed, layout, epoch).withColumnsRenamed(
        {EPOCH: FROM_EPOCH, COMMIT_LSN: FROM_LSN, ORDINAL: FROM_ORDINAL, COMMITTED_AT: FROM}
    )


def with_current(versions: DataFrame) -> DataFrame:
    """With IS_CURRENT: what has no end."""
    return versions.withColumn(IS_CURRENT, F.col(TO_LSN).isNull())
