"""
The schedules: off until somebody turns them on, since their hours are the site's business.

Hours are UTC. Each run has a JVM of its own, so the hours lie apart.
"""

from collections.abc import Sequence
from datetime import timedelta
from typing import Final

import dagster as dg

from pgstream_dagster.assets.names import Names
from pgstream_dagster.assets.replay import REPLAY
from pgstream_dagster.assets.snapshot import SNAPSHOT, add_partitions

HOURLY_OPTIMIZE: Final = "17 * * * *"
NIGHTLY_REPLAY: Final = "30 0 * * *"
NIGHTLY_RECONCILE: Final = "0 2 * * *"
WEEKLY_SNAPSHOT: Final = "0 4 * * 6"
WEEKLY_REINDEX: Final = "0 3 * * 0"

ONE_DAY: Final = timedelta(days=1)

OFF: Final = dg.DefaultScheduleStatus.STOPPED


def of_pipeline(names: Names) -> list[dg.ScheduleDefinition]:
    """The schedules that every pipeline has."""
    return [
        dg.ScheduleDefinition(
            name=names.of("hourly_optimize"),
            cron_schedule=HOURLY_OPTIMIZE,
            job_name=names.of("optimize"),
            description="Keep the log's files few and large.",
            default_status=OFF,
        ),
        dg.ScheduleDefinition(
            name=names.of("nightly_reconcile"),
            cron_schedule=NIGHTLY_RECONCILE,
            job_name=names.of("reconcile"),
            description="Compare source and log, row by row; the run fails when they differ.",
            default_status=OFF,
        ),
        _nightly_replay(names),
        _weekly_snapshot(names),
    ]


def of_search(names: Names, indices: Sequence[dg.AssetsDefinition]) -> list[dg.ScheduleDefinition]:
    """`weekly_reindex`, where there are indices."""
    if not indices:
        return []
    weekly = dg.ScheduleDefinition(
        name=names.of("weekly_reindex"),
        cron_schedule=WEEKLY_REINDEX,
        job_name=names.of("reindex"),
        description="Build every index again; the stream and the live indexer go on meanwhile.",
        default_status=OFF,
    )
    return [weekly]


def _nightly_replay(names: Names) -> dg.ScheduleDefinition:
    @dg.schedule(
        name=names.of("nightly_replay"),
        cron_schedule=NIGHTLY_REPLAY,
        job_name=names.of(REPLAY),
        description="Rebuild yesterday in the table of daily changes.",
        default_status=OFF,
    )
    def nightly(context: dg.ScheduleEvaluationContext) -> dg.RunRequest:
        day = (context.scheduled_execution_time - ONE_DAY).date().isoformat()
        return dg.RunRequest(run_key=day, partition_key=day)

    return nightly


def _weekly_snapshot(names: Names) -> dg.ScheduleDefinition:
    @dg.schedule(
        name=names.of("weekly_snapshot"),
        cron_schedule=WEEKLY_SNAPSHOT,
        job_name=names.of(SNAPSHOT),
        required_resource_keys=names.resources,
        description="Copy every table again, one run each, one after the other.",
        default_status=OFF,
    )
    def weekly(context: dg.ScheduleEvaluationContext) -> list[dg.RunRequest] | dg.SkipReason:
        opened = names.file(context.resources).open()
        found = add_partitions(context.instance, names, opened)
        if not found:
            return dg.SkipReason("no table is published; launch the job 'setup'")
        at = context.scheduled_execution_time.isoformat()
        return [dg.RunRequest(run_key=f"{at}-{table}", partition_key=table) for table in found]

    return weekly
