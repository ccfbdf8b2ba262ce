"""The changes of a table as a Spark DataFrame with one column per column."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from pyspark.sql import functions as F

from pgstream_dagster.named import named
from pgstream_dagster.pipeline import Pipeline
from pgstream_dagster.schema.change_columns import (
    BEFORE,
    BEFORE_SENT,
    OF_LOG,
    SENT,
    ChangeColumn,
    change_columns,
)
from pgstream_dagster.tables.read import relation_changes

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame


@named
def read_column_changes(pipeline: Pipeline, table: str) -> DataFrame:
    """
    Every change of a table in the newest epoch, with one column per column of the table.

    Lazy and unordered; with copied rows and markers. A column is found by its attnum, so a renamed
    one has its values of before. `pgstream sql` has the same as `change_log_<table>`.

    Shape:
        result: `_epoch`, `_commit_lsn`, `_ordinal` (the order), `_committed_at`, `_xid`, `_op`,
            `_key` and `_old_key` as in the log; `_sent`, the columns that the change carried;
            `_before`, a struct of the values before it, and `_before_sent`; then the columns of the
            newest version with the values after the change, as Postgres prints them. null is NULL
            or was not sent: see `_sent`.
    Raises:
        NotSetUp: `setup` was never run for this pipeline and lake.
        NotInLog: the log has no copy of a table of this name.
    """
    changes, versions = relation_changes(pipeline, table)
    columns = change_columns(versions)
    return changes.select(
        *(F.col(of_log).alias(name) for name, of_log in OF_LOG.items()),
        _sent("after", columns).alias(SENT),
        _before(columns).alias(BEFORE),
        _sent("before", columns).alias(BEFORE_SENT),
        *(_value("after", column).alias(column.name) for column in columns),
    )


def _name(column: ChangeColumn) -> Column:
    """What the column is called in a row; null in a version without it."""
    if column.same_name is not None:
        return F.lit(column.same_name)
    name = F.lit(None).cast("string")
    for version, written in column.names.items():
        name = F.when(F.col("schema_id") == version, F.lit(written)).otherwise(name)
    return name


def _value(image: str, column: ChangeColumn) -> Column:
    return F.try_element_at(F.col(image), _name(column))


def _sent(image: str, columns: Sequence[ChangeColumn]) -> Column:
    names = (
        F.when(F.array_contains(F.map_keys(F.col(image)), _name(column)), F.lit(column.name))
        for column in columns
    )
    return F.filter(F.array(*names), lambda name: name.isNotNull())


def _before(columns: Sequence[ChangeColumn]) -> Column:
    values = (_value("before", column).alias(column.name) for column in columns)
    return F.when(F.col("before").isNotNull(), F.struct(*values))
