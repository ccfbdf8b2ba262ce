"""
The stream: the only replication socket, and the two threads behind it.

    socket -> pump (assemble, answer the server) -> queue -> decode -> queue -> `take`

The queues are small: when landing is slow the socket is left unread and Postgres waits, while the
pump goes on answering it. Everything travels through the queues in one order, keepalives behind
the transactions they follow. A stream lives as long as its connection; after a loss a new one is
opened and Postgres sends again whatever was not confirmed.

Source:
    https://www.postgresql.org/docs/current/protocol-replication.html (START_REPLICATION)
"""

from __future__ import annotations

import contextlib
import os
import queue
import select
import struct
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Final, Self

import psycopg
from psycopg import pq

from pgstream_dagster.changelog.land import Arrival, Ended
from pgstream_dagster.errors import (
    ConnectionLost,
    PgstreamError,
    PublicationMissing,
    ReplicationFailed,
    SlotInUse,
)
from pgstream_dagster.failpoints import reach
from pgstream_dagster.lsn import Lsn
from pgstream_dagster.source.connect import replication, server
from pgstream_dagster.source.decoding import Decoder
from pgstream_dagster.source.spool import Spool
from pgstream_dagster.source.transactions import Assembler, StreamEnded, Unit

STATUS_SECONDS: Final = 1.0
"""Between answers to the server when nothing changes. wal_sender_timeout is 60 s by default and a
few seconds on some servers; the server's question is not read while landing is slow."""

TICK_SECONDS: Final = 0.25
"""How long a thread waits before it looks whether an answer is due or the end has come."""

LINGER_SECONDS: Final = 0.02
"""How long complete transactions wait for more before they are decoded: at 200 commits a second a
decode of four costs what a decode of one does."""

UNITS_WAITING: Final = 3
PARTS_WAITING: Final = 2

MAX_NAME_BYTES: Final = 63  # NAMEDATALEN - 1; slot names are ASCII

_PG_EPOCH_SECONDS: Final = 946_684_800  # 2000-01-01 in Unix time
_STATUS = struct.Struct(">cQQQqB")
_CLOSED: Final = ("08", "57P")  # SQLSTATE classes of a connection that is worth making again


@dataclass(frozen=True, slots=True)
class StreamSettings:
    """What the stream reads, and where it may spool."""

    dsn: str
    slot: str
    publication: str
    spool: Path
    streaming: bool = True  # off: every transaction is sent whole, at its commit
    linger_seconds: float = LINGER_SECONDS


def application_name(slot: str) -> str:
    """How the stream of a slot shows in pg_stat_replication: what a dead one is known by."""
    return f"pgstream {slot}"[:MAX_NAME_BYTES]


@dataclass(frozen=True, slots=True)
class _Failed:
    error: BaseException


class ReplicationStream:
    """
    One connection that streams a slot; a `ChangeSource` for landing.

    Use as a context manager; `take` and `confirm` belong to the landing thread. Once `stop` is
    set (by any thread, or a signal handler) it reads no further: `take` gives what is complete
    and then `Ended`.
    """

    def __init__(
        self, settings: StreamSettings, start: Lsn, decoder: Decoder, stop: threading.Event
    ) -> None:
        self._settings, self._start, self._decoder = settings, start, decoder
        self._server = server(settings.dsn)
        self._units: queue.Queue[Unit | Ended | _Failed] = queue.Queue(UNITS_WAITING)
        self._parts: queue.Queue[Arrival | _Failed] = queue.Queue(PARTS_WAITING)
        self._stopping, self._closing = stop, threading.Event()
        self._wake_read, self._wake_write = os.pipe()
        os.set_blocking(self._wake_write, False)
        self._confirmed = start  # the landing thread writes it, the pump sends it
        self._sent = Lsn(0)
        self._sent_at = 0.0
        self._is_unpublished = False  # the server passes over changes

    def __enter__(self) -> Self:
        self._spool = Spool(self._settings.spool)
        self._assembler = Assembler(self._spool)
        self._connection = replication(
            self._settings.dsn, application_name=application_name(self._settings.slot)
        )
        self._connection.notice_handler = self._hear
        try:
            self._begin()
        except BaseException:
            self._connection.finish()
            raise
        self._threads = [
            threading.Thread(target=self._run, args=(work, out), name=name, daemon=True)
            for name, work, out in (
                ("pgstream-pump", self._pump, self._put_unit),
                ("pgstream-decode", self._decode, self._put_part),
            )
        ]
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._closing.set()
        self._wake()
        for thread in self._threads:
            thread.join()
        # The last confirmation spares a clean stop from being sent things again; without it
        # Postgres sends them and landing drops them.
        with contextlib.suppress(psycopg.Error):
            self._answer()
        self._connection.finish()
        self._spool.clear()
        os.close(self._wake_read)
        os.close(self._wake_write)

    def take(self, timeout_seconds: float) -> Arrival | None:
        """
        The next arrival in commit order; `None` when nothing came in time.

        Raises:
            ConnectionLost: reconnecting is safe and nothing is lost.
            PgstreamError: whatever else ended the pump or the decoder.
        """
        try:
            arrival = (
                self._parts.get(timeout=timeout_seconds)
                if timeout_seconds
                else (self._parts.get_nowait())
            )
        except queue.Empty:
            return None
        if isinstance(arrival, _Failed):
            raise arrival.error
        return arrival

    def confirm(self, lsn: Lsn) -> None:
        """Tell Postgres that everything before `lsn` is durable; sent by the pump at once."""
        self._confirmed = lsn
        self._wake()

    # --- threads ------------------------------------------------------------------------------

    def _run(self, work: Callable[[], None], out: Callable[[_Failed], None]) -> None:
        """A thread's life: what ends it travels down the queue behind what it had done."""
        try:
            work()
        except psycopg.OperationalError as error:
            lost = ConnectionLost(self._server, "the server closed it")
            lost.__cause__ = error
            out(_Failed(lost))
        except BaseException as error:  # noqa: BLE001 - `take` raises it in the landing thread
            out(_Failed(error))

    def _pump(self) -> None:
        """Messages into units, and answers to the server, until stopped."""
        receive, handed = self._connection.get_copy_data, 0.0
        while not (self._stopping.is_set() or self._closing.is_set()):
            try:
                unit = self._assembler.pull(receive)
            except StreamEnded:
                raise self._why_ended() from None
            if unit is None:
                since = time.monotonic() - handed
                if not self._assembler.holds_complete:
                    self._wait(TICK_SECONDS)
                elif since < self._settings.linger_seconds:
                    self._wait(self._settings.linger_seconds - since)
                else:
                    unit = self._assembler.drain()
            if unit is not None:
                self._hand_over(unit)
                handed = time.monotonic()
            self._answer_if_due()
        self._finish()

    def _finish(self) -> None:
        """After a stop: hand over what is complete, then answer until everything is landed."""
        while (unit := self._assembler.drain()) is not None:
            self._hand_over(unit)
        self._put_unit(Ended())
        while not self._closing.is_set():
            self._wait(TICK_SECONDS)
            self._answer_if_due()

    def _decode(self) -> None:
        """Units into parts, in order, until the last."""
        while not self._closing.is_set():
            try:
                unit = self._units.get(timeout=TICK_SECONDS)
            except queue.Empty:
                continue
            if isinstance(unit, Ended | _Failed):
                self._put_part(unit)
                return
            for part in self._decoder.parts(unit):
                self._put_part(part)

    def _hand_over(self, unit: Unit) -> None:
        """
        Put a unit into the queue, unless the server has passed over changes before it.

        Its position would then be confirmed, and what it passed over be lost.
        """
        if self._is_unpublished:
            raise PublicationMissing(self._settings.publication)
        self._put_unit(unit)

    def _put_unit(self, unit: Unit | Ended | _Failed) -> None:
        """Wait for a place, answering the server meanwhile: a slow landing is not a dead one."""
        while not self._closing.is_set():
            try:
                self._units.put(unit, timeout=TICK_SECONDS)
            except queue.Full:
                self._answer_if_due()
            else:
                return

    def _put_part(self, part: Arrival | _Failed) -> None:
        while not self._closing.is_set():
            try:
                self._parts.put(part, timeout=TICK_SECONDS)
            except queue.Full:
                continue
            else:
                return

    # --- the socket ---------------------------------------------------------------------------

    def _begin(self) -> None:
        """
        START_REPLICATION; answered with COPY BOTH.

        Protocol 2 (Postgres 14) with streaming: a large transaction is sent while it runs, and is
        not spilled on the server.
        """
        settings, connection = self._settings, self._connection
        publication = settings.publication.replace('"', '""').replace("'", "''")
        streaming = "on" if settings.streaming else "off"
        connection.send_query(
            f'START_REPLICATION SLOT "{settings.slot}" LOGICAL {self._start}'
            f" (proto_version '2', streaming '{streaming}', messages 'true',"
            f" publication_names '\"{publication}\"')".encode()
        )
        while connection.is_busy():
            select.select([connection.socket], [], [])
            connection.consume_input()
        result = connection.get_result()
        if result is None or result.status != pq.ExecStatus.COPY_BOTH:
            raise self._named(result)
        connection.nonblocking = 1

    def _hear(self, notice: pq.abc.PGresult) -> None:
        """
        Notices of the server, in their place among the messages.

        Without the publication Postgres 18 says so in a warning and streams on without the change
        (17 ends the stream): the one warning of this SQLSTATE that pgoutput has.
        """
        sqlstate = notice.error_field(pq.DiagnosticField.SQLSTATE)
        severity = notice.error_field(pq.DiagnosticField.SEVERITY_NONLOCALIZED)
        if sqlstate == b"55000" and severity == b"WARNING":
            self._is_unpublished = True

    def _wait(self, seconds: float) -> None:
        """Until the socket has something, somebody woke us, or the time is over."""
        connection = self._connection
        waiting_to_send = [connection.socket] if connection.flush() else []
        ready, _, _ = select.select(
            [connection.socket, self._wake_read], waiting_to_send, [], seconds
        )
        if self._wake_read in ready:
            os.read(self._wake_read, 4096)
        if connection.socket in ready:
            connection.consume_input()

    def _wake(self) -> None:
        with contextlib.suppress(BlockingIOError):  # a full pipe: it has been woken often enough
            os.write(self._wake_write, b"!")

    def _answer_if_due(self) -> None:
        due = time.monotonic() - self._sent_at >= STATUS_SECONDS
        if due or self._confirmed > self._sent:
            self._answer()

    def _answer(self) -> None:
        """
        Standby status update: received, durable, applied.

        Source:
            https://www.postgresql.org/docs/current/protocol-replication.html
        """
        confirmed = self._confirmed
        received = max(confirmed, self._assembler.received)
        now_us = int((time.time() - _PG_EPOCH_SECONDS) * 1_000_000)
        self._connection.put_copy_data(
            _STATUS.pack(b"r", received, confirmed, confirmed, now_us, 0)
        )
        self._connection.flush()
        if confirmed > self._sent:
            reach("confirm.sent")
        self._sent, self._sent_at = confirmed, time.monotonic()

    def _why_ended(self) -> PgstreamError:
        """The named error behind the end of the COPY."""
        result = self._connection.get_result()
        return self._named(result)

    def _named(self, result: pq.abc.PGresult | None) -> PgstreamError:
        """What the server's refusal means; by SQLSTATE, never by its text."""
        if result is None or result.status in (pq.ExecStatus.COMMAND_OK, pq.ExecStatus.COPY_IN):
            return ConnectionLost(self._server, "the server ended the stream")
        sqlstate = (result.error_field(pq.DiagnosticField.SQLSTATE) or b"").decode()
        primary = result.error_field(pq.DiagnosticField.MESSAGE_PRIMARY)
        reason = (primary or result.error_message or b"").decode(errors="replace").strip()
        if not sqlstate or sqlstate.startswith(_CLOSED):
            return ConnectionLost(self._server, reason or "the server closed it")
        if sqlstate == "55006":  # object_in_use
            return SlotInUse(self._settings.slot, 0)
        if sqlstate == "42704":  # undefined_object: the slot is looked at before every connect
            return PublicationMissing(self._settings.publication)
        return ReplicationFailed(self._settings.slot, sqlstate, reason)
