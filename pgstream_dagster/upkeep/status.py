"""
How a pipeline stands: log, slot, tables, stream, and what would stop it. Changes nothing.

A source that cannot be reached, or that is broken, is part of the answer and not an error.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Final, TypeVar

from pgstream_dagster import heartbeat
from pgstream_dagster.capture.recopier import CopyRequest, due_copies, requested_copies
from pgstream_dagster.changelog.ledger import CopyRecord, Ledger, PipelineIdentity
from pgstream_dagster.changelog.log import ChangeLog
from pgstream_dagster.changelog.schema_log import SchemaLog
from pgstream_dagster.errors import LakeAway, NotSetUp, PgstreamError, SlotInUse, StateTaken
from pgstream_dagster.lsn import Lsn
from pgstream_dagster.named import named
from pgstream_dagster.pipeline import Pipeline
from pgstream_dagster.schema.table import TableSchema
from pgstream_dagster.source import publication, slot
from pgstream_dagster.source.connect import connect, named_errors, server
from pgstream_dagster.source.origin import require_same
from pgstream_dagster.source.prepare import unfit_tables
from pgstream_dagster.source.publication import PublishedTable, limit_lock_waits
from pgstream_dagster.source.slot import SlotState
from pgstream_dagster.source.snapshot import Session
from pgstream_dagster.sql import statement
from pgstream_dagster.state_folder import require_own

LONG_SECONDS: Final = 60.0
"""A transaction that has written for longer is worth naming: it keeps WAL on the source."""


@dataclass(frozen=True, slots=True)
class Problem:
    """What would stop the stream now, with what helps: an error of ours by its name."""

    error: str
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Heartbeat:
    """What a long operation last wrote of itself; one that was killed writes nothing more."""

    state: str
    reason: str | None
    pid: int
    seconds_ago: float


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamHeartbeat(Heartbeat):
    """The stream's; `unfit_tables` as in `Status`, `None` before its first look."""

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
    A snapshot that a copy under way holds: VACUUM keeps what has changed since.

    CREATE INDEX CONCURRENTLY waits for its end.
    """

    seconds: float
    transactions: int


@dataclass(frozen=True, slots=True)
class Status:
    """
    One pipeline at one moment; what could not be found out is `None`.

    `lag_bytes` is the WAL between the watermark and the source's end: on a quiet source it is the
    WAL of others since the last idle advance. `retained_bytes` is what the slot keeps on the
    source's disk. `heartbeat` is the file that `stream` was read from: a stream with another state
    folder has another one. `unfit_tables` says what keeps tables from being captured whole, or what
    of theirs fails in the application, with what helps.
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
    stream: StreamHeartbeat | None = None
    indexer: IndexerHeartbeat | None = None
    long_transaction: LongTransaction | None = None
    held_snapshot: HeldSnapshot | None = None


@named
def status(pipeline: Pipeline) -> Status:
    """
    How the pipeline stands now.

    Raises:
        PgstreamError: the lake cannot be read.
    """
    found = Status(
        pipeline.name,
        pipeline.lake.root,
        server(pipeline.dsn),
        str(pipeline.heartbeat_file),
        stream=last_heartbeat(StreamHeartbeat, pipeline.heartbeat_file),
        indexer=last_heartbeat(IndexerHeartbeat, pipeline.indexer_heartbeat_file),
    )
    try:
        require_own(pipeline)
    except StateTaken as error:
        found = replace(_with_problem(found, error), stream=None, indexer=None)
    try:
        gateway = pipeline.gateway()
    except (NotSetUp, LakeAway) as error:
        return _with_problem(found, error)
    with (
        closing(Ledger(pipeline.lake, gateway)) as ledger,
        closing(SchemaLog(pipeline.lake, gateway)) as schema_log,
        closing(ChangeLog(pipeline.lake, pipeline.name, gateway)) as log,
    ):
        known = ledger.identity(pipeline.name)
        watermark = None if known is None else log.watermark(known.epoch)
        if known is None or watermark is None:
            return _with_problem(found, NotSetUp(pipeline.name, pipeline.lake.root))
        found = replace(
            found, epoch=known.epoch, watermark=watermark, publication=known.publication
        )
        try:
            with closing(connect(pipeline.dsn)) as session:
                limit_lock_waits(session)
                found = _slot(found, session, known.slot)
                copies, wishes = ledger.copies(known.epoch), requested_copies(ledger, known.epoch)
                history = schema_log.history(known.epoch)
                found = _problem(found, pipeline, ledger, session, known, copies)
                found = replace(found, unfit_tables=unfit_tables(pipeline, session, copies))
                return replace(found, tables=_tables(session, known, copies, wishes, history))
        except PgstreamError as error:
            return _with_problem(found, error)


def last_heartbeat(kind: type[H], path: Path) -> H | None:
    """What an operation last wrote to its file; `None` when nothing there can be read."""
    sign = heartbeat.read(path)
    if sign is None:
        return None
    own = {field.name for field in fields(kind)}
    return kind(
        state=sign.state,
        reason=sign.reason,
        pid=sign.pid,
        seconds_ago=max(time.time() - sign.at, 0.0),
        **{name: value for name, value in sign.facts.items() if name in own},
    )


def _slot(found: Status, session: Session, name: str) -> Status:
    """Slot, source position and what keeps WAL on the source."""
    state = slot.inspect(session, name)
    with named_errors(session):
        ((text,),) = session.execute(statement("source/current_lsn")).fetchall()
        row = session.execute(statement("source/oldest_writer")).fetchone()
        held = session.execute(statement("source/held_snapshot")).fetchone()
    source_lsn = Lsn.parse(text)
    long = None if row is None or row[1] < LONG_SECONDS else LongTransaction(row[0], row[1])
    watermark = found.watermark or Lsn(0)
    return replace(
        found,
        slot=state,
        source_lsn=source_lsn,
        lag_bytes=max(source_lsn - watermark, 0),
        retained_bytes=None if state is None else state.retained_bytes,
        long_transaction=long,
        held_snapshot=None if held is None else HeldSnapshot(*held),
    )


def _problem(
    found: Status,
    pipeline: Pipeline,
    ledger: Ledger,
    session: Session,
    known: PipelineIdentity,
    copies: Mapping[int, CopyRecord],
) -> Status:
    """What the stream would refuse when it connects now."""
    watermark = found.watermark or Lsn(0)
    try:
        require_same(pipeline, ledger, known, watermark)
        publication.require_complete(session, known.publication, copies)
        slot.resume_lsn(session, known.slot, watermark)
    except SlotInUse:
        return found  # by the stream, which looked before it read
    except PgstreamError as error:
        return _with_problem(found, error)
    return found


def _tables(
    session: Session,
    known: PipelineIdentity,
    copies: Mapping[int, CopyRecord],
    wishes: Mapping[int, CopyRequest],
    history: Sequence[tuple[Lsn, TableSchema]],
) -> tuple[TableStatus, ...]:
    tables: Sequence[PublishedTable] = publication.published(session, known.publication)
    due = due_copies(tables, copies, wishes, history)
    return tuple(
        TableStatus(
            table=table.full_name,
            relation_id=table.relation_id,
            copied_at=copies[oid].consistent_point
            if (oid := table.relation_id) in copies
            else None,
            copy_due=due.get(table.relation_id),
            estimated_rows=table.estimated_rows,
        )
        for table in tables
    )


def _with_problem(found: Status, error: PgstreamError) -> Status:
    """The first problem is the one to fix first."""
    if found.problem is not None:
        return found
    return replace(found, problem=Problem(type(error).__name__, str(error)))
