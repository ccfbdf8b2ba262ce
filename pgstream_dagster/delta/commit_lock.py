"""
One commit at a time to a table on a local file system.

There, two processes can both succeed in writing the same log version: the rename in Delta's log
stores overwrites. So every commit of ours holds a lock on `_delta_log/.commit.lock`. The committing
JVM holds it: a lock of the Python process would be released when it dies, while its JVM still
commits. Object stores put only if absent; there, nothing is locked.

Such a lock belongs to the whole JVM (POSIX), so the threads of a process also take turns.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Final, cast

from py4j.java_gateway import JavaGateway

from pgstream_dagster.delta.jvm import Java

LOCK_NAME: Final = ".commit.lock"
"""Sorts before every log entry, and a leading dot hides it from Spark and Hadoop."""

RETRY_SECONDS: Final = 0.003
"""Between attempts while another process commits, which takes 10-100 ms; a wait inside Java could
not be interrupted."""

WARN_AFTER_SECONDS: Final = 30.0
"""A holder that was suspended in its commit keeps the lock until it continues or ends."""

logger: Final = logging.getLogger(__name__)

_turns: Final[dict[Path, threading.Lock]] = {}  # one per process, as the lock itself
_turns_lock: Final = threading.Lock()


class CommitLock:
    """The right to commit to the table with the log folder `log`; `None` on an object store."""

    def __init__(self, gateway: JavaGateway, log: Path | None) -> None:
        self._file = cast("Java", gateway.jvm).java.io.RandomAccessFile
        self._log = log

    @contextmanager
    def held(self) -> Generator[None]:
        """Wait for the lock, hold it for the block; not re-entrant. The folder must exist."""
        if self._log is None:
            yield
            return
        path = self._log / LOCK_NAME
        with _turn(path):
            file = self._file(str(path), "rw")
            try:
                _wait_for(file.getChannel(), path)
                yield
            finally:
                file.close()  # releases; no other descriptor of this file is open in the JVM


def _wait_for(channel: Java, path: Path) -> None:
    warn_at = time.monotonic() + WARN_AFTER_SECONDS
    while channel.tryLock() is None:
        if time.monotonic() > warn_at:
            warn_at += WARN_AFTER_SECONDS
            logger.warning("%s: another process has held the commit lock for long", path)
        time.sleep(RETRY_SECONDS)


def _turn(path: Path) -> threading.Lock:
    with _turns_lock:
        return _turns.setdefault(path.resolve(), threading.Lock())
