"""
The real stream of a real server into a log in memory: everything of the product but Delta.

For what the stream does with its connection; the whole product is what `runner` runs.
"""

from __future__ import annotations

import secrets
import tempfile
import threading
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import msgspec
import psycopg
import pyarrow as pa

from pgstream_dagster.capture.decoding import Decoder
from pgstream_dagster.capture.pump import ReplicationStream, StreamSettings, application_name
from pgstream_dagster.capture.reporting import NoReports
from pgstream_dagster.capture.resent import Resent
from pgstream_dagster.changelog.land import FlushPolicy, Landed, Landing, SchemaVersion
from pgstream_dagster.changelog.newest import last_of
from pgstream_dagster.lsn import Lsn
from pgstream_dagster.memory import MemoryBound
from pgstream_dagster.schema.ddl import DdlEntry, DdlReport, DdlTable, continued
from pgstream_dagster.schema.table import TableSchema
from pgstream_dagster.source import catalog, publication, schema_triggers, slot
from pgstream_dagster.source.catalog import Resolved
from pgstream_dagster.source.connect import Session, connect, replication
from pgstream_dagster.source.interrupt import shut
from pgstream_dagster.source.query import current_lsn
from pgstream_dagster.wire.messages import TransactionFields
from pgstream_dagster.wire.pgoutput import Relation
from tests.support.plugins.wait import until
from tests.support.reference.change import Change
from tests.support.reference.pgoutput import as_changes


@dataclass(frozen=True)
class MemoryCommit:
    """What one landing commit held."""

    version: int
    rows: int
    end_lsn: Lsn
    tables: tuple[pa.Table, ...] = ()


@dataclass
class MemoryLog:
    """Commits in memory: nothing of one that fails while its tables are read."""

    watermark: Lsn
    commits: list[MemoryCommit] = field(default_factory=list)
    schemas: dict[int, tuple[Lsn, TableSchema]] = field(default_factory=dict)
    ddl: list[DdlEntry] = field(default_factory=list)

    def commit(self, tables: Iterable[pa.Table], end_lsn: Lsn) -> MemoryCommit:
        read = tuple(tables)
        rows = sum(table.num_rows for table in read)
        return self._committed(MemoryCommit(len(self.commits), rows, end_lsn, read))

    def advance(self, lsn: Lsn) -> MemoryCommit:
        return self._committed(MemoryCommit(len(self.commits), 0, lsn))

    def append(self, versions: Sequence[SchemaVersion]) -> None:
        for version in versions:
            if isinstance(version, DdlEntry):
                self.ddl.append(version)
                since, schema = version.commit_lsn, version.schema
            else:
                schema, since = version
            self.schemas[schema.relation_id] = since, schema

    def last_transaction(self, since: Lsn) -> TransactionFields | None:
        tables = (table for commit in self.commits for table in commit.tables)
        return last_of(tables, epoch=1, since=since)

    def _committed(self, commit: MemoryCommit) -> MemoryCommit:
        assert commit.end_lsn > self.watermark, f"{commit.end_lsn} after {self.watermark}"
        self.commits.append(commit)
        self.watermark = commit.end_lsn
        return commit

    @property
    def changes(self) -> list[Change]:
        """Every row in the order of the commits, without schema ids."""
        tables = [table for commit in self.commits for table in commit.tables]
        return [replace(c, schema_id=None) for table in tables for c in as_changes(table)]


class MemoryReports(NoReports):
    """Reports of DDL without a ledger: complete as long as the triggers are those of the start."""

    def __init__(self, publication: str, catalog: Session) -> None:
        self.publication, self.catalog = publication, catalog
        self.triggers, self.since = self._triggers(), current_lsn(catalog)

    def is_ours(self, report: DdlReport) -> bool:
        return schema_triggers.state(self.catalog).wrote(report.token)

    def schema(self, table: DdlTable, earlier: TableSchema | None) -> TableSchema | None:
        schema = table.schema(1, self.publication)
        return None if schema is None else continued(schema, earlier)

    def shown(self, report: DdlReport) -> DdlReport:
        assert report.table is not None
        columns = report.table.shown(self.publication)
        return msgspec.structs.replace(
            report, table=msgspec.structs.replace(report.table, columns=columns)
        )

    def missed(self, at: Lsn) -> None:
        self.since = max(self.since, Lsn(at + 1))

    def is_contradicted(self, schema: TableSchema, xid: int) -> bool:
        return catalog.contradicts(self.catalog, schema, xid)

    def exact_since(self) -> Lsn | None:
        triggers = self._triggers()
        return self.since if triggers and triggers == self.triggers else None

    def _triggers(self) -> tuple[int, ...]:
        state = schema_triggers.state(self.catalog)
        return state.versions if state.fires else ()


class Capture:
    """
    A publication and a slot of their own, and connections that stream them, one at a time.

    Use as a context manager: the connection is open while the block runs. What ended the landing
    is raised at its end.
    """

    def __init__(
        self,
        dsn: str,
        *,
        policy: FlushPolicy | None = None,
        tables: Any = "all",
        reports_ddl: bool = False,
        state: Path | None = None,
        messages: bool = False,
        memory: MemoryBound | None = None,
        failover: bool = False,
    ) -> None:
        self.memory = memory or MemoryBound()
        self.state = state or Path(tempfile.gettempdir())
        self.dsn, self.policy = dsn, policy or FlushPolicy(flush_seconds=0.05)
        self.slot = self.publication = f"capture_{secrets.token_hex(4)}"
        self.application_name = application_name(self.slot)
        self.requested: list[tuple[int, Lsn, str]] = []
        self.truncated: list[tuple[int, int, Lsn]] = []
        self.copies: dict[int, tuple[Lsn, TableSchema]] = {}
        self.sent_as_leaves = set[int]()
        with connect(dsn) as connection:
            publication.ensure(connection, self.publication, tables)
            if reports_ddl:
                assert not schema_triggers.install(connection, self.slot).reason
            self.reports = MemoryReports(self.publication, connection)
        pgconn = replication(dsn)
        point = slot.create(pgconn, self.slot, failover=failover).consistent_point
        pgconn.finish()
        self.start = point
        self.log = MemoryLog(point)
        self.error: BaseException | None = None
        self.messages = messages
        self.landed: Landed | None = None

    def __enter__(self) -> Self:
        self.stop, self.error = threading.Event(), None
        self._catalog = connect(self.dsn)
        try:
            self._open()
        except BaseException:
            self._catalog.close()
            raise
        self._thread = threading.Thread(target=self._land, name="landing", daemon=True)
        self._thread.start()
        return self

    @property
    def catalog_pid(self) -> int:
        """The server process that describes relations."""
        return self._catalog.info.backend_pid

    def _open(self) -> None:
        slot.take_over(self._catalog, self.slot, self.application_name)
        self._open_stream(slot.resume_lsn(self._catalog, self.slot, self.log.watermark))

    def _open_stream(self, start: Lsn) -> None:
        self.reports.catalog = self._catalog
        decoder = Decoder(
            1,
            self._resolve,
            partial(catalog.leaves, self._catalog),
            self.log.schemas,
            self.copies.get,
            self._needs_copy,
            self._truncated,
            lambda root, leaves, since: self.sent_as_leaves.update(leaves),
            reporting=self.reports,
        )
        settings = StreamSettings(
            self.dsn,
            self.slot,
            self.publication,
            self.application_name,
            self.state,
            messages=self.messages,
            memory=self.memory,
            abandon=partial(shut, self._catalog),
        )
        resent = Resent(decoder, self.log.watermark, self.log.last_transaction(start))
        self.stream = ReplicationStream(settings, start, resent, self.stop)
        self.stream.__enter__()
        try:
            slot.require_not_ahead(self._catalog, self.slot, start)
        except BaseException:
            self.stream.__exit__(None, None, None)
            raise

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop.set()
        self.join()
        if error is None and self.error is not None:
            raise self.error

    def join(self, timeout_seconds: float = 60) -> None:
        """Wait for the end of the landing; its connection is closed then."""
        self._thread.join(timeout_seconds)
        assert not self._thread.is_alive(), "the landing did not end"

    def catch_up(self, timeout_seconds: float = 60) -> None:
        """Until everything committed so far is in the log."""
        with psycopg.connect(self.dsn) as connection:
            [(text,)] = connection.execute("select pg_current_wal_flush_lsn()").fetchall()
            # Something to stream, so that a position behind it arrives soon.
            connection.execute("select pg_logical_emit_message(true, 'pgstream', '')")
        target = Lsn.parse(text)

        def is_there() -> bool:
            if self.error is not None:
                raise self.error
            return self.log.watermark >= target

        until(is_there, seconds=timeout_seconds)

    @property
    def confirmed(self) -> Lsn:
        """What Postgres was told."""
        with psycopg.connect(self.dsn, autocommit=True) as connection:
            [(text,)] = connection.execute(
                "select confirmed_flush_lsn::text from pg_replication_slots where slot_name = %s",
                [self.slot],
            ).fetchall()
        return Lsn.parse(text)

    def _land(self) -> None:
        try:
            with self._catalog:
                self.landed = Landing(self.stream, self.log, self.log, self.policy).run()
        except BaseException as error:  # noqa: BLE001 - raised by the test's thread
            self.error = error
        finally:
            self.stream.__exit__(None, None, None)

    def _resolve(self, relation: Relation, newest: TableSchema | None, xid: int) -> Resolved:
        return catalog.resolve(self._catalog, 1, relation, newest, xid=xid)

    def _needs_copy(self, relation_id: int, since: Lsn, reason: str) -> None:
        self.requested.append((relation_id, since, reason))

    def _truncated(self, relation_id: int, xid: int, at: TransactionFields) -> None:
        self.truncated.append((relation_id, xid, Lsn(at.commit_lsn)))
