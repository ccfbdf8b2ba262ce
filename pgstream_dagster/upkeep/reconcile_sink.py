"""
Reconcile a sink: compare the tables of its target with the fold of the log, value by value.

The target is compared as one snapshot of it shows it, with the fold at the cursor that the same
snapshot shows; both the stream and the sink may continue. The sink's modifiers are applied to the
fold. Changes nothing, except for a scratch folder in the lake that is removed again.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Final, TypeAlias

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from pgstream_dagster.changelog import replay
from pgstream_dagster.changelog.by_relation import of_relation
from pgstream_dagster.changelog.fold import fold
from pgstream_dagster.changelog.spans import Span, spans
from pgstream_dagster.copy import scan
from pgstream_dagster.delta import jvm
from pgstream_dagster.errors import LocksHeld, NotComparable, TableLocked, TableRewritten
from pgstream_dagster.lsn import Lsn
from pgstream_dagster.modifiers import Modifiers
from pgstream_dagster.named import named
from pgstream_dagster.patterns import canonical, full_name
from pgstream_dagster.pipeline import OpenPipeline, Pipeline
from pgstream_dagster.readers.change import Change
from pgstream_dagster.readers.intake import copies_until
from pgstream_dagster.schema.changes import Op
from pgstream_dagster.schema.table import TableSchema
from pgstream_dagster.sinks.postgres.snapshot import TargetSnapshot, table_of, taken
from pgstream_dagster.sinks.postgres.target import Target
from pgstream_dagster.sinks.start import lost_at
from pgstream_dagster.sinks.targets import modifiers_of, postgres_target
from pgstream_dagster.source.catalog import describe
from pgstream_dagster.source.interrupt import session
from pgstream_dagster.source.snapshot import Guard, Snapshot
from pgstream_dagster.stop import Stop
from pgstream_dagster.upkeep.differences import TableDifference, compare
from pgstream_dagster.upkeep.reconcile import (
    OnTable,
    Reconciliation,
    TableReconciliation,
    keyless,
    scanned_rows,
    scratch,
)

ATTEMPTS: Final = 3
"""Snapshots that are taken while the sink alters or truncates tables meanwhile."""

MakeModifiers: TypeAlias = Callable[[], Modifiers]

_ROWS_DDL: Final = "key ARRAY<STRING>, row MAP<STRING,STRING>"
_KEYS: Final = pa.list_(pa.string())
_IMAGES: Final = pa.map_(pa.string(), pa.string())


@named
def reconcile_sink(
    pipeline: Pipeline,
    sink: str,
    tables: Sequence[str] | None = None,
    *,
    environment: Mapping[str, str] | None = None,
    on_table: OnTable = lambda table: None,
    stop: Stop | None = None,
) -> Reconciliation:
    """
    Compare the target of a Postgres sink with the log: all tables it has received, or these.

    Neither the stream nor the sink has to run. Columns that only the target has are not compared.
    What became a dead letter differs. With `start: now` the rows from before the start differ.

    Raises:
        NotSetUp, NoSuchSink, MissingSetting
        NotComparable: the sink is of another type, has committed nothing yet, or follows an
            earlier epoch or another log.
        SinkUnreachable, SinkRefused: the target.
        SnapshotLost, CopyFailed: a table could not be read.
        Cancelled: asked to stop.
    """
    config = pipeline.config.sink(sink)
    if config.postgres is None:
        reason = f"its target is of type {config.target!r}"
        raise NotComparable(sink, reason, "only a target of type 'postgres' can be compared")
    variables = pipeline.environment if environment is None else environment
    target = postgres_target(pipeline, sink, config, variables)
    with pipeline.open() as opened:
        make = modifiers_of(opened, config, variables)
        work = _Work(opened, target, make if config.modifiers else None, stop or Stop())
        return work.run(tables, on_table)


@dataclass(frozen=True, slots=True)
class _Relation:
    """A relation that the sink has received; `since` is the point of the copy it was taken in."""

    relation_id: int
    table: str
    since: Lsn
    versions: Sequence[TableSchema]


@dataclass(frozen=True, slots=True)
class _Work:
    """One run of `reconcile_sink`."""

    opened: OpenPipeline
    target: Target
    make_modifiers: MakeModifiers | None
    stop: Stop

    def run(self, names: Sequence[str] | None, on_table: OnTable) -> Reconciliation:
        done: dict[int, TableReconciliation] = {}
        end, is_complete = self.attempt(names, done, on_table)
        for left in reversed(range(ATTEMPTS - 1)):
            if is_complete:
                break
            end, is_complete = self.attempt(names, done, on_table, is_last=left == 0)
        ordered = tuple(sorted(done.values(), key=lambda table: table.table))
        return Reconciliation(self.opened.epoch, end, ordered, self.target.sink)

    def attempt(
        self,
        names: Sequence[str] | None,
        done: dict[int, TableReconciliation],
        on_table: OnTable,
        *,
        is_last: bool = False,
    ) -> tuple[Lsn, bool]:
        """Compare, at one moment, the tables that are not done; whether none is left."""
        with taken(self.target) as moment:
            self.require_epoch(moment)
            relations = self.relations(moment, names)
            left = [r for r in relations if r.relation_id not in done]
            for relation, outcome in self.outcomes(left, moment):
                if outcome.reason is None or is_last:
                    done[relation.relation_id] = outcome
                    on_table(outcome)
            return moment.end, len(done) >= len(relations)

    def require_epoch(self, moment: TargetSnapshot) -> None:
        """
        Ensure that the log has what the target has.

        The changes of two epochs are those of two sources, and so are those of two logs.
        """
        if moment.cursor.log not in ("", self.opened.log_id):
            reason = f"it has delivered another change log, {moment.cursor.log}"
            remedy = f"'pgstream sink run {self.target.sink}' says what to do"
            raise NotComparable(self.target.sink, reason, remedy)
        if moment.cursor.epoch != self.opened.epoch:
            reason = f"it is in epoch {moment.cursor.epoch} and the log in {self.opened.epoch}"
            remedy = f"let 'pgstream sink run {self.target.sink}' continue first"
            raise NotComparable(self.target.sink, reason, remedy)
        if moment.end > self.opened.require_watermark() or lost_at(self.opened, moment.end):
            reason = f"it has delivered up to {moment.end}, which the log does not have"
            remedy = f"'pgstream sink run {self.target.sink}' says what to do"
            raise NotComparable(self.target.sink, reason, remedy)

    def relations(self, moment: TargetSnapshot, names: Sequence[str] | None) -> list[_Relation]:
        """
        What the sink has taken in, of these tables or of all it receives.

        A table that was dropped, and whose name another one has since, is not in the target.
        """
        epoch = self.opened.epoch
        taken = {(v.schema.namespace, v.schema.name) for v in moment.versions.values()}
        received = [
            _Relation(oid, versions[-1].full_name, since, versions)
            for oid, since in moment.cursor.copies.items()
            if (versions := self.opened.schema_log.versions(epoch, oid))
            and self.target.selects(*(place := (versions[-1].namespace, versions[-1].name)))
            and ((epoch, oid) in moment.versions or place not in taken)
        ]
        if names is None:
            return received
        by_name = {relation.table: relation for relation in received}
        for name in names:
            if canonical(name) not in by_name:
                reason = f"it has not received table {name!r}"
                remedy = f"it has {', '.join(sorted(by_name)) or 'none'}"
                raise NotComparable(self.target.sink, reason, remedy)
        return [by_name[name] for name in dict.fromkeys(map(canonical, names))]

    def outcomes(
        self, relations: Sequence[_Relation], moment: TargetSnapshot
    ) -> Iterator[tuple[_Relation, TableReconciliation]]:
        """Each relation with how it differs, or why that is not known; the log is read once."""
        if not relations:
            return
        spark, lake = jvm.spark(self.opened.pipeline.jvm), self.opened.pipeline.lake
        oids = [relation.relation_id for relation in relations]
        with replay.kept(spark, lake, self.opened.epoch, oids, before=moment.end) as changes:
            for relation in relations:
                try:
                    difference = self.difference(relation, changes, moment)
                except (TableRewritten, TableLocked, LocksHeld, _Missing) as error:
                    yield relation, TableReconciliation(relation.table, None, str(error))
                else:
                    yield relation, TableReconciliation(relation.table, difference)

    def difference(
        self, relation: _Relation, log: DataFrame, moment: TargetSnapshot
    ) -> TableDifference:
        """
        Compare one table.

        Raises:
            TableRewritten, TableLocked: in the target, since its snapshot.
            LocksHeld: a session waits in front of us to lock it exclusively.
            _Missing: the target does not have it.
        """
        changes = of_relation(log, relation.relation_id).where(copies_until(relation.since))
        span = spans(changes).get(relation.relation_id, Span())
        versions = _until_newest(relation.versions, span)
        rows, schema = self.modified(fold(changes, versions, span=span), versions[-1])
        recorded = moment.versions.get((self.opened.epoch, relation.relation_id))
        named = schema if recorded is None else recorded.schema
        place = named.namespace, named.name
        with self.scanned(log.sparkSession, place, schema, moment.snapshot) as held:
            used = [version for version in versions if version.schema_id in span.schema_ids]
            if any(version.key_attnums != versions[-1].key_attnums for version in used):
                held, rows = keyless(held), keyless(rows)  # noqa: PLW2901
            return compare(held, rows, [column.name for column in schema.columns])

    def modified(self, rows: DataFrame, schema: TableSchema) -> tuple[DataFrame, TableSchema]:
        """Folded rows as the sink's modifiers let them leave, and the schema of these."""
        if self.make_modifiers is None:
            return rows, schema
        with closing(self.make_modifiers()) as modifiers:
            result = modifiers.schema(schema)
        modify = partial(_modified, self.make_modifiers, schema)
        return rows.select("key", "row").mapInArrow(modify, _ROWS_DDL), result

    @contextmanager
    def scanned(
        self, spark: SparkSession, place: tuple[str, str], schema: TableSchema, snapshot: Snapshot
    ) -> Generator[DataFrame]:
        """The target's table as the snapshot shows it, without columns that the log has not."""
        pipeline, dsn = self.opened.pipeline, self.target.dsn
        with scratch(pipeline.lake.root) as folder:
            with (
                session(dsn, self.stop) as catalog,
                Guard(dsn, snapshot, self.stop) as guard,
            ):
                table = table_of(catalog, *place)
                if table is None or table.kind == "f":
                    raise _Missing(*place)
                guard.hold(table, catalog)
                names = [name for name in table.columns if name in schema.attnums]
                own = describe(catalog, schema.epoch, table.relation_id, names)
                own = replace(own, key=schema.key if set(schema.key) <= set(names) else ())
                ranges, memory = pipeline.config.copying.ranges, pipeline.memory
                planned = scan.plan(catalog, table, own, snapshot, ranges=ranges, memory=memory)
                files = scan.run(lambda: spark, dsn, planned, folder, stop=self.stop)
                guard.require_alive()
            yield scanned_rows(spark, files)


class _Missing(Exception):
    """The target has no such table, or only a foreign one."""

    def __init__(self, namespace: str, name: str) -> None:
        super().__init__(f"the target has no table {full_name(namespace, name)!r}")


def _until_newest(versions: Sequence[TableSchema], span: Span) -> Sequence[TableSchema]:
    """The versions up to the newest one that changes have: the target's is never newer."""
    places = [n for n, version in enumerate(versions, 1) if version.schema_id in span.schema_ids]
    return versions[: max(places, default=len(versions))]


def _modified(
    make: MakeModifiers, schema: TableSchema, batches: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """Folded rows through the modifiers, in a task: those that may leave."""
    with closing(make()) as modifiers:
        for batch in batches:
            keys, rows = (batch.column(name).to_pylist() for name in ("key", "row"))
            changes = [
                modifiers.change(_read(schema, key, row))
                for key, row in zip(keys, rows, strict=True)
            ]
            left = [change for change in changes if change is not None]
            yield pa.RecordBatch.from_arrays(
                [
                    pa.array([change.key for change in left], _KEYS),
                    pa.array([list((change.after or {}).items()) for change in left], _IMAGES),
                ],
                names=["key", "row"],
            )


def _read(
    schema: TableSchema, key: list[str | None] | None, row: Sequence[tuple[str, str | None]]
) -> Change:
    """A folded row as a copied one."""
    return Change(
        *(schema.epoch, Lsn(0), 0, Lsn(0), Op.READ.value),
        *(schema.namespace, schema.name, schema.relation_id, schema),
        key=None if key is None else tuple(key),
        after=dict(row),
    )
