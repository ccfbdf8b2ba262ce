"""
Histories in one pass, after that of the typed tables: each gets the log's changes up to a position.

As there, a history without changes is not opened; one is changed in one commit that has its
position, and a pass that was killed anywhere is repeated. After a copy, truncate or gap, or where
columns changed in a way that touches rows, a history is written again from the log. While a typed
table is held, so is its history; it is written again afterwards.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Collection, Generator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import cached_property

import msgspec
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from pgstream_dagster.changelog.by_relation import of_relation
from pgstream_dagster.changelog.sink_log import SinkLog
from pgstream_dagster.changelog.spans import ROWS
from pgstream_dagster.config.tables import TablesConfig
from pgstream_dagster.delta import jvm
from pgstream_dagster.errors import PgstreamError
from pgstream_dagster.failpoints import reach
from pgstream_dagster.lsn import Lsn
from pgstream_dagster.patterns import canonical
from pgstream_dagster.pipeline import OpenPipeline
from pgstream_dagster.tables.assignment import Copied
from pgstream_dagster.tables.columns import existing
from pgstream_dagster.tables.evolution import evolution
from pgstream_dagster.tables.history.build import Log, built
from pgstream_dagster.tables.history.chosen import Chosen, Relations, chosen, patterns, related
from pgstream_dagster.tables.history.columns import HistoryLayout, history_layout
from pgstream_dagster.tables.history.increment import added
from pgstream_dagster.tables.history.lineage import Relation
from pgstream_dagster.tables.history.target import HistoryTarget
from pgstream_dagster.tables.increment import Summary, since, summaries
from pgstream_dagster.tables.passes import (
    BROADCAST_CHANGES,
    TABLES_AT_ONCE,
    Merged,
    MergedTable,
    Report,
    Step,
    expect,
    has_other_columns,
    merging,
    must_build,
    must_open,
    new_changes,
    rebuilding,
    require_schemas,
    session,
    waits,
)
from pgstream_dagster.tables.progress import Entry, Held, ProgressLog
from pgstream_dagster.tables.target import Build, State
from pgstream_dagster.threads import at_once


@dataclass(frozen=True, slots=True)
class Due:
    """A history and what it shall become."""

    name: str
    copied: Copied
    chain: Sequence[Relation]
    layout: HistoryLayout
    entry: Entry | None

    @property
    def relation(self) -> Relation:
        """The present one."""
        return self.chain[-1]

    @property
    def table(self) -> str:
        """The table of the source."""
        return self.relation.versions[-1].full_name


def progress_of(log: SinkLog, pipeline: str) -> ProgressLog:
    """How far the histories of a pipeline are; beside that of its typed tables."""
    return ProgressLog(log, f"{pipeline}/history")


def merge_histories(
    opened: OpenPipeline,
    log: SinkLog,
    merged: Merged,
    typed: Mapping[str, int],
    *,
    rebuild: Collection[str] = (),
    stop: threading.Event,
    report: Report,
) -> Merged:
    """
    Bring every history to the position of a pass of typed tables; that pass with what it did.

    Runs in the turn of that pass. Ended anywhere, the next call gives the same tables.

    Shape:
        typed: the relation of each typed table after that pass.

    Raises:
        TypedNameTaken: two histories would have one name.
        MergeOvertaken: another process merges, on an object store.
    """
    config = opened.pipeline.config.tables
    if config is None or merged.is_stopped:
        return merged
    progress = progress_of(log, opened.pipeline.name)
    work = _Pass(opened, config, progress, typed, merged)
    is_stopped = work.run({canonical(table) for table in rebuild}, stop, report)
    tables = [*merged.tables, *work.done]
    return replace(merged, tables=tables, is_stopped=is_stopped, errors=work.errors)


def _forgotten(entry: Entry) -> Entry:
    """The entry of a history that is built again; until then its folder counts for nothing."""
    return msgspec.structs.replace(entry, copy=0, columns="", held=None)


class _Pass:
    """The work of one pass, from the position that is recorded to that of the typed tables."""

    def __init__(
        self,
        opened: OpenPipeline,
        config: TablesConfig,
        log: ProgressLog,
        typed: Mapping[str, int],
        merged: Merged,
    ) -> None:
        self._opened, self._config, self._log, self._typed = opened, config, log, typed
        self._position, self._epoch = merged.position, opened.epoch
        self._held = {table.table: table for table in merged.held}
        self._before = log.read(opened.epoch)
        self.done: list[MergedTable] = []
        self.errors: Sequence[PgstreamError] = ()

    def run(self, rebuild: Collection[str], stop: threading.Event, report: Report) -> bool:
        """Do what is due; whether `stop` was set before the end of it."""
        if not patterns(self._config) and not self._before.tables:
            return False
        chosen_now, self.errors = self._due(), self._chosen.errors
        entries = {
            **{name: _forgotten(self._before.tables[name]) for name in self._chosen.waiting},
            **{t.name: self._kept(t, t.entry) for t in chosen_now if t.entry is not None},
        }
        due = [table for table in chosen_now if table.table not in self._held]
        is_behind = self._position > self._before.position
        builds = [t for t in due if self._must_build(t) or t.table in rebuild]
        followed = [t for t in due if t not in builds and not waits(t.entry)]
        lake = self._opened.pipeline.lake
        opened = [t for t in followed if must_open(lake, t.name, t.entry, t.layout.digest())]
        if builds or opened or (is_behind and followed):
            self._spark = session(jvm.spark(self._opened.pipeline.jvm))
            oids = [table.relation.relation_id for table in followed if is_behind]
            read = (self._opened, oids, self._before.position, self._position)
            with (
                new_changes(self._spark, *read) as changes,
                closing(self._steps(changes, followed, opened, builds)) as steps,
            ):
                for table, entry, done in steps:
                    entries[table.name] = entry
                    if done is not None:
                        self.done.append(done)
                        report(done)
                    if stop.is_set():
                        return True
        reach("history.passed")
        if is_behind or entries != self._before.tables:
            self._log.save(self._epoch, self._position, entries)
        return False

    # --- what is due ----------------------------------------------------------------------------

    @cached_property
    def _relations(self) -> Relations:
        return related(self._opened, self._position)

    @cached_property
    def _chosen(self) -> Chosen:
        before = self._before.relations
        return chosen(self._relations.present, self._typed, before, self._config)

    def _due(self) -> list[Due]:
        present, chain = self._relations.present, self._relations.chain
        return [
            self._described(name, present[oid], chain(oid))
            for name, oid in sorted(self._chosen.names.items())
        ]

    def _described(self, name: str, copied: Copied, chain: Sequence[Relation]) -> Due:
        columns = self._config.columns_of(*copied.names)
        layout = history_layout([relation.versions for relation in chain], columns)
        return Due(name, copied, chain, layout, self._before.tables.get(name))

    def _kept(self, table: Due, entry: Entry) -> Entry:
        """The entry of a history, which says since when it is held."""
        held = self._held.get(table.table)
        if held is None or entry.held is not None:
            return entry
        position = int(self._before.position)
        waiting = Held(held.table, held.versions, position, held.changes)
        return msgspec.structs.replace(entry, held=waiting)

    def _must_build(self, table: Due) -> bool:
        lake, copy = self._opened.pipeline.lake, table.copied.consistent_point
        return must_build(lake, table.name, table.entry, table.relation.relation_id, copy)

    # --- the changes of all tables --------------------------------------------------------------

    def _steps(
        self,
        changes: DataFrame | None,
        followed: Sequence[Due],
        opened: Collection[Due],
        builds: Sequence[Due],
    ) -> Generator[tuple[Due, Entry, MergedTable | None]]:
        """
        What is done, several tables at a time; `None`: nothing, the table was as it is recorded.

        Shape:
            opened: of `followed`, those that are looked at without changes, too.
        """
        changed = {} if changes is None else summaries(changes)
        expect(self._spark, sum(summary.rows for summary in changed.values()))
        active = [
            (t, changed.get(t.relation.relation_id, Summary()))
            for t in followed
            if t.relation.relation_id in changed or t in opened
        ]
        for table, summary in active:
            require_schemas(summary, table.relation.versions)

        def work(table: Due, summary: Summary | None) -> tuple[Due, Entry, MergedTable | None]:
            began_at = time.monotonic()
            history = _Table(self._opened, table, self._spark, self._position)
            step, entry = history.brought_forward(changes, summary)
            if step is Step.EVOLVED and not has_other_columns(table.entry, entry.columns):
                return table, entry, None
            rows, count = entry.rows, 0 if summary is None else summary.rows
            seconds = time.monotonic() - began_at
            return table, entry, MergedTable(table.name, table.table, step, rows, count, seconds)

        yield from at_once(
            work, [*((table, None) for table in builds), *active], limit=TABLES_AT_ONCE
        )


class _Table:
    """One history. It is extended in a session of its own, which has its transaction id."""

    def __init__(
        self, opened: OpenPipeline, table: Due, spark: SparkSession, position: Lsn
    ) -> None:
        self._opened, self._table, self._spark, self._position = opened, table, spark, position
        self._target = self._in(spark)

    def brought_forward(
        self, changes: DataFrame | None, summary: Summary | None
    ) -> tuple[Step, Entry]:
        """Merge the changes of a summary, or write the table again; without one, always that."""
        with self._target.held():
            state = None if summary is None or summary.has_marker else self._followed()
            if state is None:
                return Step.REBUILT, self._built()
            step = Step.EVOLVED
            if changes is not None and summary is not None and summary.rows:
                step = Step.MERGED
                if state.position < self._position:
                    self._extended(changes, state, summary)
        return step, self._entry(has_gap=False)

    def _followed(self) -> State | None:
        """The state of the table, with the columns that it shall have; `None`: build it."""
        table, target = self._table, self._target
        state = target.state()
        copy = table.copied.consistent_point
        relation_id = table.relation.relation_id
        if state is None or not state.build.is_of(
            self._opened.pipeline.name, self._opened.epoch, relation_id, copy
        ):
            return None
        plan = evolution(existing(state.columns), table.layout, table.layout.missing)
        if plan.must_rebuild or plan.must_rewrite or target.has_rescued(plan.vacated):
            return None
        target.evolve(plan.statements)
        return state

    def _extended(self, changes: DataFrame, state: State, summary: Summary) -> None:
        relation = self._table.relation
        new = since(changes, {relation.relation_id: state.position})
        rows = new.where(F.col("op").isin(list(ROWS)))
        mine = of_relation(rows, relation.relation_id)
        versions = added(
            mine,
            relation,
            self._table.layout,
            self._rows(),
            is_small=summary.rows <= BROADCAST_CHANGES,
            has_parts=summary.has_parts(relation.versions),
        )
        own = self._in(merging(self._spark, summary.rows))
        own.extend(versions, self._table.layout, state.build.app, self._position)

    def _built(self) -> Entry:
        table, opened, spark = self._table, self._opened, rebuilding(self._spark)
        log = Log(spark, opened.pipeline.lake, opened.epoch, self._position)
        build = Build.new(
            *(opened.pipeline.name, opened.epoch, table.relation.relation_id),
            *(table.copied.consistent_point, self._position),
        )
        with built(log, table.chain, table.layout) as history:
            self._in(spark).rebuild(history.rows, table.layout, build)
        return self._entry(has_gap=history.has_gap)

    def _entry(self, *, has_gap: bool) -> Entry:
        table, rows = self._table, self._target.count()
        return Entry(
            *(table.relation.relation_id, int(table.copied.consistent_point)),
            *(table.layout.digest(), rows, has_gap),
            version=self._target.version(),
        )

    def _in(self, spark: SparkSession) -> HistoryTarget:
        there = self._opened.pipeline.lake.typed_table(self._table.name)
        return HistoryTarget(there, spark, self._opened.gateway)

    def _rows(self) -> DataFrame:
        return self._spark.read.format("delta").load(self._target.uri)
