"""
Run commands for a parent and never outlive it: the process between us and an embedded server.

`processes.py` starts it as a script that needs only the standard library. Its argument is the plan
as JSON. The commands run one after the other; the pid of the last one is written to standard output
when it starts. When the parent ends, even by SIGKILL, the running command is ended, and the folder
is removed if the plan names one. Each command leads a process group and SIGKILL goes to the group:
what a launcher started must not outlive the launcher. A pipe to the parent would not detect its
end, because every forked child of the parent has the writing end too; so the parent's pid is
polled.
"""

from __future__ import annotations

import json
import os
import select
import shutil
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import Any

PARENT_POLL_SECONDS = 0.5
PATIENCE_SECONDS = 10.0


def main() -> int:
    """Run the plan of the first argument; 0 when every command ended well."""
    plan: dict[str, Any] = json.loads(sys.argv[1])
    for number in (signal.SIGINT, signal.SIGTERM):
        # Not SIG_IGN: the commands would inherit it, and a JVM would then ignore SIGTERM.
        signal.signal(number, _nothing)
    child_ended = _wake_on_child()
    status = 0
    child = None
    for number, command in enumerate(plan["commands"], start=1):
        child = _start(command, plan)
        if number == len(plan["commands"]):
            with suppress(BrokenPipeError):  # the parent has ended, and so will the command
                os.write(1, b"%d\n" % child.pid)
        status = _outlive(child, child_ended, plan)
        if status != 0:
            break
    if child is not None and os.getppid() != plan["parent"]:
        _kill_group(child)  # a launcher that ended by itself may have left a server
        if plan["remove"]:
            shutil.rmtree(plan["remove"], ignore_errors=True)
    return 0 if status == 0 else 1


def _outlive(child: subprocess.Popen[bytes], child_ended: int, plan: dict[str, Any]) -> int:
    """Wait for the child to end; end it when the parent has ended."""
    while child.poll() is None:
        if os.getppid() != plan["parent"]:
            _end(child, plan["signals"])
        if select.select([child_ended], [], [], PARENT_POLL_SECONDS)[0]:
            os.read(child_ended, 4096)
    return child.returncode


def _wake_on_child() -> int:
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    signal.set_wakeup_fd(writing)
    signal.signal(signal.SIGCHLD, _nothing)
    return reading


def _nothing(_number: int, _frame: FrameType | None) -> None:
    """A handler: Python writes to the wake-up pipe only for signals that have one."""


def _start(command: list[str], plan: dict[str, Any]) -> subprocess.Popen[bytes]:
    with Path(plan["log"]).open("ab") as log:
        return subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            cwd=plan["folder"],
            env=plan["env"],
            user=plan["user"],
            group=plan["group"],
            extra_groups=plan["extra_groups"],
            process_group=0,
        )


def _end(child: subprocess.Popen[bytes], signals: list[int]) -> None:
    """Send the signals one by one until the child has ended."""
    for number in signals:
        if child.poll() is not None:
            return
        if number == signal.SIGKILL:
            _kill_group(child)
        else:
            child.send_signal(number)
        deadline = time.monotonic() + PATIENCE_SECONDS
        while child.poll() is None and time.monotonic() < deadline:
            time.sleep(0.02)


def _kill_group(leader: subprocess.Popen[bytes]) -> None:
    with suppress(ProcessLookupError):
        os.killpg(leader.pid, signal.SIGKILL)


if __name__ == "__main__":
    sys.exit(main())
