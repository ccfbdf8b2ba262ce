"""
Changes as lines of JSON: on the standard output, or in files of a folder.

Delivered means: written and flushed on the standard output, and synced to disk in files. A change
comes again after a crash, with the same event id.
"""

from __future__ import annotations

import errno
import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

from pgstream_dagster.config.sinks import FilesConfig
from pgstream_dagster.delta import fsync
from pgstream_dagster.errors import SinkRefused, SinkUnreachable
from pgstream_dagster.failpoints import reach
from pgstream_dagster.readers.change import Change, ChangeBatch
from pgstream_dagster.sinks.base import Refused, Verdicts, deliver_items

Render = Callable[[Sequence[Change]], "Iterable[bytes | Refused]"]
"""From changes to the message of each, or why it has none."""

_NAME: Final = re.compile(r"changes-([0-9]{8})\.ndjson")


def _rendered(render: Render, batch: ChangeBatch) -> tuple[bytes, Verdicts]:
    """The lines of a batch, and verdicts of the changes without one and of those behind them."""
    lines = list[bytes]()

    def add(message: bytes | Refused) -> Refused | None:
        if isinstance(message, Refused):
            return message
        lines.append(message + b"\n")
        return None

    verdicts = deliver_items(batch.changes, render(batch.changes), add)
    return b"".join(lines), verdicts


class StdoutSink:
    """Writes lines to the standard output of the process."""

    keeps_cursor = False

    def __init__(self, name: str, render: Render) -> None:
        self._name, self._render = name, render

    def open(self) -> None:
        """There is nothing to open."""

    def deliver(self, batch: ChangeBatch) -> Verdicts:
        """Write the lines of a batch at once."""
        lines, verdicts = _rendered(self._render, batch)
        try:
            _output.write(lines)
        except BrokenPipeError as error:
            remedy = "start the sink again with another reader"
            raise SinkRefused(self._name, "its reader closed the output", remedy) from error
        except OSError as error:
            raise SinkUnreachable(self._name, f"the standard output: {error.strerror}") from error
        return verdicts

    def close(self) -> None:
        """There is nothing to close."""


class _Output:
    """The standard output of the process. A line that a failed write has begun is ended first."""

    def __init__(self) -> None:
        self._rest = b""  # of that line

    def write(self, lines: bytes) -> None:
        """Write and flush; raises `OSError`."""
        pending, written = self._rest + lines if self._rest else lines, 0
        try:
            sys.stdout.flush()
            # Not the buffer: how much of a large line it has written is not known after an error.
            stream = getattr(sys.stdout.buffer, "raw", sys.stdout.buffer)
            while written < len(pending):
                written += _taken(stream.write(memoryview(pending)[written:]))
        except OSError:
            is_in_line = pending[written - 1 : written] != b"\n" if written else bool(self._rest)
            end = pending.find(b"\n", written) + 1
            self._rest = pending[written:end] if is_in_line else b""
            raise
        self._rest = b""


def _taken(count: int | None) -> int:
    """The bytes that a write took; none is no success, as of a pipe that does not block."""
    if not count:
        raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))
    return count


_output: Final = _Output()


class FilesSink:
    """
    Appends lines to the newest file of a folder; past a size another file begins.

    Complete lines only: half a line that a crash left is cut off when the sink is opened. Files may
    be removed at any time, the newest too: then another one begins.
    """

    keeps_cursor = False

    def __init__(self, name: str, config: FilesConfig, render: Render) -> None:
        self._name, self._render = name, render
        self._folder, self._rotate_bytes = Path(config.folder), config.rotate_bytes
        self._number, self._descriptor = 0, -1

    def open(self) -> None:
        """Make the folder, and continue with its newest file."""
        try:
            fsync.make_folder(self._folder)
            self._number = max(_numbers(self._folder), default=1)
            self._begin()
            _cut(self._descriptor)
        except OSError as error:
            raise self._unreachable(error) from error

    def deliver(self, batch: ChangeBatch) -> Verdicts:
        """Append the lines of a batch; on disk when this returns."""
        (lines, verdicts), start = _rendered(self._render, batch), 0
        if not lines:
            return verdicts
        try:
            start = self._begin_if_due(len(lines))
            _write(self._descriptor, lines)
            reach("files.written")
            os.fsync(self._descriptor)
        except OSError as error:  # a full disk: leave no half of the batch
            if self._descriptor >= 0:
                with suppress(OSError):
                    os.ftruncate(self._descriptor, start)
            raise self._unreachable(error) from error
        return verdicts

    def close(self) -> None:
        """Close the file."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def _begin_if_due(self, size: int) -> int:
        """Begin another file if this one is full or was removed; the end of the file."""
        end = os.lseek(self._descriptor, 0, os.SEEK_END)
        if (end and end + size > self._rotate_bytes) or not self._is_there():
            fsync.make_folder(self._folder)
            self._number += 1
            self._begin()
            return 0
        return end

    def _is_there(self) -> bool:
        """Whether the file still has its name: a removed one takes lines that no one ever reads."""
        try:
            return os.path.samestat(self._path.stat(), os.fstat(self._descriptor))
        except FileNotFoundError:
            return False

    @property
    def _path(self) -> Path:
        return self._folder / f"changes-{self._number:08d}.ndjson"

    def _begin(self) -> None:
        self.close()
        self._descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
        fsync.sync_files([self._path])

    def _unreachable(self, error: OSError) -> SinkUnreachable:
        return SinkUnreachable(self._name, f"{self._folder}: {error.strerror}")


def _numbers(folder: Path) -> Iterator[int]:
    for path in folder.iterdir():
        if match := _NAME.fullmatch(path.name):
            yield int(match[1])


def _cut(descriptor: int) -> None:
    """Remove what follows the last line end of a file."""
    end = os.lseek(descriptor, 0, os.SEEK_END)
    while end > 0:
        begin = max(0, end - (1 << 16))
        newline = os.pread(descriptor, end - begin, begin).rfind(b"\n")
        if newline >= 0:
            os.ftruncate(descriptor, begin + newline + 1)
            return
        end = begin
    os.ftruncate(descriptor, 0)


def _write(descriptor: int, content: bytes) -> None:
    view = memoryview(content)
    while view:
        view = view[os.write(descriptor, view) :]
