"""
The spool: transactions too large for memory, on local disk until they are landed.

Nothing here outlives a connection: Postgres sends again what was not confirmed, so files are
never synced and the folder is emptied at every connect.
"""

from __future__ import annotations

import itertools
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import numpy as np

from pgstream_dagster.errors import ProtocolError
from pgstream_dagster.source.columns import Block
from pgstream_dagster.source.ragged import PADDING

FRAME_BYTES: Final = 4 << 20
"""What is gathered before it is written, and what one block of a large transaction holds."""

_HEADER: Final = 25  # XLogData's own fields, kept in the file: cutting them costs a copy a message
_STAYING: Final = np.frombuffer(b"RO", dtype=np.uint8)
_SIZES = np.dtype("<i8")


class Spool:
    """The folder of one connection's large transactions."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._numbers = itertools.count()
        if folder.exists():
            shutil.rmtree(folder)
        folder.mkdir(parents=True)

    def create(self, name: str) -> SpoolFile:
        """An empty file; `name` is for people who look into the folder."""
        return SpoolFile(self._folder / f"{next(self._numbers):06}-{name}")

    def clear(self) -> None:
        """Remove the folder and all in it."""
        shutil.rmtree(self._folder, ignore_errors=True)


class SpoolFile:
    """
    The messages of one transaction, in order, as frames.

    Shape:
        a frame: two little-endian Int64 (messages, bytes), the messages' lengths as Int64 each,
        the messages one behind the other, XLogData header included.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._waiting: list[memoryview | bytes] = []
        self._size = 0

    def add(self, message: memoryview | bytes, size: int) -> None:
        """Keep one message; written once `FRAME_BYTES` wait."""
        self._waiting.append(message)
        self._size += size
        if self._size >= FRAME_BYTES:
            self.flush()

    def flush(self) -> None:
        """Write what waits as one frame."""
        if not self._waiting:
            return
        lengths = np.fromiter(map(len, self._waiting), dtype=_SIZES, count=len(self._waiting))
        with self._path.open("ab") as file:
            file.write(np.array([len(lengths), lengths.sum()], dtype=_SIZES).tobytes())
            file.write(lengths.tobytes())
            file.writelines(self._waiting)
        self._waiting, self._size = [], 0

    def read(self) -> Iterator[tuple[bytes, np.ndarray]]:
        """
        The frames in order: the messages joined (and padded), their lengths.

        Raises:
            ProtocolError: the file is shorter than its frames say.
        """
        if not self._path.exists():  # every message was outside of the order
            return
        with self._path.open("rb") as file:
            while head := file.read(2 * _SIZES.itemsize):
                count, size = np.frombuffer(head, dtype=_SIZES)
                lengths = np.frombuffer(file.read(int(count) * _SIZES.itemsize), dtype=_SIZES)
                data = file.read(int(size))
                if len(lengths) != count or len(data) != size:
                    raise ProtocolError(f"spool file {self._path.name!r} is cut short")
                yield data + PADDING, lengths

    def block(
        self, data: bytes, lengths: np.ndarray, *, streamed: bool, aborted: frozenset[int]
    ) -> Block:
        """
        One frame for decoding, without the changes of aborted sub-transactions.

        Their Relation messages stay: Postgres counts a schema as sent for the whole transaction,
        and sends it again where the abort undid a change of it. Origins carry no transaction.
        """
        ends = np.cumsum(lengths)
        starts = ends - lengths + _HEADER
        if streamed and aborted:
            xids = uint32_at(data, starts + 1)
            kinds = np.frombuffer(data, dtype=np.uint8)[starts]
            kept = ~np.isin(xids, np.fromiter(aborted, dtype=np.int64)) | np.isin(kinds, _STAYING)
            starts, ends = starts[kept], ends[kept]
        return Block(data, starts, ends, streamed)

    def remove(self) -> None:
        """Forget the transaction."""
        self._waiting, self._size = [], 0
        self._path.unlink(missing_ok=True)


def uint32_at(data: bytes, at: np.ndarray) -> np.ndarray:
    """The big-endian Int32 at each offset."""
    raw = np.frombuffer(data, dtype=np.uint8)
    return (
        raw[at].astype(np.int64) << 24
        | raw[at + 1].astype(np.int64) << 16
        | raw[at + 2].astype(np.int64) << 8
        | raw[at + 3].astype(np.int64)
    )
