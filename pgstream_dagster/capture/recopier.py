"""
The recopier: copies tables that need it while the stream runs, without holding it up.

Which need it is determined (`due`) at every connect, once a minute, and where a stream is to end.

While the publication hides changes of a table that the log has, the stream ends with an error.
Tables that cannot be captured completely for another reason (a partition that is not logged, a lost
replica identity) are reported as long as that is so; such a reason ends with a change of the
catalog that requests a copy.

A TRUNCATE gives a table another file, too, but the stream has it and all that follows. So a table
that looks rewritten is copied only when the stream is past the moment of the check, and has not
reported by then that its file is a TRUNCATE's. That is a fact in the ledger then, as if the table
had been copied in that file.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Final, Self

import psycopg

from pgstream_dagster.capture.due import (
    REWRITTEN,
    SENT_AS_LEAF,
    due_copies,
    reads_otherwise,
    request_copy,
    requested_copies,
)
from pgstream_dagster.capture.table_names import TableNames
from pgstream_dagster.changelog.ledger import Ledger, PipelineIdentity
from pgstream_dagster.changelog.schema_log import SchemaLog
from pgstream_dagster.config.outbox_sink import EVENTS_TABLE
from pgstream_dagster.copy.copying import CopyProgress
from pgstream_dagster.copy.snapshot import copy_relations
from pgstream_dagster.delta import faults, jvm
from pgstream_dagster.errors import (
    CopiesDue,
    CopyRunning,
    JvmEnded,
    PgstreamError,
    PublicationIncomplete,
    PublicationMissing,
    Retry,
)
from pgstream_dagster.lsn import Lsn
from pgstream_dagster.pipeline import Pipeline
from pgstream_dagster.schema.table import TableSchema
from pgstream_dagster.source import schema_triggers
from pgstream_dagster.source.interrupt import ANSWER_SECONDS, Session, limited, session
from pgstream_dagster.source.prepare import unfit_tables
from pgstream_dagster.source.publication import (
    PublishedTable,
    limit_lock_waits,
    published,
    require_complete,
)
from pgstream_dagster.source.query import current_lsn, query
from pgstream_dagster.stop import Cancelled, Stop

logger = logging.getLogger(__name__)

AGAIN_SECONDS: Final = 10.0
"""After a copy failed: the reason (a lock, a full disk) seldom goes away at once."""

AFTER_FIX_SECONDS: Final = 300.0
"""The same when only a person can help."""

LASTING_SECONDS: Final = 60.0
"""After which a wait for others is reported, and no longer holds up a stream that is to end."""

LAST_ROUND_SECONDS: Final = 0.1
"""How long the landing waits at once for the last round, which mostly finds nothing to copy."""

SOON_SECONDS: Final = 1.0
"""Between checks of a table whose TRUNCATE the stream may yet report: it rarely lags by more."""


@dataclass(frozen=True, slots=True)
class Emptied:
    """By a TRUNCATE before `since` a table is in `file`, and all in that file came after it."""

    file: int
    since: Lsn


class _Waits:
    """For what copies wait, and since when: other copiers, or transactions to end."""

    def __init__(self) -> None:
        self._reason: str | None = None
        self._since = 0.0

    def begin(self, reason: str) -> None:
        """Or continue; a reason is logged when it begins."""
        if self._reason is None:
            self._since = time.monotonic()
        if reason != self._reason:
            logger.warning("copies wait: %s", reason)
        self._reason = reason

    def end(self) -> None:
        """Nothing is waited for any more."""
        self._reason = None

    def progress(self, progress: CopyProgress) -> None:
        """As a copy reports it."""
        if progress.waiting is None:
            self.end()
        else:
            self.begin(progress.waiting)

    @property
    def is_on(self) -> bool:
        """Whether something is waited for."""
        return self._reason is not None

    @property
    def lasting(self) -> str | None:
        """The reason of a wait that has lasted."""
        return self._reason if time.monotonic() - self._since >= LASTING_SECONDS else None


class Recopier:
    """
    A thread with its own connections; use as a context manager around the stream.

    After `stop` no copy begins, and one under way is cancelled.
    """

    def __init__(
        self, pipeline: Pipeline, identity: PipelineIdentity, stop: threading.Event
    ) -> None:
        self._pipeline, self._epoch = pipeline, identity.epoch
        self._publication: Final = identity.publication
        gateway = jvm.gateway(pipeline.jvm)
        self._ledger = Ledger(pipeline.lake, gateway)
        self._schema_log = SchemaLog(pipeline.lake, gateway)
        self._wake, self._closing, self._stop = threading.Event(), threading.Event(), Stop(stop)
        self._thread = threading.Thread(target=self._run, name="pgstream-recopier", daemon=True)
        self._failure: str | None = None
        self._waits = _Waits()
        self.unfit_tables: tuple[str, ...] | None = None
        """Why tables are not captured completely: a sentence per table; `None` before a check."""
        self._ended_by: BaseException | None = None
        self._ending, self._last_round_ended = threading.Event(), threading.Event()
        self._emptied: dict[int, Emptied] = {}
        self._rewritten: dict[int, tuple[Mapping[int, int], Lsn]] = {}
        self._unacknowledged: schema_triggers.Unacknowledged | None = None
        self.table_names = TableNames()
        self.watermark = Lsn(0)
        """How far the stream is: everything that committed before was reported here."""

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """
        End. A copy under way is cancelled after a stop or an error, and the next start makes it.

        A stream that reached its end waits for the copy: a pipeline that is only drained from time
        to time could never copy a large table otherwise.
        """
        self._closing.set()
        self._wake.set()
        if kind is not None or self.is_stopping:
            self.stop()
        self._thread.join()
        self._ledger.close()
        self._schema_log.close()

    def stop(self) -> None:
        """Cancel a copy under way, and begin no other."""
        self._stop.set()
        self._wake.set()

    @property
    def is_stopping(self) -> bool:
        """Whether no more copies begin."""
        return self._stop.is_set()

    @property
    def is_closing(self) -> bool:
        """Whether the stream has ended, so that only the copies are waited for."""
        return self._closing.is_set()

    @property
    def is_alive(self) -> bool:
        """Whether its thread has not ended."""
        return self._thread.is_alive()

    @property
    def failure(self) -> str | None:
        """Why the newest attempt failed, or does not get on; `None` after one that did not."""
        return self._failure or self._waits.lasting

    def request_copy(self, relation_id: int, since: Lsn, reason: str) -> None:
        """Request a copy from `since` or later; as `decoding.NeedsCopy`."""
        if since:
            request_copy(self._ledger, self._epoch, [relation_id], since, reason)
        self._wake.set()

    def emptied(self, relation_id: int, file: int, since: Lsn) -> None:
        """Remember a TRUNCATE that the stream reports, before it is landed."""
        self._emptied[relation_id] = Emptied(file, since)

    def sent_as_leaf(self, root: int, leaves: Collection[int], since: Lsn) -> None:
        """
        Request the copies that a table's time as a partition makes due; as `decoding.SentAsLeaf`.

        The tree has rows of it that may have gone with it, between two checks: not when the tree's
        copy lists it as a partition, for then the next check finds it missing. A table of its own,
        before and maybe after, lacks the changes that came under the tree's name; so does a tree of
        its own that was a part of this one, with the leaves that its copy lists.
        """
        copies = self._ledger.copies(self._epoch)
        requests = requested_copies(self._ledger, self._epoch)
        tree = copies.get(root)
        sheds_rows = tree is not None and tree.table == EVENTS_TABLE
        if tree is not None and not sheds_rows and {*leaves} - tree.versions.edges.keys():
            self.request_copy(root, since, REWRITTEN)
        for oid, copy in copies.items():
            if oid == root or {*leaves}.isdisjoint({oid, *copy.versions.edges}):
                continue
            request = requests.get(oid)
            if request is None or request.since <= copy.consistent_point:
                self.request_copy(oid, since, SENT_AS_LEAF)

    def check(self) -> None:
        """Compare the catalog with the ledger now, not at the next minute."""
        self._wake.set()

    def is_end(self, watermark: Lsn) -> bool:
        """
        Whether a stream that is to end may: what is due is copied, and it is past the copies.

        The first call begins the last round. What it could not copy, or what waits for others for
        long, is left to the next stream.
        """
        if not self._ending.is_set():
            self._ending.set()
            self._wake.set()
        if not self._last_round_ended.wait(LAST_ROUND_SECONDS):
            if self._waits.lasting is not None and not self.is_stopping:
                self.stop()
            return False
        copies = self._ledger.copies(self._epoch).values()
        return all(copy.consistent_point <= watermark for copy in copies)

    def require_complete(self, connection: Session) -> None:
        """
        Raise while the publication hides changes of what the log has.

        Raises:
            PublicationMissing, PublicationIncomplete
        """
        require_complete(connection, self._publication, self._copied())

    def require_copied(self) -> None:
        """
        Raise if the last round left tables that are due for a copy.

        Raises:
            CopiesDue
        """
        if (reason := self.failure) is not None:
            raise CopiesDue(reason)

    def require_alive(self) -> None:
        """Raise what ended the thread, if anything did: without it no table would be copied."""
        if self._ended_by is not None:
            raise self._ended_by

    def _run(self) -> None:
        try:
            self._work()
        except Cancelled:
            logger.info("stopped; tables that are due for a copy are copied after the next start")
        except BaseException as error:  # noqa: BLE001 - `require_alive` raises it in the stream
            self._ended_by = error
        finally:
            self._last_round_ended.set()

    def _work(self) -> None:
        patience: float | None = None  # nothing to do before the first connection
        while True:
            self._wake.wait(patience)
            self._wake.clear()
            self._stop.require()
            if self._closing.is_set():
                return
            is_last = self._ending.is_set()
            patience = self._patience_after_a_round()
            if is_last and not self._waits.is_on:
                self._last_round_ended.set()

    def _patience_after_a_round(self) -> float:
        """Copy what needs it; how long to wait then. A failure is logged, and tried again."""
        try:
            with faults.named(self._pipeline.lake.change_log):
                is_settled = self._round()
        except (PublicationMissing, PublicationIncomplete, JvmEnded):
            raise  # from here on the stream would land incomplete changes, or lands nothing
        except CopyRunning as error:
            self._waits.begin(str(error))
            return AGAIN_SECONDS
        except (PgstreamError, psycopg.OperationalError) as error:
            self._failure = str(error)
            self._waits.end()
            logger.warning("a table needs a copy: %s", error)
            needs_fix = isinstance(error, PgstreamError) and error.retry is Retry.AFTER_FIX
            return AFTER_FIX_SECONDS if needs_fix else AGAIN_SECONDS
        self._failure = None
        self._waits.end()
        return self._pipeline.config.capture.catalog_check_seconds if is_settled else SOON_SECONDS

    def _round(self) -> bool:
        """Copy what needs it; false when the stream may yet report that something does not."""
        with (
            session(self._pipeline.dsn, self._stop) as connection,
            limited(connection, ANSWER_SECONDS),
        ):
            self.require_complete(connection)
            limit_lock_waits(connection)
            self._warn_of_unfit(unfit_tables(self._pipeline, connection, self._copied()))
            history = self._schema_log.history(self._epoch)
            seen_at = current_lsn(connection)
            tables = published(connection, self._publication)
            self.table_names.read(tables, current_lsn(connection))
            self._acknowledge(connection)
            due = self._due(tables, history, seen_at)
            # At the end all TRUNCATEs before it were reported; a later one costs a copy.
            early = set() if self._ending.is_set() else self._too_early(connection, tables, due)
        due = {oid: reason for oid, reason in due.items() if oid not in early}
        for table in tables:
            if table.relation_id in due:
                logger.info("copying %s: %s", table.full_name, due[table.relation_id])
        if due:
            copy_relations(
                self._pipeline, list(due), on_progress=self._waits.progress, stop=self._stop
            )
        return not early

    def _acknowledge(self, connection: Session) -> None:
        """Mark in the source's schema_log what has landed since it was read in an earlier round."""
        triggers = schema_triggers.state(connection)
        if not triggers.is_installed or triggers.obstacle:
            return
        seen, watermark = self._unacknowledged, self.watermark
        if seen is None or schema_triggers.acknowledge(connection, seen, watermark):
            self._unacknowledged = schema_triggers.unacknowledged(connection)

    def _copied(self) -> Collection[int]:
        return self._ledger.copies(self._epoch).keys()

    def _warn_of_unfit(self, unfit: tuple[str, ...]) -> None:
        for sentence in unfit:
            if sentence not in (self.unfit_tables or ()):
                logger.warning("%s", sentence)
        self.unfit_tables = unfit

    def _due(
        self,
        tables: Sequence[PublishedTable],
        history: Iterable[tuple[Lsn, TableSchema]],
        seen_at: Lsn,
    ) -> dict[int, str]:
        """What needs a copy, after what needs none is in the ledger: a TRUNCATE's files, types."""
        copies = self._ledger.copies(self._epoch)
        for table in tables:
            copy, types = copies.get(table.relation_id), table.versions.types
            if copy is None or reads_otherwise(copy, table):
                continue  # a copy to come records them
            if types.keys() - copy.versions.types.keys():
                self._ledger.record_types(self._epoch, table.relation_id, types, seen_at)
        for table in tables:
            oid, members = table.relation_id, table.members
            copy, emptied = copies.get(oid), self._emptied.get(oid)
            if copy is None or emptied is None or copy.consistent_point >= emptied.since:
                continue
            if copy.members != members and members == {oid: emptied.file}:
                self._ledger.record_files(self._epoch, oid, members, emptied.since)
                copies[oid] = replace(copy, members=members)
        return due_copies(tables, copies, requested_copies(self._ledger, self._epoch), history)

    def _too_early(
        self, connection: Session, tables: Sequence[PublishedTable], due: Mapping[int, str]
    ) -> set[int]:
        """Tables that look rewritten, until the stream is past the first check of these files."""
        rewritten = {
            table.relation_id: table.members
            for table in tables
            if table.kind == "r" and due.get(table.relation_id) == REWRITTEN
        }
        seen = {
            oid: (members, position)
            for oid, (members, position) in self._rewritten.items()
            if members == rewritten.get(oid)
        }
        if new := rewritten.keys() - seen.keys():
            position = _passed_position(connection)
            seen |= {oid: (rewritten[oid], position) for oid in new}
        self._rewritten = seen
        return {oid for oid, (_, position) in seen.items() if self.watermark < position}


def _passed_position(connection: Session) -> Lsn:
    """A position after all that shows in the catalog now; the stream comes to land it soon."""
    query(connection, "source/pass_position")
    return current_lsn(connection)
