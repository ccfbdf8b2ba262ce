"""Ctrl-C and SIGTERM: the first requests a stop, the second ends the command at once."""

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
    """A signal ended the command; not an `Exception`, so that no handler swallows it."""

    def __init__(self, signal_number: int) -> None:
        self.exit_code = SIGNAL_BASE + signal_number
        super().__init__(signal.Signals(signal_number).name)


@contextmanager
def interruptible(stop: threading.Event | None) -> Generator[None]:
    """
    In the `with` block, a signal sets `stop`, and a second one raises `Interrupted`.

    Without `stop` the first one raises. The former handlers are restored at the end.
    """

    def on_signal(number: int, _frame: FrameType | None) -> None:
        if stop is None or stop.is_set():
            raise Interrupted(number)
        stop.set()
        os.write(sys.stderr.fileno(), STOPPING)  # `print` is not reentrant

    signals = (signal.SIGINT, signal.SIGTERM)
    former = {number: signal.signal(number, on_signal) for number in signals}
    try:
        yield
    finally:
        for number, handler in former.items():
            signal.signal(number, handler)
