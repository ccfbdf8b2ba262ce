"""
Named places where a test may end or delay the process.

A failpoint does nothing unless the environment names it, and the environment is read once at
import: `PGSTREAM_FAILPOINT=land.committed:3` ends the process with SIGKILL the third time
`land.committed` is passed; `PGSTREAM_FAILPOINT=copy.task` the first time. Nothing can catch a
SIGKILL, so a test sees afterwards what a power cut or the OOM killer would leave behind.
"""

from __future__ import annotations

import os
import signal
import threading
from typing import Final

NAMES: Final = frozenset(
    {
        "setup.publication",  # the publication exists, the slot does not
        "setup.slot",  # the slot exists, its consistent point is not recorded
        "setup.identity",  # the pipeline is in the ledger, the log has no watermark
        "setup.watermark",  # the first watermark is durable, no table is copied
        "copy.guard",  # the snapshot is pinned and the table locked, nothing is scanned
        "copy.task",  # one range is written by a task, its file is in no commit
        "copy.files",  # every file is written and synced, nothing is committed
        "copy.committed",  # the copy is in the log, not in the ledger
        "copy.recorded",  # the copy is in the ledger, the next table is not begun
        "spool.write",  # part of a streamed transaction is on disk
        "spool.commit",  # a streamed transaction has committed, nothing of it is landed
        "spool.read",  # a part of a spooled transaction is decoded
        "land.schema",  # new schema versions are durable, their first row is not
        "land.file",  # the data file is written, not synced
        "land.sync",  # the data file is durable, no log entry names it
        "land.commit",  # the log entry is written, not synced
        "land.committed",  # the log entry is durable, no position is confirmed
        "land.post_commit",  # checksum and checkpoint are written
        "confirm.sent",  # the position is confirmed
        "idle.committed",  # an empty commit carries a keepalive's position
        "build.recorded",  # a new generation is recorded, its index does not exist
        "build.created",  # its index exists, empty
        "build.task",  # a task has posted a part of the documents
        "build.loaded",  # every document of the fold is in the index
        "build.caught_up",  # so is every change since
        "build.verified",  # it was compared with the fold
        "promote.ready",  # only the alias is left to be moved
        "promote.moved",  # the alias is moved, no record has it
        "promote.recorded",  # the records have it; the former generation is not retired
        "retire.dropped",  # a former index is gone, its record is not
        "index.completed",  # documents are read and put together, nothing is sent
        "index.sent",  # documents are in the index, the progress is not recorded
        "index.delivered",  # the progress is recorded
        "sink.delivered",  # a batch is in the target, the progress is not stored in the lake
        "sink.saved",  # it is
        "tables.folded",  # the rows of a pass are known, no typed table has changed
        "tables.evolving",  # a statement that changes a typed table's columns is committed
        "tables.rewritten",  # its rows have new columns, their files may not be on disk
        "tables.built",  # a typed table is written again beside itself, it has not changed
        "tables.rebuilt",  # a typed table is written again, its files may not be on disk
        "tables.written",  # the files of a change are on disk, it is not committed
        "tables.merged",  # changes are in a typed table, the next one is not begun
        "tables.passed",  # every typed table is at the position, which is not recorded
        "tables.recorded",  # it is
        "history.merged",  # versions are in a history, the next one is not begun
        "history.passed",  # every history is at the position, which is not recorded
        "tables.approving",  # what is to be approved is known, nothing is recorded
        "tables.approved",  # it is
        "tables.removing",  # a typed table with a feature too many is being removed
        "files.written",  # lines are written and not synced
        "kafka.sent",  # records and cursor are acknowledged, their transaction is not committed
        "kafka.committed",  # it is, the caller does not know
        "postgres_sink.applied",  # changes and cursor are written, the transaction is open
        "postgres_sink.committed",  # the target has committed, the sink has not returned
    }
)
"""Every failpoint of the engine, in the order a first run meets them."""

_armed, _, _count = os.environ.get("PGSTREAM_FAILPOINT", "").partition(":")
_left = int(_count or 1)
_lock = threading.Lock()
if _armed and _armed not in NAMES:
    raise ValueError(f"PGSTREAM_FAILPOINT names no failpoint: {_armed!r}; one of {sorted(NAMES)}")


def reach(name: str) -> None:
    """End this process with SIGKILL if the environment armed `name` and its count is used up."""
    if name != _armed:
        return
    global _left  # noqa: PLW0603 - one process, one count
    with _lock:
        _left -= 1
        if _left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
