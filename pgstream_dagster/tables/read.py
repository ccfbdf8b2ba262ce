"""Tables and their changes from the log, as Spark DataFrames."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from pgstream_dagster.changelog import replay
from pgstream_dagster.changelog.fold import fold
from pgstream_dagster.changelog.spans import Span, is_before, spans
from pgstream_dagster.delta import jvm
from pgstream_dagster.errors import NotInLog
from pgstream_dagster.lsn import Lsn
from pgstream_dagster.named import named
from pgstream_dagster.patterns import canonical
from pgstream_dagster.pipeline import OpenPipeline, Pipeline
from pgstream_dagster.schema.table import TableSchema, named_at

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


@dataclass(frozen=True, slots=True)
class TableRows:
    """
    The rows of a table as they were at a position.

    Shape:
        rows: one row per row of the table, a string column per column of its newest schema: the
            values as Postgres prints them, NULL as null. Lazy, unordered.
    """

    rows: DataFrame
    watermark: Lsn


@named
def read_table(pipeline: Pipeline, table: str) -> TableRows:
    """
    The current rows of a table: its newest copy and every change after it, up to the watermark.

    Reads the log as it is now; the stream may continue. Runs small Spark jobs immediately.

    Raises:
        NotSetUp: `setup` was never run for this pipeline and lake.
        NotInLog: the log has no copy of a table of this name, or a gap since its copy.
    """
    with pipeline.open() as opened:
        at = opened.watermark() or Lsn(0)
        versions = _versions(opened, table)
        schema = versions[-1]
        changes = _changes(opened, schema).where(is_before(opened.epoch, at))
        span = spans(changes).get(schema.relation_id, Span())
        if not span.is_known:
            raise NotInLog(table)
        rows = fold(changes, versions, span=span)
    columns = [rows["row"][column.name].alias(column.name) for column in schema.columns]
    return TableRows(rows.select(columns), at)


@named
def read_changes(pipeline: Pipeline, table: str) -> DataFrame:
    """
    Every change of a table in the newest epoch, with copied rows and markers; lazy, unordered.

    Shape:
        result: the columns of the change log (docs/reference/change-log.md). Order is (epoch,
            commit_lsn, ordinal).
    Raises:
        NotSetUp: `setup` was never run for this pipeline and lake.
        NotInLog: the log has no copy of a table of this name.
    """
    return relation_changes(pipeline, table)[0]


def relation_changes(pipeline: Pipeline, table: str) -> tuple[DataFrame, list[TableSchema]]:
    """What `read_changes` gives, and the versions of its relation, oldest first."""
    with pipeline.open() as opened:
        versions = _versions(opened, table)
        return _changes(opened, versions[-1]), versions


def _versions(opened: OpenPipeline, table: str) -> list[TableSchema]:
    """The schemas of the relation that has this name, or had it last, oldest first."""
    name = canonical(table)
    copies = opened.copied_relations().values()
    of_this_name = [versions for _, versions in copies if versions[-1].full_name == name]
    if not of_this_name:
        raise NotInLog(table)
    places = named_at(version for _, version in opened.schema_log.history(opened.epoch))
    return max(of_this_name, key=lambda versions: places[versions[-1].relation_id])


def _changes(opened: OpenPipeline, schema: TableSchema) -> DataFrame:
    spark, lake = jvm.spark(opened.pipeline.jvm), opened.pipeline.lake
    return replay.relation_changes(spark, lake, opened.epoch, schema.relation_id)
