"""
One pass: every typed table of a pipeline gets the changes of the log up to one position.

The log's new rows are read once for all tables. A table without changes is not opened. Each table
is changed in one commit that has its position, so a pass that was killed anywhere is repeated: what
a table has already is not merged into it again. The position of the pass is recorded at its end.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Collection, Generator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Final

import msgspec
from pyspark import StorageLevel
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from pgstream_dagster.changelog.by_relation import of_relation, sorted_by_relation
from pgstream_dagster.changelog.fold import fold
from pgstream_dagster.changelog.sink_log import SinkLog
from pgstream_dagster.changelog.spans import ROWS
from pgstream_dagster.changelog.table_specs import create_typed_tables
from pgstream_dagster.config.tables import OnSchemaChange, TablesConfig
from pgstream_dagster.delta import fsync, jvm, uri
from pgstream_dagster.delta.commit_lock import CommitLock
from pgstream_dagster.errors import NoTypedTable, NoTypedTables, TypedTableHeld
from pgstream_dagster.failpoints import reach
from pgstream_dagster.lsn import Lsn
from pgstream_dagster.named import named
from pgstream_dagster.patterns import canonical
from pgstream_dagster.pipeline import OpenPipeline, Pipeline
from pgstream_dagster.schema.table import TableSchema, missing_values
from pgstream_dagster.tables.approval import Approvals, held_in
from pgstream_dagster.tables.assignment import Copied, assigned
from pgstream_dagster.tables.building import remove_unfinished
from pgstream_dagster.tables.columns import Layout, existing, layout_of
from pgstream_dagster.tables.evolution import Evolution, evolution
from pgstream_dagster.tables.features import ALL, Features
from pgstream_dagster.tables.histories import Histories, histories
from pgstream_dagster.tables.history.merge import merge_histories
from pgstream_dagster.tables.holding import unapplied, versions_digest
from pgstream_dagster.tables.increment import (
    IS_THERE,
    Size,
    Summary,
    outcome,
    since,
    sizes,
    summaries,
)
from pgstream_dagster.tables.kept import with_kept
from pgstream_dagster.tables.locate import Finder, Key
from pgstream_dagster.tables.new_rows import NewRows, groups
from pgstream_dagster.tables.passes import (
    BROADCAST_CHANGES,
    TABLES_AT_ONCE,
    Merged,
    MergedTable,
    Report,
    Step,
    expect,
    has_gone_on,
    has_other_columns,
    merging,
    must_build,
    must_open,
    new_changes,
    rebuilding,
    require_schemas,
    session,
    waits,
    without_shared_expressions,
)
from pgstream_dagster.tables.progress import Entry, Held, Progress, ProgressLog
from pgstream_dagster.tables.recast import recast
from pgstream_dagster.tables.registration import metastore_address, register_tables
from pgstream_dagster.tables.relations import copied_relations
from pgstream_dagster.tables.rows import typed_rows
from pgstream_dagster.tables.target import Build, State, Target
from pgstream_dagster.threads import at_once

DIRECT_BYTES: Final = 128 << 20
"""Of texts of one table's changes. This process holds their rows, in Java and in Python; what is
more, a MERGE of Spark brings into the table."""


@named
def merge_tables(
    pipeline: Pipeline,
    *,
    rebuild: Collection[str] = (),
    stop: threading.Event | None = None,
    report: Report = lambda _: None,
) -> Merged:
    """
    Bring every typed table to the log's position, once.

    Of several that run at the same time on a local file system each waits for the one before it.
    Ended anywhere, the next call gives the same tables.

    Shape:
        rebuild: tables, as namespace.name, that are written again from the start of the log; the
            new rows are compared with the fold before readers see them.

    Raises:
        NotSetUp: `setup` was never run for this pipeline and lake.
        NoTypedTables: the pipeline file has no section `tables`.
        NoTypedTable: one of `rebuild` has none.
        TypedNameTaken: two tables of the source would have one typed table.
        TypedTableHeld: changes of columns of one of `rebuild` wait for an approval.
        TypedRebuildDiffers: one of `rebuild` could not be written; it is as it was.
        MergeOvertaken: another process merges, on an object store.
    """
    if pipeline.config.tables is None:
        raise NoTypedTables(pipeline.name)
    metastore = metastore_address(pipeline)
    # Opened again in its turn: while it waits, a `resnapshot` may begin another epoch.
    with pipeline.open() as waiting, turn(waiting), pipeline.open() as opened:
        position = opened.require_watermark()
        done = merge_upto(opened, position, rebuild=rebuild, stop=stop, report=report)
        if metastore is None:
            return done
        taken = register_tables(opened, done, metastore)
        return replace(done, errors=[*done.errors, *taken])


def merge_upto(
    opened: OpenPipeline,
    position: Lsn,
    *,
    rebuild: Collection[str] = (),
    stop: threading.Event | None = None,
    report: Report = lambda _: None,
) -> Merged:
    """
    As `merge_tables`, up to a position of the log; the caller has its `turn`.

    The log must have reached the position, and no pass may have gone past it.
    """
    pipeline = opened.pipeline
    if pipeline.config.tables is None:
        raise NoTypedTables(pipeline.name)
    create_typed_tables(pipeline.lake, opened.gateway)
    remove_unfinished(pipeline.lake.typed_folder)
    log = SinkLog(pipeline.lake, opened.gateway, uri=pipeline.lake.typed_tables)
    with closing(log):
        progress = ProgressLog(log, pipeline.name)
        approved = Approvals(log, pipeline.name).read()
        work = _Pass(opened, pipeline.config.tables, progress, rebuild, approved, position)
        ended = stop or threading.Event()
        done = work.run(ended, report)
        typed = work.relation_ids
        return merge_histories(opened, log, done, typed, rebuild=rebuild, stop=ended, report=report)


@contextmanager
def turn(opened: OpenPipeline) -> Generator[None]:
    """One pass at a time; on an object store, where nothing is locked, conflicts end one."""
    folder = uri.local(opened.pipeline.lake.typed_folder)
    if folder is not None:
        fsync.make_folder(folder)
    with CommitLock(opened.gateway, folder).held():
        yield


@dataclass(frozen=True)
class _Due:
    """A typed table and what it shall become."""

    name: str
    copied: Copied
    layout: Layout
    entry: Entry | None
    features: Features = ALL

    @property
    def schema(self) -> TableSchema:
        return self.copied.newest

    @property
    def relation_id(self) -> int:
        return self.schema.relation_id

    @cached_property
    def digest(self) -> str:
        """Of the columns that the table shall have, and of its features unless it has all."""
        return self.layout.digest("" if self.features == ALL else repr(self.features))

    @cached_property
    def versions(self) -> str:
        """What identifies the versions that the relation went through."""
        return versions_digest(self.copied.history)

    @cached_property
    def missing(self) -> dict[int, str | None]:
        """What rows older than a column show for it, by attnum."""
        return missing_values(self.copied.versions)

    def evolution(self, state: State) -> Evolution:
        """What is left to do until the table has the columns that it shall have."""
        columns, is_clustered = existing(state.columns), bool(state.clustering)
        return evolution(columns, self.layout, self.missing, is_clustered=is_clustered)


class _Pass:
    """The work of one pass, from the position that is recorded to the log's."""

    def __init__(
        self,
        opened: OpenPipeline,
        config: TablesConfig,
        log: ProgressLog,
        rebuild: Collection[str],
        approved: Mapping[str, str],
        position: Lsn,
    ) -> None:
        self._opened, self._config, self._log = opened, config, log
        self._lake, self._epoch = opened.pipeline.lake, opened.epoch
        self._position = position
        self._before: Progress = log.read(opened.epoch)
        self._entries = dict(self._before.tables)
        self._approved = approved
        self._features = Features.configured(config)
        self._rebuild = self._named(rebuild)
        self._done: list[MergedTable] = []

    def run(self, stop: threading.Event, report: Report) -> Merged:
        """Do what is due; nothing is recorded if that is nothing, or if `stop` is set before."""
        due = self._not_held(self._due())
        is_behind = self._position > self._before.position
        builds = [table for table in due if self._must_build(table)]
        followed = [table for table in due if table not in builds and not waits(table.entry)]
        opened = [t for t in followed if must_open(self._lake, t.name, t.entry, t.digest)]
        if builds or opened or (is_behind and followed):
            oids = [table.relation_id for table in followed if is_behind]
            read = (self._opened, oids, self._before.position, self._position)
            with (
                new_changes(self._spark, *read) as changes,
                closing(self._steps(changes, followed, opened, builds)) as steps,
            ):
                for step in steps:
                    if stop.is_set():
                        return Merged(Lsn(self._before.position), self._done, is_stopped=True)
                    report(step)
        reach("tables.passed")
        if is_behind or self._entries != self._before.tables:
            self._log.save(self._epoch, self._position, self._entries)
            reach("tables.recorded")
        held = held_in(self._entries, self._approved)
        return Merged(self._position, self._done, held=held)

    @property
    def relation_ids(self) -> dict[str, int]:
        """The relation of each typed table, as recorded by the pass."""
        return Progress(tables=self._entries).relations

    # --- what is due ----------------------------------------------------------------------------

    @cached_property
    def _relations(self) -> dict[int, Copied]:
        return copied_relations(self._opened, self._position)

    @cached_property
    def _assigned(self) -> dict[str, int]:
        return assigned(self._relations, self._before.relations, self._config)

    def _named(self, tables: Collection[str]) -> set[str]:
        """The typed tables of these tables of the source."""
        names = {self._relations[r].newest.full_name: name for name, r in self._assigned.items()}
        for table in tables:
            if canonical(table) not in names:
                raise NoTypedTable(table, sorted(names))
        return {names[canonical(table)] for table in tables}

    def _due(self) -> list[_Due]:
        return [
            _Due(
                name,
                copied,
                layout_of(self._config, copied),
                self._before.tables.get(name),
                self._features,
            )
            for name, relation_id in sorted(self._assigned.items())
            for copied in [self._relations[relation_id]]
        ]

    def _not_held(self, due: Sequence[_Due]) -> list[_Due]:
        """The tables whose changes of columns need no approval, or have it; records the others."""
        held = {table.name: held for table in due if (held := self._held(table))}
        for name in self._rebuild & held.keys():
            raise TypedTableHeld(held[name].table)
        self._entries = {
            table.name: _with_versions(table, held.get(table.name)) for table in due if table.entry
        }
        return [table for table in due if table.name not in held]

    def _held(self, table: _Due) -> Held | None:
        """What waits for an approval before the table may change."""
        policy = self._config.on_schema_change_of(*table.copied.names)
        if table.entry is None or policy is OnSchemaChange.APPLY:
            return None
        position = self._before.position_of(table.name)
        held = unapplied(table.entry, table.copied.history, table.digest, position)
        if held is None or self._approved.get(table.name) == held.versions:
            return None
        return msgspec.structs.replace(held, position=self._rows_upto(table, position))

    def _rows_upto(self, table: _Due, recorded: Lsn) -> int:
        """The position of a table's rows: a pass that was not recorded may have changed them."""
        is_as_recorded = table.entry is None or table.entry.held is not None
        if is_as_recorded or not has_gone_on(self._lake, table.name, table.entry):
            return int(recorded)
        state = self._target(table.name).state()
        return int(recorded if state is None else max(recorded, state.position))

    def _must_build(self, table: _Due) -> bool:
        copy = table.copied.consistent_point
        return table.name in self._rebuild or must_build(
            self._lake, table.name, table.entry, table.relation_id, copy
        )

    # --- the changes of all tables --------------------------------------------------------------

    @cached_property
    def _spark(self) -> SparkSession:
        return session(jvm.spark(self._opened.pipeline.jvm))

    def _steps(
        self,
        changes: DataFrame | None,
        followed: Sequence[_Due],
        opened: Collection[_Due],
        builds: Sequence[_Due],
    ) -> Generator[MergedTable]:
        """What is done, table by table; `opened`: also without changes."""
        changed = {} if changes is None else summaries(changes)
        expect(self._spark, sum(summary.rows for summary in changed.values()))
        active = [table for table in followed if table.relation_id in changed or table in opened]
        rebuilt, merged = list(builds), list[tuple[_Due, State, Summary]]()
        for table in active:
            summary = changed.get(table.relation_id, Summary())
            require_schemas(summary, table.copied.versions)
            state = None if _needs_fold(table, summary) else self._followed(table)
            if state is None:
                rebuilt.append(table)
            else:
                merged.append((table, state, summary))
        yield from self._merges(changes, merged)
        yield from self._builds(rebuilt)

    def _followed(self, table: _Due) -> State | None:
        """
        The state of a table, with the columns that it shall have; `None`: it must be rebuilt.

        Columns change before rows are merged: of a relation whose changes have the new ones.
        """
        target = self._target(table.name)
        with target.held():
            state = target.state()
            copy = table.copied.consistent_point
            if state is None or not state.build.is_of(
                self._opened.pipeline.name, self._epoch, table.relation_id, copy
            ):
                return None
            if state.features != self._features:
                return None
            plan = table.evolution(state)
            is_fixed = plan.must_map and not self._features.column_mapping
            if plan.must_rebuild or is_fixed or target.has_rescued(plan.vacated):
                return None
            if plan.must_rewrite:
                rows = recast(target.rows(), table.layout, table.missing)
                target.rewrite(rows, table.layout, state)
            target.evolve(plan.statements)
        return state

    def _merges(
        self, changes: DataFrame | None, tables: Sequence[tuple[_Due, State, Summary]]
    ) -> Generator[MergedTable]:
        """Merge the changes of tables; those of all that have keys are folded together."""
        behind = [t for t in tables if t[2].rows and t[1].position < self._position]
        for table, state, summary in tables:
            if not summary.rows:
                yield from self._evolved(table, state)
            elif state.position >= self._position:  # merged before a pass was killed
                self._record(table, self._count(table))
        if changes is None or not behind:
            return
        positions = {table.relation_id: state.position for table, state, _ in behind}
        new = since(changes, positions).where(F.col("op").isin(list(ROWS)))
        keyed = [(t, state, summary) for t, state, summary in behind if t.layout.key]
        with self._outcome(new, keyed) as (outcomes, by_relation):
            layouts = {
                t.relation_id: (t.layout, by_relation.get(t.relation_id, Size()))
                for t, _, _ in keyed
            }
            alike = groups(outcomes, layouts, self._epoch)

            def merge(table: _Due, state: State, summary: Summary) -> MergedTable:
                if not table.layout.key:
                    return self._appended(table, state, summary, new)
                oid, former = table.relation_id, self._target(table.name).rows
                layout, size = layouts[oid]
                rows = NewRows(oid, layout, outcomes, size, former, alike.get(oid), self._epoch)
                return self._merged(table, state, summary, rows)

            yield from at_once(merge, behind, limit=TABLES_AT_ONCE)

    @contextmanager
    def _outcome(
        self, changes: DataFrame, tables: Sequence[tuple[_Due, State, Summary]]
    ) -> Generator[tuple[DataFrame, dict[int, Size]]]:
        """What the changes leave at each key, and how much that is, by relation."""
        histories = [table.copied.versions for table, _, _ in tables]
        if not histories:
            yield changes, {}
            return
        keyed = changes.where(F.col("key").isNotNull())
        has_moves = any(summary.has_moves for _, _, summary in tables)
        kept = {t.relation_id: [k.entry for k in t.layout.kept] for t, _, _ in tables}
        has_parts = any(kept.values()) or any(
            summary.has_parts(table.copied.versions) for table, _, summary in tables
        )
        outcomes = outcome(keyed, histories, has_moves=has_moves, has_parts=has_parts, unsent=kept)
        outcomes = sorted_by_relation(outcomes)
        outcomes.persist(StorageLevel.MEMORY_AND_DISK)
        try:
            by_relation = sizes(outcomes)
            reach("tables.folded")
            yield outcomes, by_relation
        finally:
            outcomes.unpersist()

    def _builds(self, tables: Sequence[_Due]) -> Generator[MergedTable]:
        """Write tables again."""
        if not tables:
            return
        requested = [table.relation_id for table in tables if table.name in self._rebuild]
        oids = [table.relation_id for table in tables]
        where = (rebuilding(self._spark), self._lake, self._epoch, oids, self._position)
        with histories(*where, alone=requested) as log:
            yield from at_once(
                self._built, [(table, log) for table in tables], limit=TABLES_AT_ONCE
            )

    # --- one table ------------------------------------------------------------------------------

    def _evolved(self, table: _Due, state: State) -> Generator[MergedTable]:
        """Record a table without changes of rows, which had this state; a step if it differs."""
        rows = self._count(table)
        if has_other_columns(table.entry, table.digest) or table.evolution(state) != Evolution():
            yield self._finished(table, Step.EVOLVED, rows, 0, time.monotonic())
        elif table.entry is not None:
            entry, version = self._entries[table.name], self._target(table.name).version()
            self._entries[table.name] = msgspec.structs.replace(entry, rows=rows, version=version)

    def _merged(self, table: _Due, state: State, summary: Summary, new: NewRows) -> MergedTable:
        began_at, target = time.monotonic(), self._target(table.name)
        with target.held():
            done = self._directly(target, table, state, new)
        if done is not None:
            return self._finished(table, Step.MERGED, done, summary.rows, began_at)
        rows = F.broadcast(new.rows) if summary.rows <= BROADCAST_CHANGES else new.rows
        # Delta takes transaction ids from a session's settings.
        spark = merging(self._spark, summary.rows)
        without_shared_expressions(spark, table.layout.types.values())
        own = self._target(table.name, spark)
        with own.held():
            done = own.merge(rows, table.layout, state.build.app, self._position)
        is_as_recorded = state.position <= self._before.position
        rows_now = (
            self._rows_of(table) + done.net if done and is_as_recorded else self._count(table)
        )
        return self._finished(table, Step.MERGED, rows_now, summary.rows, began_at)

    def _directly(self, target: Target, table: _Due, state: State, new: NewRows) -> int | None:
        """Change the table without a MERGE; its rows then. `None`: that is for Spark to do."""
        on = target.direct(table.layout)
        if on is None or on.bytes_of(new.size) > DIRECT_BYTES:
            return None
        typed = new.in_arrow()
        key = Key(table.layout.key, table.layout.rescuable(table.layout.key))
        finder = Finder(typed, key)
        if not finder.is_unique:
            return None
        rows = typed.filter(typed.column(IS_THERE)).select(table.layout.names)
        done = target.change(rows, finder, on, state.build.app, self._position)
        return target.count() if done is None else done

    def _appended(
        self, table: _Due, state: State, summary: Summary, changes: DataFrame
    ) -> MergedTable:
        began_at, target = time.monotonic(), self._target(table.name)
        of_table = of_relation(changes, table.relation_id)
        folded = fold(of_table, table.copied.versions)
        rows = typed_rows(folded, table.layout, self._epoch)
        with target.held():
            target.append(rows, table.layout, state.build.app, self._position)
        return self._finished(table, Step.APPENDED, self._count(table), summary.rows, began_at)

    def _built(self, table: _Due, log: Histories) -> MergedTable:
        """Write a table again: the fold of all that the log has of it, up to the position."""
        began_at, spark = time.monotonic(), rebuilding(self._spark)
        without_shared_expressions(spark, table.layout.types.values())
        target = self._target(table.name, spark)
        changes, span = log.changes(table.relation_id), log.span(table.relation_id)
        folded = fold(changes, table.copied.versions, span=span)
        whole = with_kept(folded, changes, table.layout.kept, span)
        rows = typed_rows(whole, table.layout, self._epoch)
        build = Build.new(
            self._opened.pipeline.name,
            self._epoch,
            table.relation_id,
            table.copied.consistent_point,
            self._position,
        )
        with target.held():
            is_requested = table.name in self._rebuild
            target.rebuild(rows, table.layout, build, self._features, is_verified=is_requested)
        has_gap = span.stop is not None
        rows_now = self._count(table)
        return self._finished(table, Step.REBUILT, rows_now, 0, began_at, has_gap=has_gap)

    def _finished(
        self,
        table: _Due,
        step: Step,
        rows: int,
        changes: int,
        began_at: float,
        *,
        has_gap: bool = False,
    ) -> MergedTable:
        seconds = time.monotonic() - began_at
        self._record(table, rows, has_gap=has_gap, seconds=seconds)
        done = MergedTable(table.name, table.schema.full_name, step, rows, changes, seconds)
        self._done.append(done)
        return done

    def _record(
        self, table: _Due, rows: int, *, has_gap: bool = False, seconds: float = 0.0
    ) -> None:
        self._entries[table.name] = Entry(
            table.relation_id,
            int(table.copied.consistent_point),
            table.digest,
            rows,
            has_gap,
            table.schema.full_name,
            int(self._position),
            seconds,
            table.versions,
            version=self._target(table.name).version(),
        )

    def _target(self, name: str, session: SparkSession | None = None) -> Target:
        return Target(self._lake.typed_table(name), session or self._spark, self._opened.gateway)

    def _rows_of(self, table: _Due) -> int:
        return 0 if table.entry is None else table.entry.rows

    def _count(self, table: _Due) -> int:
        return self._target(table.name).count()


def _with_versions(table: _Due, held: Held | None) -> Entry:
    """The entry of a table that has its versions, unless changes wait, or it waits for a copy."""
    assert table.entry is not None
    if held is not None:
        return msgspec.structs.replace(table.entry, held=held)
    is_applied = not waits(table.entry) and table.entry.held is None
    return (
        msgspec.structs.replace(table.entry, versions=table.versions) if is_applied else table.entry
    )


def _needs_fold(table: _Due, summary: Summary) -> bool:
    """Whether the changes cannot be applied to the rows: the table is folded from the log again."""
    has_key = bool(table.layout.key)
    is_removed_from = not has_key and summary.has_removals
    is_of_other_key = bool(summary.rows) and summary.is_keyless == has_key
    return summary.has_marker or is_removed_from or is_of_other_key
