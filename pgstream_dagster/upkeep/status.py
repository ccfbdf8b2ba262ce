"""
The state of a pipeline: log, slot, tables, stream, and what would stop it. Changes nothing.

A source that cannot be reached, or that is broken, is part of the result and not an error.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Final, TypeVar

from pgstream_dagster import heartbeat
from pgstream_dagster.capture.due import CopyRequest, due_copies, requested_copies
from pgstream_dagster.capture.reporting import ReportedSince
from pgstream_dagster.changelog.ledger import CopyRecord, Ledger, PipelineIdentity
from pgstream_dagster.changelog.log import ChangeLog
from pgstream_dagster.changelog.schema_log import SchemaLog
from pgstream_dagster.changelog.sink_log import SinkLog
from pgstream_dagster.consumer.positions import PartitionStatus, positions
from pgstream_dagster.errors import LakeAway, NotSetUp, PgstreamError, SlotInUse, StateTaken
from pgstream_dagster.lsn import Lsn
from pgstream_dagster.named import named
from pgstream_dagster.pipeline import Pipeline
from pgstream_dagster.schema.table import TableSchema
from pgstream_dagster.source import publication, slot
from pgstream_dagster.source.connect import Session, connect, server
from pgstream_dagster.source.origin import require_same
from pgstream_dagster.source.prepare import unfit_tables
from pgstream_dagster.source.publication import limit_lock_waits
from pgstream_dagster.source.query import current_lsn, query_one
from pgstream_dagster.source.slot import SlotState
from pgstream_dagster.state_folder import require_own
from pgstream_dagster.tables.approval import HeldTable, held_of

LONG_SECONDS: Final = 60.0
"""A transaction that has written for longer is reported: it keeps WAL on the source."""


@dataclass(frozen=True, slots=True)
class Problem:
    """What would stop the stream now, with what helps: the name of an error of ours."""

    error: str
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Heartbeat:
    """What a long operation last wrote about itself; one that was killed writes nothing more."""

    state: str
    reason: str | None
    pid: int
    seconds_ago: float


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamHeartbeat(Heartbeat):
    """The stream's; `unfit_tables` as in `Status`, `None` before its first check."""

    rows: int = 0
    commits: int = 0
    copy_failed: str | None = None
    unfit_tables: Sequence[str] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexerHeartbeat(Heartbeat):
    """The live indexer's; `lag_bytes` while it waits, else `None`."""

    documents: int = 0
    lag_bytes: int | None = None


H = TypeVar("H", bound=Heartbeat)


@dataclass(frozen=True, slots=True)
class TableStatus:
    """One published table. Without `copied_at` its changes wait for its first copy."""

    table: str
    relation_id: int
    copied_at: Lsn | None
    copy_due: str | None  # why it will be copied (again)
    estimated_rows: int


@dataclass(frozen=True, slots=True)
class LongTransaction:
    """A transaction on the source that keeps WAL from being removed."""

    holder: str
    seconds: float


@dataclass(frozen=True, slots=True)
class HeldSnapshot:
    """
    A snapshot that a running copy holds: VACUUM keeps what has changed since.

    CREATE INDEX CONCURRENTLY waits for its end.
    """

    seconds: float
    transactions: int


@dataclass(frozen=True, slots=True)
class Status:
    """
    One pipeline at one moment; what could not be determined is `None`.

    `lag_bytes` is the WAL between the watermark and the source's end: on a quiet source it is the
    WAL of others since the last idle advance. `retained_bytes` is what the slot keeps on the
    source's disk. `heartbeat` is the file that `stream` was read from: a stream with another state
    folder has another one. `unfit_tables` says what keeps tables from being captured whole, or what
    fails in the application because of them, with what helps. `ddl_reported_since`: from where on
    every DDL of the source is in the log; `None`: a change of a table shows with its next row.
    `held_tables` are typed tables whose changes of columns wait for an approval.
    """

    pipeline: str
    lake: str
    source: str
    heartbeat: str
    problem: Problem | None = None
    epoch: int | None = None
    watermark: Lsn | None = None
    source_lsn: Lsn | None = None
    lag_bytes: int | None = None
    retained_bytes: int | None = None
    slot: SlotState | None = None
    publication: str | None = None
    tables: tuple[TableStatus, ...] = ()
    unfit_tables: tuple[str, ...] = ()
    ddl_reported_since: Lsn | None = None
    stream: StreamHeartbeat | None = None
    indexer: IndexerHeartbeat | None = None
    long_transaction: LongTransaction | None = None
    held_snapshot: HeldSnapshot | None = None
    partitions: tuple[PartitionStatus, ...] = ()
    held_tables: tuple[HeldTable, ...] = ()


@named
def status(pipeline: Pipeline) -> Status:
    """
    The state of the pipeline now.

    Raises:
        PgstreamError: the lake cannot be read.
    """
    current = Status(
        pipeline.name,
        pipeline.lake.root,
        _source_name(pipeline),
        str(pipeline.heartbeat_file),
        stream=last_heartbeat(StreamHeartbeat, pipeline.heartbeat_file),
        indexer=last_heartbeat(IndexerHeartbeat, pipeline.indexer_heartbeat_file),
    )
    try:
        require_own(pipeline)
    except StateTaken as error:
        current = replace(_with_problem(current, error), stream=None, indexer=None)
    try:
        gateway = pipeline.gateway()
    except (NotSetUp, LakeAway) as error:
        return _with_problem(current, error)
    if pipeline.config.source.kafka is not None:
        return _on_kafka(pipeline, current)
    with (
        closing(Ledger(pipeline.lake, gateway)) as ledger,
        closing(SchemaLog(pipeline.lake, gateway)) as schema_log,
        closing(ChangeLog(pipeline.lake, pipeline.name, gateway)) as log,
    ):
        return _on_postgres(pipeline, current, ledger, schema_log, log)


def _source_name(pipeline: Pipeline) -> str:
    kafka = pipeline.config.source.kafka
    if kafka is None:
        return server(pipeline.dsn)
    servers = kafka.bootstrap_servers or f"the servers of {kafka.bootstrap_servers_from}"
    return f"topics {', '.join(kafka.topics)} of {servers}"


def _on_postgres(
    pipeline: Pipeline, current: Status, ledger: Ledger, schema_log: SchemaLog, log: ChangeLog
) -> Status:
    """How far the log is, and what the source says of the slot and the tables."""
    identity = ledger.identity(pipeline.name)
    watermark = None if identity is None else log.watermark(identity.epoch)
    if identity is None or watermark is None:
        return _with_problem(current, NotSetUp(pipeline.name, pipeline.lake.root))
    epoch, published_by = identity.epoch, identity.publication
    current = replace(
        current,
        epoch=epoch,
        watermark=watermark,
        publication=published_by,
        held_tables=_held_tables(pipeline, epoch),
    )
    try:
        with closing(connect(pipeline.dsn)) as session:
            limit_lock_waits(session)
            current = _slot(current, session, identity.slot, watermark)
            copies, requests = ledger.copies(epoch), requested_copies(ledger, epoch)
            history = schema_log.history(epoch)
            current = _problem(current, pipeline, ledger, session, identity, copies)
            current = replace(
                current,
                unfit_tables=unfit_tables(pipeline, session, copies),
                ddl_reported_since=ReportedSince(ledger, epoch, session).recorded(),
            )
            tables = _tables(session, published_by, copies, requests, history)
            return replace(current, tables=tables)
    except PgstreamError as error:
        return _with_problem(current, error)


def _on_kafka(pipeline: Pipeline, current: Status) -> Status:
    """The tables that the log has, and how far it is in each partition."""
    try:
        with pipeline.open() as opened:
            copies = opened.ledger.copies(opened.epoch)
            tables = tuple(
                TableStatus(copy.table, oid, copy.consistent_point, None, 0)
                for oid, copy in copies.items()
            )
            watermark = opened.require_watermark()
            current = replace(current, epoch=opened.epoch, watermark=watermark, tables=tables)
            current = replace(current, held_tables=_held_tables(pipeline, opened.epoch))
            return replace(current, partitions=positions(opened))
    except PgstreamError as error:
        return _with_problem(current, error)


def _held_tables(pipeline: Pipeline, epoch: int) -> tuple[HeldTable, ...]:
    if pipeline.config.tables is None:
        return ()
    states = SinkLog(pipeline.lake, pipeline.gateway(), uri=pipeline.lake.typed_tables)
    with closing(states) as log:
        return tuple(held_of(log, pipeline.name, epoch))


def last_heartbeat(kind: type[H], path: Path) -> H | None:
    """What an operation last wrote to its file; `None` when nothing there can be read."""
    written = heartbeat.read(path)
    if written is None:
        return None
    own = {field.name for field in fields(kind)}
    return kind(
        state=written.state,
        reason=written.reason,
        pid=written.pid,
        seconds_ago=max(time.time() - written.at, 0.0),
        **{name: value for name, value in written.facts.items() if name in own},
    )


def _slot(current: Status, session: Session, name: str, watermark: Lsn) -> Status:
    """Slot, source position and what keeps WAL on the source."""
    state = slot.inspect(session, name)
    source_lsn = current_lsn(session)
    writer = query_one(session, LongTransaction, "source/oldest_writer")
    return replace(
        current,
        slot=state,
        source_lsn=source_lsn,
        lag_bytes=max(source_lsn - watermark, 0),
        retained_bytes=None if state is None else state.retained_bytes,
        long_transaction=None if writer is None or writer.seconds < LONG_SECONDS else writer,
        held_snapshot=query_one(session, HeldSnapshot, "source/held_snapshot"),
    )


def _problem(
    current: Status,
    pipeline: Pipeline,
    ledger: Ledger,
    session: Session,
    identity: PipelineIdentity,
    copies: Mapping[int, CopyRecord],
) -> Status:
    """What the stream would refuse when it connects now."""
    watermark = current.watermark or Lsn(0)
    try:
        ledger.require_not_torn_down(pipeline.name)
        require_same(pipeline, ledger, identity, watermark)
        publication.require_complete(session, identity.publication, copies)
        slot.resume_lsn(session, identity.slot, watermark)
    except SlotInUse:
        return current  # by the stream, which checked before it read
    except PgstreamError as error:
        return _with_problem(current, error)
    return current


def _tables(
    session: Session,
    publication_name: str,
    copies: Mapping[int, CopyRecord],
    requests: Mapping[int, CopyRequest],
    history: Sequence[tuple[Lsn, TableSchema]],
) -> tuple[TableStatus, ...]:
    tables = publication.published(session, publication_name)
    due = due_copies(tables, copies, requests, history)
    points = {oid: copy.consistent_point for oid, copy in copies.items()}
    return tuple(
        TableStatus(
            table=table.full_name,
            relation_id=table.relation_id,
            copied_at=points.get(table.relation_id),
            copy_due=due.get(table.relation_id),
            estimated_rows=table.estimated_rows,
        )
        for table in tables
    )


def _with_problem(current: Status, error: PgstreamError) -> Status:
    """The first problem is the one to fix first."""
    if current.problem is not None:
        return current
    return replace(current, problem=Problem(type(error).__name__, str(error)))
