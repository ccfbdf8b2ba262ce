"""How the demos print: a line at a time, each with the seconds since the beginning."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Final

REPORT_SECONDS: Final = 5.0
"""Between lines during a wait, which would otherwise look like a hang."""

FETCHED: Final = " (downloaded by the first run)"

Echo = Callable[[str], None]


def timed(echo: Echo) -> Echo:
    """As `echo`, each line with the seconds since this call."""
    began = time.monotonic()
    return lambda line: echo(f"{time.monotonic() - began:6.1f} s  {line}")


class Waiting:
    """Prints every few seconds what the demo waits for, and for how long already."""

    def __init__(self, what: str, echo: Echo) -> None:
        self._what, self._echo = what, echo
        self._began = self._reported = time.monotonic()

    def report(self, progress: str = "") -> None:
        """Call it often; `progress` describes how far the operation is."""
        now = time.monotonic()
        if now - self._reported >= REPORT_SECONDS:
            self._reported = now
            details = f"; {progress}" if progress else ""
            self._echo(f"  waiting for {self._what}, {now - self._began:.0f} s so far{details}")


def problem(counts: Mapping[str, int]) -> str | None:
    """What a comparison found; `None`: nothing."""
    return ", ".join(f"{count:,} {what}" for what, count in counts.items() if count) or None
