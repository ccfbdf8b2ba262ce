"""
The schedules: off, as is Dagster's default, until a person turns them on to suit the site.

Hours are UTC. Each run has a JVM of its own, so the hours lie apart.
"""

from collections.abc import Sequence
from datetime import timedelta
from typing import Final

import dagster as dg

from pgstream_dagster.assets.names import Names
from pgstream_dagster.assets.replay import REPLAY
from pgstream_dagster.assets.snapshot import SNAPSHOT, add_partitions

ONE_DAY: Final = timedelta(days=1)


def of_pipeline(names: Names) -> list[dg.ScheduleDefinition]:
    """The schedule that every pipeline has."""
    return [
        dg.ScheduleDefinition(
            name=names.prefixed("hourly_optimize"),
            cron_schedule="17 * * * *",
            job_name=names.prefixed("optimize"),
            description="Keep the log's files few and large.",
        )
    ]


def of_postgres(names: Names) -> list[dg.ScheduleDefinition]:
    """The schedules of a pipeline whose source is Postgres."""
    return [
        dg.ScheduleDefinition(
            name=names.prefixed("nightly_reconcile"),
            cron_schedule="0 2 * * *",
            job_name=names.prefixed("reconcile"),
            description="Compare source and log, row by row; the run fails when they differ.",
        ),
        _nightly_replay(names),
        _weekly_snapshot(names),
    ]


def of_search(names: Names, indices: Sequence[dg.AssetsDefinition]) -> list[dg.ScheduleDefinition]:
    """`weekly_reindex`, where there are indices."""
    if not indices:
        return []
    weekly = dg.ScheduleDefinition(
        name=names.prefixed("weekly_reindex"),
        cron_schedule="0 3 * * 0",
        job_name=names.prefixed("reindex"),
        description="Build every index again; the stream and the live indexer continue meanwhile.",
    )
    return [weekly]


def of_outbox(names: Names) -> list[dg.ScheduleDefinition]:
    """The schedule of a pipeline with an outbox."""
    return [
        dg.ScheduleDefinition(
            name=names.prefixed("hourly_outbox_maintenance"),
            cron_schedule="47 * * * *",
            job_name=names.prefixed("outbox_maintenance"),
            description="Keep the partitions of the outbox.",
        )
    ]


def _nightly_replay(names: Names) -> dg.ScheduleDefinition:
    @dg.schedule(
        name=names.prefixed("nightly_replay"),
        cron_schedule="30 0 * * *",
        job_name=names.prefixed(REPLAY),
        description="Rebuild yesterday in the table of daily changes.",
    )
    def nightly(context: dg.ScheduleEvaluationContext) -> dg.RunRequest:
        day = (context.scheduled_execution_time - ONE_DAY).date().isoformat()
        return dg.RunRequest(run_key=day, partition_key=day)

    return nightly


def _weekly_snapshot(names: Names) -> dg.ScheduleDefinition:
    @dg.schedule(
        name=names.prefixed("weekly_snapshot"),
        cron_schedule="0 4 * * 6",
        job_name=names.prefixed(SNAPSHOT),
        required_resource_keys=names.resources,
        description="Copy every table again, one run each, one after the other.",
    )
    def weekly(context: dg.ScheduleEvaluationContext) -> list[dg.RunRequest] | dg.SkipReason:
        tables = add_partitions(context.instance, names, names.open(context))
        if not tables:
            return dg.SkipReason("no table is published; launch the job 'setup'")
        at = context.scheduled_execution_time.isoformat()
        return [dg.RunRequest(run_key=f"{at}-{table}", partition_key=table) for table in tables]

    return weekly
