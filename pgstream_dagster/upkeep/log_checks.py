"""Checks of the whole log: its positions, and copies that are due."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass

from pgstream_dagster.changelog import replay
from pgstream_dagster.changelog.ledger import Ledger
from pgstream_dagster.changelog.schema_log import SchemaLog
from pgstream_dagster.delta import jvm
from pgstream_dagster.lsn import Lsn
from pgstream_dagster.named import named
from pgstream_dagster.pipeline import Pipeline
from pgstream_dagster.schema.table import TableSchema
from pgstream_dagster.source import prepare
from pgstream_dagster.source.connect import connect
from pgstream_dagster.source.publication import limit_lock_waits
from pgstream_dagster.upkeep.status import status


@dataclass(frozen=True, slots=True)
class Positions:
    """
    The positions of the newest epoch's landed changes.

    `missing`: places of a transaction that no row has; `repeated`: rows at a place that another row
    has. Both are 0 in a sound log.
    """

    rows: int
    transactions: int
    repeated: int
    missing: int
    past_the_watermark: int
    watermark: Lsn

    @property
    def sound(self) -> bool:
        """Every place occurs once, and none is past the watermark."""
        return self.repeated == self.missing == self.past_the_watermark == 0


@named
def positions(pipeline: Pipeline) -> Positions:
    """
    Count the log's positions; a Spark job over its narrow columns.

    Raises:
        NotSetUp: `setup` was never run for this pipeline and lake.
    """
    with pipeline.open() as opened:
        spark = jvm.spark(pipeline.jvm)
        landed = replay.places(spark, pipeline.lake, opened.epoch)  # the log as it is here
        watermark = opened.watermark() or Lsn(0)  # so what is past it was past it then
    return Positions(**replay.count_places(landed, watermark), watermark=watermark)


@dataclass(frozen=True, slots=True)
class NewestCopy:
    """The newest copy of a table."""

    relation_id: int
    consistent_point: Lsn


@named
def newest_copies(pipeline: Pipeline) -> dict[str, NewestCopy]:
    """The newest copy of every table in the newest epoch, whichever process made it."""
    with closing(Ledger(pipeline.lake, pipeline.gateway())) as ledger:
        copies = ledger.copies()
    return {copy.table: NewestCopy(oid, copy.consistent_point) for oid, copy in copies.items()}


@named
def newest_schemas(pipeline: Pipeline) -> dict[int, TableSchema]:
    """Relation oid -> its newest version in the log, recorded before its first copy."""
    with closing(SchemaLog(pipeline.lake, pipeline.gateway())) as schema_log:
        return {schema.relation_id: schema for schema in schema_log.all()}


@named
def unfit_tables(pipeline: Pipeline) -> Sequence[str]:
    """
    What keeps tables from being captured whole now: a sentence for each, with what helps.

    Raises:
        Unreachable, AccessRefused, ...: the source does not answer.
    """
    captured = {copy.relation_id for copy in newest_copies(pipeline).values()}
    with closing(connect(pipeline.dsn)) as session:
        limit_lock_waits(session)
        return prepare.unfit_tables(pipeline, session, captured)


@named
def due_copies(pipeline: Pipeline) -> Mapping[str, str]:
    """The published tables that wait for a copy, and why."""
    return {
        table.table: table.copy_due or "it has no copy"
        for table in status(pipeline).tables
        if table.copy_due or table.copied_at is None
    }
