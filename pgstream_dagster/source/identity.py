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
    SourceBehind,
    TimelineForked,
)
from pgstream_dagster.lsn import Lsn
from pgstream_dagster.source.connect import command, replication


@dataclass(frozen=True, slots=True)
class SystemIdentity:
    """A server as `initdb` made it, the timeline it writes, and the database we are in."""

    system_id: str
    timeline: int
    database: str


def identify(dsn: str) -> SystemIdentity:
    """
    The identity of the server behind `dsn` now.

    Raises:
        InvalidDsn, Unreachable, AccessRefused, ConnectionLost
    """
    pgconn = replication(dsn)
    try:
        return _identify(pgconn)[0]
    finally:
        pgconn.finish()


def check_same(dsn: str, recorded: SystemIdentity, watermark: Lsn) -> SystemIdentity:
    """
    Raise unless the server's history holds everything up to `watermark`; its identity now.

    A promotion (another timeline that forked at or after the watermark) is the same source.

    Raises:
        OtherSystem: another cluster or database.
        TimelineForked: promoted or restored from a point before the watermark.
        SourceBehind: same timeline, but its WAL ends before the watermark.
    Source:
        https://www.postgresql.org/docs/current/protocol-replication.html (IDENTIFY_SYSTEM,
        TIMELINE_HISTORY)
    """
    pgconn = replication(dsn)
    try:
        found, wal_lsn = _identify(pgconn)
        if found.system_id != recorded.system_id:
            raise OtherSystem("the system identifier", recorded.system_id, found.system_id)
        if found.database != recorded.database:
            raise OtherSystem("the database", recorded.database, found.database)
        if found.timeline != recorded.timeline:
            _require_descent(pgconn, found.timeline, recorded.timeline, watermark)
        if wal_lsn < watermark:
            raise SourceBehind(str(wal_lsn), str(watermark))
        return found
    finally:
        pgconn.finish()


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
            return Lsn.parse(rest.partition("\t")[0].strip())
    return None


def _identify(pgconn: pq.abc.PGconn) -> tuple[SystemIdentity, Lsn]:
    (row,) = command(pgconn, "IDENTIFY_SYSTEM")
    system_id, timeline, wal_lsn = row["systemid"], row["timeline"], row["xlogpos"]
    database = row["dbname"]
    if not (system_id and timeline and wal_lsn and database):
        raise ProtocolError("IDENTIFY_SYSTEM answered without one of its values")
    return SystemIdentity(system_id, int(timeline), database), Lsn.parse(wal_lsn)


def _require_descent(pgconn: pq.abc.PGconn, timeline: int, recorded: int, watermark: Lsn) -> None:
    history = ""
    if timeline > 1:  # the first timeline has no history
        (row,) = command(pgconn, f"TIMELINE_HISTORY {timeline}")
        history = row["content"] or ""
    forked_at = fork_lsn(history, recorded)
    if forked_at is None or forked_at < watermark:
        raise TimelineForked(timeline, str(forked_at or Lsn(0)), str(watermark))
