"""
The stream: the only replication socket, and the two threads behind it.

    socket -> pump (assemble, answer the server) -> queue -> decode -> queue -> `take`

The queues are small: when landing is slow the socket is left unread and Postgres waits, while the
pump keeps answering it. Everything travels through the queues in one order, keepalives after the
transactions they follow. A stream lives as long as its connection; after a loss a new one is opened
and Postgres sends again whatever was not confirmed.

The end of a thread never travels through a queue, which may be full: it is a flag and an error,
which `take` checks when the queue is empty.

Source:
    https://www.postgresql.org/docs/current/protocol-replication.html (START_REPLICATION)
"""

from __future__ import annotations

import contextlib
import errno
import math
import os
import queue
import resource
import secrets
import select
import struct
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Final, Self

import psycopg
from psycopg import pq

from pgstream_dagster.capture.resent import Resent
from pgstream_dagster.capture.spool import Spool
from pgstream_dagster.capture.transactions import Assembler, StreamEnded, TransactionBatch
from pgstream_dagster.changelog.land import Arrival, Ended
from pgstream_dagster.errors import (
    ConnectionLost,
    DescriptorsExhausted,
    PartsUndecodable,
    PgstreamError,
    PublicationMissing,
    ReplicationFailed,
    SlotInUse,
)
from pgstream_dagster.failpoints import reach
from pgstream_dagster.lsn import Lsn
from pgstream_dagster.memory import MemoryBound
from pgstream_dagster.source.connect import NAMED, command, replication, server
from pgstream_dagster.wire.pgoutput import POSTGRES_EPOCH_US

STATUS_SECONDS: Final = 1.0
"""Between answers to the server when nothing changes, or a quarter of its wal_sender_timeout where
that is less: the server's requests for a reply are not read while landing is slow."""

TICK_SECONDS: Final = 0.25
"""How long a thread waits before it checks whether an answer is due or the end has come."""

LINGER_SECONDS: Final = 0.02
"""How long complete transactions wait for more before they are decoded: at 200 commits a second a
decode of four costs what a decode of one does."""

TRANSACTIONS_WAITING: Final = 3
ARRIVALS_WAITING: Final = 2
"""Batches in the queues of assembled and of decoded transactions."""

SILENT_SECONDS: Final = 60.0
"""After which a silent server is given up, where wal_sender_timeout is 0."""

DECODING_SECONDS: Final = 15.0
"""After which a batch that is still being decoded is reported: it takes less than a second, unless
the catalog does not answer."""

SILENT_TIMEOUTS: Final = 3
"""The same in multiples of wal_sender_timeout. After one of them a reply is requested."""

MAX_NAME_BYTES: Final = 63  # NAMEDATALEN - 1; slot names are ASCII

_STATUS = struct.Struct(">cQQQqB")
_CLOSED: Final = ("08", "57P")  # SQLSTATE classes after which reconnecting helps


@dataclass(frozen=True, slots=True)
class StreamSettings:
    """
    What the stream reads, and where it may spool.

    `whole`: large transactions are sent whole, at their commit. With `messages` logical messages
    are landed, and they are sent whole, too: of a streamed one Postgres does not say which
    sub-transaction wrote a message.
    `admit` raises unless the connection is to the server that was checked before. `abandon` ends
    what the decoder waits for on a server that has fallen silent.
    `encrypts_spool`: what is spooled is not to be stored as Postgres sent it.
    """

    dsn: str
    slot: str
    publication: str
    application_name: str
    state: Path  # folder for the spool, made when it does not exist
    messages: bool = False
    whole: bool = False
    linger_seconds: float = LINGER_SECONDS
    admit: Callable[[pq.abc.PGconn], None] = lambda _: None
    abandon: Callable[[], None] = lambda: None
    memory: MemoryBound = MemoryBound()  # noqa: RUF009 - frozen
    encrypts_spool: bool = False

    @property
    def takes_parts(self) -> bool:
        """Whether large transactions are sent while they run."""
        return not (self.whole or self.messages)


def application_name(slot: str) -> str:
    """A name for all connections of one run, and of no other: it identifies those of a dead run."""
    return f"pgstream {secrets.token_hex(4)} {slot}"[:MAX_NAME_BYTES]


@dataclass(slots=True)
class Silence:
    """
    For how long the server has been silent, by our own clock.

    It is dead when a reply was requested and did not come: a process that slept (or did not read)
    requests one first. `clock` gives monotonic seconds.
    """

    limit_seconds: float
    clock: Callable[[], float] = time.monotonic
    _since: float = field(init=False)
    _requested_at: float | None = None

    def __post_init__(self) -> None:
        self._since = self.clock()

    def begin(self) -> None:
        """Something was received, or we begin to read again."""
        self._since, self._requested_at = self.clock(), None

    def requested(self) -> None:
        """A reply was requested."""
        if self._requested_at is None:
            self._requested_at = self.clock()

    @property
    def seconds(self) -> float:
        """Since something was received."""
        return self.clock() - self._since

    @property
    def is_suspicious(self) -> bool:
        """Whether it is time to request a reply."""
        return self.seconds >= self.limit_seconds / SILENT_TIMEOUTS

    @property
    def must_request(self) -> bool:
        """Whether it is time to request a reply, and none was requested yet."""
        return self._requested_at is None and self.is_suspicious

    @property
    def is_dead(self) -> bool:
        """Whether a reply is overdue; looked at every tick, this is known before the limit."""
        if self._requested_at is None:
            return False
        return self.clock() - self._requested_at >= self.limit_seconds / 2


class ReplicationStream:
    """
    One connection that streams a slot; a `ChangeSource` for landing.

    Use as a context manager; `take` and `confirm` belong to the landing thread. Once `stop` is
    set (by any thread, or a signal handler) it reads no further: `take` gives what is complete
    and then `Ended`.
    """

    def __init__(
        self, settings: StreamSettings, start: Lsn, decoder: Resent, stop: threading.Event
    ) -> None:
        self._settings, self._start, self._decoder = settings, start, decoder
        self._server = server(settings.dsn)
        self._transactions: queue.Queue[TransactionBatch | None] = queue.Queue(TRANSACTIONS_WAITING)
        self._arrivals: queue.Queue[Arrival] = queue.Queue(ARRIVALS_WAITING)
        self._stopping, self._closing = stop, threading.Event()
        self._pumped, self._decoded = threading.Event(), threading.Event()  # nothing more comes
        self._failure: BaseException | None = None  # what ended a thread, the first one
        self._silence, self._status_seconds = Silence(SILENT_SECONDS), STATUS_SECONDS
        self._handed = threading.Condition()  # of the three counts of arrivals that follow
        self._put = self._taken = self._done_with = 0
        self._confirmed = start  # the landing thread writes it, the pump sends it
        self._sent = Lsn(0)
        self._sent_at = 0.0
        self._is_unpublished = False  # the server passes over changes
        self._held_back: tuple[Lsn, str] | None = None  # by the server: from where on, and why
        self._decoding_since: float | None = None  # monotonic seconds; `None`: it waits

    def __enter__(self) -> Self:
        try:
            with contextlib.ExitStack() as opened:
                self._open(opened)
                self._opened = opened.pop_all()
        except OSError as error:
            raise _named_os_error(error) from error
        self._threads = [
            threading.Thread(target=self._run, args=(work, over), name=name, daemon=True)
            for name, work, over in (
                ("pgstream-pump", self._pump, self._pumped),
                ("pgstream-decode", self._decode, self._decoded),
            )
        ]
        for thread in self._threads:
            thread.start()
        return self

    def _open(self, opened: contextlib.ExitStack) -> None:
        self._wake_read, self._wake_write = os.pipe()
        opened.callback(os.close, self._wake_read)
        opened.callback(os.close, self._wake_write)
        os.set_blocking(self._wake_write, False)
        settings = self._settings
        spool = Spool(settings.state, self._make_room, encrypts=settings.encrypts_spool)
        opened.callback(spool.close)
        self._assembler = Assembler(spool, self._settings.memory, messages=self._settings.messages)
        self._connection = replication(
            self._settings.dsn, application_name=self._settings.application_name
        )
        opened.callback(self._connection.finish)
        self._connection.notice_handler = self._on_notice
        self._polled = select.poll()
        self._polled.register(self._connection.socket, select.POLLIN)
        self._settings.admit(self._connection)
        self._begin()
        self._polled.register(self._wake_read, select.POLLIN)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._closing.set()
        self._wake()
        with contextlib.suppress(queue.Full):
            self._transactions.put_nowait(None)  # the decoder may be waiting for a batch
        for thread in self._threads:
            thread.join()
        # After a clean stop the last confirmation saves sending changes again; without it Postgres
        # sends them and landing drops them.
        if self._failure is None:
            with contextlib.suppress(psycopg.Error):
                self._answer()
        self._opened.close()

    def take(self, timeout_seconds: float) -> Arrival | None:
        """
        The next arrival in commit order; `None` when nothing came in time.

        What was complete before a thread ended is given first, then what ended it is raised.

        Raises:
            ConnectionLost: reconnecting is safe and nothing is lost.
            PgstreamError: whatever else ended the pump or the decoder.
        """
        until = time.monotonic() + timeout_seconds
        with self._handed:
            self._done_with = self._taken
            self._handed.notify()
        while True:
            is_over = self._decoded.is_set()  # checked first: all it made is in the queue then
            left = 0.0 if is_over else until - time.monotonic()
            with contextlib.suppress(queue.Empty):
                arrival = self._arrivals.get(timeout=max(0.0, min(left, TICK_SECONDS)))
                self._taken += 1
                return arrival
            if is_over and self._failure is not None:
                raise self._failure
            if is_over:
                return Ended()
            if left <= 0:
                return None

    @property
    def silent_seconds(self) -> float | None:
        """Since the server was last heard from, when that is too long; `None` otherwise."""
        is_listening = not self._transactions.full()
        is_late = self._silence.seconds >= self._silence.limit_seconds / 2
        return self._silence.seconds if is_listening and is_late else None

    @property
    def stall(self) -> str | None:
        """Why nothing arrives, once that has lasted for long; `None` while all is well."""
        if (silent_seconds := self.silent_seconds) is not None:
            return f"the server said nothing for {silent_seconds:.0f} s"
        if (held := self._held_back) is not None and self._assembler.received <= held[0]:
            return f"the server holds changes back: {held[1]}"
        since = self._decoding_since
        seconds = 0.0 if since is None else time.monotonic() - since
        if seconds < DECODING_SECONDS:
            return None
        return f"changes are being decoded for {seconds:.0f} s: the catalog may not answer"

    def confirm(self, lsn: Lsn) -> None:
        """Tell Postgres that everything before `lsn` is durable; sent by the pump at once."""
        self._confirmed = lsn
        self._wake()

    # --- threads ------------------------------------------------------------------------------

    def _run(self, work: Callable[[], None], over: threading.Event) -> None:
        """Run a thread's work: `take` raises what ended it."""
        try:
            work()
        except BaseException as error:  # noqa: BLE001 - `take` raises it in the landing thread
            if self._failure is None:
                self._failure = self._named_failure(error)
        finally:
            over.set()

    def _named_failure(self, error: BaseException) -> BaseException:
        named = error
        if isinstance(error, psycopg.OperationalError):
            named = ConnectionLost(self._server, "the server closed it")
        elif isinstance(error, OSError):
            named = _named_os_error(error)
        if named is not error:
            named.__cause__ = error
        return named

    def _pump(self) -> None:
        """Assemble messages into batches, and answer the server, until stopped."""
        receive, handed = self._connection.get_copy_data, 0.0
        while not (self._stopping.is_set() or self._closing.is_set()):
            try:
                batch = self._assembler.pull(receive)
            except StreamEnded:
                raise self._named(self._connection.get_result()) from None
            if batch is None:
                since = time.monotonic() - handed
                if not self._assembler.holds_complete:
                    self._wait(TICK_SECONDS)
                elif since < self._settings.linger_seconds:
                    self._wait(self._settings.linger_seconds - since)
                else:
                    batch = self._assembler.drain()
            if batch is not None:
                self._hand_over(batch)
                handed = time.monotonic()
            self._answer_if_due()
        self._finish()

    def _finish(self) -> None:
        """After a stop: hand over what is complete, then answer until everything is landed."""
        while (batch := self._assembler.drain()) is not None:
            self._hand_over(batch)
        self._pumped.set()
        while not self._closing.wait(TICK_SECONDS):  # what is read would be kept by libpq
            self._answer_if_due()

    def _decode(self) -> None:
        """Decode batches, in order, until the last."""
        while not self._closing.is_set():
            is_over = self._pumped.is_set()  # checked first, as in `take`
            try:
                batch = self._transactions.get(timeout=0 if is_over else TICK_SECONDS)
            except queue.Empty:
                if is_over:
                    return
                continue
            if batch is None:
                return
            self._decoding_since = time.monotonic()
            for arrival in self._decoder.decode(batch):
                self._decoding_since = None  # from here on landing is waited for
                self._put_arrival(arrival)
                del arrival  # the next one may need its room
                self._decoding_since = time.monotonic()
            self._decoding_since = None

    def _hand_over(self, batch: TransactionBatch) -> None:
        """
        Put a batch into the queue, unless the server has left out changes before it.

        Its position would then be confirmed, and the changes be lost. While the queue is full the
        server is answered: a slow landing is not a dead one.
        """
        if self._is_unpublished:
            raise PublicationMissing(self._settings.publication)
        while not self._closing.is_set():
            try:
                self._transactions.put(batch, timeout=TICK_SECONDS)
            except queue.Full:
                self._require_decoder()
                self._answer_if_due()
            else:
                self._silence.begin()  # nothing was read while the queue was full
                return

    def _require_decoder(self) -> None:
        """End the pump once the decoder has ended, which takes no more batches."""
        if self._decoded.is_set() and self._failure is not None:
            raise self._failure

    def _make_room(self, size: int) -> None:
        """Before a large frame is read: wait until landing has released what it had."""
        if size <= 2 * self._settings.memory.batch_bytes:
            return
        with self._handed:
            while self._done_with < self._put and not self._closing.is_set():
                self._handed.wait(TICK_SECONDS)

    def _put_arrival(self, arrival: Arrival) -> None:
        self._put += 1
        while not self._closing.is_set():
            with contextlib.suppress(queue.Full):
                self._arrivals.put(arrival, timeout=TICK_SECONDS)
                return

    # --- the socket ---------------------------------------------------------------------------

    def _begin(self) -> None:
        """
        START_REPLICATION; answered with COPY BOTH.

        Protocol 2 (Postgres 14) with streaming: a large transaction is sent while it runs, and is
        not spilled on the server. Messages are always requested: ours pass a position.
        Postgres (15 to 18 at least) cannot send parts of one that truncates a table again after a
        savepoint's TRUNCATE was rolled back: it maps no file to the table and ends with XX000.
        """
        settings, connection = self._settings, self._connection
        patience = _patience_seconds(connection)
        self._silence = Silence(patience)
        self._status_seconds = min(STATUS_SECONDS, patience / SILENT_TIMEOUTS / 4)
        publication = settings.publication.replace('"', '""').replace("'", "''")
        streaming = "on" if settings.takes_parts else "off"
        connection.send_query(
            f'START_REPLICATION SLOT "{settings.slot}" LOGICAL {self._start}'
            f" (proto_version '2', streaming '{streaming}', messages 'true',"
            f" publication_names '\"{publication}\"')".encode()
        )
        while connection.is_busy():
            if not self._polled.poll(self._silence.limit_seconds * 1_000):
                raise self._silent()
            connection.consume_input()
        result = connection.get_result()
        if result is None or result.status != pq.ExecStatus.COPY_BOTH:
            raise self._named(result)
        connection.nonblocking = 1

    def _on_notice(self, notice: pq.abc.PGresult) -> None:
        """
        Notices of the server, in their place among the messages; two warnings matter.

        Without the publication Postgres 18 says so and streams on without the change (17 ends the
        stream). From 17 on a failover slot waits for the standbys of `synchronized_standby_slots`,
        and the server says so again and again. Both may have one SQLSTATE.

        Source:
            StandbySlotsHaveCaughtup in src/backend/replication/slot.c
        """
        field = notice.error_field
        if field(pq.DiagnosticField.SEVERITY_NONLOCALIZED) != b"WARNING":
            return
        file = field(pq.DiagnosticField.SOURCE_FILE)
        if file == b"pgoutput.c" and field(pq.DiagnosticField.SQLSTATE) == b"55000":
            self._is_unpublished = True
        elif file == b"slot.c":
            reason = (field(pq.DiagnosticField.MESSAGE_PRIMARY) or b"").decode(errors="replace")
            self._held_back = self._assembler.received, reason

    def _wait(self, seconds: float) -> None:
        """Until the socket has something, `_wake` was called, or the time is over."""
        connection = self._connection
        events = select.POLLIN | select.POLLOUT if connection.flush() else select.POLLIN
        self._polled.modify(connection.socket, events)
        ready = dict(self._polled.poll(math.ceil(seconds * 1_000)))
        if self._wake_read in ready:
            os.read(self._wake_read, 4096)
        if ready.get(connection.socket, 0) & ~select.POLLOUT:
            connection.consume_input()
            self._silence.begin()
        elif self._silence.is_dead:
            self._failure = self._failure or self._silent()  # the decoder's error follows from it
            self._settings.abandon()  # the catalog's session leads to the same server
            raise self._failure

    def _silent(self) -> ConnectionLost:
        return ConnectionLost(self._server, f"it was silent for {self._silence.seconds:.0f} s")

    def _wake(self) -> None:
        with contextlib.suppress(BlockingIOError):  # a full pipe: it has been woken often enough
            os.write(self._wake_write, b"!")

    def _answer_if_due(self) -> None:
        due = time.monotonic() - self._sent_at >= self._status_seconds
        if due or self._confirmed > self._sent or self._silence.must_request:
            self._answer()

    def _answer(self) -> None:
        """
        Standby status update: received, durable, applied; whether a reply is requested at once.

        Source:
            https://www.postgresql.org/docs/current/protocol-replication.html
        """
        confirmed, requests = self._confirmed, self._silence.is_suspicious
        received = max(confirmed, self._assembler.received)
        now_us = time.time_ns() // 1_000 - POSTGRES_EPOCH_US
        self._connection.put_copy_data(
            _STATUS.pack(b"r", received, confirmed, confirmed, now_us, requests)
        )
        if requests:
            self._silence.requested()
        self._connection.flush()
        if confirmed > self._sent:
            reach("confirm.sent")
        self._sent, self._sent_at = confirmed, time.monotonic()

    def _named(self, result: pq.abc.PGresult | None) -> PgstreamError:
        """What the server's refusal means; by SQLSTATE, never by its text."""
        if result is None or result.status in (pq.ExecStatus.COMMAND_OK, pq.ExecStatus.COPY_IN):
            return ConnectionLost(self._server, "the server ended the stream")
        sqlstate = (result.error_field(pq.DiagnosticField.SQLSTATE) or b"").decode()
        primary = result.error_field(pq.DiagnosticField.MESSAGE_PRIMARY)
        reason = (primary or result.error_message or b"").decode(errors="replace").strip()
        if not sqlstate or sqlstate.startswith(_CLOSED):
            return ConnectionLost(self._server, reason or "the server closed it")
        if (passing := NAMED.get(sqlstate)) is not None:  # a full disk, a cancelled walsender
            return passing(self._server, reason)
        return self._of_slot(sqlstate, reason)

    def _of_slot(self, sqlstate: str, reason: str) -> PgstreamError:
        """What ends the stream of this slot, or of this publication."""
        settings = self._settings
        if sqlstate == "55006":  # object_in_use
            return SlotInUse(settings.slot, 0)
        if sqlstate == "42704":  # undefined_object: the slot is checked before every connect
            return PublicationMissing(settings.publication)
        if sqlstate == "XX000" and settings.takes_parts:  # internal_error
            return PartsUndecodable(settings.slot, reason)
        return ReplicationFailed(settings.slot, sqlstate, reason)


def _patience_seconds(connection: pq.abc.PGconn) -> float:
    """How long the server may be silent; roles and databases have settings of their own."""
    [row] = command(
        connection, "select setting from pg_catalog.pg_settings where name = 'wal_sender_timeout'"
    )
    timeout_ms = int(row["setting"] or 0)
    return SILENT_TIMEOUTS * timeout_ms / 1_000 if timeout_ms else SILENT_SECONDS


def _named_os_error(error: OSError) -> BaseException:
    """Name the error of a process that ran out of descriptors; it is not one of a single file."""
    if error.errno not in (errno.EMFILE, errno.ENFILE):
        return error
    return DescriptorsExhausted(resource.getrlimit(resource.RLIMIT_NOFILE)[0])
