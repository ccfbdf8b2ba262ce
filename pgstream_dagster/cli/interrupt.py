"""Ctrl-C and SIGTERM: the first asks, the second insists."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Generator
from contextlib import contextmanager
from types import FrameType
from typing import Final

from pgstream_dagster.cli.exits import SIGNAL_BASE

STOPPING: Final = b"stopping: landing what is complete; again to end at once\n"


class Interrupted(BaseException):
    """A signal ended the command; not an `Exception`, so nothing on the way swallows it."""

    def __init__(self, signal_number: int) -> None:
        self.exit_code = SIGNAL_BASE + signal_number
        super().__init__(signal.Signals(signal_number).name)


@contextmanager
def heard(stop: threading.Event | None) -> Generator[None]:
    """
    While inside, signals set `stop`, and a second one raises `Interrupted`.

    Without `stop` the first one raises. Former handlers come back at the end.
    """

    def hear(number: int, _frame: FrameType | None) -> None:
        if stop is None or stop.is_set():
            raise Interrupted(number)
        stop.set()
        os.write(sys.stderr.fileno(), STOPPING)  # a print may not interrupt a print

    before = {number: signal.signal(number, hear) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
