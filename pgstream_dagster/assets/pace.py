"""How often a long run says something to Dagster, which keeps every event for ever. No I/O."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

MATERIALIZATION_SECONDS: Final = 30.0
"""8.7 KB of event log each on SQLite: 25 MB a day at this pace, 150 MB at every 5 s."""

OBSERVATION_SECONDS: Final = 300.0
"""While nothing moves: enough to see that the run lives."""

Event: TypeAlias = Literal["materialization", "observation"]


@dataclass(slots=True)
class Pace:
    """
    Since when (monotonic seconds) and at which mark something was told last of one asset.

    A mark is any number that is another one when there is something new. A run that tells of
    several `assets` tells of each that much more seldom: the event log grows as with one.
    """

    told_at: float
    mark: int = 0
    assets: int = 1

    def due(self, now: float, mark: int) -> Event | None:
        """What to tell now; once it is said, the next is due a whole interval later."""
        quiet = (now - self.told_at) / self.assets
        if mark != self.mark and quiet >= MATERIALIZATION_SECONDS:
            event: Event = "materialization"
        elif quiet >= OBSERVATION_SECONDS:
            event = "observation"
        else:
            return None
        self.told_at, self.mark = now, mark
        return event
