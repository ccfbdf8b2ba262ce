"""How often a long run reports to Dagster, which keeps every event forever. No I/O."""

from __future__ import annotations

from datetime import timedelta
from typing import Final, TypeAlias

import dagster as dg

MATERIALIZATION_SECONDS: Final = 60.0
"""About 10 KB of event log each on SQLite: 15 MB a day at this pace."""

OBSERVATION_SECONDS: Final = 300.0
"""While nothing moves: enough to show that the run is alive."""

QUIET_SECONDS: Final = 3600.0
"""The longest without a materialization: freshness counts no observations."""

FRESHNESS: Final = dg.FreshnessPolicy.time_window(
    fail_window=timedelta(seconds=2 * QUIET_SECONDS),
    warn_window=timedelta(seconds=QUIET_SECONDS + 600),
)
"""Of what a long run keeps current: a quiet source does not make it stale."""

Event: TypeAlias = type[dg.AssetMaterialization] | type[dg.AssetObservation]


class EventThrottle:
    """
    When to report one asset of a long run, and with which event; times are monotonic seconds.

    A mark is any number that differs when there is something new. A run that reports several
    `assets` reports each of them that much less often: the event log grows as with one.
    """

    def __init__(self, began: float, assets: int = 1) -> None:
        self._assets, self._mark, self._is_first = assets, 0, True
        self._reported_at = self._materialized_at = began

    def due(self, now: float, mark: int) -> Event | None:
        """The event to report now: the first at once, the next a whole interval later."""
        quiet = (now - self._reported_at) / self._assets
        is_new = mark != self._mark and (self._is_first or quiet >= MATERIALIZATION_SECONDS)
        if is_new or now - self._materialized_at >= QUIET_SECONDS:
            self._materialized_at, self._is_first = now, False
            event: Event = dg.AssetMaterialization
        elif quiet >= OBSERVATION_SECONDS:
            event = dg.AssetObservation
        else:
            return None
        self._reported_at, self._mark = now, mark
        return event
