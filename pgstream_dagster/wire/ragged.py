"""
Ragged arrays: many tuples of different widths in one buffer, as numpy positions and Arrow arrays.

Pure. Nothing here runs Python per value or per row: a loop goes over the column number and each
step handles every tuple that still has a column there. The layout is the one of pgoutput's
TupleData and of binary COPY alike: an Int16 count, then per field a head (kind and length, or
length) and the bytes.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping
from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from pgstream_dagster.schema.layout import IMAGE, INSTANT, KEY

Ints: TypeAlias = npt.NDArray[np.int64]
Bools: TypeAlias = npt.NDArray[np.bool_]

PADDING: Final = bytes(16)
"""Behind every buffer, so that an integer may be read at its last byte without a check."""

MAX_BUFFER_BYTES: Final = (1 << 31) - 1 - len(PADDING)
"""Arrow's string offsets are 32-bit. One message is below 1 GB: Postgres allocates no more."""

CHUNK_SLOTS: Final = 1 << 20
"""
Fields decoded at once. A NULL is one byte on the wire and some 150 in hand (positions, its name),
so what bounds a batch's bytes does not bound what its columns take.
"""

_COUNT_BYTES: Final = 2
_NO_TEXTS: Final = pa.array([], pa.string())
_HIGH_BITS: Final = np.uint64(0x8080808080808080)


class Octets:
    """A padded buffer, read as big-endian integers at arrays of positions."""

    __slots__ = ("_i8", "_u2", "_u4", "data", "u1")

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.u1 = np.frombuffer(data, dtype=np.uint8)
        self._u2 = _at_every_byte(data, ">u2")
        self._u4 = _at_every_byte(data, ">u4")
        self._i8 = _at_every_byte(data, ">i8")

    def u2(self, at: Ints) -> Ints:
        """Int16, unsigned."""
        return self._u2[at].astype(np.int64)

    def u4(self, at: Ints) -> Ints:
        """Int32, unsigned."""
        return self._u4[at].astype(np.int64)

    def i8(self, at: Ints) -> Ints:
        """Int64, signed."""
        return self._i8[at].astype(np.int64)


def _at_every_byte(data: bytes, dtype: str) -> npt.NDArray[np.generic]:
    """`data` as integers that start at every byte, aligned or not: a view, nothing is copied."""
    width = np.dtype(dtype).itemsize
    return np.ndarray((len(data) - width + 1,), dtype=dtype, buffer=data, strides=(1,))


def starts_of(counts: Ints) -> Ints:
    """Where each of several runs begins when they are laid end to end, and where the last ends."""
    offsets = np.zeros(len(counts) + 1, dtype=np.int64)
    np.cumsum(counts, out=offsets[1:])
    return offsets


def spread(first: Ints, counts: Ints) -> Ints:
    """`first[i], first[i] + 1, ...`, `counts[i]` of them, for every i, end to end."""
    offsets = starts_of(counts)
    return np.repeat(first - offsets[:-1], counts) + np.arange(offsets[-1])


def walk(
    field_bytes: Callable[[Ints], Ints],
    tuples: Ints,
    counts: Ints,
    slots: Ints,
    positions: Ints,
) -> None:
    """
    Find where every field of every tuple begins.

    Tuple i starts (with its Int16 count) at `tuples[i]` and has `counts[i]` fields; their
    positions go to `positions[slots[i]:]`, followed by the position behind the last one. Lengths
    are unsigned, so positions only grow: a tuple whose end is where it has to be is intact.

    Raises:
        IndexError: a field begins behind the end of the buffer; the tuple is damaged.
    """
    widths = set(np.flatnonzero(np.bincount(counts)).tolist())
    at, slot, column = tuples + _COUNT_BYTES, slots, 0
    while len(at):
        positions[slot] = at
        if column in widths:
            going = counts > column
            at, slot, counts = at[going], slot[going], counts[going]
            if not len(at):
                return
        at = at + field_bytes(at)
        slot = slot + 1
        column += 1


class Fields:
    """
    The fields whose positions `walk` filled in, by slot: their bytes are taken out as text.

    Shape:
        positions: ascending; the field in slot s ends where slot s + 1 begins.
        head: bytes before a field's value; a field shorter than its head has no value.
    """

    __slots__ = ("_values", "escaped")

    def __init__(self, data: bytes, positions: Ints, head: int) -> None:
        # An Arrow array over the buffer as it is: element 2s is the value of slot s, the elements
        # between are heads and the bytes between tuples. Nothing is copied until `take`.
        fences = np.empty(2 * len(positions) + 1, dtype=np.int32)
        begins, ends = fences[0:-1:2], fences[1::2]
        np.add(positions, head, out=begins, casting="unsafe")
        ends[:-1], ends[-1:] = positions[1:], positions[-1:]
        np.minimum(begins, ends, out=begins)
        fences[-1] = len(data)
        self.escaped: set[int] = set()
        """Slots whose value turned out not to be UTF-8 when its text was taken."""
        self._values = pa.BinaryArray.from_buffers(
            pa.binary(), len(fences) - 1, [None, pa.py_buffer(fences), pa.py_buffer(data)]
        )

    def octets(self, slots: Ints) -> pa.Array:
        """The values as bytes, empty where there is none."""
        return self._values.take(pa.array(slots * 2))

    def texts(self, slots: Ints, is_null: Bools) -> pa.Array:
        """
        The values as strings, null where `is_null`.

        Octets that are not UTF-8 are escaped, as `backslashreplace` does.
        """
        if not len(slots):
            return _NO_TEXTS
        taken = self.octets(slots)
        if not _is_utf8(taken):
            taken = self._escaped(taken, slots)
        _, offsets, data = taken.buffers()
        nulls = int(np.count_nonzero(is_null))
        bits = bitmap(~is_null) if nulls else None
        return pa.StringArray.from_buffers(len(slots), offsets, data, bits, nulls)

    def _escaped(self, taken: pa.Array, slots: Ints) -> pa.Array:
        texts: list[str] = []
        for slot, octets in zip(slots.tolist(), taken.to_pylist(), strict=True):
            try:
                texts.append(octets.decode())
            except UnicodeDecodeError:
                texts.append(octets.decode(errors="backslashreplace"))
                self.escaped.add(slot)
        return pa.array(texts, pa.string())


def _is_utf8(taken: pa.Array) -> bool:
    data = taken.buffers()[2]
    if data is None or _is_ascii(np.frombuffer(data, dtype=np.uint8)):
        return True  # ASCII is UTF-8, and this is 20 times faster than Arrow's check of every value
    try:
        taken.cast(pa.string())
    except pa.ArrowInvalid:
        return False
    return True


def _is_ascii(octets: npt.NDArray[np.uint8]) -> bool:
    whole = len(octets) & ~7
    high = np.bitwise_or.reduce(octets[:whole].view(np.uint64), initial=np.uint64(0))
    return not (high & _HIGH_BITS) and not (octets[whole:] & 0x80).any()


def escaped_columns(payload: str) -> list[str]:
    """The columns of a row whose values are escaped, from its payload."""
    return json.loads(payload)["escaped"]


def payload_column(escaped: Mapping[int, Collection[str]], row_count: int) -> pa.Array:
    """The payloads of rows, of which some have escaped columns."""
    if not escaped:
        return pa.nulls(row_count, pa.string())
    payloads: list[str | None] = [None] * row_count
    for row, columns in escaped.items():
        payloads[row] = json.dumps({"escaped": sorted(columns)}, ensure_ascii=False)
    return pa.array(payloads, pa.string())


def instants(times_us: Ints) -> pa.Array:
    """Microseconds since 1970 as timestamps; nothing is copied."""
    return pa.Array.from_buffers(INSTANT, len(times_us), [None, pa.py_buffer(times_us)])


def bitmap(mask: Bools) -> pa.Buffer:
    """`mask` as Arrow's validity bits."""
    return pa.py_buffer(np.packbits(mask, bitorder="little"))


def image_column(names: pa.Array, values: pa.Array, counts: Ints, is_present: Bools) -> pa.Array:
    """One map per row of `counts[i]` columns; null where not `is_present` (its count is 0)."""
    entries = pa.StructArray.from_arrays(
        [names, values], fields=[IMAGE.key_field, IMAGE.item_field]
    )
    return _nested(IMAGE, entries, counts, is_present)


def key_column(values: pa.Array, counts: Ints, is_present: Bools) -> pa.Array:
    """One list per row of `counts[i]` values; null where not `is_present` (its count is 0)."""
    return _nested(KEY, values, counts, is_present)


def _nested(kind: pa.DataType, children: pa.Array, counts: Ints, is_present: Bools) -> pa.Array:
    if not is_present.any():
        return pa.nulls(len(counts), kind)
    offsets = starts_of(counts).astype(np.int32)
    bits = None if is_present.all() else bitmap(is_present)
    buffers = [bits, pa.py_buffer(offsets)]
    return pa.Array.from_buffers(kind, len(counts), buffers, children=[children])
