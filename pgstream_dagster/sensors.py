"""
The sensors: `keep_stream`, `keep_index` and `keep_sinks` keep jobs running.

`report_failure` reports failures.

`supervision` decides what to do, from runs and the operation's own heartbeat; this module reads and
changes what Dagster has of them.
"""

import hashlib
import json
import os
import time
import urllib.request
from collections.abc import Callable
from collections.abc import Set as AbstractSet
from pathlib import Path
from typing import Final

import dagster as dg

from pgstream_dagster import heartbeat, settings, supervision
from pgstream_dagster.assets.names import Names
from pgstream_dagster.assets.reporter import END_TAG
from pgstream_dagster.errors import PgstreamError
from pgstream_dagster.jobs import STREAM_TAG
from pgstream_dagster.pipeline import Pipeline
from pgstream_dagster.state_folder import require_own
from pgstream_dagster.supervision import Status
from pgstream_dagster.upkeep.health import is_indexed, is_read

DEPLOYED_TAG: Final = "pgstream/deployed"
"""On every long run: the version of code and file that it was started from."""

POST_SECONDS: Final = 10.0

TICK_SECONDS: Final = 10
RUNS: Final = 10
"""Newest runs considered: the back-off does not grow with more failures than that."""

STATUSES: Final = {
    dg.DagsterRunStatus.QUEUED: Status.WAITING,
    dg.DagsterRunStatus.NOT_STARTED: Status.WAITING,
    dg.DagsterRunStatus.MANAGED: Status.WAITING,
    dg.DagsterRunStatus.STARTING: Status.WAITING,
    dg.DagsterRunStatus.STARTED: Status.STARTED,
    dg.DagsterRunStatus.CANCELING: Status.ENDING,
    dg.DagsterRunStatus.SUCCESS: Status.SUCCEEDED,
    dg.DagsterRunStatus.FAILURE: Status.FAILED,
    dg.DagsterRunStatus.CANCELED: Status.CANCELED,
}


def keep_stream(names: Names) -> dg.SensorDefinition:
    """Keeps a stream running."""
    return _keep_running(names, "stream", lambda pipeline: pipeline.heartbeat_file, is_read)


def keep_index(names: Names) -> dg.SensorDefinition:
    """Keeps the live indexer running."""
    return _keep_running(
        names, "index", lambda pipeline: pipeline.indexer_heartbeat_file, is_indexed
    )


def keep_sinks(names: Names) -> dg.SensorDefinition:
    """Keeps the process of the sinks running."""
    return _keep_running(
        names, "sinks", lambda pipeline: pipeline.sinks_heartbeat_file, lambda _: None
    )


def _keep_running(
    names: Names,
    job: str,
    heartbeat_file: Callable[[Pipeline], Path],
    is_active: Callable[[Pipeline], bool | None],
) -> dg.SensorDefinition:
    name, stream = names.prefixed(job), names.in_instance(job)

    @dg.sensor(
        name=names.prefixed(f"keep_{job}"),
        job_name=name,
        minimum_interval_seconds=TICK_SECONDS,
        default_status=dg.DefaultSensorStatus.RUNNING,
        required_resource_keys=names.resources,
        description=f"Launches '{name}' whenever none runs, but for one that a person terminated;"
        " gives a run up that shows no heartbeat; replaces one of another version.",
    )
    def keep(context: dg.SensorEvaluationContext) -> dg.RunRequest | dg.SkipReason:
        file = names.file(context)
        try:
            pipeline = file.open()
            require_own(pipeline)  # else another pipeline's heartbeat would be read
        except PgstreamError as error:
            return dg.SkipReason(f"no '{name}' is launched: {error}")
        watched = supervision.Watched(
            job=name,
            stream=stream,
            deployed=deployed(file.content()),
            runs=_runs(context.instance, stream),
            heartbeat=heartbeat.read(heartbeat_file(pipeline)),
            is_active=lambda: is_active(pipeline),
            failure_reason=lambda run: _failure_reason(context.instance, run.run_id),
        )
        return _act(context, watched)

    return keep


def _act(
    context: dg.SensorEvaluationContext, watched: supervision.Watched
) -> dg.RunRequest | dg.SkipReason:
    """Do what `supervision` decides; the tick shows the reason."""
    instance = context.instance
    match supervision.decide(watched, time.time()):
        case supervision.Leave(reason):
            return dg.SkipReason(reason)
        case supervision.GiveUp(run, reason):
            if dead := instance.get_run_by_id(run.run_id):
                instance.report_run_failed(dead, f"{reason}: taken for dead")
            return dg.SkipReason(f"{run.shown} is given up: {reason}")
        case supervision.End(run, reason):
            instance.add_run_tags(run.run_id, {END_TAG: reason})
            return dg.SkipReason(f"{run.shown} is asked to end: {reason}")
        case supervision.Adopt(run):
            instance.add_run_tags(run.run_id, {DEPLOYED_TAG: watched.deployed})
            return dg.SkipReason(f"{run.shown} was launched by a person, and is kept running")
        case supervision.Launch(run_key):
            tags = {STREAM_TAG: watched.stream, DEPLOYED_TAG: watched.deployed}
            return dg.RunRequest(run_key=run_key, tags=tags)


def deployed(content: bytes) -> str:
    """The version that a run is started from now: of the code, and a digest of the file."""
    digest = hashlib.blake2b(content, digest_size=4).hexdigest()
    return f"{settings.deployed(os.environ)}+{digest}"


def _runs(instance: dg.DagsterInstance, stream: str) -> list[supervision.Run]:
    """The newest runs of a job of one pipeline, newest first."""
    tagged = dg.RunsFilter(tags={STREAM_TAG: stream})
    return [_run(record) for record in instance.get_run_records(tagged, limit=RUNS)]


def _run(record: dg.RunRecord) -> supervision.Run:
    run, created = record.dagster_run, record.create_timestamp.timestamp()
    began = record.start_time or created
    return supervision.Run(
        run_id=run.run_id,
        status=STATUSES[run.status],
        began=began,
        ended=record.end_time or began,
        deployed=run.tags.get(DEPLOYED_TAG, ""),
    )


def _failure_reason(instance: dg.DagsterInstance, run_id: str) -> str:
    """Why a run failed: its step's error, else Dagster's own message."""
    types = {dg.DagsterEventType.STEP_FAILURE, dg.DagsterEventType.RUN_FAILURE}
    entries = instance.all_logs(run_id, of_type=types)
    events = [entry.dagster_event for entry in entries if entry.dagster_event is not None]
    for event in events:
        if event.is_step_failure:
            data = event.step_failure_data
            if data.user_failure_data is not None and data.user_failure_data.description:
                return data.user_failure_data.description
            if data.error is not None:
                return data.error.message.strip().splitlines()[0]
    return events[0].message or "" if events else "nothing is known of why"


def report_failure(
    names: Names, assets: AbstractSet[dg.AssetKey], jobs: AbstractSet[str]
) -> dg.SensorDefinition:
    """Logs in one line which run of ours failed, why, and the remedy; posts it to a URL, if any."""

    @dg.run_failure_sensor(
        name=names.prefixed("report_failure"),
        default_status=dg.DefaultSensorStatus.RUNNING,
        description="Logs why a run failed, and posts it to PGSTREAM_ALERT_URL where that is set;"
        " of a run that is tried again and again, when the reason is another one.",
    )
    def report(context: dg.RunFailureSensorContext) -> dg.SkipReason | None:
        run = context.dagster_run
        if run.job_name not in jobs and not assets & (run.asset_selection or set()):
            return dg.SkipReason(f"{run.job_name} is none of this pipeline")
        reason = _failure_reason(context.instance, run.run_id)
        text = f"pgstream: job '{_shown(run)}' failed (run {run.run_id[:8]}): {reason}"
        context.log.error(text)
        url = settings.alert_url(os.environ)
        if url is None:
            return None
        if _is_repeated(context.instance, run, reason):
            return dg.SkipReason(f"posted already: {reason}")
        _post(url, text)
        return None

    return report


def _shown(run: dg.DagsterRun) -> str:
    """The job's name; for a run of the button "Materialize", its assets."""
    keys = run.asset_selection if run.job_name.startswith("__") else None
    if not keys:
        return run.job_name
    return "materialize " + ", ".join(sorted(key.to_user_string() for key in keys))


def _is_repeated(instance: dg.DagsterInstance, run: dg.DagsterRun, reason: str) -> bool:
    """Whether a sensor keeps this run's job running, whose previous failure had this reason."""
    stream = run.tags.get(STREAM_TAG)
    if stream is None:
        return False
    failed = [past.run_id for past in _runs(instance, stream) if past.status is Status.FAILED]
    before = failed[failed.index(run.run_id) + 1 :] if run.run_id in failed else []
    return bool(before) and _failure_reason(instance, before[0]) == reason


def _post(url: str, text: str) -> None:
    """Raises urllib's errors: the UI shows a tick that failed."""
    body = json.dumps({"text": text}).encode()
    headers = {"Content-Type": "application/json"}
    request = urllib.request.Request(url, body, headers)  # noqa: S310 - the operator's own address
    with urllib.request.urlopen(request, timeout=POST_SECONDS):  # noqa: S310
        pass
