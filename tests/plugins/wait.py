"""Waiting for a state, the only waiting that tests do."""

from __future__ import annotations

import time
from collections.abc import Callable


def until(
    state: Callable[[], object],
    *,
    seconds: float = 60,
    every: float = 0.02,
    progress: Callable[[], object] = lambda: None,
) -> None:
    """
    Return when `state()` is true; fail when it is not after `seconds`.

    With `progress`, the time begins again whenever its value changes: a slow machine that gets on
    is waited for, one that stands still is not.
    """
    deadline, seen = time.monotonic() + seconds, progress()
    while not state():
        if (now := progress()) != seen:
            deadline, seen = time.monotonic() + seconds, now
        if time.monotonic() > deadline:
            raise AssertionError(f"not so after {seconds:.0f} s; progress: {seen}")
        time.sleep(every)
