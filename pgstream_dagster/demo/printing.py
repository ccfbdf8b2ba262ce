"""How demos talk: a line at a time, each with the seconds since the beginning."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

SAY_SECONDS: Final = 5.0
"""Between lines while something is waited for: silence looks like a stall."""

Say = Callable[[str], None]


def timed(say: Say) -> Say:
    """The same, each line with the seconds since now."""
    began = time.monotonic()
    return lambda line: say(f"{time.monotonic() - began:6.1f} s  {line}")


class Waiting:
    """Says every few seconds what is waited for, and for how long already."""

    def __init__(self, what: str, say: Say) -> None:
        self._what, self._say = what, say
        self._began = self._said = time.monotonic()

    def look(self, progress: str = "") -> None:
        """Called while it waits; `progress` is how far it is."""
        now = time.monotonic()
        if now - self._said >= SAY_SECONDS:
            self._said = now
            shown = f"; {progress}" if progress else ""
            self._say(f"  waiting for {self._what}, {now - self._began:.0f} s so far{shown}")
