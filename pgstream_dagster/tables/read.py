"""Tables and their changes out of the log, as Spark DataFrames."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from operator import itemgetter
from typing import TYPE_CHECKING

from pgstream_dagster.changelog import replay
from pgstream_dagster.changelog.fold import Span, fold, is_before, spans
from pgstream_dagster.delta import jvm
from pgstream_dagster.errors import NotInLog
from pgstream_dagster.lsn import Lsn
from pgstream_dagster.named import named
from pgstream_dagster.patterns import canonical
from pgstream_dagster.pipeline import Pipeline
from pgstream_dagster.schema.table import TableSchema

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


@dataclass(frozen=True, slots=True)
class TableRows:
    """
    The rows of a table as they were at a position.

    Shape:
        rows: one row per row of the table, a string column per column of its newest schema: the
            values as Postgres prints them, NULL as null. Lazy; in no order.
    """

    rows: DataFrame
    watermark: Lsn


@named
def read_table(pipeline: Pipeline, table: str) -> TableRows:
    """
    The current rows of a table: its newest copy and every change after it, up to the watermark.

    The log as it is now; the stream may go on meanwhile. Runs small Spark jobs at once.

    Raises:
        NotSetUp: `setup` was never run for this pipeline and lake.
        NotInLog: the log has no copy of a table of this name, or a gap since its copy.
    """
    with _relation(pipeline, table) as relation:
        at, schema = relation.watermark, relation.versions[-1]
        changes = relation.changes().where(is_before(relation.epoch, at))
        span = spans(changes).get(schema.relation_id, Span())
        if not span.is_known:
            raise NotInLog(table)
        rows = fold(changes, relation.versions, span=span)
    columns = [rows["row"][column.name].alias(column.name) for column in schema.columns]
    return TableRows(rows.select(columns), at)


@named
def read_changes(pipeline: Pipeline, table: str) -> DataFrame:
    """
    Every change of a table in the newest epoch, copied rows and markers too; lazy, in no order.

    Shape:
        result: the columns of the change log (docs/reference/change-log.md). Order is (epoch,
            commit_lsn, ordinal).
    Raises:
        NotSetUp: `setup` was never run for this pipeline and lake.
        NotInLog: the log has no copy of a table of this name.
    """
    with _relation(pipeline, table) as relation:
        return relation.changes()


@dataclass(frozen=True, slots=True)
class _Relation:
    """A relation of the log; `versions` are its schemas, oldest first."""

    pipeline: Pipeline
    epoch: int
    versions: list[TableSchema]
    watermark: Lsn

    def changes(self) -> DataFrame:
        spark = jvm.spark(self.pipeline.jvm)
        lake, oid = self.pipeline.lake, self.versions[-1].relation_id
        return replay.relation_changes(spark, lake, self.epoch, oid)


@contextmanager
def _relation(pipeline: Pipeline, table: str) -> Generator[_Relation]:
    """The relation that has this name now; of several, the one that was copied last."""
    name = canonical(table)
    with pipeline.open() as opened:
        watermark = opened.watermark() or Lsn(0)
        copies = opened.copied_relations().values()
        of_this_name = [copy for copy in copies if copy[1][-1].full_name == name]
        if not of_this_name:
            raise NotInLog(table)
        _, versions = max(of_this_name, key=itemgetter(0))
        yield _Relation(pipeline, opened.epoch, versions, watermark)
