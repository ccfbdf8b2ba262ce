"""
The stream: capture and land until stopped, reconnect when the connection is lost.

One function behind `pgstream stream` and the Dagster job. While it lands changes, the recopier, a
thread of its own, copies what needs a copy: tables that joined the publication, relations whose
data changed without rows. Capture never waits for it.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Generator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

import psycopg
from psycopg import pq
from py4j.java_gateway import JavaGateway

from pgstream_dagster import state_folder
from pgstream_dagster.backoff import waits
from pgstream_dagster.capture.decoding import OTHER_TEXT, Copied, Decoder, Truncated
from pgstream_dagster.capture.due import awaited_copies, requested_copies
from pgstream_dagster.capture.pump import ReplicationStream, StreamSettings, application_name
from pgstream_dagster.capture.recopier import Recopier
from pgstream_dagster.capture.reporting import ReportedSince, SourceReports
from pgstream_dagster.capture.resent import Resent
from pgstream_dagster.capture.stopping import watched
from pgstream_dagster.changelog.land import FlushPolicy, Landed, Landing, Report
from pgstream_dagster.changelog.ledger import Ledger, PipelineIdentity
from pgstream_dagster.changelog.log import LogWriter
from pgstream_dagster.changelog.schema_log import SchemaLog
from pgstream_dagster.copy.copying import only_copier, silent
from pgstream_dagster.delta import faults
from pgstream_dagster.errors import (
    ChangelogError,
    ConnectionLost,
    CopyRunning,
    CopySchemaMissing,
    JvmEnded,
    NewColumn,
    PartsUndecodable,
    PgstreamError,
    Retry,
    RulesRefused,
    SlotAhead,
    SlotInUse,
    SlotMissing,
    SourceRestored,
)
from pgstream_dagster.heartbeat import ENDED, HeartbeatWriter
from pgstream_dagster.lsn import Lsn
from pgstream_dagster.modifiers.rows import LogModifiers
from pgstream_dagster.modifiers.rules import Rules
from pgstream_dagster.named import named
from pgstream_dagster.pipeline import Pipeline
from pgstream_dagster.schema.table import TableSchema
from pgstream_dagster.source import catalog, query, slot
from pgstream_dagster.source.catalog import Resolved
from pgstream_dagster.source.connect import Session, connect, server
from pgstream_dagster.source.identity import SystemIdentity, identify_on, require_primary
from pgstream_dagster.source.interrupt import ANSWER_SECONDS, limited, shut
from pgstream_dagster.source.origin import adopt, refuse
from pgstream_dagster.source.publication import limit_lock_waits, published
from pgstream_dagster.stop import Cancelled
from pgstream_dagster.wire.messages import TransactionFields
from pgstream_dagster.wire.pgoutput import Relation

logger = logging.getLogger(__name__)

FIRST_WAIT_SECONDS: Final = 0.2
LONGEST_WAIT_SECONDS: Final = 30.0
"""Between attempts to reconnect."""

DEFAULT_TIMEOUT_SECONDS: Final = 60.0
"""wal_sender_timeout, where it is unknown or 0."""

IN_USE_TIMEOUTS: Final = 1.5
"""For how many wal_sender_timeouts a slot that is in use is tried again: Postgres ends the session
of a client that vanished after one. A session that stays for longer is another stream's."""


@named
def stream(
    pipeline: Pipeline,
    *,
    stop: threading.Event,
    until: Lsn | None = None,
    report: Report = lambda landed: None,
) -> Landed:
    """
    Land every committed change until `stop` is set, or until the watermark has reached `until`.

    Whatever ends it, the log holds whole transactions only, each once, and no position was
    confirmed to Postgres before it was durable. When `stop` is set, complete transactions are
    landed and confirmed. At `until` it lands on until the tables that are due there are copied;
    one that cannot be copied, or has to wait a minute for others, is left to the next run.

    Raises:
        CopiesDue: `until` is reached, and tables are left that are due for a copy.
        StateTaken: the state folder belongs to another pipeline of this name.
        NotSetUp: `setup` was never run for this pipeline and lake, or `teardown` was since.
        SlotMissing, SlotLost, SlotAhead, OtherSystem, TimelineForked, SourceBehind,
        SourceRestored: see `resnapshot`.
        PublicationMissing, PublicationIncomplete: changes would be missing in the log.
        WriterReplaced: another stream has taken over.
        JvmEnded: killed, or out of memory.
        MissingSetting, InvalidSetting: a secret of `source.modifiers`.
        RulesRefused, NewColumn, TransformFailed: what they do not allow to be stored.
    """
    rules = pipeline.source_rules()
    state_folder.claim(pipeline)
    with pipeline.open() as opened:
        identity, ledger = opened.identity, opened.ledger
        recopier = Recopier(pipeline, identity, stop)
        heartbeat = HeartbeatReporter(pipeline, recopier, report)
        with (
            closing(heartbeat),
            watched(recopier, partial(heartbeat.write, "stopping", None)),
            closing(opened.log.writer(identity.epoch)) as writer,
            recopier,
        ):
            name = application_name(identity.slot)
            session = _Session(
                pipeline, opened.gateway, ledger, identity, writer, recopier, heartbeat, name, rules
            )
            try:
                landed = _run(session, stop, until)
            except SourceRestored as error:
                refuse(pipeline, ledger, identity.epoch, error)
                raise
        if not stop.is_set():
            recopier.require_copied()
        return landed


def current_lsn(pipeline: Pipeline) -> Lsn:
    """The source's end of WAL now: drain until here and everything committed so far is landed."""
    with connect(pipeline.dsn) as connection:
        return query.current_lsn(connection)


class HeartbeatReporter:
    """Reports that the stream makes progress, and how far it is."""

    def __init__(self, pipeline: Pipeline, recopier: Recopier, report: Report) -> None:
        self._heartbeat = HeartbeatWriter(pipeline.heartbeat_file)
        self._recopier, self._report = recopier, report
        self._lock, self._newest = threading.Lock(), Landed(Lsn(0))

    def landed(self, landed: Landed, stall: str | None) -> None:
        """Pass progress on, and write the file about once a second."""
        self._recopier.require_alive()
        self._recopier.watermark = landed.watermark
        self._report(landed)
        if not self._heartbeat.is_due:
            return
        if self._recopier.is_stopping:
            self.write("stopping", landed)
        else:
            self.write("streaming" if stall is None else "stalled", landed, stall)

    def close(self) -> None:
        """Report that the stream has ended, unless another one uses the file by now."""
        if self._heartbeat.is_newest:
            self.write(ENDED, None)

    def write(self, state: str, landed: Landed | None, reason: str | None = None) -> None:
        """Write the file now; without `landed`, with the newest progress. For any thread."""
        with self._lock:
            self._newest = landed or self._newest
            self._heartbeat.say(
                state,
                reason,
                watermark=str(self._newest.watermark),
                rows=self._newest.rows,
                commits=self._newest.commits,
                copy_failed=self._recopier.failure,
                unfit_tables=self._recopier.unfit_tables,
            )


@dataclass(slots=True)
class _Session:
    """What outlives a connection; `identity` is the source as of the newest one."""

    pipeline: Pipeline
    gateway: JavaGateway
    ledger: Ledger
    identity: PipelineIdentity
    writer: LogWriter
    recopier: Recopier
    heartbeat: HeartbeatReporter
    application_name: str
    rules: Rules
    sends_whole: bool = False
    """Whether the next connection asks for large transactions at their commit only."""


def _run(session: _Session, stop: threading.Event, until: Lsn | None) -> Landed:
    """Open one connection after the other; wait where an error may pass by itself."""
    total = Landed(session.writer.watermark)
    pauses = waits(FIRST_WAIT_SECONDS, LONGEST_WAIT_SECONDS)
    refusals = _Refusals()
    while True:
        before = session.writer.watermark
        try:
            with _landing(session, total, stop) as landing:
                refusals.clear()
                return landing.run(until=until, is_end=session.recopier.is_end)
        except Cancelled:
            return total
        except PgstreamError as error:
            refusals.judge(error, session.writer.watermark)
            session.sends_whole = isinstance(error, PartsUndecodable)
            if session.writer.watermark > before:
                # It made progress: begin with short waits again.
                pauses = waits(FIRST_WAIT_SECONDS, LONGEST_WAIT_SECONDS)
            seconds = next(pauses)
            logger.warning("%s; trying again in %.1f s", error, seconds)
            if isinstance(error, ChangelogError):
                session.heartbeat.write("waiting", total, f"{error}{_behind(session)}")
            elif refusals.since is None:  # else the heartbeat may be the other stream's
                session.heartbeat.write("reconnecting", total, str(error))
            if stop.wait(seconds):
                return total


def _behind(session: _Session) -> str:
    """How far the log is behind a source that still answers, for a message."""
    try:
        lag_bytes = current_lsn(session.pipeline) - session.writer.watermark
    except (PgstreamError, psycopg.Error):  # the stream waits for the lake, not for the source
        return ""
    return f"; {max(0, lag_bytes):,} bytes of WAL behind the source"


@dataclass(slots=True)
class _Refusals:
    """Attempts to connect that ended one after the other because the slot was in use."""

    since: float | None = None  # monotonic seconds
    watermark: int = 0  # of the log then; it moves when the reader of the slot is alive

    def clear(self) -> None:
        """The slot is ours, or another error came in between."""
        self.since = None

    def judge(self, error: PgstreamError, watermark: Lsn) -> None:
        """Raise unless another attempt may go better."""
        if error.retry is not Retry.LATER or isinstance(error, JvmEnded):
            raise error
        if not isinstance(error, SlotInUse):
            self.clear()
            return
        if self.since is None:
            self.since, self.watermark = time.monotonic(), watermark
        patience = IN_USE_TIMEOUTS * (error.timeout_seconds or DEFAULT_TIMEOUT_SECONDS)
        if watermark > self.watermark or time.monotonic() - self.since > patience:
            raise error


@contextmanager
def _landing(session: _Session, total: Landed, stop: threading.Event) -> Generator[Landing]:
    """One connection: the source is checked to be ours before a byte of it is landed."""
    pipeline, writer = session.pipeline, session.writer
    with faults.named(pipeline.lake.change_log):
        session.ledger.require_not_torn_down(pipeline.name)
        writer.require_current()  # else our slot would look as if it were ahead of the log
        total.watermark = writer.watermark
        identity = adopt(pipeline, session.ledger, session.identity, writer.watermark)
    session.identity = identity
    with (
        faults.named(pipeline.lake.change_log),
        closing(SchemaLog(pipeline.lake, session.gateway)) as schema_log,
        closing(connect(pipeline.dsn)) as catalog_connection,
        LogModifiers(session.rules.knowing(schema_log.named_versions())) as modifiers,
    ):
        limit_lock_waits(catalog_connection)
        slot.take_over(catalog_connection, identity.slot, session.application_name, stop)
        with _explained(session):
            start = slot.resume_lsn(catalog_connection, identity.slot, writer.watermark)
        session.recopier.require_complete(catalog_connection)
        _request_modified(session, modifiers, schema_log, catalog_connection)
        session.recopier.check()  # what changed while no stream ran
        decoder = _decoder(session, modifiers, schema_log, catalog_connection, stop)
        settings = _settings(session, catalog_connection)
        resent = Resent(decoder, writer.watermark, writer.last_transaction(start))
        with ReplicationStream(settings, start, resent, stop) as source:
            with _explained(session):
                slot.require_not_ahead(catalog_connection, identity.slot, start)

            def report(landed: Landed) -> None:
                session.heartbeat.landed(landed, source.stall)
                session.recopier.table_names.require_described(
                    landed.watermark, decoder.described_name
                )

            yield Landing(source, writer, schema_log, _policy(pipeline), report, total)


@contextmanager
def _explained(session: _Session) -> Generator[None]:
    """
    Name what a slot that does not fit the log comes from, if it is not a loss.

    Raises:
        CopyRunning: a `resnapshot` runs, or just ended: the slot is its new one.
        WriterReplaced: another writer has committed since.
        LogDamaged: the log was cut off.
    """
    try:
        yield
    except (SlotMissing, SlotAhead) as error:
        if session.ledger.is_in_repair:
            with only_copier(session.pipeline, wait=False, on_progress=silent):
                pass
        before = session.writer.watermark
        session.writer.require_current()
        if session.writer.watermark != before:
            raise CopyRunning(session.pipeline.name, None) from error
        if isinstance(error, SlotAhead):
            session.writer.require_whole()
        raise


def _decoder(
    session: _Session,
    modifiers: LogModifiers,
    schema_log: SchemaLog,
    catalog_connection: Session,
    stop: threading.Event,
) -> Decoder:
    """That of one connection; its thread asks the catalog."""
    epoch, recopier = session.identity.epoch, session.recopier
    answered = limited(catalog_connection, ANSWER_SECONDS)
    reported_since = ReportedSince(session.ledger, epoch, catalog_connection, ANSWER_SECONDS)
    reported_since.position()  # recorded as early as it can be, not at the first description

    @answered
    def resolve(relation: Relation, earlier: TableSchema | None, xid: int) -> Resolved:
        resolved = catalog.resolve(catalog_connection, epoch, relation, earlier, xid=xid, stop=stop)
        return replace(resolved, schema=modifiers.schema(resolved.schema))  # as the log has it

    return Decoder(
        epoch,
        resolve,
        answered(partial(catalog.leaves, catalog_connection)),
        schema_log.in_force(epoch, session.writer.watermark),
        _copied(session.ledger, schema_log, epoch),
        recopier.request_copy,
        answered(_truncation_reporter(catalog_connection, recopier, stop)),
        recopier.sent_as_leaf,
        modifiers.rows,
        SourceReports(
            session.identity.publication,
            reported_since,
            modified=modifiers.schema,
            hides_values=not session.rules.is_empty,
        ),
    )


def _settings(session: _Session, catalog_connection: Session) -> StreamSettings:
    pipeline, identity = session.pipeline, session.identity
    return StreamSettings(
        pipeline.dsn,
        identity.slot,
        identity.publication,
        session.application_name,
        pipeline.state,
        messages=pipeline.config.capture.messages,
        whole=session.sends_whole,
        admit=lambda connection: _require_unchanged(pipeline, identity, connection),
        abandon=partial(shut, catalog_connection),
        memory=pipeline.memory,
        encrypts_spool=not session.rules.is_empty,
    )


def _request_modified(
    session: _Session,
    modifiers: LogModifiers,
    schema_log: SchemaLog,
    catalog_connection: Session,
) -> None:
    """Request copies of the tables whose values in the log were modified by other rules."""
    epoch, ledger = session.identity.epoch, session.ledger
    newest = {schema.relation_id: schema for _, schema in schema_log.history(epoch)}
    outdated: set[int] = set()
    for oid, schema in newest.items():
        # they are raised at the next row, if the table still has any
        with suppress(RulesRefused, NewColumn):
            if not modifiers.is_current(schema):
                outdated.add(oid)
    if not outdated:
        return
    published_now = {
        t.relation_id for t in published(catalog_connection, session.identity.publication)
    }
    awaited = awaited_copies(ledger.copies(epoch), requested_copies(ledger, epoch), OTHER_TEXT)
    since = Lsn(session.writer.watermark + 1)  # what the log has by now is not enough
    for oid in sorted((outdated & published_now) - awaited):
        session.recopier.request_copy(oid, since, OTHER_TEXT)


def _require_unchanged(
    pipeline: Pipeline, identity: PipelineIdentity, connection: pq.abc.PGconn
) -> None:
    """Raise unless the server is the one that was adopted: a failover may come in between."""
    require_primary(connection, pipeline.dsn)
    adopted = SystemIdentity(identity.system_id, identity.timeline, identity.database)
    if identify_on(connection) != adopted:
        raise ConnectionLost(server(pipeline.dsn), "another server answers than a moment ago")


def _copied(ledger: Ledger, schema_log: SchemaLog, epoch: int) -> Copied:
    """The function that returns the newest copy in the log, whichever process made it."""

    def copied(relation_id: int) -> tuple[Lsn, TableSchema] | None:
        copy = ledger.copies(epoch).get(relation_id)
        if copy is None:
            return None
        point = copy.consistent_point
        in_force = schema_log.in_force(epoch, Lsn(point + 1)).get(relation_id)
        if in_force is None:
            raise CopySchemaMissing(copy.table, point)
        return point, in_force[1]

    return copied


def _truncation_reporter(
    connection: Session, recopier: Recopier, stop: threading.Event
) -> Truncated:
    """The function that reports truncated tables to the recopier; for the decoder's thread only."""

    def truncated(relation_id: int, xid: int, at: TransactionFields) -> None:
        file = catalog.truncated_file(connection, relation_id, xid, top_xid=at.xid, stop=stop)
        if file is not None:
            recopier.emptied(relation_id, file, Lsn(at.commit_lsn + 1))

    return truncated


def _policy(pipeline: Pipeline) -> FlushPolicy:
    capture = pipeline.config.capture
    return FlushPolicy(
        flush_seconds=capture.flush_seconds,
        flush_rows=capture.flush_rows,
        flush_bytes=min(capture.flush_bytes, pipeline.memory.flush_bytes),
        idle_advance_seconds=capture.idle_advance_seconds,
    )
