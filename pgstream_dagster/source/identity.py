"""
Which server, which database, which history: what must be the same between two runs.

A watermark means something only in the history it was written in. Reads only.
"""

from __future__ import annotations

from dataclasses import dataclass

from psycopg import pq

from pgstream_dagster.errors import (
    OtherSystem,
    ProtocolError,
    ReadOnlyServer,
    SourceBehind,
    StandbyBehind,
    TimelineForked,
)
from pgstream_dagster.lsn import Lsn
from pgstream_dagster.source.connect import command, replication, server
from pgstream_dagster.source.query import lsn


@dataclass(frozen=True, slots=True)
class SystemIdentity:
    """A server as `initdb` made it, the timeline it writes, and the database we are in."""

    system_id: str
    timeline: int
    database: str


def identify(dsn: str) -> SystemIdentity:
    """
    The identity now of the server that `dsn` leads to.

    Raises:
        InvalidDsn, Unreachable, AccessRefused, ConnectionLost
    """
    pgconn = replication(dsn)
    try:
        return identify_on(pgconn)
    finally:
        pgconn.finish()


def identify_on(pgconn: pq.abc.PGconn) -> SystemIdentity:
    """The same, on a walsender session."""
    return _identify(pgconn)[0]


def check_same(dsn: str, recorded: SystemIdentity, held: Lsn) -> SystemIdentity:
    """
    Raise unless the server's history has everything that the log holds; its identity now.

    `held` is the last position that anything in the log depends on. A promotion (another timeline
    that forked at or after it) is the same source; record its timeline before anything of it
    lands, or the next check takes it for a fork.

    Raises:
        OtherSystem: another cluster or database.
        StandbyBehind: a standby that has not replayed that far yet.
        TimelineForked: promoted or restored from a point before.
        SourceBehind: same timeline, but its WAL ends before.
    Source:
        https://www.postgresql.org/docs/current/protocol-replication.html (IDENTIFY_SYSTEM,
        TIMELINE_HISTORY)
    """
    pgconn = replication(dsn)
    try:
        current, wal_lsn = _identify(pgconn)
        require_system(current, recorded.system_id, recorded.database)
        if wal_lsn < held and _is_in_recovery(pgconn):
            raise StandbyBehind(server(dsn), wal_lsn, held)
        if current.timeline != recorded.timeline:
            _require_descent(pgconn, current.timeline, recorded.timeline, held)
        if wal_lsn < held:
            raise SourceBehind(wal_lsn, held)
        return current
    finally:
        pgconn.finish()


def require_primary(pgconn: pq.abc.PGconn, dsn: str) -> None:
    """
    Raise `ReadOnlyServer` on a standby, on the session that streams.

    Postgres 16 and later goes on with a logical stream when a standby is promoted, and the timeline
    that is on record would be the former one.
    """
    if _is_in_recovery(pgconn):
        raise ReadOnlyServer(server(dsn), "it is a standby")


def require_system(current: SystemIdentity, system_id: str, database: str) -> None:
    """Raise `OtherSystem` unless it is this cluster and database, on whatever timeline."""
    for what, recorded, now in (
        ("the system identifier", system_id, current.system_id),
        ("the database", database, current.database),
    ):
        if now != recorded:
            raise OtherSystem(what, recorded, now)


def fork_lsn(history: str, timeline: int) -> Lsn | None:
    """
    Where a timeline's history left `timeline`; `None` when it does not descend from it.

    Source:
        https://www.postgresql.org/docs/current/continuous-archiving.html (timelines); each line is
        the parent timeline, the LSN of the switch and a reason, separated by tabs
    """
    for line in history.splitlines():
        parent, _, rest = line.strip().partition("\t")
        if parent.isdigit() and int(parent) == timeline:
            return lsn(rest.partition("\t")[0].strip())
    return None


def _identify(pgconn: pq.abc.PGconn) -> tuple[SystemIdentity, Lsn]:
    (row,) = command(pgconn, "IDENTIFY_SYSTEM")
    system_id, timeline, wal_lsn = row["systemid"], row["timeline"], row["xlogpos"]
    database = row["dbname"]
    if not (system_id and timeline and wal_lsn and database):
        raise ProtocolError("IDENTIFY_SYSTEM answered without one of its values")
    return SystemIdentity(system_id, int(timeline), database), lsn(wal_lsn)


def _is_in_recovery(pgconn: pq.abc.PGconn) -> bool:
    (row,) = command(pgconn, "select pg_catalog.pg_is_in_recovery() as answer")
    return row["answer"] == "t"


def _require_descent(pgconn: pq.abc.PGconn, timeline: int, recorded: int, held: Lsn) -> None:
    history = ""
    if timeline > 1:  # the first timeline has no history
        (row,) = command(pgconn, f"TIMELINE_HISTORY {timeline}")
        history = row["content"] or ""
    forked_at = fork_lsn(history, recorded)
    if forked_at is None or forked_at < held:
        raise TimelineForked(timeline, forked_at or Lsn(0), held)
