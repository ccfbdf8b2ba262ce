"""
The sensors: `keep_stream` and `keep_index` see to it that those jobs always run; `tell_failure`.

What to do is decided in `supervision`, from runs and the operation's own heartbeat; here is what
that asks of Dagster.
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

from pgstream_dagster import heartbeat, settings
from pgstream_dagster.assets.names import Names
from pgstream_dagster.assets.reporter import END_TAG
from pgstream_dagster.errors import PgstreamError
from pgstream_dagster.jobs import STREAM_TAG
from pgstream_dagster.pipeline import Pipeline
from pgstream_dagster.state_folder import require_own
from pgstream_dagster.supervision import (
    Adopt,
    Decision,
    End,
    GiveUp,
    Launch,
    Leave,
    Run,
    Status,
    Watched,
    decide,
)
from pgstream_dagster.upkeep.health import is_indexed, is_read

DEPLOYED_TAG: Final = "pgstream/deployed"
"""On every long run: what it was started from."""

POST_SECONDS: Final = 10.0

TICK_SECONDS: Final = 10
RUNS: Final = 10
"""Newest runs looked at: more failures than that wait no longer."""

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
    """Sees to it that a stream always runs."""
    return _recopier(names, "stream", lambda opened: opened.heartbeat_file, is_read)


def keep_index(names: Names) -> dg.SensorDefinition:
    """Sees to it that the live indexer always runs."""
    return _recopier(names, "index", lambda opened: opened.indexer_heartbeat_file, is_indexed)


def _recopier(
    names: Names,
    job: str,
    sign: Callable[[Pipeline], Path],
    is_done: Callable[[Pipeline], bool | None],
) -> dg.SensorDefinition:
    name, stream = names.of(job), names.in_instance(job)

    @dg.sensor(
        name=names.of(f"keep_{job}"),
        job_name=name,
        minimum_interval_seconds=TICK_SECONDS,
        default_status=dg.DefaultSensorStatus.RUNNING,
        required_resource_keys=names.resources,
        description=f"Launches '{name}' whenever none runs, but for one that a person terminated;"
        " gives a run up that shows no heartbeat; replaces one of another version.",
    )
    def keep(context: dg.SensorEvaluationContext) -> dg.RunRequest | dg.SkipReason:
        file = names.file(context.resources)
        try:
            opened = file.open()
            require_own(opened)  # else another pipeline's heartbeat would be read
        except PgstreamError as error:
            return dg.SkipReason(f"no '{name}' is launched: {error}")
        watched = Watched(
            job=name,
            stream=stream,
            deployed=deployed(file.content()),
            runs=_runs(context.instance, stream),
            sign=heartbeat.read(sign(opened)),
            is_done=lambda: is_done(opened),
            why=lambda run: _why(context.instance, run.run_id),
        )
        return _done(context, watched, decide(watched, time.time()))

    return keep


def _done(
    context: dg.SensorEvaluationContext, watched: Watched, decided: Decision
) -> dg.RunRequest | dg.SkipReason:
    """Do what was decided; what a tick has to say is in its reason."""
    instance = context.instance
    match decided:
        case Leave(reason):
            return dg.SkipReason(reason)
        case GiveUp(run, reason):
            if found := instance.get_run_by_id(run.run_id):
                instance.report_run_failed(found, f"{reason}: taken for dead")
            return dg.SkipReason(f"{run.shown} is given up: {reason}")
        case End(run, reason):
            instance.add_run_tags(run.run_id, {END_TAG: reason})
            return dg.SkipReason(f"{run.shown} is asked to end: {reason}")
        case Adopt(run):
            instance.add_run_tags(run.run_id, {DEPLOYED_TAG: watched.deployed})
            return dg.SkipReason(f"{run.shown} was launched by a person, and is kept running")
        case Launch(run_key):
            tags = {STREAM_TAG: watched.stream, DEPLOYED_TAG: watched.deployed}
            return dg.RunRequest(run_key=run_key, tags=tags)


def deployed(content: bytes) -> str:
    """What a run that is launched now is started from: the code's version, the file's content."""
    digest = hashlib.blake2b(content, digest_size=4).hexdigest()
    return f"{settings.deployed(os.environ)}+{digest}"


def _runs(instance: dg.DagsterInstance, stream: str) -> list[Run]:
    """The newest runs of a job of one pipeline, newest first."""
    of_stream = dg.RunsFilter(tags={STREAM_TAG: stream})
    return [_run(record) for record in instance.get_run_records(of_stream, limit=RUNS)]


def _run(record: dg.RunRecord) -> Run:
    run, created = record.dagster_run, record.create_timestamp.timestamp()
    began = record.start_time or created
    return Run(
        run_id=run.run_id,
        status=STATUSES[run.status],
        began=began,
        ended=record.end_time or began,
        deployed=run.tags.get(DEPLOYED_TAG, ""),
    )


def _why(instance: dg.DagsterInstance, run_id: str) -> str:
    """What a failed run said: its step's error, else what Dagster says of the run."""
    wanted = {dg.DagsterEventType.STEP_FAILURE, dg.DagsterEventType.RUN_FAILURE}
    found = [entry.dagster_event for entry in instance.all_logs(run_id, of_type=wanted)]
    events = [event for event in found if event is not None]
    for event in events:
        if event.is_step_failure:
            data = event.step_failure_data
            if data.user_failure_data is not None and data.user_failure_data.description:
                return data.user_failure_data.description
            if data.error is not None:
                return data.error.message.strip().splitlines()[0]
    return events[0].message or "" if events else "nothing is known of why"


def tell_failure(
    names: Names, assets: AbstractSet[dg.AssetKey], jobs: AbstractSet[str]
) -> dg.SensorDefinition:
    """Says in one line which run of ours failed, why, and what helps; posts it to a URL, if any."""

    @dg.run_failure_sensor(
        name=names.of("tell_failure"),
        default_status=dg.DefaultSensorStatus.RUNNING,
        description="Logs why a run failed, and posts it to PGSTREAM_ALERT_URL where that is set;"
        " of a run that is tried again and again, when the reason is another one.",
    )
    def told(context: dg.RunFailureSensorContext) -> dg.SkipReason | None:
        run = context.dagster_run
        if run.job_name not in jobs and not assets & (run.asset_selection or set()):
            return dg.SkipReason(f"{run.job_name} is none of this pipeline")
        why = _why(context.instance, run.run_id)
        text = f"pgstream: job '{_shown(run)}' failed (run {run.run_id[:8]}): {why}"
        context.log.error(text)
        url = settings.alert_url(os.environ)
        if url is None:
            return None
        if _said_before(context.instance, run, why):
            return dg.SkipReason(f"posted already: {why}")
        _post(url, text)
        return None

    return told


def _shown(run: dg.DagsterRun) -> str:
    """The job's name, or of what the button "Materialize" launched the assets."""
    keys = run.asset_selection if run.job_name.startswith("__") else None
    if not keys:
        return run.job_name
    return "materialize " + ", ".join(sorted(key.to_user_string() for key in keys))


def _said_before(instance: dg.DagsterInstance, run: dg.DagsterRun, why: str) -> bool:
    """Whether a sensor launches this run, and the one before it failed for the same reason."""
    stream = run.tags.get(STREAM_TAG)
    if stream is None:
        return False
    runs = [found.run_id for found in _runs(instance, stream) if found.status is Status.FAILED]
    before = runs[runs.index(run.run_id) + 1 :] if run.run_id in runs else []
    return bool(before) and _why(instance, before[0]) == why


def _post(url: str, text: str) -> None:
    """Raises what urllib does: a tick that failed shows in the UI."""
    body = json.dumps({"text": text}).encode()
    headers = {"Content-Type": "application/json"}
    request = urllib.request.Request(url, body, headers)  # noqa: S310 - the operator's own address
    with urllib.request.urlopen(request, timeout=POST_SECONDS):  # noqa: S310
        pass
