"""
How `capture.memory_bytes` is divided between everything from the socket to the commit.

libpq reads a message of any size completely, and hands over a copy of it: that cannot be limited,
and takes twice the message for a moment. A row that is landed exists once more in its batch, as
decoded text, and while Parquet is written. So only large rows decide how much memory a stream may
need; everything else is batches of a bounded size.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

ROW_COPIES: Final = 8
"""The memory of a row on its way from the socket to the file, in multiples of its message: libpq's
buffer (kept as long as the connection) and the copy it hands over; then its batch and the text
taken from it, or that text, a Parquet page and the page compressed. 4.8 were measured for one row,
7.3 for rows one after the other."""

BATCH_BYTES: Final = 8 << 20
"""The most that one batch holds, and an open transaction before it is spooled; less where the bound
is small. Decoding more at once is not faster."""

_BATCHES: Final = 64  # batches in the queues, decoded ones and their Parquet pages
_FLUSHES: Final = 8  # decoded, as Parquet pages, and compressed; half of the bound at most


@dataclass(frozen=True, slots=True)
class MemoryBound:
    """The bytes that one stream may hold in addition to those of an idle stream."""

    bytes: int = 1 << 30

    @property
    def row_bytes(self) -> int:
        """The largest message of a row that is landed."""
        return self.bytes // ROW_COPIES

    @property
    def batch_bytes(self) -> int:
        """The most that one batch holds."""
        return min(BATCH_BYTES, self.bytes // _BATCHES)

    @property
    def flush_bytes(self) -> int:
        """Decoded bytes after which a commit (or a file of a large transaction) must be written."""
        return self.bytes // _FLUSHES


def needed_for(message_bytes: int) -> int:
    """The least `capture.memory_bytes` (in whole MB) with which such a row is landed."""
    return -(-message_bytes * ROW_COPIES >> 20) << 20
