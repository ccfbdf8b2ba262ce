"""The schedules: off until somebody turns them on, since their hours are the site's business."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import dagster as dg

NIGHTLY: Final = "0 3 * * *"
"""UTC. Nothing needs it: it is for those who want the night's index rather than a year's."""


def of_search(indices: Sequence[dg.AssetsDefinition]) -> list[dg.ScheduleDefinition]:
    """`nightly_reindex`, where there are indices."""
    if not indices:
        return []
    nightly = dg.ScheduleDefinition(
        name="nightly_reindex",
        cron_schedule=NIGHTLY,
        job_name="reindex",
        description="Build every index anew; the stream and the live indexer go on meanwhile.",
        default_status=dg.DefaultScheduleStatus.STOPPED,
    )
    return [nightly]
