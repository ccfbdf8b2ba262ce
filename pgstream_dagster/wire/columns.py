"""
Decode pgoutput column-wise: a block of messages in, a table of changes out.

Pure: no I/O, no state between blocks, no Python per row or value. Every tuple of a block is an
item whatever its relation or kind, so nothing is grouped or reordered: the order of the rows is
the order of the messages. Damaged bytes raise `ProtocolError`; there is never a wrong row.

Source:
    https://www.postgresql.org/docs/current/protocol-logicalrep-message-formats.html
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from pgstream_dagster.errors import ProtocolError
from pgstream_dagster.memory import needed_for
from pgstream_dagster.schema.changes import Op
from pgstream_dagster.schema.layout import CHANGES
from pgstream_dagster.schema.table import TableSchema
from pgstream_dagster.wire import pgoutput
from pgstream_dagster.wire.images import (
    DELETE,
    INSERT,
    UPDATE,
    Images,
    Layouts,
    RowMessages,
    row_images,
    slot_counts,
)
from pgstream_dagster.wire.ragged import (
    MAX_BUFFER_BYTES,
    PADDING,
    PART_SLOTS,
    Bools,
    Ints,
    Octets,
    instants,
    starts_of,
)

Kinds: TypeAlias = npt.NDArray[np.uint8]

SchemaTimeline: TypeAlias = Mapping[int, Sequence[tuple[int, TableSchema]]]
"""
Relation oid -> (index of the first message it applies to, schema), ascending by index.

A row of message i has the last version whose index is not above i; 0 (or less) stands for the
version in force when the block begins.
"""

UNSENT_VALUE: Final = (
    "an INSERT came without the value of column {0!r}, as a publication's row filter sends a row"
    " with a large value that moves into it; run alter table {1} replica identity full"
)

OVERSIZED: Final = b"!"
"""
Stands for a row that memory has no room for; Postgres sends no such kind.

Shape: Byte1('!'), [Int32 xid], Int32 relation, Int64 bytes of its message.
"""

ROW_KINDS: Final = np.frombuffer(b"IUD" + OVERSIZED, dtype=np.uint8)
"""The kinds of messages that give a row."""

TOO_LARGE: Final = (
    "a row of {0:,} bytes is too large for capture.memory_bytes; set in the pipeline file"
    " capture.memory_bytes: {1}, where the machine has the memory"
)

_BEGIN, _COMMIT, _ORIGIN, _RELATION, _TYPE, _TRUNCATE, _MESSAGE = b"BCORYTM"

_BEGIN_BYTES: Final = 21
_COMMIT_BYTES: Final = 26
_ORIGIN_HEAD: Final = 9
_ROW_BYTES: Final = 8  # of the smallest row message: kind, Int32 relation, tag, Int16 count
_MAX_TIME: Final = pgoutput.MAX_INT64 - pgoutput.POSTGRES_EPOCH_US

_OPS: Final = {
    INSERT: Op.INSERT,
    UPDATE: Op.UPDATE,
    DELETE: Op.DELETE,
    _TRUNCATE: Op.TRUNCATE,
    _MESSAGE: Op.MESSAGE,
}
_OP_CODES: Final = np.zeros(256, dtype=np.int32)
_OP_CODES[list(_OPS)] = np.arange(len(_OPS))
_OP_NAMES: Final = pa.array([op.value for op in _OPS.values()], pa.string())

_IS_ROW: Final = np.zeros(256, dtype=np.bool_)
_IS_ROW[[INSERT, UPDATE, DELETE]] = True
_IS_FEW: Final = np.zeros(256, dtype=np.bool_)
_IS_FEW[[_RELATION, _TYPE, _TRUNCATE, _MESSAGE]] = True
_GIVES_ROW: Final = np.zeros(256, dtype=np.bool_)
_GIVES_ROW[ROW_KINDS] = True
_IS_KNOWN: Final = _GIVES_ROW | _IS_FEW
_IS_KNOWN[[_BEGIN, _COMMIT, _ORIGIN]] = True


@dataclass(frozen=True, slots=True, eq=False)
class Block:
    """
    Messages joined into one buffer.

    Shape:
        data: the messages, each behind its header, then `ragged.PADDING`.
        starts, ends: offset of each message's kind byte, and behind its last byte.
        streamed: an Int32 xid follows every kind byte (protocol 2, inside a streamed block).
        left_out: relations of rows that the messages had here and that were left out.
    """

    data: bytes
    starts: Ints
    ends: Ints
    streamed: bool
    left_out: frozenset[int] = frozenset()

    @property
    def kinds(self) -> np.ndarray:
        """The kind byte of each message."""
        return np.frombuffer(self.data, dtype=np.uint8)[self.starts]


class TransactionFields(NamedTuple):
    """What the Stream Commit of a streamed transaction says, for every row of it."""

    commit_lsn: int
    end_lsn: int
    committed_at_us: int
    xid: int


class Decoded(NamedTuple):
    """
    Rows of `layout.CHANGES` in message order, and the ordinal after the last one.

    `unplaced`: rows without images (INSERTs without one of their values, rows that are too large),
    and why.
    """

    table: pa.Table
    next_ordinal: int
    unplaced: Mapping[int, str]


def join(messages: Sequence[bytes | memoryview], *, header: int, streamed: bool = False) -> Block:
    """
    One buffer of `messages`, each with `header` bytes before its kind byte.

    25 for XLogData as CopyData carries it, 0 for bare messages.

    Raises:
        ProtocolError: a message without a kind byte.
        ValueError: 2 GiB and more; the caller cuts blocks far below (one message is under 1 GB).
    """
    sizes = np.fromiter(map(len, messages), dtype=np.int64, count=len(messages))
    if len(sizes) and sizes.min() <= header:
        raise ProtocolError(f"a message of {sizes.min()} bytes; its header alone has {header}")
    ends = np.cumsum(sizes)
    if len(ends) and ends[-1] > MAX_BUFFER_BYTES:
        raise ValueError(f"a block of {ends[-1]:,} bytes; at most {MAX_BUFFER_BYTES:,}")
    return Block(b"".join([*messages, PADDING]), ends - sizes + header, ends, streamed)


def relations(block: Block) -> list[tuple[int, pgoutput.Relation]]:
    """The Relation messages of a block, each with its index; `ProtocolError` when damaged."""
    kinds = block.kinds
    messages = ((at, _parsed(block, at)) for at in np.flatnonzero(kinds == _RELATION).tolist())
    return [(at, said) for at, said in messages if isinstance(said, pgoutput.Relation)]


def decode(
    block: Block,
    schemas: SchemaTimeline,
    *,
    epoch: int,
    transaction: TransactionFields | None = None,
    first_ordinal: int = 0,
) -> Decoded:
    """
    Every change of a block, in message order, one row of `layout.CHANGES` each.

    Without `transaction` the block holds whole transactions, Begin to Commit; with it, a part of
    one streamed transaction. Ordinals count the rows of each transaction from `first_ordinal`.
    `landed_at` is null: the landing fills it. A pure function: the same block, the same table.

    Raises:
        ProtocolError: bytes that the manual does not allow, or a row of a relation that is not
            in `schemas` or has another number of columns there.
    """
    octets = Octets(block.data)
    kinds = octets.u1[block.starts]
    _refuse(~_IS_KNOWN[kinds], kinds, "its kind is unknown")
    _require_origins(octets, block, kinds)
    few = {at: _parsed(block, at) for at in np.flatnonzero(_IS_FEW[kinds]).tolist()}
    bounds = _bounds(octets, block, kinds, transaction)
    _require_inside(kinds, few, bounds)
    rows = _rows(octets, block, kinds, few)
    layouts, version = _versions(rows, schemas)
    images, unplaced = _images(octets, block, rows, layouts, version)
    unplaced |= _oversized(octets, block, rows)
    columns = {
        **_stamps(rows, bounds, epoch, first_ordinal),
        **_names(rows, layouts, version),
        **images,
    }
    if (said := _payloads(rows, few)) is not None:
        columns["payload"] = pc.coalesce(said, columns["payload"])
    before_last = rows.before[bounds.first[-1:]].sum()  # of the rows, those of other transactions
    next_ordinal = first_ordinal + len(rows.message) - int(before_last)
    return Decoded(change_table(columns, len(rows.message)), next_ordinal, unplaced)


def change_table(columns: Mapping[str, pa.Array], row_count: int) -> pa.Table:
    """A table of `layout.CHANGES`; columns that are not given are null."""
    arrays = [
        columns[field.name] if field.name in columns else pa.nulls(row_count, field.type)
        for field in CHANGES
    ]
    return pa.Table.from_arrays(arrays, schema=CHANGES)


def _refuse(wrong: Bools, kinds: Kinds, fact: str) -> None:
    if wrong.any():
        index = int(np.flatnonzero(wrong)[0])
        raise ProtocolError(f"message {index} of its block, {bytes([kinds[index]])!r}: {fact}")


def _parsed(block: Block, index: int) -> pgoutput.Control:
    message = block.data[block.starts[index] : block.ends[index]]
    return pgoutput.parse(message, streamed=block.streamed)


def _require_origins(octets: Octets, block: Block, kinds: Kinds) -> None:
    """Origin: Byte1('O'), Int64, String. One per transaction, of few names: each name once."""
    at = np.flatnonzero(kinds == _ORIGIN)
    if not len(at):
        return
    starts, ends = block.starts[at], block.ends[at]
    short = np.zeros(len(kinds), dtype=np.bool_)
    short[at] = (ends - starts <= _ORIGIN_HEAD) | (octets.i8(starts + 1) < 0)
    _refuse(short, kinds, "it is damaged")
    for name in {
        block.data[start + _ORIGIN_HEAD : end]
        for start, end in zip(starts.tolist(), ends.tolist(), strict=True)
    }:
        pgoutput.parse(b"O" + bytes(_ORIGIN_HEAD - 1) + name, streamed=block.streamed)


class _Bounds(NamedTuple):
    """The transactions of a block; `of[i]`: that of message i, -1 outside any."""

    of: Ints
    first: Ints  # message
    commit_lsn: Ints
    end_lsn: Ints
    committed_at_us: Ints
    xid: Ints


def _bounds(
    octets: Octets, block: Block, kinds: Kinds, transaction: TransactionFields | None
) -> _Bounds:
    is_begin, is_commit = kinds == _BEGIN, kinds == _COMMIT
    if transaction is not None:
        _refuse(is_begin | is_commit, kinds, "it cannot be inside a streamed transaction")
        fields = [np.array([value], dtype=np.int64) for value in transaction]
        one = np.zeros(1, dtype=np.int64)
        return _Bounds(np.zeros(len(kinds), dtype=np.int64), one, *fields)
    begins, commits = np.flatnonzero(is_begin), np.flatnonzero(is_commit)
    if len(begins) != len(commits) or (begins > commits).any() or (begins[1:] < commits[:-1]).any():
        raise ProtocolError("a block of transactions in which Begin and Commit do not alternate")
    sizes = block.ends - block.starts
    _refuse(is_begin & (sizes != _BEGIN_BYTES), kinds, f"it has not {_BEGIN_BYTES} bytes")
    _refuse(is_commit & (sizes != _COMMIT_BYTES), kinds, f"it has not {_COMMIT_BYTES} bytes")
    of = np.cumsum(is_begin) - 1
    of[~is_begin & (np.append(-1, commits)[of + 1] < np.arange(len(kinds)))] = -1
    return _Bounds(of, begins, *_bound_fields(octets, block.starts[begins], block.starts[commits]))


def _bound_fields(octets: Octets, begin: Ints, commit: Ints) -> tuple[Ints, Ints, Ints, Ints]:
    """
    Commit LSN, end LSN, time, xid.

    Begin: Byte1, Int64 commit LSN, Int64 time, Int32 xid.
    Commit: Byte1, Int8(0), Int64 commit LSN, Int64 end LSN, Int64 time.
    """
    commit_lsn, end_lsn = octets.i8(begin + 1), octets.i8(commit + 10)
    begun_at, committed_at = octets.i8(begin + 9), octets.i8(commit + 18)
    if octets.u1[commit + 1].any() or (commit_lsn != octets.i8(commit + 2)).any():
        raise ProtocolError("a Commit with unknown flags, or of another transaction than its Begin")
    if (np.minimum(commit_lsn, end_lsn) < 0).any():
        raise ProtocolError("a transaction whose position is past every WAL")
    if (np.maximum(begun_at, committed_at) > _MAX_TIME).any():
        raise ProtocolError("a transaction whose time is past every timestamp")
    return commit_lsn, end_lsn, begun_at + pgoutput.POSTGRES_EPOCH_US, octets.u4(begin + 17)


def _require_inside(kinds: Kinds, few: Mapping[int, pgoutput.Control], bounds: _Bounds) -> None:
    """Only non-transactional messages come between transactions."""
    outside = bounds.of < 0
    for at, message in few.items():
        if isinstance(message, pgoutput.LogicalMessage) and not message.transactional:
            outside[at] = False
    _refuse(outside, kinds, "it belongs to no transaction")


class _Rows(NamedTuple):
    """The rows that a block gives; `before[i]`: how many come before message i."""

    before: Ints
    message: Ints
    kind: Kinds
    relation_id: Ints


def _rows(octets: Octets, block: Block, kinds: Kinds, few: Mapping[int, pgoutput.Control]) -> _Rows:
    """Row changes one, truncates one per relation, transactional messages one, the others none."""
    is_row = _GIVES_ROW[kinds]
    sizes = block.ends - block.starts
    _refuse(is_row & (sizes < _ROW_BYTES + 4 * block.streamed), kinds, "it is too short")
    counts = is_row.astype(np.int64)
    for at, message in few.items():
        match message:
            case pgoutput.Truncate():
                counts[at] = len(message.relation_ids)
            case pgoutput.LogicalMessage():
                counts[at] = message.transactional
            case _:
                pass
    before = starts_of(counts)
    relation_id = np.zeros(before[-1], dtype=np.int64)
    relation_id[before[:-1][is_row]] = octets.u4(_bodies(block)[is_row])
    for at, message in few.items():
        if isinstance(message, pgoutput.Truncate):
            relation_id[before[at] : before[at + 1]] = message.relation_ids
    index = np.repeat(np.arange(len(kinds)), counts)
    return _Rows(before, index, kinds[index], relation_id)


def _bodies(block: Block) -> Ints:
    """Where each message goes on behind its kind byte and, in a streamed block, its xid."""
    return block.starts + (5 if block.streamed else 1)


def _versions(rows: _Rows, schemas: SchemaTimeline) -> tuple[Layouts, Ints]:
    """The schema versions in use, and that of each row; of logical messages: one past the last."""
    used: list[TableSchema] = []
    version = np.zeros(len(rows.message), dtype=np.int64)
    of_relation = np.flatnonzero(rows.kind != _MESSAGE)
    oids, which = np.unique(rows.relation_id[of_relation], return_inverse=True)
    for number, oid in enumerate(oids.tolist()):
        timeline = schemas.get(oid, ())
        at = of_relation if len(oids) == 1 else of_relation[which == number]
        since = np.array([index for index, _ in timeline], dtype=np.int64)
        place = np.searchsorted(since, rows.message[at], side="right") - 1
        if place.min() < 0:
            raise ProtocolError(f"a row of relation {oid}, which Postgres has not described")
        version[at] = place + len(used)
        used += [schema for _, schema in timeline]
    version[rows.kind == _MESSAGE] = len(used)
    return Layouts(used), version


def _stamps(rows: _Rows, bounds: _Bounds, epoch: int, first_ordinal: int) -> dict[str, pa.Array]:
    """What a row has from its transaction."""
    of = bounds.of[rows.message]
    ordinal = np.arange(len(of)) - rows.before[bounds.first[of]] + first_ordinal
    return {
        "epoch": pa.array(np.full(len(of), epoch, dtype=np.int32)),
        "commit_lsn": pa.array(bounds.commit_lsn[of]),
        "ordinal": pa.array(ordinal),
        "end_lsn": pa.array(bounds.end_lsn[of]),
        "xid": pa.array(bounds.xid[of]),
        "committed_at": instants(bounds.committed_at_us[of]),
    }


def _names(rows: _Rows, layouts: Layouts, version: Ints) -> dict[str, pa.Array]:
    """What a row has from its kind and its relation; logical messages have no relation."""
    used, at = layouts.schemas, pa.array(version)
    no_relation = rows.kind == _MESSAGE
    return {
        "op": _OP_NAMES.take(pa.array(_OP_CODES[rows.kind])),
        "namespace": pa.array([*(s.namespace for s in used), None], pa.string()).take(at),
        "relation": pa.array([*(s.name for s in used), None], pa.string()).take(at),
        "relation_id": pa.array(rows.relation_id, mask=no_relation),
        "schema_id": pa.array([*(s.schema_id for s in used), None], pa.int64()).take(at),
    }


def _images(
    octets: Octets, block: Block, rows: _Rows, layouts: Layouts, version: Ints
) -> tuple[dict[str, pa.ChunkedArray], dict[int, str]]:
    """Keys and images, null for rows that have none, in chunks of a bounded number of fields."""
    places = np.flatnonzero(_IS_ROW[rows.kind])
    index = rows.message[places]
    body = _bodies(block)[index]
    messages = RowMessages(
        index=index,
        kind=rows.kind[places],
        tag=octets.u1[body + 4],
        tuples=body + 5,
        ends=block.ends[index],
        version=version[places],
    )
    slots = np.zeros(len(rows.message), dtype=np.int64)
    slots[places] = slot_counts(messages, layouts)
    parts: list[Images] = []
    reasons: dict[int, str] = {}
    for begin, end in _cuts(slots):
        low, high = np.searchsorted(places, (begin, end)).tolist()
        part, at = messages.part(low, high), places[low:high] - begin
        images, unsent = row_images(octets, part, layouts, at, end - begin)
        parts.append(images)
        for row, column in unsent.items():
            relation = layouts.schemas[int(version[begin + row])].full_name
            reasons[begin + row] = UNSENT_VALUE.format(column, relation)
    columns = {
        name: pa.chunked_array([getattr(part, name) for part in parts], CHANGES.field(name).type)
        for name in Images._fields
    }
    return columns, reasons


def _oversized(octets: Octets, block: Block, rows: _Rows) -> dict[int, str]:
    """Rows of which only the size is known, and what helps."""
    at = np.flatnonzero(rows.kind == ord(OVERSIZED))
    if not len(at):
        return {}
    sizes = octets.i8(_bodies(block)[rows.message[at]] + 4).tolist()
    reasons = (TOO_LARGE.format(size, needed_for(size)) for size in sizes)
    return dict(zip(at.tolist(), reasons, strict=True))


def _cuts(slots: Ints) -> Iterator[tuple[int, int]]:
    """Runs of rows that have about `PART_SLOTS` slots each."""
    full = np.flatnonzero(np.diff(np.cumsum(slots) // PART_SLOTS)) + 1
    return pairwise([0, *full.tolist(), len(slots)])


def _payloads(rows: _Rows, few: Mapping[int, pgoutput.Control]) -> pa.Array | None:
    """Prefix and content of logical messages as JSON, null for every other row."""
    said = [
        _payload(message)
        for message in few.values()
        if isinstance(message, pgoutput.LogicalMessage) and message.transactional
    ]
    if not said:
        return None
    is_message = rows.kind == _MESSAGE
    return pa.array(said, pa.string()).take(pa.array(np.cumsum(is_message) - 1, mask=~is_message))


def _payload(message: pgoutput.LogicalMessage) -> str:
    try:
        content = {"content": message.content.decode()}
    except UnicodeDecodeError:
        content = {"content_base64": base64.b64encode(message.content).decode("ascii")}
    return json.dumps({"prefix": message.prefix, **content}, ensure_ascii=False)
