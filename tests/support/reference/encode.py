"""pgoutput and COPY bytes, written as the manual says them: what the tests feed to the decoders."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Final

from pgstream_dagster.schema.table import TableSchema

UNSENT: Final = object()
"""In a row: `u`, an unchanged TOASTed value."""

POSTGRES_EPOCH_US: Final = 946_684_800_000_000

Row = Sequence[str | bytes | object | None]


def begin(commit_lsn: int, committed_at_us: int = POSTGRES_EPOCH_US, xid: int = 700) -> bytes:
    return b"B" + struct.pack(">QqI", commit_lsn, committed_at_us - POSTGRES_EPOCH_US, xid)


def commit(
    commit_lsn: int, end_lsn: int | None = None, committed_at_us: int = POSTGRES_EPOCH_US
) -> bytes:
    end = commit_lsn + 48 if end_lsn is None else end_lsn
    return b"C\0" + struct.pack(">QQq", commit_lsn, end, committed_at_us - POSTGRES_EPOCH_US)


def origin(lsn: int, name: str) -> bytes:
    return b"O" + struct.pack(">Q", lsn) + string(name)


def relation(schema: TableSchema, *, xid: int | None = None) -> bytes:
    body = struct.pack(">I", schema.relation_id) + string(schema.namespace) + string(schema.name)
    body += schema.identity.value.encode() + struct.pack(">H", len(schema.columns))
    for column in schema.columns:
        flags = column.name in schema.key or schema.identity.value == "f"
        body += bytes([flags]) + string(column.name)
        body += struct.pack(">Ii", column.type_oid, column.typmod)
    return b"R" + streamed(xid) + body


def type_name(oid: int, namespace: str, name: str, *, xid: int | None = None) -> bytes:
    return b"Y" + streamed(xid) + struct.pack(">I", oid) + string(namespace) + string(name)


def insert(relation_id: int, new: Row, *, xid: int | None = None) -> bytes:
    return b"I" + streamed(xid) + struct.pack(">I", relation_id) + b"N" + row(new)


def update(
    relation_id: int, new: Row, *, old: Row | None = None, tag: str = "O", xid: int | None = None
) -> bytes:
    before = b"" if old is None else tag.encode() + row(old)
    return b"U" + streamed(xid) + struct.pack(">I", relation_id) + before + b"N" + row(new)


def delete(relation_id: int, old: Row, *, tag: str = "O", xid: int | None = None) -> bytes:
    return b"D" + streamed(xid) + struct.pack(">I", relation_id) + tag.encode() + row(old)


def truncate(*relation_ids: int, options: int = 0, xid: int | None = None) -> bytes:
    body = struct.pack(">IB", len(relation_ids), options)
    return b"T" + streamed(xid) + body + b"".join(struct.pack(">I", oid) for oid in relation_ids)


def message(
    prefix: str,
    content: bytes,
    *,
    transactional: bool = True,
    lsn: int = 1,
    xid: int | None = None,
) -> bytes:
    body = struct.pack(">BQ", transactional, lsn) + string(prefix)
    return b"M" + streamed(xid) + body + struct.pack(">I", len(content)) + content


def string(text: str) -> bytes:
    return text.encode() + b"\0"


def streamed(xid: int | None) -> bytes:
    return b"" if xid is None else struct.pack(">I", xid)


def row(values: Row) -> bytes:
    return struct.pack(">H", len(values)) + b"".join(_value(value) for value in values)


def _value(value: object) -> bytes:
    if value is UNSENT:
        return b"u"
    if value is None:
        return b"n"
    raw = value.encode() if isinstance(value, str) else value
    assert isinstance(raw, bytes)
    return b"t" + struct.pack(">I", len(raw)) + raw


COPY_HEADER: Final = b"PGCOPY\n\xff\r\n\0" + bytes(8)
COPY_TRAILER: Final = b"\xff\xff"


def copy_row(values: Sequence[str | bytes | None]) -> bytes:
    """One row of binary COPY."""
    body = struct.pack(">h", len(values))
    for value in values:
        raw = value.encode() if isinstance(value, str) else value
        body += struct.pack(">i", -1) if raw is None else struct.pack(">i", len(raw)) + raw
    return body
