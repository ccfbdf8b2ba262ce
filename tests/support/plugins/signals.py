"""Signals to the processes of a test."""

from __future__ import annotations

import signal
import subprocess
from contextlib import suppress
from typing import Any

import psutil


def signal_with_jvm(process: subprocess.Popen[Any], number: signal.Signals) -> None:
    """To a process and its JVM: one that continues alone would take the lock for the other."""
    parent = psutil.Process(process.pid)
    children = parent.children(recursive=True)
    parent.send_signal(number)
    for child in children:
        with suppress(psutil.NoSuchProcess):  # helpers of the JVM live for milliseconds
            child.send_signal(number)
