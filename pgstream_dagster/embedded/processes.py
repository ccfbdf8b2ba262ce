"""
The processes of embedded servers: start one under a supervisor, wait for it, list processes.

The supervisor runs between our process and the server, in a session of its own: it ends the server
when our process is killed, and no signal meant for us reaches it. Reads `/proc`.
"""

from __future__ import annotations

import json
import logging
import os
import pwd
import secrets
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from pgstream_dagster.embedded import supervisor

logger = logging.getLogger(__name__)

LOG_TAIL_LINES: Final = 30

SILENT_SECONDS: Final = 240.0
"""A starting server that writes no log for this long counts as hung: a slow one writes."""

REPORT_SECONDS: Final = 5.0
"""Between log lines about a start that takes long."""

POLL_SECONDS: Final = 0.02


def supervised(
    commands: Sequence[Sequence[str]],
    *,
    signals: Sequence[signal.Signals],
    log: Path,
    remove: Path | None,
    environment: Mapping[str, str],
    user: pwd.struct_passwd | None,
    folder: Path | None = None,
) -> subprocess.Popen[bytes]:
    """
    Run commands one after the other in `folder`, as `user` if given; their output goes to `log`.

    The supervisor prints one line, the pid of the last command, which is the server. The server
    leads a process group. When our process ends first, the supervisor sends the server `signals`,
    one by one until it ends, and removes the folder `remove`.
    """
    plan = {
        "parent": os.getpid(),
        "commands": commands,
        "signals": [int(number) for number in signals],
        "remove": str(remove) if remove else None,
        "log": str(log),
        "env": dict(environment),
        "folder": str(folder or "/"),
        "user": user.pw_uid if user else None,
        "group": user.pw_gid if user else None,
        "extra_groups": [] if user else None,
    }
    return subprocess.Popen(
        [sys.executable, "-I", "-S", supervisor.__file__, json.dumps(plan)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        start_new_session=True,  # a Ctrl-C or a kill of our group must not reach it
    )


def why_not_ready(
    server: str, process: subprocess.Popen[bytes], log: Path, is_ready: Callable[[], bool]
) -> str | None:
    """
    Wait for a server to start; the reason why it is not ready, or `None` once it is.

    There is no time limit: on a slow machine it waits as long as the process runs and its log
    grows.
    """
    began = grown = reported = time.monotonic()
    size = 0
    while not is_ready():
        now = time.monotonic()
        if process.poll() is not None:
            return "its process has ended"
        if (size_now := log.stat().st_size if log.is_file() else 0) != size:
            size, grown = size_now, now
        if now - grown >= SILENT_SECONDS:
            return f"its process runs, but its log did not grow for {SILENT_SECONDS:.0f} s"
        if now - reported >= REPORT_SECONDS:
            reported = now
            logger.info("waiting for %s to start, %.0f s so far", server, now - began)
        time.sleep(POLL_SECONDS)
    return None


def free_ports(ports: range, count: int) -> Iterator[int]:
    """Ports that were free a moment ago; another process may take them first."""
    while count:
        port = secrets.choice(ports)
        if is_free(port):
            count -= 1
            yield port


def is_free(port: int) -> bool:
    """Whether a server could listen on `port` of 127.0.0.1."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


def children(pid: int) -> list[int]:
    """The processes that have `pid` as parent."""
    return [child for child, status in _processes().items() if status.parent == pid]


def members(group: int) -> list[int]:
    """The processes of a process group that have not ended."""
    return [
        pid
        for pid, status in _processes().items()
        if status.group == group and not status.has_ended
    ]


def ended(pid: int) -> bool:
    """Whether a process is gone, or is a zombie that its parent has not yet waited for."""
    return _status(Path(f"/proc/{pid}")).has_ended


def tail(log: str) -> str:
    """The last lines of a log, for an error message."""
    return "\n".join(log.splitlines()[-LOG_TAIL_LINES:])


class _Status(NamedTuple):
    state: str
    parent: int
    group: int

    @property
    def has_ended(self) -> bool:
        return self.state in ("gone", "Z")


def _processes() -> dict[int, _Status]:
    folders = (path for path in Path("/proc").iterdir() if path.name.isdigit())
    return {int(folder.name): _status(folder) for folder in folders}


def _status(process: Path) -> _Status:
    try:
        # The command, in parentheses, may contain blanks: count from its end.
        fields = (process / "stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return _Status("gone", 0, 0)
    return _Status(fields[0], int(fields[1]), int(fields[2]))
