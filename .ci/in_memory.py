"""
`python .ci/in_memory.py COMMAND...`: run a command with its temporary files in memory.

A run of the tests makes and removes a database for most of a thousand tests, of 300 files each.
What is left when the command fails is copied to the disk. Without room, or with TMPDIR set, the
files are where they always are.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

MEMORY = Path("/dev/shm")  # noqa: S108
ROOM = 8 << 30
"""Bytes; a run of all tests has up to 1 GB at a time."""


def room() -> Iterator[int]:
    """The bytes that are free: of the file system, of the machine, and of a container's limit."""
    yield shutil.disk_usage(MEMORY).free if os.access(MEMORY, os.W_OK) else 0
    with suppress(OSError):
        lines = Path("/proc/meminfo").read_text().splitlines()
        yield from (int(line.split()[1]) << 10 for line in lines if line.startswith("MemAvailable"))
    with suppress(OSError, ValueError):  # it is "max" without a limit
        group = Path("/sys/fs/cgroup")
        limit = int((group / "memory.max").read_text())
        yield limit - int((group / "memory.current").read_text())


def main(command: Sequence[str]) -> int:
    """The exit code of the command."""
    if os.environ.get("TMPDIR") or min(room()) < ROOM:
        os.execvp(command[0], command)  # noqa: S606
    folder = Path(tempfile.mkdtemp(prefix="pgstream-", dir=MEMORY))
    folder.chmod(0o711)  # Postgres runs as another user if we are root
    with subprocess.Popen(command, env=os.environ | {"TMPDIR": str(folder)}) as process:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # the command has it, too
        for ending in (signal.SIGTERM, signal.SIGHUP):
            signal.signal(ending, lambda number, _: process.send_signal(number))
        code = process.wait()
    if code and any(folder.iterdir()):
        kept = Path(tempfile.gettempdir()) / folder.name
        with suppress(shutil.Error):  # sockets, and what servers that are ending have removed
            shutil.copytree(folder, kept, symlinks=True)
        print(f"what was left in {folder} is in {kept}", file=sys.stderr)
    shutil.rmtree(folder, ignore_errors=True)
    return code if code >= 0 else 128 - code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
