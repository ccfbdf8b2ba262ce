"""The end of a stream: what a stop cancels at once, and what it reports while it still waits."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Final

from pgstream_dagster.capture.recopier import Recopier

logger = logging.getLogger(__name__)

POLL_SECONDS: Final = 0.2
"""Between checks of a stop: it may be set by a signal, which can wake nothing else."""

REPORT_SECONDS: Final = 5.0
"""Between reports of what an end waits for: a normal stop ends before the first."""


@contextmanager
def watched(recopier: Recopier, report: Callable[[str], None]) -> Generator[None]:
    """
    While the block runs: a stop cancels copies at once, and a slow end reports what it waits for.

    The slot is not read while the stream ends, so nothing that may take long is waited for.
    """
    ended = threading.Event()
    watching = threading.Thread(
        target=_watch, args=(recopier, report, ended), name="pgstream-stop", daemon=True
    )
    watching.start()
    try:
        yield
    finally:
        ended.set()
        watching.join()


def _watch(recopier: Recopier, report: Callable[[str], None], ended: threading.Event) -> None:
    while not recopier.is_stopping:
        if ended.wait(POLL_SECONDS):
            return
    recopier.stop()
    began = time.monotonic()
    while not ended.wait(REPORT_SECONDS):
        reason = f"{time.monotonic() - began:.0f} s after the stop, waiting for {_waits(recopier)}"
        logger.warning("stopping: %s", reason)
        report(reason)


def _waits(recopier: Recopier) -> str:
    """What has not ended yet."""
    if not recopier.is_closing:
        return "what is complete to be landed"
    if recopier.is_alive:
        return "a copy of tables to end"
    return "the log to be closed"
