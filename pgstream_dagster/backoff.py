"""Waits between attempts: doubled each time, with jitter so that many do not come at one moment."""

from __future__ import annotations

import random
from collections.abc import Iterator


def waits(first: float, longest: float) -> Iterator[float]:
    """Seconds to wait before each further attempt, without end."""
    wait = first
    while True:
        yield wait * random.uniform(0.5, 1.0)  # noqa: S311 - jitter, not a secret
        wait = min(2 * wait, longest)
