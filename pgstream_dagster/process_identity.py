"""An identity of this process by which another process can check whether it still runs."""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path
from typing import Final

GONE: Final = "-"
"""In place of the start of a process that has ended."""


def this_process() -> str:
    """`place:pid:start`; the start distinguishes a process from a later one with the same pid."""
    pid = os.getpid()
    return f"{_place()}:{pid}:{_started(pid)}"


def has_ended(process: str) -> bool:
    """Whether a `this_process()` is known to have ended; `False` also where that cannot be seen."""
    if is_elsewhere(process):
        return False
    _, pid, started = process.rsplit(":", 2)
    try:
        os.kill(int(pid), 0)
    except ProcessLookupError:
        return True
    except PermissionError:  # another user's
        pass
    return _started(int(pid)) not in (started, "")  # empty: /proc hides other users' processes


def is_elsewhere(process: str) -> bool:
    """Whether a `this_process()` is of another place, or its place is not known."""
    place = process.rsplit(":", 2)[0]
    return not place or place != _place()


@cache
def _place() -> str:
    """
    Where a pid means the same process: this boot of this machine, and the pid namespace.

    A host name is not enough: containers may share one. Empty where the kernel does not show it.
    """
    try:
        boot_id = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        namespace = Path("/proc/self/ns/pid").stat().st_ino
    except OSError:
        return ""
    return f"{boot_id}.{namespace}"


def _started(pid: int) -> str:
    """
    Clock ticks from boot to the start of a process; empty if there is no such process.

    One that has ended is listed until its parent takes notice (proc(5): states Z and X).
    """
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except (FileNotFoundError, ProcessLookupError, PermissionError):  # or it is hidden: hidepid
        return ""
    fields = stat.rpartition(")")[2].split()
    return GONE if fields[0] in {"Z", "X"} else fields[19]
