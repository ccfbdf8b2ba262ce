"""Exponential back-off with jitter, so that many clients do not retry at the same moment."""

from __future__ import annotations

import random
from collections.abc import Iterator


def waits(first: float, longest: float) -> Iterator[float]:
    """Seconds to wait before each further attempt; endless."""
    wait = first
    while True:
        yield wait * random.uniform(0.5, 1.0)  # noqa: S311 - jitter, not a secret
        wait = min(2 * wait, longest)
