"""
The copier: tables out of a snapshot into the log, each in one commit under its marker.

A table is copied completely or not at all. What prevents the copy of one table (a rewrite, a lock,
a lost snapshot) does not affect the others; the tables left are tried again from a new snapshot, at
a later consistent point, which their markers make correct.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable, Collection, Generator, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Final, Self, TypeAlias

from pgstream_dagster.changelog import markers
from pgstream_dagster.changelog.ledger import CopyRecord, Ledger
from pgstream_dagster.changelog.log import ChangeLog
from pgstream_dagster.changelog.schema_log import SchemaLog
from pgstream_dagster.copy import scan
from pgstream_dagster.copy.scan import ScanProgress
from pgstream_dagster.delta import jvm, parquet
from pgstream_dagster.delta.parquet import DataFile
from pgstream_dagster.errors import (
    ConnectionLost,
    CopyOvertaken,
    CopyRunning,
    PgstreamError,
    Retry,
    SnapshotLost,
)
from pgstream_dagster.failpoints import reach
from pgstream_dagster.lsn import Lsn
from pgstream_dagster.pipeline import Pipeline
from pgstream_dagster.schema.table import TableSchema
from pgstream_dagster.schema.versions import Versions
from pgstream_dagster.source.catalog import describe
from pgstream_dagster.source.connect import connect
from pgstream_dagster.source.interrupt import ANSWER_SECONDS, Session, limited, session
from pgstream_dagster.source.origin import mark
from pgstream_dagster.source.publication import (
    LOCK_SECONDS,
    PublishedTable,
    limit_lock_waits,
    published,
)
from pgstream_dagster.source.query import query
from pgstream_dagster.source.snapshot import Guard, Snapshot, exported, waited_for
from pgstream_dagster.stop import Stop

logger = logging.getLogger(__name__)

WAITS_SECONDS: Final = (1.0, 2.0, 4.0, 8.0, 16.0)
"""Before each further attempt on the tables left. With the guard's own waits for locks that is a
minute and a half; then the caller decides by the reason."""

SNAPSHOT_SECONDS: Final = 20.0
"""After which no other table begins from a snapshot: it holds back VACUUM and CREATE INDEX
CONCURRENTLY on the source. A new one waits for older transactions, so it serves many small ones."""

POLL_SECONDS: Final = 1.0


@dataclass(frozen=True, slots=True)
class Copied:
    """One table's copy that is in the log; `schema`: the version of its rows."""

    table: str
    schema: TableSchema
    rows: int
    consistent_point: Lsn
    version: int
    seconds: float


@dataclass(frozen=True, slots=True)
class CopyProgress:
    """
    How far a run of copies is.

    `estimated_rows` has the rows of tables that are done, and the catalog's estimate of the others.
    `running` has the tables being read now; `waiting` what it waits for, if anything.
    """

    tables_done: int
    tables: int
    rows: int
    estimated_rows: int
    running: tuple[ScanProgress, ...] = ()
    waiting: str | None = None

    @property
    def line(self) -> str:
        """One line for people."""
        if self.waiting is not None:
            return f"waiting: {self.waiting}"
        reading = ", ".join(
            f"{p.table} {p.rows:,} rows ({p.tasks_done} of {p.tasks} tasks)" for p in self.running
        )
        return (
            f"copied {self.tables_done:,} of {self.tables:,} tables, {self.rows:,} of about"
            f" {self.estimated_rows:,} rows" + (f"; reading {reading}" if reading else "")
        )


OnProgress: TypeAlias = Callable[[CopyProgress], None]
"""Called from several threads, one at a time; must return quickly."""


def silent(_: CopyProgress) -> None:
    """Report nothing."""


class Copier:
    """Copies tables of one pipeline and epoch; threads may share it."""

    def __init__(
        self,
        pipeline: Pipeline,
        ledger: Ledger,
        log: ChangeLog,
        *,
        epoch: int,
        publication: str,
        on_progress: OnProgress = silent,
        stop: Stop | None = None,
    ) -> None:
        self._pipeline, self._epoch, self._publication = pipeline, epoch, publication
        self._ledger, self._log = ledger, log
        self._schema_log = SchemaLog(pipeline.lake, jvm.gateway(pipeline.jvm))
        self._rules = pipeline.source_rules()
        self._tally = _Tally(on_progress)
        self._stop = stop or Stop()
        self._before: Mapping[int, Versions] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()

    def close(self) -> None:
        """Wait for the work that follows its commits; the ledger and the log are the caller's."""
        self._schema_log.close()

    def tables(self) -> list[PublishedTable]:
        """As `published_now`."""
        return published_now(self._pipeline.dsn, self._publication, self._stop)

    def without_copy(self) -> list[int]:
        """
        Published relations that have no copy in the log and the ledger.

        A copy that only the log has is made again: what the table was then is unknown.
        """
        recorded = self._ledger.copies(self._epoch)
        return [
            table.relation_id
            for table in self.tables()
            if (record := recorded.get(table.relation_id)) is None
            or self._log.newest_copy(self._epoch, table.relation_id) != record.consistent_point
        ]

    def copy(
        self,
        relation_ids: Collection[int],
        first: Snapshot | None = None,
        listed: Sequence[PublishedTable] | None = None,
    ) -> list[Copied]:
        """
        Copy these relations, from snapshot `first` if given; one no longer published is left out.

        `listed`: what `tables` has just returned to the caller, if it has.

        Without it they are copied in groups, the small ones first, and each group has a snapshot
        of its own: no table begins from one older than `SNAPSHOT_SECONDS`, so that VACUUM and
        CREATE INDEX CONCURRENTLY are held up by one group only. A table that cannot be copied now
        is tried again from a new snapshot, and does not prevent the copies of the others.

        Raises:
            PgstreamError: the first reason why a table was left, the others in its notes.
            Cancelled: asked to stop; a table whose copy was under way has nothing of it in the log.
        """
        run = _Run(set(relation_ids))
        listed = self.tables() if listed is None else listed
        self._tally.begin([t for t in listed if t.relation_id in run.left])
        if first is not None:
            logger.info(
                "copying %d tables from one snapshot: until all are copied, the source keeps the"
                " WAL of the slot while no stream runs, and VACUUM removes no row that is newer",
                len(run.left),
            )
            run.attempt(lambda: self._round(first, run, math.inf))
        self._in_groups(run, listed if first is None else None)
        for wait in WAITS_SECONDS:
            if not run.left:
                break
            logger.warning("copying again: %s", "; ".join(run.reasons()))
            self._stop.sleep(wait)
            run.begin_again()
            self._in_groups(run)
        run.raise_first()
        return run.copied

    @contextmanager
    def exported(
        self, slot: str | None = None, listed: Sequence[PublishedTable] | None = None
    ) -> Generator[Snapshot]:
        """
        As `snapshot.exported`; a long wait is reported as progress.

        A transaction that begins during that wait may commit after the snapshot, and decoding reads
        the catalog as its changes saw it. So versions are those from before the wait: `listed`, or
        those of now.
        """
        before = {t.relation_id: t.versions for t in (self.tables() if listed is None else listed)}
        on_wait = self._tally.wait_for_transactions
        dsn = self._pipeline.dsn
        with exported(dsn, slot=slot, failover=True, on_wait=on_wait, stop=self._stop) as snapshot:
            self._before = before
            mark(self._pipeline, self._ledger, self._epoch, is_first=slot is not None)
            yield snapshot

    def _in_groups(self, run: _Run, listed: Sequence[PublishedTable] | None = None) -> None:
        """Try every table left that has not failed once, group by group; `listed` serves one."""
        while run.untried:
            run.attempt(partial(self._from_new_snapshot, run, listed))
            listed = None

    def _from_new_snapshot(self, run: _Run, listed: Sequence[PublishedTable] | None) -> None:
        with self.exported(listed=listed) as snapshot:
            self._round(snapshot, run, time.monotonic() + SNAPSHOT_SECONDS)

    def _round(self, snapshot: Snapshot, run: _Run, deadline: float) -> None:
        """Try tables from one snapshot, the first ones at least, until the deadline."""
        published_now = self.tables()
        run.keep({table.relation_id for table in published_now})
        tables = [table for table in published_now if table.relation_id in run.untried]
        tables.sort(key=lambda table: table.pages)
        parallel = self._pipeline.config.copying.parallel
        at_once = {table.relation_id for table in tables[:parallel]}
        lost = threading.Event()

        def attempt(table: PublishedTable) -> Copied | PgstreamError | _Later | None:
            if table.relation_id not in at_once and time.monotonic() >= deadline:
                return _Later()
            if lost.is_set():
                return SnapshotLost(snapshot.name)
            try:
                return self._copy(table, snapshot)
            except CopyOvertaken as error:
                logger.info("%s", error)
                return None
            except PgstreamError as error:
                if isinstance(error, SnapshotLost):
                    lost.set()
                self._tally.stopped(table)
                return error

        with ThreadPoolExecutor(parallel, thread_name_prefix="pgstream-table") as pool:
            outcomes = pool.map(attempt, tables)
            for table, outcome in zip(tables, outcomes, strict=True):
                if not isinstance(outcome, _Later):
                    run.settle(table.relation_id, outcome)

    def _copy(self, table: PublishedTable, snapshot: Snapshot) -> Copied:
        """One table: lock it, read it, commit all of it at once, record what it was."""
        self._stop.require()
        began, oid, point = time.monotonic(), table.relation_id, snapshot.consistent_point
        newest = self._log.newest_copy(self._epoch, oid)
        if newest is not None and newest >= point:
            raise CopyOvertaken(table.full_name, point, newest)
        read = self._read(table, snapshot)
        payload = "first" if newest is None else "again"
        marker = markers.copy(read.schema, point, snapshot.taken_at_us, payload)
        marked = parquet.write(markers.rows_table([marker]), self._pipeline.lake.change_log)
        self._schema_log.append([(read.schema, point)])
        version = self._log.append_copy(
            [marked, *read.files],
            epoch=self._epoch,
            relation_id=oid,
            consistent_point=point,
            table=table.full_name,
        )
        record = copy_record(point, table, read.members, read.versions)
        self._ledger.record_copy(self._epoch, oid, record)
        reach("copy.recorded")
        rows = sum(file.rows for file in read.files)
        self._tally.done(table, rows)
        seconds = time.monotonic() - began
        return Copied(table.full_name, read.schema, rows, point, version, seconds)

    def _read(self, table: PublishedTable, snapshot: Snapshot) -> _Read:
        """The rows of one table as a snapshot shows them, under a lock against rewrites."""
        pipeline, stop, oid = self._pipeline, self._stop, table.relation_id
        with (
            session(pipeline.dsn, stop) as catalog,
            Guard(pipeline.dsn, snapshot, stop) as guard,
        ):
            limit_lock_waits(catalog)  # as in `pinned`: the guard holds the table's lock
            members = guard.hold(table, catalog, wait_seconds=LOCK_SECONDS)
            versions = self._before.get(oid) or guard.versions(table, self._publication)
            reach("copy.guard")
            schema = describe(catalog, self._epoch, oid, table.columns)
            ranges, memory = pipeline.config.copying.ranges, pipeline.memory
            rules = self._rules.knowing(self._schema_log.named_versions((self._epoch, oid)))
            planned = scan.plan(
                catalog, table, schema, snapshot, ranges=ranges, memory=memory, rules=rules
            )
            files = scan.run(
                lambda: jvm.spark(pipeline.jvm),
                pipeline.dsn,
                planned,
                pipeline.lake.change_log,
                on_progress=self._tally.reading,
                stop=stop,
            )
            guard.require_alive()
            stop.require()
        return _Read(planned.schema, files, members, versions)


def published_now(dsn: str, publication: str, stop: Stop) -> list[PublishedTable]:
    """As `published`, in a session of its own that waits for neither locks nor answers for long."""
    with session(dsn, stop) as catalog, limited(catalog, ANSWER_SECONDS):
        limit_lock_waits(catalog)
        return published(catalog, publication)


def copy_record(
    point: Lsn, table: PublishedTable, members: Mapping[int, int], versions: Versions
) -> CopyRecord:
    """What the ledger keeps of a table's copy, whose rows were in the files of `members`."""
    return CopyRecord(
        consistent_point=point,
        members=members,
        attnums=table.attnums,
        newest_attnum=table.newest_attnum,
        row_filter=table.row_filter,
        table=table.full_name,
        versions=versions,
    )


@contextmanager
def only_copier(
    pipeline: Pipeline, *, wait: bool, on_progress: OnProgress, stop: Stop | None = None
) -> Generator[None]:
    """
    One process at a time copies tables of a pipeline: a lock on the source, gone with our session.

    Two would not harm the log (the later copy wins) but read every table twice.

    Raises:
        CopyRunning: another one does, and `wait` is false.
        Cancelled: asked to stop while it waits.
    """
    stop = stop or Stop()
    with closing(connect(pipeline.dsn, application_name="pgstream copier")) as lock:
        while (holder := _locked_by_other(lock, pipeline.name)) is not None:
            if not wait:
                raise CopyRunning(pipeline.name, holder)
            reason = f"server process {holder} copies tables of this pipeline"
            on_progress(CopyProgress(0, 0, 0, 0, waiting=reason))
            stop.sleep(POLL_SECONDS)
        yield
        _release(lock, pipeline.name)


def _release(lock: Session, pipeline: str) -> None:
    """
    Release the lock now: a server process ends some time after its session is closed.

    After an error, and where the session is lost by now, its end releases the lock.
    """
    with suppress(ConnectionLost):
        query(lock, "source/copier_unlock", pipeline=pipeline)


def _locked_by_other(lock: Session, pipeline: str) -> int | None:
    """Take the lock, or the server process that has it."""
    [(holder,)] = query(lock, "source/copier_lock", pipeline=pipeline)
    return holder


@dataclass(frozen=True, slots=True)
class _Read:
    """One table's rows in files, the storage they were in, and the versions of its catalog rows."""

    schema: TableSchema
    files: list[DataFile]
    members: Mapping[int, int]
    versions: Versions


class _Later:
    """A table that is left to the next group."""


@dataclass(slots=True)
class _Run:
    """What is left to copy, and why what was tried is not copied."""

    left: set[int]
    copied: list[Copied] = field(default_factory=list[Copied])
    failures: dict[int, PgstreamError] = field(default_factory=dict[int, PgstreamError])

    @property
    def untried(self) -> set[int]:
        """What is left and has not failed."""
        return self.left - self.failures.keys()

    def begin_again(self) -> None:
        """Forget why tables are left."""
        for relation_id in self.left:
            self.failures.pop(relation_id, None)

    def settle(self, relation_id: int, outcome: Copied | PgstreamError | None) -> None:
        """Record the outcome of one table; `None`: it needs no copy any more."""
        self.failures.pop(relation_id, None)
        if isinstance(outcome, PgstreamError):
            self.failures[relation_id] = outcome
            if outcome.retry is Retry.LATER:
                return
        elif outcome is not None:
            self.copied.append(outcome)
        self.left.discard(relation_id)

    def attempt(self, step: Callable[[], None]) -> None:
        """Run `step`; an error that may pass is the reason of every table that is left."""
        try:
            step()
        except PgstreamError as error:
            if error.retry is not Retry.LATER:
                raise
            self.failures.update(dict.fromkeys(self.left, error))

    def keep(self, relation_ids: Collection[int]) -> None:
        """Forget the relations that are not among these: dropped, or no longer published."""
        for relation_id in self.left.difference(relation_ids):
            self.settle(relation_id, None)

    def reasons(self) -> list[str]:
        """Why tables are left, each reason once."""
        return sorted({str(self.failures[oid]) for oid in self.left if oid in self.failures})

    def raise_first(self) -> None:
        """Raise the first failure, if any: one that needs a fix before one that may pass."""
        failures = sorted(self.failures.values(), key=lambda error: error.retry is Retry.LATER)
        if failures:
            for other in {str(error) for error in failures[1:]} - {str(failures[0])}:
                failures[0].add_note(other)
            raise failures[0]


class _Tally:
    """Adds up what the threads of a run report."""

    def __init__(self, on_progress: OnProgress) -> None:
        self._on_progress = on_progress
        self._lock = threading.Lock()
        self._running: dict[str, ScanProgress] = {}
        self._left: dict[str, int] = {}  # estimated rows of the tables that are not done
        self._tables_done = self._rows = 0

    def begin(self, tables: Iterable[PublishedTable]) -> None:
        with self._lock:
            self._left |= {table.full_name: table.estimated_rows for table in tables}
            self._report()

    def reading(self, progress: ScanProgress) -> None:
        with self._lock:
            self._running[progress.table] = progress
            self._report()

    def stopped(self, table: PublishedTable) -> None:
        with self._lock:
            self._running.pop(table.full_name, None)

    def done(self, table: PublishedTable, rows: int) -> None:
        with self._lock:
            self._running.pop(table.full_name, None)
            self._left.pop(table.full_name, None)
            self._tables_done += 1
            self._rows += rows
            self._report()

    def wait_for_transactions(self, pids: list[int]) -> None:
        with self._lock:
            self._report(f"for {waited_for(pids)}")

    def _report(self, waiting: str | None = None) -> None:
        running = tuple(self._running.values())
        read = {progress.table: progress.rows for progress in running}
        rows = self._rows + sum(read.values())
        left = sum(max(0, count - read.get(name, 0)) for name, count in self._left.items())
        self._on_progress(
            CopyProgress(
                self._tables_done,
                self._tables_done + len(self._left),
                rows,
                rows + left,
                running,
                waiting,
            )
        )
