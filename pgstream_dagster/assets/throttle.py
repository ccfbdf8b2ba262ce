"""How often a long run says something to Dagster, which keeps every event for ever. No I/O."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import timedelta
from typing import Final, Literal, TypeAlias

import dagster as dg

MATERIALIZATION_SECONDS: Final = 60.0
"""About 10 KB of event log each on SQLite: 15 MB a day at this pace."""

OBSERVATION_SECONDS: Final = 300.0
"""While nothing moves: enough to see that the run lives."""

QUIET_SECONDS: Final = 3600.0
"""The longest without a materialization: freshness counts no observations."""

FRESHNESS: Final = dg.FreshnessPolicy.time_window(
    fail_window=timedelta(seconds=2 * QUIET_SECONDS),
    warn_window=timedelta(seconds=QUIET_SECONDS + 600),
)
"""Of what a long run keeps current: a quiet source is no stale one."""

Event: TypeAlias = Literal["materialization", "observation"]


@dataclass(slots=True)
class EventThrottle:
    """
    Since when (monotonic seconds) and at which mark something was told last of one asset.

    A mark is any number that is another one when there is something new. A run that tells of
    several `assets` tells of each that much more seldom: the event log grows as with one.
    """

    told_at: float
    mark: int = 0
    assets: int = 1
    materialized_at: float | None = None
    began: float = field(init=False)

    def __post_init__(self) -> None:
        self.began = self.told_at

    def due(self, now: float, mark: int) -> Event | None:
        """What to tell now: the first thing at once, the next a whole interval later."""
        quiet = (now - self.told_at) / self.assets
        is_first = self.materialized_at is None
        is_new = mark != self.mark and (is_first or quiet >= MATERIALIZATION_SECONDS)
        since = self.began if self.materialized_at is None else self.materialized_at
        if is_new or now - since >= QUIET_SECONDS:
            self.materialized_at = now
            event: Event = "materialization"
        elif quiet >= OBSERVATION_SECONDS:
            event = "observation"
        else:
            return None
        self.told_at, self.mark = now, mark
        return event
