"""How demos talk: a line at a time, each with the seconds since the beginning."""

from __future__ import annotations

import time
from collections.abc import Callable

Say = Callable[[str], None]


def timed(say: Say) -> Say:
    """The same, each line with the seconds since now."""
    began = time.monotonic()
    return lambda line: say(f"{time.monotonic() - began:6.1f} s  {line}")
