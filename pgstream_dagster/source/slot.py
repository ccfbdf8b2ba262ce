"""
The replication slot: create, inspect, resume, take over, drop.

Whether a slot is usable is read from `pg_replication_slots`, never from the text of an error: on
one server a lost slot has different texts over SQL and over the replication protocol. Nothing here
reads changes or confirms positions.
"""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

import psycopg
from psycopg import pq

from pgstream_dagster.errors import (
    AccessRefused,
    PreflightFailed,
    SlotAhead,
    SlotForeign,
    SlotInUse,
    SlotLost,
    SlotMissing,
)
from pgstream_dagster.lsn import Lsn
from pgstream_dagster.source.connect import Session, command, quoted
from pgstream_dagster.source.query import lsn, query, query_one
from pgstream_dagster.stop import Stop

PLUGIN: Final = "pgoutput"

NO_RECORD: Final = "it exists, and this lake has no record of it"
"""Why a slot is taken for somebody else's."""

DYING_SECONDS: Final = 5.0
"""In which the walsender of a killed process has ended: it sees the closed socket at once."""

POLL_SECONDS: Final = 0.1

END_SECONDS: Final = 20.0
"""A terminated walsender ends when it next looks, at most after one large change it decodes."""


class WalStatus(StrEnum):
    """Whether the WAL a slot needs is still there (`pg_replication_slots.wal_status`)."""

    RESERVED = "reserved"
    EXTENDED = "extended"  # past max_wal_size, kept for the slot
    UNRESERVED = "unreserved"  # may go at the next checkpoint
    LOST = "lost"


@dataclass(frozen=True, slots=True)
class SlotState:
    """
    One slot as the server sees it now.

    `wal_lsn` is the end of the flushed WAL at the same moment; `safe_wal_bytes` what may still be
    written before the slot is in danger, `None` without a limit. `inactive_seconds`: for how long
    no process has read it (since 17).
    """

    slot: str
    plugin: str | None
    kind: str  # 'logical' or 'physical'
    database: str | None
    is_in_this_database: bool
    is_temporary: bool
    active_pid: int | None
    inactive_seconds: float | None
    restart_lsn: Lsn | None
    confirmed_lsn: Lsn | None
    wal_status: WalStatus | None
    safe_wal_bytes: int | None
    invalidation_reason: str | None
    is_failover: bool
    is_standby_copy: bool  # synchronised to a standby: cannot be read before a promotion
    wal_lsn: Lsn

    @property
    def is_lost(self) -> bool:
        """WAL that the slot needed is gone, or the server has invalidated it."""
        return self.wal_status is WalStatus.LOST or self.invalidation_reason is not None

    @property
    def lag_bytes(self) -> int | None:
        """WAL between what Postgres was told and its end now."""
        return None if self.confirmed_lsn is None else max(self.wal_lsn - self.confirmed_lsn, 0)

    @property
    def retained_bytes(self) -> int | None:
        """WAL that the server keeps for this slot."""
        return None if self.restart_lsn is None else max(self.wal_lsn - self.restart_lsn, 0)


@dataclass(frozen=True, slots=True)
class ExportedSlot:
    """
    A new slot and the snapshot that belongs to it.

    Transactions that commit after `consistent_point` will be streamed; `snapshot` shows everything
    before, as long as the creating session runs no other command.
    """

    slot: str
    consistent_point: Lsn
    snapshot: str


def inspect(connection: Session, slot: str) -> SlotState | None:
    """The slot as the server sees it now; `None` when there is none."""
    row = query_one(connection, dict[str, Any], "source/slot_state", slot=slot)
    if row is None:
        return None
    for name in ("restart_lsn", "confirmed_lsn", "wal_lsn"):
        row[name] = None if row[name] is None else lsn(row[name])
    row["wal_status"] = None if row["wal_status"] is None else WalStatus(row["wal_status"])
    return SlotState(slot=slot, **row)


def create(
    pgconn: pq.abc.PGconn, slot: str, *, temporary: bool = False, failover: bool = False
) -> ExportedSlot:
    """
    Create a slot for pgoutput and export the snapshot that belongs to its consistent point.

    The snapshot lives until `pgconn` runs its next command or ends; a temporary slot until it
    ends. Waits until every transaction running now has ended. `failover` is ignored where the
    server does not know it (before 17).

    Raises:
        SlotForeign: a slot of that name exists.
        PreflightFailed: no slot is free, or wal_level is too low.
        AccessRefused: the role may not replicate.
    Source:
        https://www.postgresql.org/docs/current/protocol-replication.html
    """
    options = ["SNAPSHOT 'export'"]
    if failover and not temporary and pgconn.server_version >= 170000:
        options.append("FAILOVER true")
    kind = "TEMPORARY LOGICAL" if temporary else "LOGICAL"
    text = f"CREATE_REPLICATION_SLOT {quoted(slot)} {kind} {PLUGIN} ({', '.join(options)})"
    try:
        (row,) = command(pgconn, text)
    except psycopg.errors.DuplicateObject as error:
        raise SlotForeign(slot, "it exists already") from error
    except psycopg.errors.InsufficientPrivilege as error:
        raise AccessRefused(
            f"{pgconn.host.decode()}:{pgconn.port.decode()}",
            error.diag.message_primary or "no right to replicate",
            f"run alter role {quoted(pgconn.user.decode())} replication",
        ) from error
    except psycopg.errors.ConfigurationLimitExceeded as error:
        raise PreflightFailed(
            ["every replication slot is taken; raise max_replication_slots and restart"]
        ) from error
    except psycopg.errors.ObjectNotInPrerequisiteState as error:
        raise PreflightFailed(
            ["wal_level is below 'logical'; alter system set wal_level = 'logical' and restart"]
        ) from error
    return ExportedSlot(slot, lsn(row["consistent_point"] or ""), row["snapshot_name"] or "")


def resume_lsn(connection: Session, slot: str, watermark: Lsn) -> Lsn:
    """
    Where streaming from `slot` resumes, the slot's own position; raise if the server cannot.

    What lies between it and the watermark is sent again, and compared with what the log holds.
    A slot whose position is later is refused: Postgres would start there silently.

    Raises:
        SlotMissing, SlotForeign, SlotLost, SlotAhead
        SlotInUse: a session reads it; `take_over` first.
    """
    state = inspect(connection, slot)
    if state is None:
        raise SlotMissing(slot)
    require_ours(state)
    if state.is_lost:
        reason = state.invalidation_reason or "wal_removed"
        raise SlotLost(slot, state.confirmed_lsn or state.restart_lsn or Lsn(0), reason)
    # First: its reader moves the slot on, and `watermark` may be from before that.
    if state.active_pid is not None:
        raise SlotInUse(slot, state.active_pid)
    if state.confirmed_lsn is not None and state.confirmed_lsn > watermark:
        raise SlotAhead(slot, state.confirmed_lsn, watermark)
    if state.confirmed_lsn is None:
        raise SlotForeign(slot, "its creation did not end")
    return state.confirmed_lsn


def require_ours(state: SlotState) -> None:
    """Raise `SlotForeign` unless the slot is one that this package could have made here."""
    for is_wrong, fact in (
        (state.kind != "logical", f"it is a {state.kind} slot"),
        (state.plugin not in (PLUGIN, None), f"its output plugin is {state.plugin!r}"),
        (not state.is_in_this_database, f"it belongs to database {state.database!r}"),
        (state.is_temporary, "it is a temporary slot of another session"),
        (state.is_standby_copy, "it is a standby's copy of the primary's slot"),
    ):
        if is_wrong:
            raise SlotForeign(state.slot, fact)


def take_over(
    connection: Session,
    slot: str,
    application_name: str | None = None,
    stop: threading.Event | None = None,
) -> None:
    """
    End a reader of `slot` that is an earlier connection of ours, then wait until the slot is free.

    Only the caller uses `application_name`, and only for the connection that reads: a reader that
    has it after that connection was closed is a walsender that has not noticed. Our own role may
    see and end it. Any other reader may be alive: one that is ending is waited for, and Postgres
    ends one whose client vanished after wal_sender_timeout.

    Raises:
        SlotInUse: another session reads it.
        Cancelled: `stop` is set meanwhile.
    """
    stop = Stop(stop)
    reader = _walsender(connection, slot)
    seconds = DYING_SECONDS
    if reader is not None and application_name and reader.application_name == application_name:
        query(connection, "source/walsender_end", slot=slot, pid=reader.active_pid)
        seconds = END_SECONDS
    deadline = time.monotonic() + seconds
    while (reader := _walsender(connection, slot)) is not None:
        if time.monotonic() > deadline:
            raise SlotInUse(slot, reader.active_pid, reader.timeout_ms / 1_000)
        stop.sleep(POLL_SECONDS)


def require_not_ahead(connection: Session, slot: str, start: Lsn) -> None:
    """
    Check once more, now that we read the slot and no other session can move it.

    Raises:
        SlotMissing, SlotAhead
    """
    state = inspect(connection, slot)
    if state is None:
        raise SlotMissing(slot)
    if state.confirmed_lsn is not None and state.confirmed_lsn > start:
        raise SlotAhead(slot, state.confirmed_lsn, start)


def drop(connection: Session, slot: str, missing_ok: bool = False) -> bool:
    """
    Drop the slot; whether there was one. After this the server may remove its WAL.

    Raises:
        SlotMissing: there is none and `missing_ok` is false.
        SlotForeign: it is not one of ours.
        SlotInUse: a session reads it.
    """
    state = inspect(connection, slot)
    if state is None:
        if missing_ok:
            return False
        raise SlotMissing(slot)
    require_ours(state)
    try:
        query(connection, "source/slot_drop", slot=slot)
    except psycopg.errors.ObjectInUse as error:
        reader = inspect(connection, slot)
        raise SlotInUse(slot, (reader and reader.active_pid) or 0) from error
    return True


@dataclass(frozen=True, slots=True)
class _Walsender:
    active_pid: int
    application_name: str | None
    timeout_ms: int  # wal_sender_timeout; 0: none


def _walsender(connection: Session, slot: str) -> _Walsender | None:
    return query_one(connection, _Walsender, "source/walsender_state", slot=slot)
