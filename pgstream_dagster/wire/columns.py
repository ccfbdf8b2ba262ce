"""
Decode pgoutput column-wise: a batch of messages in, a table of changes out.

Pure: no I/O, no state between batches, no Python per row or value. Every tuple of a batch is an
item whatever its relation or kind, so nothing is grouped or reordered: the order of the rows is
the order of the messages. Damaged bytes raise `ProtocolError`; there is never a wrong row.

Source:
    https://www.postgresql.org/docs/current/protocol-logicalrep-message-formats.html
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Final, NamedTuple, TypeAlias

import numpy as np
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
from pgstream_dagster.wire.messages import (
    IS_CONTROL,
    IS_ROW,
    OVERSIZED,
    Kinds,
    MessageBatch,
    TransactionFields,
    kind_mask,
)
from pgstream_dagster.wire.ragged import (
    CHUNK_SLOTS,
    Bools,
    Ints,
    Octets,
    instants,
    starts_of,
)

SchemaTimeline: TypeAlias = Mapping[int, Sequence[tuple[int, TableSchema]]]
"""
Relation oid -> (index of the first message it applies to, schema), ascending by index.

A row of message i has the last version whose index is not above i; 0 (or less) stands for the
version in force when the batch begins.
"""

UNSENT_VALUE: Final = (
    "an INSERT came without the value of column {0!r}, as a publication's row filter sends a row"
    " with a large value that moves into it; run alter table {1} replica identity full"
)

TOO_LARGE: Final = (
    "a row of {0:,} bytes is too large for capture.memory_bytes; set in the pipeline file"
    " capture.memory_bytes: {1}, where the machine has the memory"
)

_BEGIN, _COMMIT, _ORIGIN, _TRUNCATE, _MESSAGE = b"BCOTM"

_BEGIN_BYTES: Final = 21
_COMMIT_BYTES: Final = 26
_ORIGIN_HEAD: Final = 9
_ROW_BYTES: Final = 8  # of the smallest row message: kind, Int32 relation, tag, Int16 count
_MAX_TIME: Final = pgoutput.MAX_INT64 - pgoutput.POSTGRES_EPOCH_US

_DDL: Final = ord("d")  # in place of a message that reports DDL

_OPS: Final = {
    INSERT: Op.INSERT,
    UPDATE: Op.UPDATE,
    DELETE: Op.DELETE,
    _TRUNCATE: Op.TRUNCATE,
    _MESSAGE: Op.MESSAGE,
    _DDL: Op.DDL,
}
_OP_CODES: Final = np.zeros(256, dtype=np.int32)
_OP_CODES[list(_OPS)] = np.arange(len(_OPS))
_OP_NAMES: Final = pa.array([op.value for op in _OPS.values()], pa.string())

_HAS_IMAGES: Final = kind_mask(b"IUD")
_IS_ALLOWED: Final = IS_ROW | IS_CONTROL | kind_mask(b"BCO")


class DdlRow(NamedTuple):
    """What a logical message that reports DDL becomes."""

    relation_id: int
    payload: str


NO_DDL: Final[Mapping[int, DdlRow | None]] = {}


class Decoded(NamedTuple):
    """
    Rows of `layout.CHANGES` in message order, and the ordinal after the last one.

    `unplaced`: rows without images (INSERTs without one of their values, rows that are too large),
    and why.
    """

    table: pa.Table
    next_ordinal: int
    unplaced: Mapping[int, str]


def decode(
    batch: MessageBatch,
    schemas: SchemaTimeline,
    *,
    epoch: int,
    transaction: TransactionFields | None = None,
    first_ordinal: int = 0,
    ddl: Mapping[int, DdlRow | None] = NO_DDL,
) -> Decoded:
    """
    Every change of a batch, in message order, one row of `layout.CHANGES` each.

    Without `transaction` the batch holds whole transactions, Begin to Commit; with it, a part of
    one streamed transaction. Ordinals count the rows of each transaction from `first_ordinal`.
    `landed_at` is null: the landing fills it. A pure function: the same batch, the same table.

    Shape:
        ddl: the logical messages that report DDL, by index, and the rows that they become, if any;
            a row has its relation's schema there.
    Raises:
        ProtocolError: bytes that the manual does not allow, or a row of a relation that is not
            in `schemas` or has another number of columns there.
    """
    _refuse(~_IS_ALLOWED[batch.kinds], batch, "its kind is unknown")
    _require_origins(batch)
    bounds = _bounds(batch, transaction)
    _require_inside(batch, bounds)
    rows = _rows(batch, ddl)
    layouts, version = _versions(rows, schemas)
    images, unplaced = _images(batch, rows, layouts, version)
    unplaced |= _oversized(batch, rows)
    columns = {
        **_stamps(rows, bounds, epoch, first_ordinal),
        **_names(rows, layouts, version),
        **images,
    }
    if (payloads := _payloads(batch, ddl)) is not None:
        columns["payload"] = pc.coalesce(payloads.take(pa.array(rows.message)), columns["payload"])
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


def _refuse(wrong: Bools, batch: MessageBatch, fact: str) -> None:
    if wrong.any():
        index = int(np.flatnonzero(wrong)[0])
        kind = bytes([batch.kinds[index]])
        raise ProtocolError(f"message {index} of its batch, {kind!r}: {fact}")


def _require_origins(batch: MessageBatch) -> None:
    """Origin: Byte1('O'), Int64, String. One per transaction, of few names: each name once."""
    at = np.flatnonzero(batch.kinds == _ORIGIN)
    if not len(at):
        return
    starts, ends = batch.starts[at], batch.ends[at]
    is_damaged = np.zeros(len(batch.kinds), dtype=np.bool_)
    is_damaged[at] = (ends - starts <= _ORIGIN_HEAD) | (batch.octets.i8(starts + 1) < 0)
    _refuse(is_damaged, batch, "it is damaged")
    for name in {
        batch.data[start + _ORIGIN_HEAD : end]
        for start, end in zip(starts.tolist(), ends.tolist(), strict=True)
    }:
        pgoutput.parse(b"O" + bytes(_ORIGIN_HEAD - 1) + name, streamed=batch.streamed)


class _Bounds(NamedTuple):
    """The transactions of a batch; `transaction[i]`: that of message i, -1 outside any."""

    transaction: Ints
    first: Ints  # message
    commit_lsn: Ints
    end_lsn: Ints
    committed_at_us: Ints
    xid: Ints


def _bounds(batch: MessageBatch, transaction: TransactionFields | None) -> _Bounds:
    is_begin, is_commit = batch.kinds == _BEGIN, batch.kinds == _COMMIT
    if transaction is not None:
        _refuse(is_begin | is_commit, batch, "it cannot be inside a streamed transaction")
        fields = [np.array([value], dtype=np.int64) for value in transaction]
        zeros = np.zeros(len(batch.kinds), dtype=np.int64)
        return _Bounds(zeros, np.zeros(1, dtype=np.int64), *fields)
    begins, commits = np.flatnonzero(is_begin), np.flatnonzero(is_commit)
    if len(begins) != len(commits) or (begins > commits).any() or (begins[1:] < commits[:-1]).any():
        raise ProtocolError("a batch of transactions in which Begin and Commit do not alternate")
    sizes = batch.ends - batch.starts
    _refuse(is_begin & (sizes != _BEGIN_BYTES), batch, f"it has not {_BEGIN_BYTES} bytes")
    _refuse(is_commit & (sizes != _COMMIT_BYTES), batch, f"it has not {_COMMIT_BYTES} bytes")
    number = np.cumsum(is_begin) - 1
    number[~is_begin & (np.append(-1, commits)[number + 1] < np.arange(len(batch.kinds)))] = -1
    fields = _bound_fields(batch.octets, batch.starts[begins], batch.starts[commits])
    return _Bounds(number, begins, *fields)


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


def _require_inside(batch: MessageBatch, bounds: _Bounds) -> None:
    """Only non-transactional messages come between transactions."""
    outside = bounds.transaction < 0
    for at, message in batch.controls.items():
        if isinstance(message, pgoutput.LogicalMessage) and not message.transactional:
            outside[at] = False
    _refuse(outside, batch, "it belongs to no transaction")


class _Rows(NamedTuple):
    """The rows that a batch gives; `before[i]`: how many come before message i."""

    before: Ints
    message: Ints
    kind: Kinds
    relation_id: Ints


def _rows(batch: MessageBatch, ddl: Mapping[int, DdlRow | None]) -> _Rows:
    """Row changes one, truncates one per relation, transactional messages one, the others none."""
    is_row = batch.is_row
    sizes = batch.ends - batch.starts
    _refuse(is_row & (sizes < _ROW_BYTES + 4 * batch.streamed), batch, "it is too short")
    counts = is_row.astype(np.int64)
    for at, message in batch.controls.items():
        match message:
            case pgoutput.Truncate():
                counts[at] = len(message.relation_ids)
            case pgoutput.LogicalMessage():
                counts[at] = message.transactional and ddl.get(at, True) is not None
            case _:
                pass
    before = starts_of(counts)
    relation_id = np.zeros(before[-1], dtype=np.int64)
    relation_id[before[:-1][is_row]] = batch.relation_ids(is_row)
    for at, message in batch.controls.items():
        if isinstance(message, pgoutput.Truncate):
            relation_id[before[at] : before[at + 1]] = message.relation_ids
    kinds = batch.kinds.copy() if ddl else batch.kinds
    for at, row in ddl.items():
        if row is not None:
            kinds[at], relation_id[before[at]] = _DDL, row.relation_id
    index = np.repeat(np.arange(len(counts)), counts)
    return _Rows(before, index, kinds[index], relation_id)


def _versions(rows: _Rows, schemas: SchemaTimeline) -> tuple[Layouts, Ints]:
    """The schema versions in use, and that of each row; of logical messages: one past the last."""
    used: list[TableSchema] = []
    version = np.zeros(len(rows.message), dtype=np.int64)
    in_relation = np.flatnonzero(rows.kind != _MESSAGE)
    oids, which = np.unique(rows.relation_id[in_relation], return_inverse=True)
    for number, oid in enumerate(oids.tolist()):
        timeline = schemas.get(oid, ())
        at = in_relation if len(oids) == 1 else in_relation[which == number]
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
    at = bounds.transaction[rows.message]
    ordinal = np.arange(len(at)) - rows.before[bounds.first[at]] + first_ordinal
    return {
        "epoch": pa.array(np.full(len(at), epoch, dtype=np.int32)),
        "commit_lsn": pa.array(bounds.commit_lsn[at]),
        "ordinal": pa.array(ordinal),
        "end_lsn": pa.array(bounds.end_lsn[at]),
        "xid": pa.array(bounds.xid[at]),
        "committed_at": instants(bounds.committed_at_us[at]),
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
    batch: MessageBatch, rows: _Rows, layouts: Layouts, version: Ints
) -> tuple[dict[str, pa.ChunkedArray], dict[int, str]]:
    """Keys and images, null for rows that have none, in chunks of a bounded number of fields."""
    places = np.flatnonzero(_HAS_IMAGES[rows.kind])
    index = rows.message[places]
    body = batch.bodies[index]
    messages = RowMessages(
        message=index,
        kind=rows.kind[places],
        tag=batch.octets.u1[body + 4],
        tuples=body + 5,
        ends=batch.ends[index],
        version=version[places],
    )
    slots = np.zeros(len(rows.message), dtype=np.int64)
    slots[places] = slot_counts(messages, layouts)
    chunks: list[Images] = []
    reasons: dict[int, str] = {}
    for begin, end in _cuts(slots):
        low, high = np.searchsorted(places, (begin, end)).tolist()
        chunk, at = messages.between(low, high), places[low:high] - begin
        images, unsent = row_images(batch.octets, chunk, layouts, at, end - begin)
        chunks.append(images)
        for row, column in unsent.items():
            relation = layouts.schemas[int(version[begin + row])].full_name
            reasons[begin + row] = UNSENT_VALUE.format(column, relation)
    columns = {
        name: pa.chunked_array([getattr(chunk, name) for chunk in chunks], CHANGES.field(name).type)
        for name in Images._fields
    }
    return columns, reasons


def _oversized(batch: MessageBatch, rows: _Rows) -> dict[int, str]:
    """Rows of which only the size is known, and what helps."""
    at = np.flatnonzero(rows.kind == ord(OVERSIZED))
    if not len(at):
        return {}
    sizes = batch.octets.i8(batch.bodies[rows.message[at]] + 4).tolist()
    reasons = (TOO_LARGE.format(size, needed_for(size)) for size in sizes)
    return dict(zip(at.tolist(), reasons, strict=True))


def _cuts(slots: Ints) -> Iterator[tuple[int, int]]:
    """Runs of rows that have about `CHUNK_SLOTS` slots each."""
    full = np.flatnonzero(np.diff(np.cumsum(slots) // CHUNK_SLOTS)) + 1
    return pairwise([0, *full.tolist(), len(slots)])


def _payloads(batch: MessageBatch, ddl: Mapping[int, DdlRow | None]) -> pa.Array | None:
    """What logical messages say, as JSON, by the index of the message; null for all others."""
    payloads = {at: row.payload for at, row in ddl.items() if row is not None}
    for at, message in batch.controls.items():
        if isinstance(message, pgoutput.LogicalMessage) and message.transactional and at not in ddl:
            payloads[at] = _payload(message)
    if not payloads:
        return None
    return pa.array([payloads.get(at) for at in range(len(batch.starts))], pa.string())


def _payload(message: pgoutput.LogicalMessage) -> str:
    try:
        content = {"content": message.content.decode()}
    except UnicodeDecodeError:
        content = {"content_base64": base64.b64encode(message.content).decode("ascii")}
    return json.dumps({"prefix": message.prefix, **content}, ensure_ascii=False)
