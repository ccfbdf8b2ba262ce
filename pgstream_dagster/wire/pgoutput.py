"""
One pgoutput message at a time: bytes in, dataclasses out; opens no socket, keeps no state.

Only the messages that are few: transaction bounds, relations, types, truncates, logical messages
and the frame of streamed transactions. Row changes are decoded column-wise by `columns`.
Protocol 1 and 2; inside a streamed block (protocol 2) an Int32 xid follows the kind byte of
Relation, Type, Truncate and Message, of no other control message.

Source:
    https://www.postgresql.org/docs/current/protocol-logicalrep-message-formats.html
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, TypeAlias

from pgstream_dagster.errors import ProtocolError
from pgstream_dagster.lsn import Lsn
from pgstream_dagster.schema.table import ReplicaIdentity

POSTGRES_EPOCH_US: Final = 946_684_800_000_000
"""2000-01-01, where Postgres' clock starts, on the Unix clock in microseconds."""

MAX_INT64: Final = (1 << 63) - 1
"""Positions and times are signed 64-bit in the log; beyond it only damaged bytes can be."""


@dataclass(frozen=True, slots=True)
class Begin:
    """Start of a transaction; Postgres sends it when the commit is known."""

    commit_lsn: Lsn
    committed_at_us: int
    xid: int


@dataclass(frozen=True, slots=True)
class Commit:
    """End of a transaction."""

    commit_lsn: Lsn
    end_lsn: Lsn
    committed_at_us: int


@dataclass(frozen=True, slots=True)
class Origin:
    """The transaction was replicated into the source from elsewhere."""

    lsn: Lsn
    name: str


@dataclass(frozen=True, slots=True)
class RelationColumn:
    """One published column; `in_key` is Postgres' flag, under FULL set on every column."""

    name: str
    type_oid: int
    typmod: int
    in_key: bool


@dataclass(frozen=True, slots=True)
class Relation:
    """
    The columns and the replica identity of the rows that follow.

    `xid`, in a streamed block only: the (sub-)transaction that described it.
    """

    relation_id: int
    namespace: str
    name: str
    identity: ReplicaIdentity
    columns: tuple[RelationColumn, ...]
    xid: int | None = None


@dataclass(frozen=True, slots=True)
class TypeName:
    """The name of a type that is not built in."""

    type_oid: int
    namespace: str
    name: str
    xid: int | None = None


@dataclass(frozen=True, slots=True)
class Truncate:
    """All rows of some relations were removed."""

    relation_ids: tuple[int, ...]
    cascade: bool
    restart_identity: bool
    xid: int | None = None


@dataclass(frozen=True, slots=True)
class LogicalMessage:
    """A message written by `pg_logical_emit_message`."""

    transactional: bool
    lsn: Lsn
    prefix: str
    content: bytes
    xid: int | None = None


@dataclass(frozen=True, slots=True)
class StreamStart:
    """A block of a transaction that has not committed; `first` for the first of its blocks."""

    xid: int
    first: bool


@dataclass(frozen=True, slots=True)
class StreamStop:
    """The block ends."""


@dataclass(frozen=True, slots=True)
class StreamCommit:
    """A streamed transaction committed."""

    xid: int
    commit_lsn: Lsn
    end_lsn: Lsn
    committed_at_us: int


@dataclass(frozen=True, slots=True)
class StreamAbort:
    """A streamed (sub-)transaction was rolled back; `subxid == xid`: the whole of it."""

    xid: int
    subxid: int


Control: TypeAlias = (
    Begin
    | Commit
    | Origin
    | Relation
    | TypeName
    | Truncate
    | LogicalMessage
    | StreamStart
    | StreamStop
    | StreamCommit
    | StreamAbort
)


class Cursor:
    """Reads one message front to back; every read is checked against its end."""

    __slots__ = ("_at", "_data", "_message")

    def __init__(self, data: bytes, message: str) -> None:
        self._data, self._message, self._at = data, message, 1  # behind the kind byte

    def take(self, size: int) -> bytes:
        """The next `size` bytes."""
        start, end = self._at, self._at + size
        if size < 0 or end > len(self._data):
            raise ProtocolError(
                f"{self._message}: want {size:,} bytes at offset {start:,},"
                f" message has {len(self._data):,}"
            )
        self._at = end
        return self._data[start:end]

    def uint(self, size: int) -> int:
        """An unsigned big-endian integer of `size` bytes."""
        return int.from_bytes(self.take(size))

    def int32(self) -> int:
        """Int32, signed."""
        return int.from_bytes(self.take(4), signed=True)

    def lsn(self) -> Lsn:
        """Int64, a position."""
        value = self.uint(8)
        if value > MAX_INT64:
            raise ProtocolError(f"{self._message}: position {Lsn(value)} is past every WAL")
        return Lsn(value)

    def instant_us(self) -> int:
        """Int64, microseconds since 2000; given since 1970."""
        value = int.from_bytes(self.take(8), signed=True) + POSTGRES_EPOCH_US
        if value > MAX_INT64:
            raise ProtocolError(f"{self._message}: time {value} is past every timestamp")
        return value

    def string(self) -> str:
        """String, ended by a zero byte, in UTF-8."""
        end = self._data.find(0, self._at)
        if end < 0:
            raise ProtocolError(f"{self._message}: a string at offset {self._at:,} has no end")
        raw = self.take(end - self._at)
        self._at += 1
        try:
            return raw.decode()
        except UnicodeDecodeError:
            raise ProtocolError(f"{self._message}: a name is not UTF-8") from None

    def flags(self, allowed: int) -> int:
        """Int8 of flags, none but the `allowed` ones."""
        value = self.uint(1)
        if value & ~allowed:
            raise ProtocolError(f"{self._message}: unknown flags {value:#04x}")
        return value

    def end(self) -> None:
        """The message must end here."""
        if self._at != len(self._data):
            raise ProtocolError(f"{self._message}: {len(self._data) - self._at:,} bytes too many")


def parse(message: bytes | memoryview, *, streamed: bool) -> Control:
    """
    The control message whose kind byte `message` starts with, read exactly to its end.

    Shape:
        streamed: the message lies between Stream Start and Stream Stop.
    Raises:
        ProtocolError: damaged bytes, an unknown kind, or a row change (not a control message).
    """
    data = bytes(message)
    kind = data[:1]
    if kind not in _PARSERS:
        raise ProtocolError(f"not a control message of pgoutput: kind {kind!r}")
    name, has_xid, parser = _PARSERS[kind]
    at = Cursor(data, name)
    parsed = parser(at, at.uint(4) if streamed and has_xid else None)
    at.end()
    return parsed


def _begin(at: Cursor, _: int | None) -> Begin:
    """Int64 commit LSN, Int64 time, Int32 xid."""
    return Begin(at.lsn(), at.instant_us(), at.uint(4))


def _commit(at: Cursor, _: int | None) -> Commit:
    """Int8(0), Int64 commit LSN, Int64 end LSN, Int64 time."""
    at.flags(0)
    return Commit(at.lsn(), at.lsn(), at.instant_us())


def _origin(at: Cursor, _: int | None) -> Origin:
    """Int64 commit LSN on the origin, String name."""
    return Origin(at.lsn(), at.string())


def _relation(at: Cursor, xid: int | None) -> Relation:
    """[Int32 xid], Int32 oid, String namespace, String name, Int8 identity, Int16 n, n columns."""
    relation_id, namespace, name = at.uint(4), _namespace(at), at.string()
    letter = at.take(1).decode("latin-1")
    if letter not in _IDENTITIES:
        raise ProtocolError(f"Relation {relation_id}: unknown replica identity {letter!r}")
    columns = tuple(_column(at) for _ in range(at.uint(2)))
    return Relation(relation_id, namespace, name, ReplicaIdentity(letter), columns, xid)


def _column(at: Cursor) -> RelationColumn:
    """Int8 flags (1: in the key), String name, Int32 type oid, Int32 typmod."""
    in_key = bool(at.flags(1))
    return RelationColumn(at.string(), at.uint(4), at.int32(), in_key)


def _type(at: Cursor, xid: int | None) -> TypeName:
    """[Int32 xid], Int32 oid, String namespace, String name."""
    return TypeName(at.uint(4), _namespace(at), at.string(), xid)


def _truncate(at: Cursor, xid: int | None) -> Truncate:
    """[Int32 xid], Int32 n, Int8 options (1: CASCADE, 2: RESTART IDENTITY), n Int32 oids."""
    count, options = at.uint(4), at.flags(3)
    oids = at.take(4 * count)
    relation_ids = tuple(int.from_bytes(oids[i : i + 4]) for i in range(0, len(oids), 4))
    return Truncate(relation_ids, bool(options & 1), bool(options & 2), xid)


def _message(at: Cursor, xid: int | None) -> LogicalMessage:
    """[Int32 xid], Int8 flags (1: transactional), Int64 LSN, String prefix, Int32 n, n bytes."""
    transactional = bool(at.flags(1))
    return LogicalMessage(transactional, at.lsn(), at.string(), at.take(at.uint(4)), xid)


def _stream_start(at: Cursor, _: int | None) -> StreamStart:
    """Int32 xid, Int8 (1: first block of it)."""
    return StreamStart(at.uint(4), bool(at.flags(1)))


def _stream_stop(_: Cursor, __: int | None) -> StreamStop:
    """Nothing."""
    return StreamStop()


def _stream_commit(at: Cursor, _: int | None) -> StreamCommit:
    """Int32 xid, Int8(0), Int64 commit LSN, Int64 end LSN, Int64 time."""
    xid = at.uint(4)
    at.flags(0)
    return StreamCommit(xid, at.lsn(), at.lsn(), at.instant_us())


def _stream_abort(at: Cursor, _: int | None) -> StreamAbort:
    """Int32 xid, Int32 xid of the sub-transaction."""
    return StreamAbort(at.uint(4), at.uint(4))


def _namespace(at: Cursor) -> str:
    """String; empty means pg_catalog."""
    return at.string() or "pg_catalog"


_IDENTITIES: Final = frozenset(identity.value for identity in ReplicaIdentity)

_PARSERS: Final[Mapping[bytes, tuple[str, bool, Callable[[Cursor, int | None], Control]]]] = {
    b"B": ("Begin", False, _begin),
    b"C": ("Commit", False, _commit),
    b"O": ("Origin", False, _origin),
    b"R": ("Relation", True, _relation),
    b"Y": ("Type", True, _type),
    b"T": ("Truncate", True, _truncate),
    b"M": ("Message", True, _message),
    b"S": ("Stream Start", False, _stream_start),
    b"E": ("Stream Stop", False, _stream_stop),
    b"c": ("Stream Commit", False, _stream_commit),
    b"A": ("Stream Abort", False, _stream_abort),
}
"""Kind byte to (name, whether an xid follows in a streamed block, parser)."""
