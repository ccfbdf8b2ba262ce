"""
Assembly: the messages of one connection in, batches of whole transactions out.

Postgres sends a transaction either whole and at its commit (Begin .. Commit) or, when it is large,
in blocks while it still runs (Stream Start .. Stream Stop), which may end in a Stream Abort. An
incomplete transaction is kept here: in memory while it is small, in the spool when it is large.
Only complete transactions leave, in the order of their commits. No socket: `receive` is given.

Source:
    https://www.postgresql.org/docs/current/protocol-logical-replication.html
    https://www.postgresql.org/docs/current/protocol-logicalrep-message-formats.html
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final, TypeAlias, TypeVar

from pgstream_dagster.capture.spool import HEADER, Frame, LateReport, Spool, SpoolFile
from pgstream_dagster.changelog.land import Keepalive
from pgstream_dagster.errors import ProtocolError, RowTooLarge
from pgstream_dagster.failpoints import reach
from pgstream_dagster.lsn import Lsn
from pgstream_dagster.memory import MemoryBound, needed_for
from pgstream_dagster.schema import ddl
from pgstream_dagster.wire import pgoutput
from pgstream_dagster.wire.messages import OVERSIZED, MessageBatch, TransactionFields, join

MAX_REPORT_BYTES: Final = 2 << 20
"""Of a message that reports DDL, whose content has 1 MiB at most; a larger one is not ours."""

BATCH_MESSAGES: Final = 16_384
"""Decoding by columns gains nothing beyond this; below 4,096 the fixed cost shows."""

_BEGIN, _COMMIT, _RELATION = ord("B"), ord("C"), ord("R")
_INSERT, _UPDATE, _DELETE = ord("I"), ord("U"), ord("D")
_STREAM_START, _STREAM_STOP = ord("S"), ord("E")
_STREAM_COMMIT, _STREAM_ABORT = ord("c"), ord("A")
_ROWS: Final = frozenset({_INSERT, _UPDATE, _DELETE})
_MESSAGE: Final = ord("M")
_PASS: Final = b"pgstream\0"  # prefix of the messages of `source/pass_position`
_DDL: Final = ddl.PREFIX.encode() + b"\0"
_CONTROLS: Final = frozenset({_RELATION, ord("Y"), ord("O"), ord("T"), _MESSAGE})
_XLOG_DATA, _KEEPALIVE = ord("w"), ord("k")
_LSN, _XID = struct.Struct(">Q"), struct.Struct(">I")
_OID: Final = HEADER + 1
_OID_IN_BLOCK: Final = HEADER + 5  # behind the xid
_OID_BYTES: Final = 4
_PREFIX: Final = HEADER + 10  # behind kind, flags and position
_PREFIX_IN_BLOCK: Final = HEADER + 14
_COMMIT_BYTES: Final = 26  # kind, Int8, two LSNs and a clock


@dataclass(frozen=True, slots=True)
class Transactions:
    """Whole small transactions, Begin to Commit, in commit order."""

    messages: MessageBatch
    end_lsn: Lsn


@dataclass(frozen=True, slots=True)
class LargeTransaction:
    """One whole transaction in the spool; `aborted` are sub-transactions to leave out."""

    fields: TransactionFields
    file: SpoolFile
    streamed: bool
    aborted: frozenset[int]

    @property
    def late_reports(self) -> list[LateReport]:
        """The reports that come after rows of their table, and were not rolled back."""
        return [report for report in self.file.late_reports if report.xid not in self.aborted]

    def batches(self) -> Iterator[MessageBatch]:
        """The transaction's messages in order, a bounded batch at a time."""
        # A map holds no batch while the next one is read.
        return map(self._batch, self.file.read())

    def _batch(self, frame: Frame) -> MessageBatch:
        return self.file.batch(*frame, streamed=self.streamed, aborted=self.aborted)


TransactionBatch: TypeAlias = Transactions | LargeTransaction | Keepalive
"""What leaves; a `Keepalive` says that everything before its position has left."""

Receive: TypeAlias = Callable[[int], tuple[int, memoryview | bytes | None]]
"""As `PGconn.get_copy_data(1)`: (size, message); size 0: nothing waits; -1: the stream ended."""


class StreamEnded(Exception):
    """The server closed the stream; the connection knows why."""


class Assembler:
    """
    The open transactions of one connection.

    Lives as long as its connection: after a reconnect Postgres sends again whatever was open, so
    a new connection starts with a new assembler and a new spool.
    """

    def __init__(
        self,
        spool: Spool,
        bound: MemoryBound = MemoryBound(),  # noqa: B008 - a constant
        *,
        messages: bool = False,
        batch_messages: int = BATCH_MESSAGES,
        batch_bytes: int | None = None,
    ) -> None:
        self._spool, self._row_bytes, self._keeps_messages = spool, bound.row_bytes, messages
        self._batch_messages, self._batch_bytes = batch_messages, batch_bytes or bound.batch_bytes
        self._messages: list[memoryview | bytes] = []  # of complete transactions, then the open one
        self._complete = 0  # how many of them belong to complete transactions
        self._size = 0
        self._end_lsn = Lsn(0)  # of the last complete transaction in `_messages`
        self._last_end = Lsn(0)  # of the last complete transaction of all
        self._in_transaction = False
        self._large: SpoolFile | None = None  # the open transaction, once it is too large
        self._large_begin: pgoutput.Begin | None = None
        self._streams: dict[int, SpoolFile] = {}  # by top-level xid
        self._aborted: dict[int, set[int]] = {}
        self._block_xid: int | None = None  # inside Stream Start .. Stream Stop
        self._keepalive: Keepalive | None = None
        self._passes = False  # the open transaction has a message that asks for its end
        self._ready: list[TransactionBatch] = []  # in commit order
        self.received = Lsn(0)
        """The highest WAL position the server spoke of; what we report as written."""

    @property
    def holds_complete(self) -> bool:
        """Whether `drain` would give something."""
        return bool(self._ready or self._complete or self._keepalive)

    def pull(self, receive: Receive) -> TransactionBatch | None:
        """
        Take messages until a batch is full; `None` when nothing waits on the socket.

        Raises:
            StreamEnded: the server ended the COPY.
            ProtocolError: a message the protocol does not allow here.
        """
        append, rows = self._messages.append, _ROWS
        while not self._ready:
            size, message = receive(1)
            if size < 0:
                raise StreamEnded
            if size == 0 or message is None:
                return None
            if message[0] != _XLOG_DATA:
                self._read_keepalive(message)
                continue
            if size <= HEADER:
                raise ProtocolError(f"XLogData of {size} bytes: no message in it")
            kind = message[HEADER]
            if kind in rows and self._in_transaction and self._large is None:
                append(message)
                self._size += size
                if self._size >= self._batch_bytes:
                    del message  # in the spool it takes no memory
                    self._overflow()
            else:
                self._control(kind, message, size)
                del message
            append = self._messages.append  # a full batch starts a new list
        return self._ready.pop(0)

    def drain(self) -> TransactionBatch | None:
        """The next batch, full or not; `None` when everything complete has left."""
        if not self._ready:
            self._cut()
        if not self._ready and self._keepalive is not None:
            keepalive, self._keepalive = self._keepalive, None
            return keepalive
        return self._ready.pop(0) if self._ready else None

    def _read_keepalive(self, message: memoryview | bytes) -> None:
        """Byte1('k'), Int64 end of WAL, Int64 clock, Byte1 reply at once."""
        data = bytes(message)
        if data[0] != _KEEPALIVE or len(data) != 18:
            raise ProtocolError(f"replication message {data[:1]!r} of {len(data)} bytes")
        wal_end = Lsn(_LSN.unpack_from(data, 1)[0])
        wants_reply = data[17] == 1
        earlier = self._keepalive
        self._keepalive = Keepalive(
            wal_end, wants_reply or (earlier is not None and earlier.wants_reply)
        )
        self.received = max(self.received, wal_end)
        if wants_reply:
            self._hand_on(self._keepalive)

    def _hand_on(self, keepalive: Keepalive) -> None:
        """One whose reply is waited for does not wait until a batch is full."""
        self._cut()
        self._ready.append(keepalive)
        self._keepalive = None

    def _control(self, kind: int, message: memoryview | bytes, size: int) -> None:
        """Everything but the row of a small transaction."""
        if self._block_xid is not None:
            self._in_block(kind, message, size)
        elif kind == _BEGIN:
            self._begin(message, size)
        elif kind == _COMMIT:
            self._commit(message, size)
        elif kind in _ROWS or kind in _CONTROLS:
            self._append(kind, message, size)
        elif kind == _STREAM_START:
            self._stream_start(message)
        elif kind == _STREAM_COMMIT:
            self._stream_commit(message)
        elif kind == _STREAM_ABORT:
            self._stream_abort(message)
        else:
            raise ProtocolError(f"message {chr(kind)!r} outside of a transaction")

    # --- whole transactions -------------------------------------------------------------------

    def _begin(self, message: memoryview | bytes, size: int) -> None:
        if self._in_transaction:
            raise ProtocolError("Begin inside a transaction")
        self._in_transaction = True
        self._messages.append(message)
        self._size += size

    def _append(self, kind: int, message: memoryview | bytes, size: int) -> None:
        """A row of a spooled transaction, or a Relation, Type, Origin, Truncate, Message."""
        if kind == _MESSAGE and not _is_transactional(message, HEADER + 1):
            return  # outside of every transaction's order
        if not self._in_transaction:
            raise ProtocolError(f"message {chr(kind)!r} outside of a transaction")
        if kind == _MESSAGE and not self._is_kept(message, size):
            return
        if self._large is not None:
            self._spooled(self._large, message, size, _OID)
            if kind == _MESSAGE:
                self._large.note_late(report_in(message, streamed=False), bytes(message))
            return
        self._messages.append(message)
        self._size += size
        if self._size >= self._batch_bytes:
            self._overflow()

    def _is_kept(self, message: memoryview | bytes, size: int) -> bool:
        """Whether a transaction's message goes to the log; one of ours asks for its position."""
        if _has_prefix(message, _PREFIX, _PASS):
            self._passes = True
            return False
        if _has_prefix(message, _PREFIX, _DDL):
            return size <= MAX_REPORT_BYTES
        return self._keeps_messages

    def _commit(self, message: memoryview | bytes, size: int) -> None:
        """Byte1('C'), Int8 flags, Int64 commit LSN, Int64 end LSN, Int64 clock."""
        if not self._in_transaction:
            raise ProtocolError("Commit outside of a transaction")
        if size != HEADER + _COMMIT_BYTES:
            raise ProtocolError(f"Commit of {size - HEADER} bytes, not {_COMMIT_BYTES}")
        self._in_transaction, passes, self._passes = False, self._passes, False
        end_lsn = self._ended(_LSN.unpack_from(message, HEADER + 10)[0])
        if self._large is not None:
            self._finish_large(end_lsn)
            return
        self._messages.append(message)
        self._size += size
        self._end_lsn = end_lsn
        self._complete = len(self._messages)
        if passes:
            self._hand_on(Keepalive(end_lsn, wants_reply=True))
        elif self._complete >= self._batch_messages or self._size >= self._batch_bytes:
            self._cut()

    def _ended(self, at: int) -> Lsn:
        """Where a transaction ended: on one connection each ends after the one before."""
        end_lsn = Lsn(at)
        if end_lsn <= self._last_end:
            raise ProtocolError(f"a transaction ends at {end_lsn} after one at {self._last_end}")
        self._last_end = end_lsn
        self.received = max(self.received, end_lsn)
        return end_lsn

    def _cut(self) -> None:
        """Make a batch of the complete transactions in hand."""
        if not self._complete:
            return
        complete = self._messages[: self._complete]
        self._messages = self._messages[self._complete :]
        self._complete = 0
        self._size = sum(map(len, self._messages))
        self._ready.append(Transactions(join(complete, header=HEADER), self._end_lsn))

    def _overflow(self) -> None:
        """Too much in memory: the complete part leaves, an open transaction goes to the spool."""
        self._cut()
        if self._size < self._batch_bytes or not self._in_transaction:
            return
        self._large_begin = _as(pgoutput.Begin, self._messages[0])
        self._large = self._spool.create()
        for message in self._messages[1:]:
            self._spooled(self._large, message, len(message), _OID)
            if message[HEADER] == _MESSAGE:
                self._large.note_late(report_in(message, streamed=False), bytes(message))
        self._messages, self._size = [], 0
        reach("spool.write")

    def _spooled(
        self, file: SpoolFile, message: memoryview | bytes, size: int, oid_at: int
    ) -> None:
        """Add a row or a control message to a file."""
        if size > self._row_bytes:
            self._keep_size(file, message, size, oid_at)
        else:
            file.add(message, size)

    def _keep_size(
        self, file: SpoolFile, message: memoryview | bytes, size: int, oid_at: int
    ) -> None:
        """
        Spool the relation and the size of a row that memory has no room for.

        Raises:
            RowTooLarge: a logical message, which no copy brings back.
        """
        if message[HEADER] == _MESSAGE:
            raise RowTooLarge(None, size, needed_for(size))
        head, relation = bytes(message[:HEADER]), bytes(message[HEADER + 1 : oid_at + _OID_BYTES])
        short = b"".join([head, OVERSIZED, relation, _LSN.pack(size)])
        file.add(short, len(short))

    def _finish_large(self, end_lsn: Lsn) -> None:
        begin, file = self._large_begin, self._large
        assert begin is not None
        assert file is not None
        self._large = self._large_begin = None
        fields = TransactionFields(begin.commit_lsn, end_lsn, begin.committed_at_us, begin.xid)
        self._hand_on_large(LargeTransaction(fields, file, streamed=False, aborted=frozenset()))

    def _hand_on_large(self, transaction: LargeTransaction) -> None:
        transaction.file.flush()
        reach("spool.commit")
        self._cut()
        self._ready.append(transaction)

    # --- streamed transactions ----------------------------------------------------------------

    def _stream_start(self, message: memoryview | bytes) -> None:
        start = _as(pgoutput.StreamStart, message)
        if self._in_transaction:
            raise ProtocolError("Stream Start inside a transaction")
        if start.first:
            self._forget(start.xid)
            self._streams[start.xid] = self._spool.create()
            self._aborted[start.xid] = set()
        elif start.xid not in self._streams:
            raise ProtocolError(f"transaction {start.xid} continues and has never begun")
        self._block_xid = start.xid

    def _in_block(self, kind: int, message: memoryview | bytes, size: int) -> None:
        """A message between Stream Start and Stream Stop; rows carry their sub-transaction."""
        xid = self._block_xid
        assert xid is not None
        file = self._streams[xid]
        if kind == _STREAM_STOP:
            self._block_xid = None
            file.flush()
            reach("spool.write")
        elif kind == _MESSAGE:
            # Others are left out: with `messages`, the server sends every transaction whole.
            is_ours = _has_prefix(message, _PREFIX_IN_BLOCK, _DDL) and size <= MAX_REPORT_BYTES
            if _is_transactional(message, HEADER + 5) and is_ours:
                self._report(file, message, size)
        elif kind in _ROWS or kind in _CONTROLS:
            self._spooled(file, message, size, _OID_IN_BLOCK)
        else:
            raise ProtocolError(f"message {chr(kind)!r} inside a streamed block")

    def _report(self, file: SpoolFile, message: memoryview | bytes, size: int) -> None:
        """
        Spool a report of DDL under the sub-transaction that it names.

        Postgres gives every message the id of the whole transaction.
        """
        report = report_in(message, streamed=True)
        if report is not None:
            head, rest = bytes(message[: HEADER + 1]), bytes(message[HEADER + 5 :])
            named = head + _XID.pack(report.xid) + rest
            file.add(named, size)
            file.note_late(report, named)

    def _stream_commit(self, message: memoryview | bytes) -> None:
        commit = _as(pgoutput.StreamCommit, message)
        xid = commit.xid
        file = self._streams.pop(xid, None)
        if file is None:
            raise ProtocolError(f"transaction {xid} commits and was never streamed")
        self._ended(commit.end_lsn)
        fields = TransactionFields(commit.commit_lsn, commit.end_lsn, commit.committed_at_us, xid)
        aborted = frozenset(self._aborted.pop(xid))
        self._hand_on_large(LargeTransaction(fields, file, streamed=True, aborted=aborted))

    def _stream_abort(self, message: memoryview | bytes) -> None:
        """Of the whole transaction when both xids are the same, else of one sub-transaction."""
        abort = _as(pgoutput.StreamAbort, message)
        if abort.xid == abort.subxid:
            self._forget(abort.xid)
        elif abort.xid in self._aborted:
            self._aborted[abort.xid].add(abort.subxid)

    def _forget(self, xid: int) -> None:
        file = self._streams.pop(xid, None)
        self._aborted.pop(xid, None)
        if file is not None:
            file.close()


def report_in(message: memoryview | bytes, *, streamed: bool) -> ddl.DdlReport | None:
    """The report of DDL in a Message, header included; `None` if it has none."""
    parsed = pgoutput.parse(bytes(message[HEADER:]), streamed=streamed)
    return reported(parsed) if isinstance(parsed, pgoutput.LogicalMessage) else None


def reported(message: pgoutput.LogicalMessage) -> ddl.DdlReport | None:
    """The report of DDL in a message; `None` if it is none: any role may write messages."""
    if message.prefix != ddl.PREFIX:
        return None
    try:
        return ddl.parse(message.content)
    except ProtocolError:
        return None


def _has_prefix(message: memoryview | bytes, at: int, prefix: bytes) -> bool:
    return bytes(message[at : at + len(prefix)]) == prefix


def _is_transactional(message: memoryview | bytes, flags_at: int) -> bool:
    """Of a Message, whose flags lie at this offset."""
    if len(message) <= flags_at:
        raise ProtocolError(f"Message of {len(message) - HEADER} bytes: it ends before its flags")
    return bool(message[flags_at] & 1)


_Control = TypeVar("_Control")


def _as(kind: type[_Control], message: memoryview | bytes) -> _Control:
    """The control message in `message`, which must be of `kind`."""
    parsed = pgoutput.parse(bytes(message[HEADER:]), streamed=False)
    if not isinstance(parsed, kind):
        raise ProtocolError(f"{type(parsed).__name__} where {kind.__name__} belongs")
    return parsed
