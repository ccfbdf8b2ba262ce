"""Waiting for a state, the only waiting that tests do."""

from __future__ import annotations

import os
import time
from collections.abc import Callable


def crowding() -> float:
    """How many processes want each core, at least 1."""
    return max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1))


def until(
    state: Callable[[], object],
    *,
    seconds: float = float(os.environ.get("UNTIL", "60")),
    every: float = 0.02,
    progress: Callable[[], object] = lambda: None,
) -> None:
    """
    Return when `state()` is true; fail when it is not after `seconds` on an idle machine.

    What other processes take is added: with a load of 8 on two cores it is four times as long.
    With `progress`, the time begins again whenever its value changes: a slow machine that gets on
    is waited for, one that stands still is not. Asking takes at most a third of the time, as far
    as that adds no more than a second, so that what is waited for gets on.
    """
    deadline, seen = time.monotonic() + seconds, progress()
    while True:
        asked = time.monotonic()
        if state():
            return
        if (now := progress()) != seen:
            deadline, seen = time.monotonic() + seconds, now
        answered = time.monotonic()
        if answered > deadline + (0 if "UNTIL" in os.environ else seconds * (crowding() - 1)):
            raise AssertionError(f"not so after {seconds:.0f} s; progress: {seen}")
        time.sleep(max(every, min(2 * (answered - asked), 1.0)))
