"""
Landing: complete transactions from a source into the change log, then the confirmation.

One thread runs it. It keeps these rules: only complete transactions are committed, in commit order,
and a transaction is never split over two commits; changes that the log already holds are dropped
from every batch; a position is confirmed to the source only after the commit that holds it is
durable, so `confirmed <= watermark` at every moment.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from pgstream_dagster.failpoints import reach
from pgstream_dagster.lsn import Lsn
from pgstream_dagster.schema.ddl import DdlEntry
from pgstream_dagster.schema.table import TableSchema

if TYPE_CHECKING:  # these import the JVM's libraries, which landing itself does not need
    from pgstream_dagster.changelog.log import Committed, LogWriter
    from pgstream_dagster.changelog.schema_log import SchemaLog


SchemaVersion: TypeAlias = tuple[TableSchema, Lsn] | DdlEntry
"""A version and the commit LSN it was first seen at, or the command on a table that made it."""


@dataclass(frozen=True, slots=True)
class DecodedBatch:
    """
    Decoded changes to land.

    `ends`: every transaction in it is complete. Otherwise it is a part of one large transaction
    that ends at `end_lsn`, and the parts that follow belong to the same one. `schemas` are versions
    that no earlier part had, in order.
    """

    changes: pa.Table
    end_lsn: Lsn
    ends: bool = True
    schemas: tuple[SchemaVersion, ...] = ()


@dataclass(frozen=True, slots=True)
class Keepalive:
    """Everything that committed before `wal_end` was in earlier parts."""

    wal_end: Lsn
    wants_reply: bool = False


@dataclass(frozen=True, slots=True)
class Ended:
    """The source was requested to stop; all its complete transactions were in earlier parts."""


Arrival: TypeAlias = DecodedBatch | Keepalive | Ended


class ChangeSource(Protocol):
    """What landing needs from a source."""

    def take(self, timeout_seconds: float) -> Arrival | None:
        """The next arrival, in commit order; `None` when nothing came in time."""
        ...

    def confirm(self, lsn: Lsn) -> None:
        """Every change before `lsn` is durable: the source may forget them."""
        ...


@dataclass(frozen=True, slots=True)
class FlushPolicy:
    """When waiting changes are committed, whichever comes first."""

    flush_seconds: float = 0.5  # since the last commit began; a quiet source is landed at once
    flush_rows: int = 65_536  # larger commits are not faster
    flush_bytes: int = 16 << 20
    idle_advance_seconds: float = 60.0  # between empty commits that only record a position


@dataclass(slots=True)
class Landed:
    """
    What a landing has done so far.

    `lag_seconds`: from the newest commit on the source (by its clock) until it was durable here.
    """

    watermark: Lsn
    version: int = -1
    rows: int = 0
    commits: int = 0
    lag_seconds: float = 0.0


Report: TypeAlias = Callable[[Landed], None]
"""Called after every commit, and a few times a second while nothing arrives."""

POLL_SECONDS: Final = 0.25
"""How long to wait for an arrival when nothing waits to be flushed; limits how late a stop, an
idle advance or the end is noticed."""


class Landing:
    """
    The state of a landing: the changes that wait for a commit, and when the last commit began.

    After a crash at any point, a new landing over the same log lands each change exactly once: what
    was committed is dropped when it arrives again, and what was not is sent again.
    """

    def __init__(
        self,
        source: ChangeSource,
        writer: LogWriter,
        schemas: SchemaLog,
        policy: FlushPolicy,
        report: Report = lambda landed: None,
        landed: Landed | None = None,
    ) -> None:
        self._source, self._writer, self._schemas = source, writer, schemas
        self._policy, self._report = policy, report
        self._tables: list[pa.Table] = []
        self._rows = self._bytes = 0
        self._end_lsn = writer.watermark  # up to here everything is in the log or in `_tables`
        self._last_commit = self._last_advance = -math.inf  # monotonic seconds
        self._committed_at = 0.0  # of the newest transaction received, seconds of Unix time
        self.landed = landed or Landed(writer.watermark)

    def run(
        self, *, until: Lsn | None = None, is_end: Callable[[Lsn], bool] = lambda _: True
    ) -> Landed:
        """
        Land until the source ends, or the watermark has reached `until` and then is an end.

        Raises:
            WriterReplaced: another writer has taken over the log.
            PgstreamError: whatever the source or the log raised; nothing incomplete was committed.
        """
        while until is None or self._writer.watermark < until or not is_end(self._writer.watermark):
            match self._source.take(self._patience()):
                case DecodedBatch() as batch if batch.ends:
                    self._gather(batch)
                case DecodedBatch() as batch:
                    self._flush()
                    self._land_large(batch)
                case Keepalive() as keepalive:
                    self._idle(keepalive, until)
                case Ended():
                    self._flush()
                    return self.landed
                case None:
                    self._report(self.landed)
            if self._is_due():
                self._flush()
        return self.landed

    def _patience(self) -> float:
        """How long the next arrival may take before a flush is due."""
        if not self._rows:
            return POLL_SECONDS
        since = time.monotonic() - self._last_commit
        return max(0.0, min(POLL_SECONDS, self._policy.flush_seconds - since))

    def _is_due(self) -> bool:
        if not self._rows:
            return False
        policy = self._policy
        return (
            self._rows >= policy.flush_rows
            or self._bytes >= policy.flush_bytes
            or time.monotonic() - self._last_commit >= policy.flush_seconds
        )

    def _gather(self, batch: DecodedBatch) -> None:
        self._schemas_first(batch)
        table = after(batch.changes, self._end_lsn)
        self._end_lsn = max(self._end_lsn, batch.end_lsn)
        if table.num_rows:
            self._committed_at = _committed_at(table)
            self._tables.append(table)
            self._rows += table.num_rows
            self._bytes += table.nbytes

    def _schemas_first(self, batch: DecodedBatch) -> None:
        """Make a version durable before the first row that refers to it."""
        if batch.schemas:
            self._schemas.append(batch.schemas)
            reach("land.schema")

    def _flush(self) -> None:
        if self._rows:
            self._commit([pa.concat_tables(self._tables)], self._end_lsn)

    def _commit(self, tables: Iterable[pa.Table], end_lsn: Lsn) -> None:
        self._last_commit = time.monotonic()
        committed = self._writer.commit(tables, end_lsn)
        self._tables, self._rows, self._bytes = [], 0, 0
        self._confirm(committed)

    def _confirm(self, committed: Committed) -> None:
        self._source.confirm(committed.end_lsn)
        landed = self.landed
        landed.watermark, landed.version = committed.end_lsn, committed.version
        landed.rows += committed.rows
        landed.commits += 1
        if committed.rows:
            landed.lag_seconds = max(0.0, time.time() - self._committed_at)
        self._report(landed)

    def _land_large(self, first: DecodedBatch) -> None:
        """Land one transaction of many parts: several files, one commit."""
        if first.end_lsn <= self._end_lsn:  # sent again, and already in the log
            for _ in self._changes_of(first):
                pass
            return
        self._end_lsn = first.end_lsn
        policy = self._policy
        tables = of_size(self._changes_of(first), policy.flush_rows, policy.flush_bytes)
        self._commit(tables, first.end_lsn)

    def _changes_of(self, first: DecodedBatch) -> Iterator[pa.Table]:
        """
        The changes of `first` and of the parts that follow, up to the end of the transaction.

        A part that was yielded is not held while waiting for the next one: it may be large.
        """
        batches, ends = [first], first.ends
        while True:
            self._schemas_first(batches[0])
            if batches[0].changes.num_rows:
                self._committed_at = _committed_at(batches[0].changes)
            yield batches.pop().changes
            self._report(self.landed)  # a heartbeat: one transaction may take long
            if ends:
                return
            batches, ends = self._next_batch()

    def _next_batch(self) -> tuple[list[DecodedBatch], bool]:
        """The next part of a large transaction, alone in a list, and whether it is the last."""
        while (arrival := self._source.take(POLL_SECONDS)) is None:
            self._report(self.landed)  # a heartbeat: the part may take long to come
        assert isinstance(arrival, DecodedBatch), f"{arrival} inside a large transaction"
        return [arrival], arrival.ends

    def _idle(self, keepalive: Keepalive, until: Lsn | None) -> None:
        """Record a position without changes: rarely, but at once if the caller or source waits."""
        if keepalive.wal_end == self._writer.watermark:
            self._source.confirm(keepalive.wal_end)  # after a connect the slot is behind the log
            return
        is_urgent = keepalive.wants_reply or (until is not None and keepalive.wal_end >= until)
        since = time.monotonic() - self._last_advance
        if not is_urgent and (self._rows or since < self._policy.idle_advance_seconds):
            return
        self._flush()
        if keepalive.wal_end <= self._writer.watermark:
            return
        committed = self._writer.advance(keepalive.wal_end)
        reach("idle.committed")
        self._end_lsn = max(self._end_lsn, keepalive.wal_end)
        self._last_advance = time.monotonic()
        self._confirm(committed)


def after(changes: pa.Table, watermark: Lsn) -> pa.Table:
    """The changes of transactions that end after `watermark`; the same table when all do."""
    if not changes.num_rows:
        return changes
    ends = changes.column("end_lsn")
    if pc.min(ends).as_py() > watermark:
        return changes
    return changes.filter(pc.greater(ends, pa.scalar(int(watermark), pa.int64())))


def _committed_at(changes: pa.Table) -> float:
    return float(changes.column("committed_at")[-1].value) / 1e6


def of_size(tables: Iterable[pa.Table], row_count: int, byte_count: int) -> Iterator[pa.Table]:
    """The same rows in the same order, in tables of at least this size, except for the last."""
    waiting: list[pa.Table] = []
    rows = size = 0
    for table in tables:
        waiting.append(table)
        rows, size = rows + table.num_rows, size + table.nbytes
        del table  # hold only what waits
        if rows >= row_count or size >= byte_count:
            yield pa.concat_tables(waiting)
            waiting, rows, size = [], 0, 0
    if rows:
        yield pa.concat_tables(waiting)
