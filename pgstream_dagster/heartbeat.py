"""
The heartbeat of a long operation: a small local file that it replaces about once a second.

It is outside of Dagster's event log, which keeps every event forever. Losing it costs nothing: an
operation continues when it cannot be written, and a torn one counts as none.
"""

from __future__ import annotations

import json
import logging
import os
import secrets
import socket
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from pgstream_dagster.process_identity import has_ended, is_elsewhere, this_process

logger = logging.getLogger(__name__)

INTERVAL_SECONDS: Final = 1.0

SILENT_SECONDS: Final = 120.0
"""Without a heartbeat: longer than the pauses between attempts to reconnect, a commit to a slow
store, or a request to a search cluster that does not answer."""

ENDED: Final = "ended"
"""The state of an operation that has ended, while its process may continue."""

WARN_SECONDS: Final = 60.0
"""Between warnings that heartbeats cannot be written."""


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """
    The last report of an operation; one that was killed writes no more.

    `process` is its `this_process()`, `host` is for people. `at` is in seconds of Unix time;
    `facts` are the operation's own.
    """

    state: str
    reason: str | None
    pid: int
    host: str
    process: str
    at: float
    facts: Mapping[str, Any]

    @property
    def is_gone(self) -> bool:
        """Whether its process is known to have ended; elsewhere only its silence shows that."""
        return has_ended(self.process)

    @property
    def is_elsewhere(self) -> bool:
        """Whether its process cannot be seen from here."""
        return is_elsewhere(self.process)

    @property
    def may_run(self) -> bool:
        """Whether the operation may not have ended."""
        if self.state == ENDED or self.is_gone:
            return False
        return not self.is_elsewhere or abs(time.time() - self.at) <= SILENT_SECONDS


class HeartbeatWriter:
    """Reports that an operation is alive, in the file at `path`."""

    def __init__(self, path: Path) -> None:
        self._path = path
        # Its own: a writer that slept through its replacement may write at the same time.
        self._draft = path.with_suffix(f".{secrets.token_hex(4)}.new")
        self._written_at = self._warned_at = float("-inf")

    @property
    def is_due(self) -> bool:
        """Whether it is time for the next heartbeat."""
        return time.monotonic() - self._written_at >= INTERVAL_SECONDS

    @property
    def is_newest(self) -> bool:
        """Whether the file is there and no other process has written it since."""
        last = read(self._path)
        return last is not None and last.process == this_process()

    def say(self, state: str, reason: str | None = None, **facts: object) -> None:
        """Replace the file at once, so that a reader never sees half of it; never raises."""
        now = self._written_at = time.monotonic()
        beat = {
            "state": state,
            "reason": reason,
            "pid": os.getpid(),
            "host": socket.gethostname(),
            "process": this_process(),
            "at": time.time(),
            **facts,
        }
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._draft.write_text(json.dumps(beat), encoding="utf-8")
            self._draft.replace(self._path)
        except OSError as error:  # folder deleted, disk full or read-only, no descriptor left
            with suppress(OSError):
                self._draft.unlink()
            if now - self._warned_at >= WARN_SECONDS:
                self._warned_at = now
                logger.warning(
                    "no heartbeat could be written to %s: %s; the operation continues, and tries"
                    " again every second",
                    self._path,
                    error.strerror,
                )


def read(path: Path) -> Heartbeat | None:
    """The last heartbeat; `None` when there is none, or none that can be read."""
    try:
        facts: dict[str, Any] = json.loads(path.read_bytes())
        required = {name: facts.pop(name) for name in ("state", "reason", "pid", "at")}
        host, process = facts.pop("host", ""), facts.pop("process", "::")
        required["at"], required["pid"] = float(required["at"]), int(required["pid"])
        place, pid, _ = process.rsplit(":", 2)
    except (OSError, ValueError, LookupError, TypeError, AttributeError):  # not there, or torn
        return None
    is_whole = not place or pid.isdigit()
    return Heartbeat(**required, host=host, process=process, facts=facts) if is_whole else None
