"""
Reconcile: compare the source with the fold of the log, at one position, while both go on.

A snapshot shows exactly what committed in front of its consistent point, and so does the fold of
the changes in front of it, once the watermark is there. The two are compared row by row and value
by value. Nothing is changed, but for a scratch folder in the lake that goes again.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Callable, Collection, Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final, TypeAlias

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from pgstream_dagster.capture.recopier import due_copies, requested_copies
from pgstream_dagster.changelog import replay
from pgstream_dagster.changelog.fold import Span, fold, spans
from pgstream_dagster.copy import scan
from pgstream_dagster.delta import jvm, uri
from pgstream_dagster.delta.parquet import DataFile
from pgstream_dagster.errors import (
    NoSuchTable,
    TableLocked,
    TableRewritten,
)
from pgstream_dagster.lsn import Lsn
from pgstream_dagster.named import named
from pgstream_dagster.patterns import canonical
from pgstream_dagster.pipeline import OpenPipeline, Pipeline
from pgstream_dagster.schema import layout
from pgstream_dagster.schema.table import TableSchema
from pgstream_dagster.source.catalog import describe
from pgstream_dagster.source.interrupt import session
from pgstream_dagster.source.landed import TIMEOUT_SECONDS, wait_until_landed
from pgstream_dagster.source.publication import PublishedTable, published
from pgstream_dagster.source.snapshot import Guard, Snapshot, exported
from pgstream_dagster.stop import Stop
from pgstream_dagster.upkeep.differences import TableDifference, compare

logger = logging.getLogger(__name__)

AGAIN_SECONDS: Final = 2.0
"""Between looks whether the tables left have their copy: each look reads ledger and catalog."""


@dataclass(frozen=True, slots=True)
class TableReconciliation:
    """One table: how it differs, or why it could not be compared."""

    table: str
    difference: TableDifference | None
    reason: str | None = None

    @property
    def identical(self) -> bool:
        """It was compared, and nothing differs."""
        return self.difference is not None and self.difference.identical

    @property
    def source_rows(self) -> int:
        """Rows that the snapshot shows."""
        return self.difference.source_rows if self.difference else 0


@dataclass(frozen=True, slots=True)
class Reconciliation:
    """What was found; `consistent_point` is where the last tables were compared."""

    epoch: int
    consistent_point: Lsn
    tables: tuple[TableReconciliation, ...]

    @property
    def identical(self) -> bool:
        """Every table was compared, and nothing differs."""
        return all(table.identical for table in self.tables)


OnTable: TypeAlias = Callable[[TableReconciliation], None]
"""Hears of each table when it is compared."""


@named
def reconcile(
    pipeline: Pipeline,
    tables: Sequence[str] | None = None,
    *,
    timeout_seconds: float = TIMEOUT_SECONDS,
    on_table: OnTable = lambda table: None,
    stop: Stop | None = None,
) -> Reconciliation:
    """
    Compare these published tables (`namespace.name`), or all of them, with the log.

    A stream has to run meanwhile: the log must pass the snapshots that are taken here. A table
    that waits for its copy, or is locked, is compared later from a new snapshot; after waiting for
    as long as the timeout it is told as not compared. Locks no more than a copy does, and as a copy
    does waits for transactions that were writing before it, however long; the log names them.

    Raises:
        NotSetUp: `setup` was never run.
        NoSuchTable: the publication has no such table.
        WatermarkBehind: the log did not get there in `timeout_seconds`.
        SnapshotLost, CopyFailed: a table could not be read.
        Cancelled: asked to stop.
    """
    with pipeline.open() as opened:
        return _Work(opened, stop or Stop()).run(tables, timeout_seconds, on_table)


@dataclass(frozen=True, slots=True)
class _Work:
    """One run of `reconcile`."""

    opened: OpenPipeline
    stop: Stop

    def run(
        self, names: Sequence[str] | None, timeout_seconds: float, on_table: OnTable
    ) -> Reconciliation:
        chosen = self.chosen(names)
        left = {table.relation_id: table.full_name for table in chosen}
        done: list[TableReconciliation] = []
        patience = timeout_seconds
        while True:
            with exported(self.opened.pipeline.dsn, on_wait=_told, stop=self.stop) as snapshot:
                wait_until_landed(
                    self.opened,
                    snapshot.consistent_point,
                    timeout_seconds=timeout_seconds,
                    stop=self.stop,
                )
                tables = self.published(left)
                reasons = self.not_ready(tables, snapshot.consistent_point)
                ready = [table for table in tables if table.relation_id not in reasons]
                for table, outcome in self.outcomes(ready, snapshot):
                    if isinstance(outcome, str):
                        reasons[table.relation_id] = outcome
                    else:
                        done.append(TableReconciliation(table.full_name, outcome))
                        on_table(done[-1])
            left = {oid: left[oid] for oid in reasons}  # what was dropped meanwhile is gone, too
            if not left or patience <= 0:
                break
            patience = self.wait_for_copies(left, patience)
        done += [TableReconciliation(left[oid], None, reason) for oid, reason in reasons.items()]
        ordered = tuple(sorted(done, key=lambda table: table.table))
        return Reconciliation(self.opened.epoch, snapshot.consistent_point, ordered)

    def chosen(self, names: Sequence[str] | None) -> list[PublishedTable]:
        tables = self.published()
        by_name = {table.full_name: table for table in tables}
        for name in names or ():
            if canonical(name) not in by_name:
                raise NoSuchTable(name, self.opened.identity.publication)
        chosen = dict.fromkeys(map(canonical, names or ()))
        return tables if names is None else [by_name[name] for name in chosen]

    def published(self, relation_ids: Collection[int] | None = None) -> list[PublishedTable]:
        with session(self.opened.pipeline.dsn, self.stop) as catalog:
            tables = published(catalog, self.opened.identity.publication)
        return [t for t in tables if relation_ids is None or t.relation_id in relation_ids]

    def wait_for_copies(self, left: Collection[int], patience: float) -> float:
        """Until the tables left have their copies, or as long as there is patience; the rest."""
        while patience > 0:
            self.stop.sleep(min(AGAIN_SECONDS, patience))
            patience -= AGAIN_SECONDS
            if not self.due(self.published(left)):
                break
        return patience

    def due(self, tables: Sequence[PublishedTable]) -> dict[int, str]:
        """Of these relations, those whose newest copy is not what they are now, and why."""
        epoch, ledger = self.opened.epoch, self.opened.ledger
        history = self.opened.schema_log.history(epoch)
        return due_copies(tables, ledger.copies(epoch), requested_copies(ledger, epoch), history)

    def not_ready(self, tables: Sequence[PublishedTable], point: Lsn) -> dict[int, str]:
        """
        The relations whose history in front of `point` may not be the table's, and why.

        Asked before the log is read: a copy that lands later is not in what is read.
        """
        reasons = {oid: f"it waits for its copy: {why}" for oid, why in self.due(tables).items()}
        for table in tables:
            newest = self.opened.log.newest_copy(self.opened.epoch, table.relation_id)
            if newest is not None and newest > point:  # what the log had before may be outdated
                reasons.setdefault(table.relation_id, "it was copied after the snapshot")
        return reasons

    def outcomes(
        self, tables: Sequence[PublishedTable], snapshot: Snapshot
    ) -> Iterator[tuple[PublishedTable, TableDifference | str]]:
        """Each table with how it differs, or why that is not known; the log is read once."""
        if not tables:
            return
        spark, lake = jvm.spark(self.opened.pipeline.jvm), self.opened.pipeline.lake
        oids, point = [table.relation_id for table in tables], snapshot.consistent_point
        with replay.kept(spark, lake, self.opened.epoch, oids, before=point) as changes:
            known = spans(changes)
            for table in tables:
                span = known.get(table.relation_id, Span())
                yield table, self.compared(table, snapshot, changes, span)

    def compared(
        self, table: PublishedTable, snapshot: Snapshot, log: DataFrame, span: Span
    ) -> TableDifference | str:
        """How a table differs from the fold at the snapshot's point, or why that is not known."""
        if not span.is_known:
            return "it waits for its copy: the log has a gap"
        changes = log.where(F.col("relation_id") == table.relation_id)
        try:
            with self.scanned(log.sparkSession, table, snapshot) as (schema, source):
                return self.difference(schema, source, changes, span)
        except (TableRewritten, TableLocked) as error:
            return str(error)

    def difference(
        self, schema: TableSchema, source: DataFrame, changes: DataFrame, span: Span
    ) -> TableDifference:
        """Fold under the source's own schema: the log hears of a new one with the next change."""
        versions = self.opened.schema_log.versions(schema.epoch, schema.relation_id)
        rows = fold(changes, [*versions, schema], span=span)
        if versions and versions[-1].key_attnums != schema.key_attnums:
            source, rows = _keyless(source), _keyless(rows)
        return compare(source, rows, [column.name for column in schema.columns])

    @contextmanager
    def scanned(
        self, spark: SparkSession, table: PublishedTable, snapshot: Snapshot
    ) -> Generator[tuple[TableSchema, DataFrame]]:
        """The table as the snapshot shows it, in a scratch folder that goes with the block."""
        pipeline = self.opened.pipeline
        with _scratch(pipeline.lake.root) as folder:
            with (
                session(pipeline.dsn, self.stop) as catalog,
                Guard(pipeline.dsn, snapshot, self.stop) as guard,
            ):
                guard.hold(table, catalog)
                schema = describe(catalog, self.opened.epoch, table.relation_id, table.columns)
                ranges, memory = pipeline.config.copying.ranges, pipeline.memory
                planned = scan.plan(catalog, table, schema, snapshot, ranges=ranges, memory=memory)
                files = scan.run(lambda: spark, pipeline.dsn, planned, folder, stop=self.stop)
                guard.require_alive()
            yield schema, _read(spark, files)


def _told(pids: list[int]) -> None:
    listed = ", ".join(map(str, pids))
    logger.warning("waiting for older transactions to end (server process %s)", listed)


@contextmanager
def _scratch(lake: str) -> Generator[str]:
    """An empty folder in the lake, beside its tables, that is removed with all it holds."""
    folder = uri.child(uri.absolute(lake), f"reconcile-{secrets.token_hex(8)}")
    filesystem, path = uri.filesystem(folder)
    filesystem.create_dir(path)
    try:
        yield folder
    finally:
        filesystem.delete_dir(path)


def _read(spark: SparkSession, files: Sequence[DataFile]) -> DataFrame:
    """Scanned rows as `compare` takes them."""
    read = (
        spark.read.schema(layout.CHANGES_DDL).parquet(*(file.path for file in files))
        if files
        else spark.createDataFrame([], layout.CHANGES_DDL)
    )
    return read.select("key", F.col("after").alias("row"))


def _keyless(rows: DataFrame) -> DataFrame:
    return rows.select(F.lit(None).cast("array<string>").alias("key"), "row")
