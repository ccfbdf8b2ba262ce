"""
Decode binary COPY column-wise: rows of text columns in, a table of `read` changes out.

Pure. A field of binary COPY is an Int32 length (-1 for NULL) and the bytes; of text columns the
bytes are the text, so the ragged machinery of the stream serves here too, and one path leads from
text to type for copy and stream.

Source:
    https://www.postgresql.org/docs/current/sql-copy.html (Binary Format)
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, TypeAlias

import numpy as np
import pyarrow as pa

from pgstream_dagster.errors import ProtocolError
from pgstream_dagster.lsn import Lsn
from pgstream_dagster.schema.changes import Op
from pgstream_dagster.schema.layout import INSTANT, no_changes
from pgstream_dagster.schema.table import TableSchema
from pgstream_dagster.wire.columns import change_table
from pgstream_dagster.wire.images import Layouts
from pgstream_dagster.wire.messages import MessageBatch, join
from pgstream_dagster.wire.ragged import (
    CHUNK_SLOTS,
    Bools,
    Fields,
    Ints,
    image_column,
    key_column,
    payload_column,
    walk,
)

CopyData: TypeAlias = bytes | memoryview

_SIGNATURE: Final = b"PGCOPY\n\xff\r\n\0"
_HEADER_BYTES: Final = 19  # signature, Int32 flags, Int32 length of an extension
_TRAILER: Final = b"\xff\xff"  # Int16 -1 where a row has its column count
_CRITICAL_FLAGS: Final = 0xFFFF0000
_HEAD: Final = 4  # Int32 length
_NULL: Final = 0xFFFFFFFF  # -1


def decode_copy(
    rows: Sequence[CopyData],
    schema: TableSchema,
    *,
    epoch: int,
    consistent_point: Lsn,
    first_ordinal: int,
    taken_at_us: int,
) -> pa.Table:
    """
    The copied rows in their order, as `read` changes at the snapshot's consistent point.

    Shape:
        rows: one CopyData each. The file header may precede the first row (in its CopyData or in
            its own) and the trailer follow the last.
    Raises:
        ProtocolError: damaged bytes, or another number of columns than `schema` has.
    """
    rows = _without_frame(rows)
    size = max(1, CHUNK_SLOTS // (len(schema.columns) + 1))
    chunks = [_images(rows[at : at + size], schema) for at in range(0, len(rows), size)]
    if not chunks:
        return no_changes()
    columns = {name: pa.chunked_array([chunk[name] for chunk in chunks]) for name in chunks[0]}
    count = len(rows)

    def same(value: int | str, kind: pa.DataType) -> pa.Array:
        return pa.repeat(pa.scalar(value, kind), count)

    stamps = {
        "epoch": same(epoch, pa.int32()),
        "commit_lsn": same(consistent_point, pa.int64()),
        "ordinal": pa.array(np.arange(first_ordinal, first_ordinal + count)),
        "end_lsn": same(consistent_point, pa.int64()),
        "committed_at": same(taken_at_us, INSTANT),
        "op": same(Op.READ.value, pa.string()),
        "namespace": same(schema.namespace, pa.string()),
        "relation": same(schema.name, pa.string()),
        "relation_id": same(schema.relation_id, pa.int64()),
        "schema_id": same(schema.schema_id, pa.int64()),
    }
    return change_table({**stamps, **columns}, count)


def _without_frame(rows: Sequence[CopyData]) -> Sequence[CopyData]:
    """`rows` without the file's header and trailer, where they are there."""
    if rows and bytes(rows[0][: len(_SIGNATURE)]) == _SIGNATURE:
        first = _after_header(rows[0])
        rows = [first, *rows[1:]] if len(first) else rows[1:]
    if rows and bytes(rows[-1]) == _TRAILER:
        rows = rows[:-1]
    return rows


def _after_header(data: CopyData) -> CopyData:
    flags, extension = int.from_bytes(data[11:15]), int.from_bytes(data[15:19])
    end = _HEADER_BYTES + extension
    if len(data) < end or flags & _CRITICAL_FLAGS:
        raise ProtocolError("the header of a copy is damaged, or of a format we do not know")
    return data[end:]


def _images(rows: Sequence[CopyData], schema: TableSchema) -> dict[str, pa.Array]:
    """`key`, `after` and `payload` of some rows."""
    batch = join(rows, header=0)
    octets, count, width = batch.octets, len(rows), len(schema.columns)
    positions = _positions(batch, schema)
    slots = np.arange(count * (width + 1)).reshape(count, width + 1)[:, :width]
    is_null = (octets.u4(positions) == _NULL)[slots]
    fields, layout = Fields(octets.data, positions, _HEAD), Layouts([schema])
    values = fields.texts(slots.ravel(), is_null.ravel())
    escaped: dict[int, list[str]] = {}
    for slot in fields.escaped:
        row, place = divmod(slot, width + 1)
        escaped.setdefault(row, []).append(schema.columns[place].name)
    names = layout.names.take(pa.array(np.tile(np.arange(width, dtype=np.int32), count)))
    at, every = layout.key_places, np.ones(count, dtype=np.bool_)
    key_values = fields.texts(slots[:, at].ravel(), is_null[:, at].ravel())
    has_key = every if len(at) else ~every
    return {
        "key": key_column(key_values, np.full(count, len(at)), has_key),
        "after": image_column(names, values, np.full(count, width), every),
        "payload": payload_column(escaped, count),
    }


def _positions(batch: MessageBatch, schema: TableSchema) -> Ints:
    """Where every field begins, and behind the last one of every row."""
    octets, starts, width = batch.octets, batch.starts, len(schema.columns)
    slots = np.arange(len(starts)) * (width + 1)
    positions = np.zeros(len(starts) * (width + 1), dtype=np.int64)

    def field_bytes(at: Ints) -> Ints:
        length = octets.u4(at)
        return np.where(length == _NULL, 0, length) + _HEAD

    _refuse(octets.u2(starts) != width, schema, "its column count is not the table's")
    try:
        walk(field_bytes, starts, np.full(len(starts), width), slots, positions)
    except IndexError:
        raise ProtocolError(f"a copy of {schema.full_name!r}: a row runs past its end") from None
    _refuse(positions[slots + width] != batch.ends, schema, "it does not end with its last field")
    return positions


def _refuse(wrong: Bools, schema: TableSchema, fact: str) -> None:
    if wrong.any():
        row = int(np.flatnonzero(wrong)[0])
        raise ProtocolError(f"copy of {schema.full_name!r} (row {row} of its batch): {fact}")
