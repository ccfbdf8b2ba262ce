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
from pgstream_dagster.assets.tables import POOL
from pgstream_dagster.jobs import MERGE_TABLES, TABLES_TAG

ONE_DAY: Final = timedelta(days=1)

IN_PROGRESS: Final = (
    dg.DagsterRunStatus.QUEUED,
    dg.DagsterRunStatus.NOT_STARTED,
    dg.DagsterRunStatus.STARTING,
    dg.DagsterRunStatus.STARTED,
    dg.DagsterRunStatus.CANCELING,
)


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


def of_tables(names: Names, *, has_source: bool) -> list[dg.ScheduleDefinition]:
    """The schedules of a pipeline with typed tables; nothing is compared without a source."""
    config = {"ops": {names.prefixed("compare_source_and_log"): {"config": {"typed_tables": True}}}}
    nightly = dg.ScheduleDefinition(
        name=names.prefixed("nightly_reconcile_tables"),
        cron_schedule="0 1 * * *",
        job_name=names.prefixed("reconcile"),
        run_config=config,
        description="Compare source, log and typed tables; the run fails when they differ.",
    )
    return [_frequent_merge(names), *([nightly] if has_source else [])]


def _frequent_merge(names: Names) -> dg.ScheduleDefinition:
    @dg.schedule(
        name=names.prefixed("frequent_merge_tables"),
        cron_schedule="*/5 * * * *",
        job_name=names.prefixed(MERGE_TABLES),
        description="Bring every typed table to the log's position, unless a run does so now.",
    )
    def frequent(context: dg.ScheduleEvaluationContext) -> dg.RunRequest | dg.SkipReason:
        tags = {TABLES_TAG: names.in_instance(POOL)}
        unfinished = dg.RunsFilter(tags=tags, statuses=list(IN_PROGRESS))
        for run in context.instance.get_runs(unfinished, limit=1):
            return dg.SkipReason(f"run {run.run_id[:8]} is {run.status.value.lower()}")
        return dg.RunRequest(run_key=context.scheduled_execution_time.isoformat(), tags=tags)

    return frequent


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
