"""
Exported snapshots, sessions pinned to them, and the guard of a table that is being copied.

A slot exports its snapshot only as long as the session that made it stays idle. A holder session
imports it at once and exports it again, so that the walsender (and a temporary slot, which would
keep WAL) can end. MVCC alone does not make a pinned scan correct: after a rewrite of the table it
sees nothing, without an error. So a guard locks the table against rewrites and then compares the
snapshot's catalog with the catalog now.

Source:
    https://www.postgresql.org/docs/current/sql-set-transaction.html (SET TRANSACTION SNAPSHOT)
"""

from __future__ import annotations

import os
import secrets
import threading
from collections.abc import Callable, Collection, Generator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from types import TracebackType
from typing import Final, Self, TypeAlias

import psycopg
from psycopg import sql

from pgstream_dagster.errors import (
    ConnectionLost,
    LocksHeld,
    SnapshotLost,
    TableLocked,
    TableRewritten,
    transactions_of,
)
from pgstream_dagster.lsn import Lsn
from pgstream_dagster.schema.versions import Versions
from pgstream_dagster.source import slot as slots
from pgstream_dagster.source.connect import Session, connect, named_errors, replication
from pgstream_dagster.source.interrupt import interruptible
from pgstream_dagster.source.publication import (
    LOCK_SECONDS,
    PublishedTable,
    limit_lock_waits,
    versions,
)
from pgstream_dagster.source.query import query
from pgstream_dagster.stop import Stop

SLOW_SECONDS: Final = 5.0
"""After which a wait for older transactions is reported, and reported again."""

NO_SNAPSHOT: Final = (
    psycopg.errors.InvalidParameterValue,  # up to 17: no file of that name
    psycopg.errors.UndefinedObject,  # from 18 on
    psycopg.errors.ObjectNotInPrerequisiteState,  # the exporting session is just ending
)


@dataclass(frozen=True, slots=True)
class Snapshot:
    """
    Everything that committed before `consistent_point`, and nothing else.

    Other sessions import `name`, as long as the holder lives.
    """

    name: str
    consistent_point: Lsn
    taken_at_us: int


OnWait: TypeAlias = Callable[[list[int]], None]
"""Takes the server processes whose transactions must end before a snapshot can be taken; 0 stands
for a prepared transaction, which has no process."""


@contextmanager
def exported(
    dsn: str,
    *,
    slot: str | None = None,
    failover: bool = False,
    on_wait: OnWait | None = None,
    stop: Stop | None = None,
) -> Generator[Snapshot]:
    """
    A snapshot with its consistent point, importable until the block ends.

    `slot` names the permanent slot to create, which will stream what commits after the consistent
    point; without it, a temporary slot is used, which is gone before the block begins. Waits until
    every transaction of the server that is writing now has ended; another thread reports a long
    wait to `on_wait`.

    Raises:
        SlotForeign, PreflightFailed, AccessRefused, Unreachable, ConnectionLost
        Cancelled: `stop` was set before the snapshot was there; no slot is left behind.
    """
    walsender = replication(dsn)
    try:
        with interruptible(walsender, stop), _watched(dsn, walsender.backend_pid, on_wait):
            made = slots.create(
                walsender, slot or _temporary(), temporary=slot is None, failover=failover
            )
        holder = pinned(dsn, made.snapshot)
    finally:
        walsender.finish()
    with closing(holder):
        [(name, taken_at_us)] = query(holder, "source/snapshot_export")
        yield Snapshot(name, made.consistent_point, taken_at_us)


def waited_for(pids: Collection[int]) -> str:
    """What a snapshot waits for, for a message; as `OnWait` gets it."""
    return f"older transactions to end ({transactions_of(pids)})"


@contextmanager
def _watched(dsn: str, pid: int, on_wait: OnWait | None) -> Generator[None]:
    """Report to `on_wait`, every `SLOW_SECONDS`, which processes server process `pid` waits for."""
    if on_wait is None:
        yield
        return
    ended = threading.Event()

    def watch() -> None:
        if ended.wait(SLOW_SECONDS):
            return
        with closing(connect(dsn)) as session:
            while not ended.is_set():
                if rows := query(session, "source/blockers", pid=pid):
                    on_wait([blocker for (blocker,) in rows])
                ended.wait(SLOW_SECONDS)

    with ThreadPoolExecutor(1, thread_name_prefix="pgstream-wait") as pool:
        watching = pool.submit(watch)
        try:
            yield
        finally:
            ended.set()
    watching.result()


def _temporary() -> str:
    return f"pgstream_copy_{os.getpid()}_{secrets.token_hex(4)}"


def pinned(dsn: str, snapshot: str, *, application_name: str = "pgstream copy") -> Session:
    """
    A session that sees exactly what `snapshot` sees, in a transaction it never ends.

    Its statements wait for locks for a limited time. Another session of ours may hold the table's
    lock that an ALTER TABLE waits for, which this session would wait behind: a circle through our
    process, which Postgres cannot see.

    Raises:
        SnapshotLost: it is no longer exported.
    """
    session = connect(dsn, application_name=application_name)
    try:
        limit_lock_waits(session, LOCK_SECONDS)
        with named_errors(session):
            session.execute("begin isolation level repeatable read, read only")
            session.execute(sql.SQL("set transaction snapshot {}").format(sql.Literal(snapshot)))
    except BaseException as error:
        session.close()
        if isinstance(error, NO_SNAPSHOT):
            raise SnapshotLost(snapshot) from error
        raise
    return session


class Guard:
    """
    A session inside a snapshot that keeps tables as the snapshot knows them; a context manager.

    What was read between `hold` and a later `require_alive` that did not raise was read from
    tables that were not rewritten: the lock lives and dies with the session.
    """

    def __init__(self, dsn: str, snapshot: Snapshot, stop: Stop | None = None) -> None:
        self.snapshot: Final = snapshot
        with ExitStack() as stack:
            session = pinned(dsn, snapshot.name, application_name="pgstream guard")
            self._session: Final = stack.enter_context(closing(session))
            stack.enter_context(interruptible(session.pgconn, stop))
            self._open: Final = stack.pop_all()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """End the session, and its locks with it."""
        self._open.__exit__(kind, error, trace)

    def hold(
        self, table: PublishedTable, catalog: Session, *, wait_seconds: float = LOCK_SECONDS
    ) -> Mapping[int, int]:
        """
        Lock `table` and all its partitions against rewrites; the leaves with the file each is in.

        `catalog` is a session outside of the snapshot. While it waits for its lock, the snapshot
        holds back VACUUM. After any of the errors the guard is unusable.

        Raises:
            TableRewritten: the snapshot knows another table: other files, columns, key or leaves.
            TableLocked: another session locks it exclusively, longer than `wait_seconds`.
            SnapshotLost: the guard's session was ended.
        """
        self._lock(table, catalog, wait_seconds)
        then, now = _shape(self._session, table), _shape(catalog, table)
        if not then or then != now or not own_table_locks(self._session).issuperset(then):
            raise TableRewritten(table.full_name)
        return {
            oid: filenode
            for oid, (kind, filenode, is_leaving, _) in then.items()
            if kind == "r" and not is_leaving
        }

    def versions(self, table: PublishedTable, publication: str) -> Versions:
        """
        The versions that the snapshot shows, not those of now.

        What the publication hid between the snapshot and a later change of it, no copy shows.
        """
        oid = table.relation_id
        return versions(self._session, publication, [oid]).get(oid, Versions())

    def require_alive(self) -> None:
        """
        Raise unless every lock taken so far is still held.

        Raises:
            SnapshotLost: the guard's session was ended.
        """
        try:
            with named_errors(self._session):
                self._session.execute("select")
        except ConnectionLost as error:
            raise SnapshotLost(self.snapshot.name) from error

    def _lock(self, table: PublishedTable, catalog: Session, wait_seconds: float) -> None:
        name = sql.Identifier(table.namespace, table.name)
        # Children of an ordinary table are tables of their own; those of a partitioned one are it.
        only = sql.SQL("") if table.kind == "p" else sql.SQL("only ")
        try:
            with named_errors(self._session):
                self._session.execute(
                    sql.SQL("set local lock_timeout = {}").format(round(wait_seconds * 1000))
                )
                self._session.execute(
                    sql.SQL("lock table {}{} in access share mode").format(only, name)
                )
        except (psycopg.errors.UndefinedTable, psycopg.errors.InvalidSchemaName) as error:
            raise TableRewritten(table.full_name) from error
        except LocksHeld as error:
            raise TableLocked(
                table.full_name, wait_seconds, _lock_holders(catalog, table)
            ) from error
        except ConnectionLost as error:
            raise SnapshotLost(self.snapshot.name) from error


def own_table_locks(session: Session) -> set[int]:
    """The oids of the tables that the session has locked: those that its transaction has used."""
    return {oid for (oid,) in query(session, "source/own_table_locks")}


def _shape(session: Session, table: PublishedTable) -> dict[int, tuple[str, int, bool, str]]:
    """
    A table and its partitions as the session sees them.

    Shape:
        oid -> relkind, file, whether it is leaving the tree, everything else that matters.
    """
    rows = query(session, "source/copy_shape", relation=table.relation_id)
    return {oid: (kind, filenode, leaving, rest) for oid, kind, filenode, leaving, rest in rows}


def _lock_holders(catalog: Session, table: PublishedTable) -> list[int]:
    rows = query(catalog, "source/table_lock_holders", relation=table.relation_id)
    return [pid for (pid,) in rows]
