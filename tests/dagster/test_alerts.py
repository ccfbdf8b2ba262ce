"""What `report_failure` posts, to a real listener."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import dagster as dg
import pytest

from pgstream_dagster.assets.names import Names
from pgstream_dagster.errors import InvalidSetting
from pgstream_dagster.jobs import STREAM_TAG
from pgstream_dagster.sensors import report_failure

LOG = dg.AssetKey("change_log")
SENSOR = report_failure(Names(), {LOG}, {"stream"})


@dg.op
def land() -> None:
    raise dg.Failure("pipeline 'shop' is not set up; run 'pgstream setup'", allow_retries=False)


@dg.asset(key=LOG)
def change_log() -> None:
    pass


@dg.asset
def other() -> None:
    pass


@dg.job(tags={STREAM_TAG: "stream"})
def stream() -> None:
    land()


@dg.job
def elsewhere() -> None:
    land()


@pytest.fixture
def posted(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """The texts that a webhook was sent."""
    texts: list[str] = []

    class Hook(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            texts.append(json.loads(body)["text"])
            self.send_response(204)
            self.end_headers()

    with ThreadingHTTPServer(("127.0.0.1", 0), Hook) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        monkeypatch.setenv("PGSTREAM_ALERT_URL", f"http://127.0.0.1:{server.server_port}/hook")
        yield texts
        server.shutdown()


def report(instance: dg.DagsterInstance, run_id: str) -> dg.SkipReason | None:
    run = instance.get_run_by_id(run_id)
    [entry] = instance.all_logs(run_id, of_type=dg.DagsterEventType.RUN_FAILURE)
    assert run is not None
    assert entry.dagster_event is not None
    context = dg.build_run_status_sensor_context(
        sensor_name="report_failure",
        dagster_event=entry.dagster_event,
        dagster_instance=instance,
        dagster_run=run,
    )
    return SENSOR(context.for_run_failure())


def fail(job: dg.JobDefinition, instance: dg.DagsterInstance) -> str:
    return job.execute_in_process(instance=instance, raise_on_error=False).run_id


def test_failed_run_is_posted_with_its_reason_and_remedy(posted):
    with dg.DagsterInstance.ephemeral() as instance:
        run_id = fail(stream, instance)
        assert report(instance, run_id) is None
    reason = "pipeline 'shop' is not set up; run 'pgstream setup'"
    assert posted == [f"pgstream: job 'stream' failed (run {run_id[:8]}): {reason}"]


def test_same_reason_again_is_not_posted_again(posted):
    with dg.DagsterInstance.ephemeral() as instance:
        for _ in range(3):
            report(instance, fail(stream, instance))
    assert len(posted) == 1


def test_materialize_of_our_asset_is_reported(posted):
    everything = dg.Definitions([change_log, other]).resolve_implicit_global_asset_job_def()
    with dg.DagsterInstance.ephemeral() as instance:
        run = instance.create_run_for_job(everything, asset_selection=frozenset({LOG}))
        instance.report_run_failed(run, "the lake is full")
        report(instance, run.run_id)
    text = f"job 'materialize change_log' failed (run {run.run_id[:8]}): the lake is full"
    assert posted == [f"pgstream: {text}"]


def test_runs_of_others_are_not_reported(posted):
    with dg.DagsterInstance.ephemeral() as instance:
        skipped = report(instance, fail(elsewhere, instance))
    assert isinstance(skipped, dg.SkipReason)
    assert posted == []


def test_address_that_is_none_is_named_by_the_tick(monkeypatch):
    monkeypatch.setenv("PGSTREAM_ALERT_URL", "chat.internal")
    with dg.DagsterInstance.ephemeral() as instance:
        run_id = fail(stream, instance)
        with pytest.raises(InvalidSetting, match="PGSTREAM_ALERT_URL"):
            report(instance, run_id)
