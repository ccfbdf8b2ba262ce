"""
Reconcile typed tables: source, fold of the log and typed table, at one position, value by value.

A snapshot of the source shows everything before its consistent point. Once the log is there, the
typed tables are merged up to exactly that point, and the version that each has then is compared
with the fold of the log up to the point, as the source's rows are. So streams and merges may
continue. Apart from that merge it changes nothing.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, TypeAlias

from pyspark.sql import DataFrame, SparkSession

from pgstream_dagster.changelog import replay
from pgstream_dagster.changelog.by_relation import of_relation
from pgstream_dagster.changelog.small_tables import History, folds
from pgstream_dagster.changelog.spans import Span, spans
from pgstream_dagster.delta import jvm
from pgstream_dagster.delta.kernel import kernel
from pgstream_dagster.errors import NoTypedTable, NoTypedTables
from pgstream_dagster.lsn import Lsn
from pgstream_dagster.named import named
from pgstream_dagster.patterns import canonical as canonical_name
from pgstream_dagster.pipeline import OpenPipeline, Pipeline
from pgstream_dagster.source.landed import TIMEOUT_SECONDS, wait_until_landed
from pgstream_dagster.source.publication import PublishedTable
from pgstream_dagster.source.snapshot import Snapshot, exported, waited_for
from pgstream_dagster.stop import Stop
from pgstream_dagster.tables.canonical import canonical
from pgstream_dagster.tables.columns import Layout, layout_of
from pgstream_dagster.tables.kept import with_kept
from pgstream_dagster.tables.merge import merge_upto, turn
from pgstream_dagster.tables.passes import TABLES_AT_ONCE
from pgstream_dagster.tables.progress import recorded
from pgstream_dagster.tables.relations import copied_relations
from pgstream_dagster.tables.rows import typed_rows
from pgstream_dagster.tables.status import typed_status
from pgstream_dagster.threads import at_once
from pgstream_dagster.upkeep.differences import TableDifference, compare
from pgstream_dagster.upkeep.reconcile import Comparison

logger = logging.getLogger(__name__)

ATTEMPTS: Final = 5
"""Snapshots that are taken while other processes merge past each of them."""


@dataclass(frozen=True, slots=True)
class TypedReconciliation:
    """
    One table: how source and log differ, how typed table and log do, or why that is not known.

    In `typed` the typed table is in the place of the source; `name` is that of the typed table.
    """

    table: str
    name: str
    source: TableDifference | None = None
    typed: TableDifference | None = None
    reason: str | None = None

    @property
    def identical(self) -> bool:
        """All three were compared, and nothing differs."""
        compared = (self.source, self.typed)
        return self.reason is None and all(side and side.identical for side in compared)


@dataclass(frozen=True, slots=True)
class TypedReconciliations:
    """The result; `position` is where the last tables were compared."""

    epoch: int
    position: Lsn
    tables: tuple[TypedReconciliation, ...]

    @property
    def identical(self) -> bool:
        """There are tables; every one was compared, and nothing differs."""
        return bool(self.tables) and all(table.identical for table in self.tables)


OnTable: TypeAlias = Callable[[TypedReconciliation], None]
"""Called with each table when it is compared."""


@named
def reconcile_tables(
    pipeline: Pipeline,
    tables: Sequence[str] | None = None,
    *,
    timeout_seconds: float = TIMEOUT_SECONDS,
    on_table: OnTable = lambda table: None,
    stop: Stop | None = None,
) -> TypedReconciliations:
    """
    Compare the typed tables of these tables (`namespace.name`), or all, with log and source.

    A stream has to run meanwhile; merges may. It merges the typed tables itself first. Waits as
    `reconcile` does, and reports what it cannot compare.

    Raises:
        NotSetUp, NoTypedTables, TypedNameTaken
        NoTypedTable: one of `tables` has none.
        NotForKafka, WatermarkBehind, SnapshotLost, CopyFailed, TableLocked
        MergeOvertaken: another process merges, on an object store.
        Cancelled: asked to stop.
    """
    pipeline.require_postgres("reconcile")
    # Those that have a typed table, or will with the next merge.
    existing = {table.table: table.name for table in typed_status(pipeline).tables}
    for table in tables or ():
        if canonical_name(table) not in existing:
            raise NoTypedTable(table, sorted(existing))
    chosen = list(existing) if tables is None else list(dict.fromkeys(map(canonical_name, tables)))
    with pipeline.open() as opened:
        work = Work(Comparison(opened, stop or Stop()), existing, timeout_seconds, on_table)
        return work.run(chosen)


@dataclass(frozen=True, slots=True)
class _Pinned:
    """A typed table at a position: its version, and the columns that it should have."""

    name: str
    uri: str
    version: int
    layout: Layout
    has_gap: bool


@dataclass(frozen=True, slots=True)
class Work:
    """One run of `reconcile_tables`."""

    source: Comparison
    names: Mapping[str, str]  # table of the source -> typed table
    timeout_seconds: float
    on_table: OnTable
    done: dict[int, TypedReconciliation] = field(default_factory=dict[int, TypedReconciliation])

    @property
    def opened(self) -> OpenPipeline:
        """The pipeline."""
        return self.source.opened

    def run(self, names: Sequence[str]) -> TypedReconciliations:
        """Compare these tables, from a new snapshot while merges go past one."""
        published = {table.full_name: table for table in self.source.published()}
        left = {published[n].relation_id: n for n in names if n in published}
        reasons = dict.fromkeys(left, "")
        gone = [
            TypedReconciliation(n, self.names[n], reason=_DROPPED)
            for n in names
            if n not in published
        ]
        seconds, attempts, point = self.timeout_seconds, ATTEMPTS, Lsn(0)
        while left:
            point, reasons = self.attempt(left)
            attempts -= 1
            left = {oid: name for oid, name in left.items() if oid in reasons}
            if not left or seconds <= 0 or (not attempts and _OVERTAKEN in reasons.values()):
                break
            seconds = self.source.wait_for_copies(left, seconds)
        for oid, name in left.items():
            self.report(oid, TypedReconciliation(name, self.names[name], reason=reasons[oid]))
        results = sorted([*self.done.values(), *gone], key=lambda table: table.table)
        return TypedReconciliations(self.opened.epoch, point, tuple(results))

    def attempt(self, left: Mapping[int, str]) -> tuple[Lsn, dict[int, str]]:
        """Compare what can be compared at a new snapshot; the rest, and why it cannot."""
        stop, pipeline = self.source.stop, self.opened.pipeline
        with exported(pipeline.dsn, on_wait=_log_wait, stop=stop) as snapshot:
            point = snapshot.consistent_point
            wait_until_landed(self.opened, point, timeout_seconds=self.timeout_seconds, stop=stop)
            pinned = self.pinned(point)
            if pinned is None:
                return point, dict.fromkeys(left, _OVERTAKEN)
            left = self.not_held(left)
            sources, reasons = self.sources(left, snapshot, pinned)
        typed = {oid: pinned[oid] for oid in sources}
        for oid, outcome in self.typed_outcomes(typed, point):
            differs = isinstance(outcome, TableDifference)
            self.report(
                oid,
                TypedReconciliation(
                    left[oid],
                    pinned[oid].name,
                    sources[oid],
                    outcome if differs else None,
                    None if differs else str(outcome),
                ),
            )
        return point, reasons

    def pinned(self, point: Lsn) -> dict[int, _Pinned] | None:
        """The typed tables at a point, by relation; `None`: a merge has gone past it."""
        pipeline = self.opened.pipeline
        if pipeline.config.tables is None:
            raise NoTypedTables(pipeline.name)
        with turn(self.opened):
            if recorded(self.opened).progress.position > point:
                return None
            merge_upto(self.opened, point)
            relations = copied_relations(self.opened, point)
            delta = kernel(self.opened.gateway)
            pinned = dict[int, _Pinned]()
            for name, entry in recorded(self.opened).progress.tables.items():
                if entry.held:
                    continue
                uri = pipeline.lake.typed_table(name)
                version = int(delta.load(uri).getVersion())
                relation = relations[entry.relation_id]
                layout = layout_of(pipeline.config.tables, relation)
                pinned[entry.relation_id] = _Pinned(name, uri, version, layout, entry.has_gap)
            return pinned

    def not_held(self, left: Mapping[int, str]) -> dict[int, str]:
        """These tables without those whose typed table is held, which are reported."""
        entries = recorded(self.opened).progress.tables
        held = {entry.held.table for entry in entries.values() if entry.held}
        for oid, name in left.items():
            if name in held:
                self.report(oid, TypedReconciliation(name, self.names[name], reason=_HELD))
        return {oid: name for oid, name in left.items() if name not in held}

    def sources(
        self, left: Mapping[int, str], snapshot: Snapshot, pinned: Mapping[int, _Pinned]
    ) -> tuple[dict[int, TableDifference], dict[int, str]]:
        """How source and log differ, by relation; and why that is not known of the others."""
        tables, due = self.source.due(left)
        waiting = {t.relation_id: _NOT_COPIED for t in tables if t.relation_id not in pinned}
        waiting |= {oid: _GAP for oid, typed in pinned.items() if typed.has_gap and oid in left}
        compared = dict[int, TableDifference]()

        def add(table: PublishedTable, difference: TableDifference) -> None:
            compared[table.relation_id] = difference

        ready = [table for table in tables if table.relation_id not in waiting]
        reasons = self.source.compare_ready(ready, due, snapshot, add)
        return compared, waiting | {oid: why for oid, why in reasons.items() if oid in left}

    def typed_outcomes(
        self, tables: Mapping[int, _Pinned], point: Lsn
    ) -> Iterator[tuple[int, TableDifference | str]]:
        """How typed table and log differ at a point; the log is read once."""
        if not tables:
            return
        spark, lake = jvm.spark(self.opened.pipeline.jvm), self.opened.pipeline.lake
        oids, relations = list(tables), copied_relations(self.opened, point)
        with replay.kept(spark, lake, self.opened.epoch, oids, before=point) as log:
            spans_by_relation = spans(log)
            histories = {
                oid: History(relations[oid].versions, spans_by_relation.get(oid, Span()))
                for oid in oids
            }
            with folds(log, list(histories.values())) as fold:

                def outcome(oid: int, pinned: _Pinned) -> tuple[int, TableDifference | str]:
                    history, changes = histories[oid], of_relation(log, oid)
                    rows = with_kept(fold(history), changes, pinned.layout.kept, history.span)
                    return oid, self.difference(spark, pinned, rows)

                yield from at_once(outcome, list(tables.items()), limit=TABLES_AT_ONCE)

    def difference(
        self, spark: SparkSession, pinned: _Pinned, folded: DataFrame
    ) -> TableDifference | str:
        """How a typed table differs from the fold, as that would be in a typed table."""
        rows = spark.read.format("delta").option("versionAsOf", pinned.version).load(pinned.uri)
        layout = pinned.layout
        if rows.columns != layout.names and sorted(rows.columns) != sorted(layout.names):
            lacking = sorted(set(layout.names) ^ set(rows.columns))
            return f"its columns are not those of the source: {', '.join(lacking)}"
        expected = canonical(typed_rows(folded, layout, self.opened.epoch), layout)
        return compare(canonical(rows, layout), expected, layout.names)

    def report(self, relation_id: int, result: TypedReconciliation) -> None:
        """A table is done."""
        self.done[relation_id] = result
        self.on_table(result)


_OVERTAKEN: Final = "merges went past every snapshot; let them pause meanwhile"
_NOT_COPIED: Final = "it waits for its copy: it has no typed table yet"
_GAP: Final = "it waits for its copy: the log has a gap"
_HELD: Final = (
    "changes of its columns wait, so it is at an earlier position; 'pgstream tables pending' shows"
    " them, and 'pgstream tables approve' applies them"
)
_DROPPED: Final = "it is not published any more; its typed table has the last rows"


def _log_wait(pids: list[int]) -> None:
    logger.warning("waiting for %s", waited_for(pids))
