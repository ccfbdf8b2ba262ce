"""A typed table as a Spark DataFrame, by the name of its table of the source."""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pgstream_dagster.changelog.sink_log import SinkLog
from pgstream_dagster.delta import jvm
from pgstream_dagster.errors import NoTypedTable, NoTypedTables
from pgstream_dagster.lsn import Lsn
from pgstream_dagster.named import named
from pgstream_dagster.patterns import canonical
from pgstream_dagster.pipeline import Pipeline
from pgstream_dagster.tables.progress import ProgressLog
from pgstream_dagster.tables.relations import copied_relations
from pgstream_dagster.tables.target import Target

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


@dataclass(frozen=True, slots=True)
class TypedRows:
    """
    The rows of a typed table, and the position of the last merge.

    The rows are of the newest version of the Delta table at `uri`, lazy and unordered; they may be
    newer than `position`.
    """

    rows: DataFrame
    uri: str
    position: Lsn


@named
def read_typed(pipeline: Pipeline, table: str) -> TypedRows:
    """
    The typed table of a table of the source, as it is now; reads no log.

    Raises:
        NotSetUp: `setup` was never run for this pipeline and lake.
        NoTypedTables: the pipeline file has no section `tables`.
        NoTypedTable: there is none of this table, or none yet.
    """
    if pipeline.config.tables is None:
        raise NoTypedTables(pipeline.name)
    with pipeline.open() as opened:
        log = SinkLog(pipeline.lake, opened.gateway, uri=pipeline.lake.typed_tables)
        with closing(log):
            progress = ProgressLog(log, pipeline.name).read(opened.epoch)
        relations = copied_relations(opened, opened.watermark() or Lsn(0))
        names = {
            entry.held.table if entry.held else relations[entry.relation_id].newest.full_name: name
            for name, entry in progress.tables.items()
            if entry.held or entry.relation_id in relations
        }
        if canonical(table) not in names:
            raise NoTypedTable(table, sorted(names))
        name = names[canonical(table)]
        uri = pipeline.lake.typed_table(name)
        target = Target(uri, jvm.spark(pipeline.jvm), opened.gateway)
    return TypedRows(target.rows(), uri, progress.position_of(name))
