"""How often a long run says something to Dagster, which keeps every event for ever. No I/O."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

MATERIALIZATION_SECONDS: Final = 30.0
"""8.7 KB of event log each on SQLite: 25 MB a day at this pace, 150 MB at every 5 s."""

OBSERVATION_SECONDS: Final = 300.0
"""While the watermark stands still: enough to see that the run lives."""

Event: TypeAlias = Literal["materialization", "observation"]


@dataclass(slots=True)
class Pace:
    """Since when (monotonic seconds) and at how many commits something was told last."""

    told_at: float
    commits: int = 0

    def due(self, now: float, commits: int) -> Event | None:
        """What to tell now; once it is said, the next is due a whole interval later."""
        quiet = now - self.told_at
        if commits != self.commits and quiet >= MATERIALIZATION_SECONDS:
            event: Event = "materialization"
        elif quiet >= OBSERVATION_SECONDS:
            event = "observation"
        else:
            return None
        self.told_at, self.commits = now, commits
        return event
