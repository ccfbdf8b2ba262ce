"""
The change log: the watermark and the rows it covers, always in one commit.

The watermark of an epoch is the Delta transaction id of app `<pipeline>/<epoch>`; the consistent
point of a copy is that of `<pipeline>/<epoch>/copy/<oid>`. Each commit is made only if the id it
builds on is the one this writer last saw. So a second writer, or one that was suspended while
another replaced it, ends with an error and writes nothing.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

import pyarrow as pa
from py4j.java_gateway import JavaGateway

from pgstream_dagster.changelog.lake import Lake
from pgstream_dagster.changelog.newest import last_transaction
from pgstream_dagster.delta import parquet
from pgstream_dagster.delta.delta_table import Condition, DeltaTable, TransactionIds
from pgstream_dagster.delta.parquet import DataFile
from pgstream_dagster.errors import CopyOvertaken, NotSetUp, TableMissing, WriterReplaced
from pgstream_dagster.failpoints import reach
from pgstream_dagster.lsn import Lsn
from pgstream_dagster.schema import layout
from pgstream_dagster.wire.messages import TransactionFields


@dataclass(frozen=True, slots=True)
class Committed:
    """One commit that is durable."""

    version: int
    rows: int
    files: int
    bytes: int
    end_lsn: Lsn


def landing_app(pipeline: str, epoch: int) -> str:
    """The app id whose transaction version is the watermark of an epoch."""
    return f"{pipeline}/{epoch}"


def copy_app(pipeline: str, epoch: int, relation_id: int) -> str:
    """The app id whose transaction version is the consistent point of a relation's newest copy."""
    return f"{pipeline}/{epoch}/copy/{relation_id}"


class ChangeLog:
    """
    The log of one pipeline: its watermarks, its copies, its writers. Threads may share it.

    Raises `NotSetUp` wherever it needs the table and the lake has none.
    """

    def __init__(self, lake: Lake, pipeline: str, gateway: JavaGateway) -> None:
        self._lake, self._pipeline, self._gateway = lake, pipeline, gateway
        self._opened: DeltaTable | None = None
        self._lock = threading.RLock()

    @property
    def log_id(self) -> str:
        """What distinguishes this log from every other; it is the same after a restore."""
        with self._lock:
            return self._table().table_id

    def watermark(self, epoch: int) -> Lsn | None:
        """Every change of the epoch up to here is durable in the log; `None`: not started."""
        return self._newest(landing_app(self._pipeline, epoch))

    def newest_copy(self, epoch: int, relation_id: int) -> Lsn | None:
        """The consistent point of the newest copy of a relation that is in the log."""
        return self._newest(copy_app(self._pipeline, epoch, relation_id))

    def start(self, epoch: int, watermark: Lsn, rows: pa.Table | None = None) -> Committed:
        """
        Commit the first watermark of an epoch, with `rows` (gaps) if there are any.

        Raises:
            WriterReplaced: the epoch, or the one after it, has a watermark.
        """
        with self._lock:
            app = landing_app(self._pipeline, epoch)
            table = self._table()
            files = written_files([] if rows is None else [rows], table.uri)
            version = table.append(
                files,
                transaction_id=(app, watermark),
                condition=_is_still(None, self._pipeline, epoch),
            )
            return committed(version, files, watermark)

    def writer(self, epoch: int) -> LogWriter:
        """
        A writer that continues from the stored watermark.

        Raises:
            NotSetUp: the epoch has none.
        """
        table = self._open(lambda: reach("land.post_commit"))
        stored = table.transaction_id(landing_app(self._pipeline, epoch))
        if stored is None:
            raise NotSetUp(self._pipeline, self._lake.root)
        return LogWriter(table, self._pipeline, epoch, Lsn(stored))

    def append_copy(
        self,
        files: Sequence[DataFile],
        *,
        epoch: int,
        relation_id: int,
        consistent_point: Lsn,
        table: str,
    ) -> int:
        """
        Commit all files of a copy, including its marker, at once; the commit's version.

        Syncs the files first. `table` names the relation in messages.

        Raises:
            CopyOvertaken: a copy from the same or a later point is in the log.
        """
        app = copy_app(self._pipeline, epoch, relation_id)

        def condition(ids: TransactionIds) -> None:
            newest = ids(app)
            if newest is not None and newest >= consistent_point:
                raise CopyOvertaken(table, consistent_point, Lsn(newest))
            _is_newest_epoch(ids, self._pipeline, epoch)

        parquet.sync(*files)
        reach("copy.files")
        with self._lock:
            version = self._table().append(
                files, transaction_id=(app, consistent_point), condition=condition
            )
        reach("copy.committed")
        return version

    def close(self) -> None:
        """Wait for the checksums and checkpoints of its own commits (not of its writers')."""
        with self._lock:
            if self._opened is not None:
                self._opened.close()

    def _newest(self, app: str) -> Lsn | None:
        with self._lock:
            table = self._table()
            table.refresh()
            stored = table.transaction_id(app)
        return None if stored is None else Lsn(stored)

    def _table(self) -> DeltaTable:
        if self._opened is None:
            self._opened = self._open()
        return self._opened

    def _open(self, after_post_commit: Callable[[], None] | None = None) -> DeltaTable:
        try:
            return DeltaTable(
                self._lake.change_log, self._gateway, after_post_commit=after_post_commit
            )
        except TableMissing as error:
            raise NotSetUp(self._pipeline, self._lake.root) from error


class LogWriter:
    """The writer of one epoch; one thread uses it."""

    def __init__(self, table: DeltaTable, pipeline: str, epoch: int, watermark: Lsn) -> None:
        self.watermark = watermark
        self._table, self._pipeline, self._epoch = table, pipeline, epoch
        self._has_tried = False
        self._unanswered: tuple[int, Lsn] | None = None
        """A commit whose answer was lost: the version it was tried on, and its watermark."""

    def commit(self, tables: Iterable[pa.Table], end_lsn: Lsn) -> Committed:
        """
        Append whole transactions, the last of which ends at `end_lsn`; one file per Arrow table.

        Durable when it returns: data, log entry and their names are synced, so the position may be
        confirmed to Postgres. After an error the log holds all of it or nothing; `require_current`
        determines which.

        Raises:
            WriterReplaced: the log's watermark is not the one this writer left.
            CommitFailed: the lake cannot be written now, or the answer was lost.
        """
        if end_lsn <= self.watermark:
            raise ValueError(f"a commit up to {end_lsn}, and the watermark is {self.watermark}")
        return self._append(written_files(tables, self._table.uri), end_lsn)

    def advance(self, lsn: Lsn) -> Committed:
        """Record that nothing was committed up to `lsn`; no-op if the watermark is there."""
        if lsn <= self.watermark:
            return committed(self._table.version, [], self.watermark)
        return self._append([], lsn)

    def require_current(self) -> None:
        """
        Check that the log is as this writer left it, without writing.

        A writer that has not tried to write continues from the newest watermark. A commit of its
        own whose answer was lost counts if it is in the log.

        Raises:
            WriterReplaced: another writer has committed since.
        """
        self._table.refresh()
        app = landing_app(self._pipeline, self._epoch)
        if not self._has_tried:
            self.watermark = Lsn(self._table.transaction_id(app) or self.watermark)
        if self._unanswered is not None:
            version, end_lsn = self._unanswered
            if self._table.made_since(version, (app, end_lsn)):
                self.watermark = end_lsn
            self._unanswered = None
        _is_still(self.watermark, self._pipeline, self._epoch)(self._table.transaction_id)

    def last_transaction(self, since: Lsn) -> TransactionFields | None:
        """As `newest.last_transaction`; reads nothing if nothing can be at or after `since`."""
        if since >= self.watermark:
            return None
        table = self._table
        return last_transaction(table.uri, table.files(), epoch=self._epoch, since=since)

    def require_whole(self) -> None:
        """As `DeltaTable.require_whole`: for a source whose position is ahead of the watermark."""
        self._table.require_whole()

    def close(self) -> None:
        """Wait for checksums and checkpoints. Idempotent."""
        self._table.close()

    def _append(self, files: Sequence[DataFile], end_lsn: Lsn) -> Committed:
        self._has_tried, self._unanswered = True, (self._table.version, end_lsn)
        try:
            version = self._table.append(
                files,
                transaction_id=(landing_app(self._pipeline, self._epoch), end_lsn),
                condition=_is_still(self.watermark, self._pipeline, self._epoch),
                written=lambda: reach("land.commit"),
            )
        except WriterReplaced:
            self.require_current()  # a store that retries by itself may find our own commit
            version = self._table.version
        self.watermark, self._unanswered = end_lsn, None
        reach("land.committed")
        return committed(version, files, end_lsn)


def written_files(tables: Iterable[pa.Table], folder: str) -> list[DataFile]:
    """Each table that has rows as one synced file, stamped with the time of its landing."""
    files: list[DataFile] = []
    try:
        for table in tables:
            if table.num_rows:
                files.append(parquet.write(_landed(table), folder))
                reach("land.file")
            del table  # it may be large: free it before the next one is made
        parquet.sync(*files)
    except BaseException:  # else every attempt would leave less room on a full disk
        for file in files:
            parquet.discard(file.path)
        raise
    if files:
        reach("land.sync")
    return files


def _landed(table: pa.Table) -> pa.Table:
    now = pa.repeat(pa.scalar(datetime.now(UTC), layout.INSTANT), table.num_rows)
    index = table.schema.get_field_index("landed_at")
    return table.set_column(index, "landed_at", now).cast(layout.CHANGES)


def committed(version: int, files: Sequence[DataFile], end_lsn: Lsn) -> Committed:
    """What a commit of these files was."""
    return Committed(
        version=version,
        rows=sum(file.rows for file in files),
        files=len(files),
        bytes=sum(file.size for file in files),
        end_lsn=end_lsn,
    )


def _is_still(watermark: Lsn | None, pipeline: str, epoch: int) -> Condition:
    """The compare of compare-and-set."""
    app = landing_app(pipeline, epoch)

    def condition(ids: TransactionIds) -> None:
        stored = ids(app)
        if stored != watermark:
            raise WriterReplaced(app, watermark, None if stored is None else Lsn(stored))
        _is_newest_epoch(ids, pipeline, epoch)

    return condition


def _is_newest_epoch(ids: TransactionIds, pipeline: str, epoch: int) -> None:
    later = landing_app(pipeline, epoch + 1)
    stored = ids(later)
    if stored is not None:
        raise WriterReplaced(later, None, Lsn(stored))
