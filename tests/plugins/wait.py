"""Waiting for a state, the only waiting that tests do."""

from __future__ import annotations

import time
from collections.abc import Callable


def until(state: Callable[[], object], *, seconds: float = 60, every: float = 0.02) -> None:
    """Return when `state()` is true; fail when it is not after `seconds`."""
    deadline = time.monotonic() + seconds
    while not state():
        if time.monotonic() > deadline:
            raise AssertionError(f"not so after {seconds:.0f} s")
        time.sleep(every)
