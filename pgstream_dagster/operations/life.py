"""
The sign of life of a long operation: a small local file that it replaces about once a second.

Outside of Dagster's event log, which keeps every event for ever. Losing it costs nothing.
"""

from __future__ import annotations

import json
import os
import secrets
import socket
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

SAY_SECONDS: Final = 1.0


@dataclass(frozen=True, slots=True)
class Sign:
    """
    What an operation last said of itself; one that was killed says nothing more.

    `at` is in seconds of Unix time; `facts` are the operation's own.
    """

    state: str
    reason: str | None
    pid: int
    host: str
    at: float
    facts: Mapping[str, Any]

    @property
    def is_gone(self) -> bool:
        """Whether its process ran on this machine and runs no more; else only silence tells."""
        if self.host != socket.gethostname():
            return False
        try:
            os.kill(self.pid, 0)
        except ProcessLookupError:
            return True
        except PermissionError:
            return False  # another user's: it runs
        return False


class Life:
    """Says that an operation lives, in the file at `path`."""

    def __init__(self, path: Path) -> None:
        self._path = path
        # Its own: another writer, one that slept through its replacement, may be at it, too.
        self._draft = path.with_suffix(f".{secrets.token_hex(4)}.new")
        self._path.parent.mkdir(parents=True, exist_ok=True)
        self._said = 0.0

    @property
    def is_due(self) -> bool:
        """Whether it is time to say something again."""
        return time.monotonic() - self._said >= SAY_SECONDS

    def say(self, state: str, reason: str | None = None, **facts: object) -> None:
        """Replace the file at once, so that a reader never sees half of it."""
        said = {
            "state": state,
            "reason": reason,
            "pid": os.getpid(),
            "host": socket.gethostname(),
            "at": time.time(),
            **facts,
        }
        self._draft.write_text(json.dumps(said), encoding="utf-8")
        self._draft.replace(self._path)
        self._said = time.monotonic()


def read(path: Path) -> Sign | None:
    """What was said last; `None` when nothing ever was."""
    try:
        said: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    known = {name: said.pop(name) for name in ("state", "reason", "pid", "at")}
    return Sign(**known, host=said.pop("host", ""), facts=said)
