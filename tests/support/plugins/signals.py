"""Signals to the processes of a test."""

from __future__ import annotations

import signal
import subprocess
from typing import Any

import psutil


def signal_with_jvm(process: subprocess.Popen[Any], number: signal.Signals) -> None:
    """To a process and its JVM: one that continues alone would take the lock for the other."""
    parent = psutil.Process(process.pid)
    for member in (parent, *parent.children(recursive=True)):
        member.send_signal(number)
