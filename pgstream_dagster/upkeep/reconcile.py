"""
Reconcile: compare the source with the fold of the log, at one position, while both continue.

A snapshot shows exactly what committed before its consistent point, and so does the fold of the
changes before it, once the watermark is there. The two are compared row by row and value by value.
Changes nothing, except for a scratch folder in the lake that is removed again.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Callable, Collection, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final, TypeAlias

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from pgstream_dagster.capture.due import due_copies, requested_copies
from pgstream_dagster.changelog import replay
from pgstream_dagster.changelog.by_relation import of_relation
from pgstream_dagster.changelog.fold import fold
from pgstream_dagster.changelog.log_files import read_files
from pgstream_dagster.changelog.small_tables import History, folded, shared
from pgstream_dagster.changelog.spans import Span, spans
from pgstream_dagster.copy import scan
from pgstream_dagster.copy.copying import published_now
from pgstream_dagster.delta import jvm, uri
from pgstream_dagster.delta.parquet import DataFile
from pgstream_dagster.errors import LocksHeld, NoSuchTable, TableLocked, TableRewritten
from pgstream_dagster.lsn import Lsn
from pgstream_dagster.modifiers.rules import Rules
from pgstream_dagster.named import named
from pgstream_dagster.patterns import canonical
from pgstream_dagster.pipeline import OpenPipeline, Pipeline
from pgstream_dagster.schema import layout
from pgstream_dagster.schema.table import TableSchema
from pgstream_dagster.source.catalog import describe
from pgstream_dagster.source.interrupt import session
from pgstream_dagster.source.landed import TIMEOUT_SECONDS, wait_until_landed
from pgstream_dagster.source.publication import PublishedTable
from pgstream_dagster.source.snapshot import Guard, Snapshot, exported, waited_for
from pgstream_dagster.stop import Stop
from pgstream_dagster.upkeep.differences import TableDifference, compare, identical

logger = logging.getLogger(__name__)

POLL_SECONDS: Final = 2.0
"""Between polls for the copies of the tables left: each reads ledger and catalog."""

TOGETHER: Final = 50
"""Tables, at most, that are scanned before they are compared, and reported then."""


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
    """
    The result; `consistent_point` is where the last tables were compared.

    With `sink`, what is compared is the target of that sink, in place of the source.
    """

    epoch: int
    consistent_point: Lsn
    tables: tuple[TableReconciliation, ...]
    sink: str | None = None

    @property
    def identical(self) -> bool:
        """Every table was compared, and nothing differs."""
        return all(table.identical for table in self.tables)


OnTable: TypeAlias = Callable[[TableReconciliation], None]
"""Called with each table when it is compared."""


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
    as long as the timeout it is reported as not compared. Locks no more than a copy does, and as a
    copy does waits for transactions that were writing before it, however long; the log names them.

    Raises:
        NotSetUp: `setup` was never run.
        NoSuchTable: the publication has no such table.
        WatermarkBehind: the log did not reach the snapshot in `timeout_seconds`.
        SnapshotLost, CopyFailed: a table could not be read.
        TableLocked: a transaction holds a table so that not even the catalog can be read.
        Cancelled: asked to stop.
    """
    pipeline.require_postgres("reconcile")
    with pipeline.open() as opened:
        return Comparison(opened, stop or Stop()).run(tables, timeout_seconds, on_table)


@dataclass(frozen=True, slots=True)
class Comparison:
    """The work of comparing tables of the source with the log."""

    opened: OpenPipeline
    stop: Stop

    def run(
        self, names: Sequence[str] | None, timeout_seconds: float, on_table: OnTable
    ) -> Reconciliation:
        """Compare every table at a snapshot, those that are not ready then at a later one."""
        chosen = self.chosen(names)
        left = {table.relation_id: table.full_name for table in chosen}
        done: list[TableReconciliation] = []
        seconds_left = timeout_seconds

        def compared(table: PublishedTable, difference: TableDifference) -> None:
            done.append(TableReconciliation(table.full_name, difference))
            on_table(done[-1])

        while True:
            with exported(self.opened.pipeline.dsn, on_wait=_log_wait, stop=self.stop) as snapshot:
                point = snapshot.consistent_point
                wait_until_landed(
                    self.opened, point, timeout_seconds=timeout_seconds, stop=self.stop
                )
                reasons = self.compare_ready(*self.due(left), snapshot, compared)
            left = {oid: left[oid] for oid in reasons}  # without tables dropped meanwhile
            if not left or seconds_left <= 0:
                break
            seconds_left = self.wait_for_copies(left, seconds_left)
        done += [TableReconciliation(left[oid], None, reason) for oid, reason in reasons.items()]
        ordered = tuple(sorted(done, key=lambda table: table.table))
        return Reconciliation(self.opened.epoch, point, ordered)

    def compare_ready(
        self,
        tables: Sequence[PublishedTable],
        due: Mapping[int, str],
        snapshot: Snapshot,
        compared: Callable[[PublishedTable, TableDifference], None],
    ) -> dict[int, str]:
        """Compare the tables that can be; the others, and why they cannot."""
        reasons = self.not_ready(tables, due, snapshot.consistent_point)
        ready = [table for table in tables if table.relation_id not in reasons]
        for table, outcome in self.outcomes(ready, snapshot):
            if isinstance(outcome, str):
                reasons[table.relation_id] = outcome
            else:
                compared(table, outcome)
        return reasons

    def chosen(self, names: Sequence[str] | None) -> list[PublishedTable]:
        """These published tables, or all. Raises `NoSuchTable`."""
        tables = self.published()
        by_name = {table.full_name: table for table in tables}
        for name in names or ():
            if canonical(name) not in by_name:
                raise NoSuchTable(name, self.opened.identity.publication)
        chosen = dict.fromkeys(map(canonical, names or ()))
        return tables if names is None else [by_name[name] for name in chosen]

    def published(self, relation_ids: Collection[int] | None = None) -> list[PublishedTable]:
        """The tables that are published now, of these relations or of all."""
        pipeline = self.opened.pipeline
        tables = published_now(pipeline.dsn, self.opened.identity.publication, self.stop)
        return [t for t in tables if relation_ids is None or t.relation_id in relation_ids]

    def wait_for_copies(self, left: Collection[int], seconds: float) -> float:
        """Wait for the copies of the tables left, at most `seconds`; what remains of them."""
        while seconds > 0:
            self.stop.sleep(min(POLL_SECONDS, seconds))
            seconds -= POLL_SECONDS
            if not self.due(left)[1]:
                break
        return seconds

    def due(self, left: Collection[int]) -> tuple[list[PublishedTable], dict[int, str]]:
        """These relations; and those whose newest copy is not what they are now, and why."""
        epoch, ledger = self.opened.epoch, self.opened.ledger
        history = self.opened.schema_log.history(epoch)
        tables = self.published(left)
        requests = requested_copies(ledger, epoch)
        return tables, due_copies(tables, ledger.copies(epoch), requests, history)

    def not_ready(
        self, tables: Sequence[PublishedTable], due: Mapping[int, str], point: Lsn
    ) -> dict[int, str]:
        """
        The relations whose history before `point` may not be the table's, and why.

        Called before the log is read: a copy that lands later is not in what is read.
        """
        reasons = {oid: f"it waits for its copy: {why}" for oid, why in due.items()}
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
            spans_by_relation = spans(changes)
            for first in range(0, len(tables), TOGETHER):
                some = tables[first : first + TOGETHER]
                together = self.compared_together(some, snapshot, changes, spans_by_relation)
                for table in some:
                    span = spans_by_relation.get(table.relation_id, Span())
                    outcome = together.get(table.relation_id)
                    yield table, outcome or self.compared(table, snapshot, changes, span)

    def compared_together(
        self,
        tables: Sequence[PublishedTable],
        snapshot: Snapshot,
        log: DataFrame,
        spans_by_relation: Mapping[int, Span],
    ) -> dict[int, TableDifference | str]:
        """The small tables that do not differ, or cannot be read, without comparing each alone."""
        histories = [
            History(versions, spans_by_relation.get(table.relation_id, Span()))
            for table in tables
            if (versions := self.versions(table.relation_id))
        ]
        small = {history.relation_id: history for history in shared(histories)}
        reasons, scanned = dict[int, str](), list[tuple[History, Sequence[DataFile]]]()
        with scratch(self.opened.pipeline.lake.root) as folder:
            for table in tables:
                if (history := small.get(table.relation_id)) is None:
                    continue
                try:
                    schema, files = self.scan(log.sparkSession, table, snapshot, folder)
                except _NOT_NOW as error:
                    reasons[table.relation_id] = str(error)
                else:
                    current = History([*history.versions, schema], history.span)
                    scanned.append((current, files))
            return reasons | identical_tables(log, scanned)

    def compared(
        self, table: PublishedTable, snapshot: Snapshot, log: DataFrame, span: Span
    ) -> TableDifference | str:
        """How a table differs from the fold at the snapshot's point, or why that is not known."""
        if not span.is_known:
            return "it waits for its copy: the log has a gap"
        changes = of_relation(log, table.relation_id)
        try:
            with self.scanned(log.sparkSession, table, snapshot) as (schema, source):
                return self.difference(table, schema, source, changes, span)
        except _NOT_NOW as error:
            return str(error)

    def difference(
        self,
        table: PublishedTable,
        schema: TableSchema,
        source: DataFrame,
        changes: DataFrame,
        span: Span,
    ) -> TableDifference:
        """Fold under the source's own schema: the log gets a new one with the next change only."""
        versions = self.versions(schema.relation_id)
        rows = fold(changes, [*versions, schema], span=span)
        if versions and versions[-1].key_attnums != schema.key_attnums:
            source, rows = keyless(source), keyless(rows)
        if table.sheds_rows:
            rows = rows.join(source.select("key"), "key", "left_semi")
        return compare(source, rows, [column.name for column in schema.columns])

    @contextmanager
    def scanned(
        self, spark: SparkSession, table: PublishedTable, snapshot: Snapshot
    ) -> Generator[tuple[TableSchema, DataFrame]]:
        """The table as the snapshot shows it, in a scratch folder that the block's end removes."""
        with scratch(self.opened.pipeline.lake.root) as folder:
            schema, files = self.scan(spark, table, snapshot, folder)
            yield schema, scanned_rows(spark, files)

    def scan(
        self, spark: SparkSession, table: PublishedTable, snapshot: Snapshot, folder: str
    ) -> tuple[TableSchema, list[DataFile]]:
        """Write the table as the snapshot shows it into files in a folder."""
        pipeline = self.opened.pipeline
        with (
            session(pipeline.dsn, self.stop) as catalog,
            Guard(pipeline.dsn, snapshot, self.stop) as guard,
        ):
            guard.hold(table, catalog)
            schema = describe(catalog, self.opened.epoch, table.relation_id, table.columns)
            planned = scan.plan(
                *(catalog, table, schema, snapshot),
                ranges=pipeline.config.copying.ranges,
                memory=pipeline.memory,
                rules=self.rules_for(table.relation_id),
            )
            files = scan.run(lambda: spark, pipeline.dsn, planned, folder, stop=self.stop)
            guard.require_alive()
        return planned.schema, files

    def versions(self, relation_id: int) -> list[TableSchema]:
        """The versions of a relation in the log, oldest first."""
        return self.opened.schema_log.versions(self.opened.epoch, relation_id)

    def rules_for(self, relation_id: int) -> Rules:
        """What the log's rows of a relation were modified by: the source's become the same."""
        versions = self.opened.schema_log.named_versions((self.opened.epoch, relation_id))
        return self.opened.pipeline.source_rules().knowing(versions)


_NOT_NOW: Final = (TableRewritten, TableLocked, LocksHeld)
"""Errors for which a table is compared from a later snapshot."""


def _log_wait(pids: list[int]) -> None:
    logger.warning("waiting for %s", waited_for(pids))


def identical_tables(
    log: DataFrame, scanned: Sequence[tuple[History, Sequence[DataFile]]]
) -> dict[int, TableDifference]:
    """
    The small tables that are the same in the log and in files of the source, by relation.

    Shape:
        log: changes of these relations, as `sorted_by_relation` gives them.
    """
    scanned = [(history, files) for history, files in scanned if history.is_small]
    if not scanned:
        return {}
    histories = [history for history, _ in scanned]
    columns = {h.relation_id: [c.name for c in h.versions[-1].columns] for h in histories}
    source = scanned_rows(log.sparkSession, [file for _, files in scanned for file in files])
    return identical(source, folded(log, histories), columns)


@contextmanager
def scratch(lake: str) -> Generator[str]:
    """An empty folder in the lake, next to its tables, that is removed with all it holds."""
    folder = uri.child(uri.absolute(lake), f"reconcile-{secrets.token_hex(8)}")
    filesystem, path = uri.filesystem(folder)
    filesystem.create_dir(path)
    try:
        yield folder
    finally:
        filesystem.delete_dir(path)


def scanned_rows(spark: SparkSession, files: Sequence[DataFile]) -> DataFrame:
    """Scanned rows as `compare` takes them."""
    read = (
        read_files(spark, [file.path for file in files])
        if files
        else spark.createDataFrame([], layout.CHANGES_DDL)
    )
    return read.select("relation_id", "key", F.col("after").alias("row"))


def keyless(rows: DataFrame) -> DataFrame:
    """Rows without their keys: `compare` then takes them as a multiset."""
    return rows.select(F.lit(None).cast("array<string>").alias("key"), "row")
