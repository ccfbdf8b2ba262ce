"""
The spool: transactions too large for memory, on local disk until they are landed.

Each is a temporary file without a name, reachable only by its descriptor. So processes that share
a folder do not interfere, a crash leaves nothing behind, and the folder may be removed at any time.
Nothing outlives a connection: Postgres sends again what was not confirmed, so files are never
synced.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Final, TypeAlias

import numpy as np

from pgstream_dagster.capture.encrypted_file import EncryptedFile
from pgstream_dagster.errors import SpoolFailed
from pgstream_dagster.schema.ddl import DdlReport
from pgstream_dagster.wire.messages import MessageBatch, kind_mask
from pgstream_dagster.wire.ragged import PADDING

FRAME_BYTES: Final = 4 << 20
"""What is gathered before it is written, and what one batch of a large transaction holds."""

HEADER: Final = 25
"""Bytes of XLogData before the plugin's message: Byte1('w'), two LSNs, a clock. They are kept in
the file: to remove them would cost a copy of every message."""

_STAYS: Final = kind_mask(b"RO")
_SIZES = np.dtype("<i8")

Frame: TypeAlias = tuple[bytes, np.ndarray]
"""Messages joined (and padded), and their lengths."""


@dataclass(frozen=True, slots=True)
class LateReport:
    """A report of DDL in a file that comes after rows of its table: where it is needed."""

    relation_id: int
    xid: int
    message: bytes


class Spool:
    """
    The large transactions of one connection.

    `folder` is made when it does not exist. The system's temporary folder is no alternative: it
    may be memory, and a transaction has any size. `make_room` is called with the bytes of a frame
    before it is read back; it may wait until other frames are released. With `encrypts` no byte of
    a message is in the files: only this process can read them.
    """

    def __init__(
        self,
        folder: Path,
        make_room: Callable[[int], None] = lambda _: None,
        *,
        encrypts: bool = False,
    ) -> None:
        self.folder, self.make_room, self._encrypts = folder, make_room, encrypts
        self._files: set[SpoolFile] = set()

    def create(self) -> SpoolFile:
        """An empty transaction; it takes a descriptor once something is written."""
        file = SpoolFile(self)
        self._files.add(file)
        return file

    def open(self) -> IO[bytes] | EncryptedFile:
        """An empty file without a name."""
        self.folder.mkdir(parents=True, exist_ok=True)
        file = tempfile.TemporaryFile(dir=self.folder)  # noqa: SIM115 - closed by its owner
        return EncryptedFile(file) if self._encrypts else file

    def forget(self, file: SpoolFile) -> None:
        """`close` does not close it any more."""
        self._files.discard(file)

    def close(self) -> None:
        """Drop every transaction."""
        for file in list(self._files):
            file.close()


class SpoolFile:
    """
    The messages of one transaction, in order, as frames.

    Written by one thread, then read once by another, which must find exactly what was written.

    Shape:
        a frame: two little-endian Int64 (messages, bytes), the messages' lengths as Int64 each,
        the messages one behind the other, XLogData header included, and `PADDING`.
    """

    def __init__(self, spool: Spool) -> None:
        self._spool = spool
        self._file: IO[bytes] | EncryptedFile | None = None
        self._waiting: list[memoryview | bytes] = []
        self._size = 0
        self._messages = self._bytes = 0  # written
        self.late_reports: list[LateReport] = []

    def add(self, message: memoryview | bytes, size: int) -> None:
        """Keep one message; written once `FRAME_BYTES` wait."""
        self._waiting.append(message)
        self._size += size
        if self._size >= FRAME_BYTES:
            self.flush()

    def note_late(self, report: DdlReport | None, message: bytes) -> None:
        """Keep a message that was added, if rows that need its report came before it."""
        if report is not None and report.filled is not None:
            self.late_reports.append(LateReport(report.filled, report.xid, message))

    def flush(self) -> None:
        """
        Write what waits as one frame.

        Raises:
            SpoolFailed: no space, no folder, no descriptor.
        """
        if not self._waiting:
            return
        lengths = np.fromiter(map(len, self._waiting), dtype=_SIZES, count=len(self._waiting))
        with self._named_errors():
            if self._file is None:
                self._file = self._spool.open()
            self._file.write(np.array([len(lengths), lengths.sum()], dtype=_SIZES).tobytes())
            self._file.write(lengths.tobytes())
            self._file.writelines([*self._waiting, PADDING])
            self._file.flush()
        self._messages += len(lengths)
        self._bytes += int(lengths.sum())
        self._waiting, self._size = [], 0

    def read(self) -> Iterator[Frame]:
        """
        The frames in order.

        Raises:
            SpoolFailed: at the latest after the last frame, when there is less (or more) than was
                written; what was read so far must not be used then.
        """
        messages = size = 0
        if self._file is not None:  # else every message was outside of the order
            with self._named_errors():
                self._file.seek(0)
            while frame := self._frame(self._file):
                messages, size = messages + len(frame[1]), size + int(frame[1].sum())
                given, frame = [frame], None
                yield given.pop()  # a frame of one large row is not held here as well
        if (messages, size) != (self._messages, self._bytes):
            raise SpoolFailed(
                str(self._spool.folder),
                f"{messages:,} messages ({size:,} bytes) were read,"
                f" {self._messages:,} ({self._bytes:,}) had been written",
            )

    def _frame(self, file: IO[bytes] | EncryptedFile) -> Frame | None:
        """The next one; `None` where the file ends, in a frame or behind it."""
        with self._named_errors():
            head = np.frombuffer(file.read(2 * _SIZES.itemsize).ljust(16, b"\0"), dtype=_SIZES)
            count, size = map(int, head)
            lengths = file.read(count * _SIZES.itemsize)
            self._spool.make_room(size)
            data = file.read(size + len(PADDING))
        is_whole = len(lengths) == count * _SIZES.itemsize and len(data) == size + len(PADDING)
        return (data, np.frombuffer(lengths, dtype=_SIZES)) if count and is_whole else None

    def batch(
        self, data: bytes, lengths: np.ndarray, *, streamed: bool, aborted: frozenset[int]
    ) -> MessageBatch:
        """
        One frame for decoding, without the changes of aborted sub-transactions.

        Their Relation messages stay: Postgres counts a schema as sent for the whole transaction,
        and sends it again where the abort undid a change of it. Origins carry no transaction.
        """
        ends = np.cumsum(lengths)
        batch = MessageBatch(data, ends - lengths + HEADER, ends, streamed)
        if not (streamed and aborted):
            return batch
        xids = batch.octets.u4(batch.starts + 1)
        is_aborted = np.isin(xids, np.fromiter(aborted, dtype=np.int64))
        return batch.without(is_aborted & ~_STAYS[batch.kinds])

    def close(self) -> None:
        """Forget the transaction and give its descriptor back."""
        self._waiting, self._size = [], 0
        self._spool.forget(self)
        if self._file is not None:
            with suppress(OSError):  # a full disk refuses what is still in the buffer once more
                self._file.close()

    @contextmanager
    def _named_errors(self) -> Generator[None]:
        try:
            yield
        except OSError as error:
            reason = error.strerror or type(error).__name__
            raise SpoolFailed(str(self._spool.folder), reason) from error
