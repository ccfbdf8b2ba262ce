"""Sinks in Dagster, against a real Postgres and a real lake: jobs, sensor, metadata and checks."""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace

import dagster as dg
import pytest

from pgstream_dagster import heartbeat, jobs
from pgstream_dagster.assets import sinks, throttle
from pgstream_dagster.assets.reporter import END_TAG
from pgstream_dagster.cli import render
from pgstream_dagster.jobs import STREAM_TAG
from pgstream_dagster.lsn import Lsn
from pgstream_dagster.readers.change import Change, ChangeBatch
from pgstream_dagster.resources.pipeline import PipelineFile
from pgstream_dagster.resources.search import SearchCluster
from pgstream_dagster.sinks.base import Refused, Verdicts, deliver_each
from pgstream_dagster.sinks.control import SinkStatus, sink_status
from pgstream_dagster.sinks.lines import FilesSink
from pgstream_dagster.upkeep.readers import reader_status
from tests.support.plugins.cluster import psql
from tests.support.plugins.wait import until

# Dagster asks itself for a deprecated property when it resolves a nested resource.
pytestmark = [
    pytest.mark.filterwarnings("ignore:.*dagster_run.*:DeprecationWarning"),
    pytest.mark.one_major("newest"),
    pytest.mark.slow,
]

SECONDS = 200
DRAIN = dg.RunConfig(ops={"land_changes": {"config": {"mode": "drain"}}})
ARCHIVE, BLOCKED = dg.AssetKey(["sinks", "archive"]), dg.AssetKey(["sinks", "blocked"])


@pytest.fixture(scope="module")
def site(shared_site, spark):
    """A pipeline with a sink that delivers, and with one whose folder cannot be made."""
    folder = shared_site.folder
    (folder / "file").touch()
    files = {"archive": folder / "archive", "blocked": folder / "file" / "folder"}
    shared_site.define(sinks={name: {"files": {"folder": str(to)}} for name, to in files.items()})
    assert shared_site.run("setup").success
    return shared_site


@pytest.fixture(autouse=True)
def prompt(monkeypatch):
    monkeypatch.setattr(jobs, "POLL_SECONDS", 0.1)
    monkeypatch.setattr(throttle, "MATERIALIZATION_SECONDS", 0.2)


@pytest.fixture
def refused(monkeypatch) -> set[str]:
    """Notes of rows that the files refuse; they stand for a target that refuses a change."""
    notes, deliver = set[str](), FilesSink.deliver

    def verdict(change: Change) -> Refused | None:
        row = change.after or change.before or {}
        return Refused("the note is not allowed") if row.get("note") in notes else None

    def refusing(sink: FilesSink, batch: ChangeBatch) -> Verdicts:
        verdicts = deliver_each(batch, verdict)
        accepted = [change for index, change in enumerate(batch.changes) if index not in verdicts]
        return {**deliver(sink, replace(batch, changes=accepted)), **verdicts}

    monkeypatch.setattr(FilesSink, "deliver", refusing)
    return notes


def write(site, *statements: str) -> Lsn:
    """Run statements on the source and land their changes; the watermark after them."""
    psql(site.dsn, *statements)
    landed = site.run("stream", run_config=DRAIN)
    assert landed.success
    event = landed.asset_materializations_for_node("land_changes")[-1]
    return Lsn.parse(event.metadata["watermark"].value)


def started(site, run_id: str) -> bool:
    run = site.instance.get_run_by_id(run_id)
    return run is not None and run.status is dg.DagsterRunStatus.STARTED


@contextmanager
def running(site, tags: dict[str, str] | None = None) -> Iterator[str]:
    """The job `sinks` while a test needs it; its run is asked to end, as the sensor does."""
    run_id = str(uuid.uuid4())
    with ThreadPoolExecutor(1) as pool:
        run = pool.submit(site.run, "sinks", run_id=run_id, tags=tags)
        try:
            until(lambda: run.done() or started(site, run_id), seconds=SECONDS)
            yield run_id
        finally:
            site.instance.add_run_tags(run_id, {END_TAG: "the test is over"})
        assert run.result().success


def status(site) -> SinkStatus:
    return next(status for status in sink_status(site.opened()) if status.sink == "archive")


def deliver(site, watermark: Lsn) -> None:
    """Run the job `sinks` until everything before a position is delivered."""
    with running(site):
        until(
            lambda: (newest(site, ARCHIVE).get("delivered_lsn") or 0) >= watermark, seconds=SECONDS
        )


def until_refused(site) -> None:
    """Wait until the run under way has reported that a sink cannot deliver."""
    began, pipeline = time.time(), site.opened()

    def is_reported() -> bool:
        sign = heartbeat.read(pipeline.sinks_heartbeat_file)
        if sign is None or sign.at <= began:  # of an earlier run
            return False
        errors = {status.sink: status.error for status in sink_status(pipeline)}
        return "cannot deliver now" in (errors["blocked"] or "")

    until(is_reported, seconds=SECONDS)


def newest(site, asset: dg.AssetKey) -> dict[str, object]:
    """The metadata of an asset's newest materialization."""
    records = site.instance.fetch_materializations(asset, limit=1).records
    if not records:
        return {}
    event = records[0].asset_materialization
    assert event is not None
    return {name: entry.value for name, entry in event.metadata.items()}


def lines(site) -> list[dict[str, object]]:
    """Everything that the sink wrote, in order."""
    files = sorted((site.folder / "archive").glob("*.ndjson"))
    return [json.loads(line) for file in files for line in file.read_text().splitlines()]


def check(site, asset: dg.AssetKey, name: str) -> dg.AssetCheckEvaluation:
    """The outcome of one check of the job `check`."""
    job = site.definitions.resolve_job_def("check")
    only = job.get_subset(asset_check_selection={dg.AssetCheckKey(asset, name)})
    [evaluation] = only.execute_in_process(instance=site.instance).get_asset_check_evaluations()
    return evaluation


def facts(evaluation: dg.AssetCheckEvaluation) -> dict[str, object]:
    return {name: entry.value for name, entry in evaluation.metadata.items()}


def failure(result: dg.ExecuteInProcessResult) -> dg.Failure:
    [event] = [event for event in result.all_events if event.is_step_failure]
    return event.step_failure_data.user_failure_data


def tick(site) -> dg.SensorResult:
    """What the sensor `keep_sinks` does now."""
    sensor = site.definitions.get_repository_def().get_sensor_def("keep_sinks")
    resources = {"pgstream_pipeline": site.file()}
    with dg.build_sensor_context(site.instance, resources=resources) as context:
        return sensor.evaluate_tick(context)


def test_sensor_launches_a_run_leaves_it_alone_and_replaces_it_after_a_change_of_the_file(site):
    [request] = tick(site).run_requests
    assert request.run_key.startswith("shop/sinks-")
    assert request.tags[STREAM_TAG] == "shop/sinks"
    with running(site, request.tags) as run_id:
        until(lambda: "delivering" in (tick(site).skip_message or ""), seconds=SECONDS)
        assert f"run {run_id[:8]} is started, delivering" in tick(site).skip_message
        assert END_TAG not in site.instance.get_run_by_id(run_id).tags
        content = site.yaml.read_text()
        try:
            site.yaml.write_text(f"{content}# another version\n")
            assert f"run {run_id[:8]} is asked to end" in tick(site).skip_message
            until(lambda: not started(site, run_id), seconds=SECONDS)
        finally:
            site.yaml.write_text(content)
    assert [request.run_key for request in tick(site).run_requests] == [
        f"shop/sinks-after-{run_id}"
    ]


def test_run_delivers_every_change_and_reports_how_far_each_sink_is(site):
    before = len(lines(site))
    watermark = write(
        site, "insert into orders values (201, 'new')", "delete from orders where id = 1"
    )
    with running(site):
        until(lambda: newest(site, ARCHIVE).get("delivered_lsn") == watermark, seconds=SECONDS)
        until(lambda: newest(site, BLOCKED), seconds=SECONDS)
    delivered = lines(site)
    reads = [line for line in delivered if line["op"] == "read"]
    assert len(reads) == 102
    assert [line["op"] for line in delivered[max(before, 102) :]][-2:] == ["insert", "delete"]
    archive, blocked = newest(site, ARCHIVE), newest(site, BLOCKED)
    assert (archive["delivered"], archive["errors"]) == (str(watermark), "")
    assert (archive["lag_bytes"], archive["lag_seconds"], archive["dead_letters"]) == (0, 0.0, 0)
    assert archive["changes"] == len(delivered)
    assert "sink 'blocked' cannot deliver now" in blocked["errors"]
    assert (blocked["delivered_lsn"], blocked["changes"]) == (0, 0)


def test_run_ends_as_a_success_when_its_hours_are_over(site):
    briefly = dg.RunConfig(ops={"deliver_to_sinks": {"config": {"hours": 1e-6}}})
    assert site.run("sinks", run_config=briefly).success


@pytest.mark.long
def test_refused_change_is_a_dead_letter_until_it_is_delivered_again(site, refused):
    redrive = dg.RunConfig(ops={"deliver_dead_letters": {"config": {"sink": "archive"}}})
    refused.add("bad")
    notes = ("bad", "good")
    written = (f"update orders set note = '{note}' where id = 7" for note in notes)
    deliver(site, write(site, *written))
    assert newest(site, ARCHIVE)["dead_letters"] == 2
    outcome = check(site, ARCHIVE, sinks.DELIVERED)
    assert (outcome.passed, outcome.severity) == (False, dg.AssetCheckSeverity.WARN)
    assert outcome.description == "remove the cause, then launch 'redrive_sink' of archive"
    assert (facts(outcome)["refused"], facts(outcome)["held"]) == (1, 1)

    failed = failure(site.run("redrive_sink", run_config=redrive))
    assert "the target refuses 1 changes" in failed.description
    assert (failed.metadata["refused"].value, failed.metadata["held"].value) == (1, 1)

    refused.clear()
    assert site.run("redrive_sink", run_config=redrive).success
    assert [line["after"]["note"] for line in lines(site)[-2:]] == list(notes)
    assert check(site, ARCHIVE, sinks.DELIVERED).passed


@pytest.mark.long
def test_sink_that_cannot_deliver_fails_its_check_with_the_reason(site):
    with running(site):
        until_refused(site)
    outcome = check(site, BLOCKED, sinks.DELIVERED)
    assert not outcome.passed
    assert "sink 'blocked' cannot deliver now" in outcome.description


@pytest.mark.long
def test_sink_that_falls_behind_fails_its_check_until_it_has_caught_up(site, monkeypatch):
    deliver(site, write(site, "insert into orders values (301, 'seen')"))
    late = write(site, "insert into orders values (302, 'late')")
    assert check(site, ARCHIVE, sinks.KEEPS_UP).passed
    monkeypatch.setattr(sinks, "LAG_SECONDS", 0.0)
    outcome = check(site, ARCHIVE, sinks.KEEPS_UP)
    assert (outcome.passed, outcome.severity) == (False, dg.AssetCheckSeverity.WARN)
    assert outcome.description == "start the job 'sinks': nothing delivers for archive"
    assert facts(outcome)["lag_bytes"] > 0
    deliver(site, late)
    assert check(site, ARCHIVE, sinks.KEEPS_UP).passed


def replay(sink: str = "archive", **part: object) -> dg.RunConfig:
    config = {"sink": sink, "start": "start", **part}
    return dg.RunConfig(ops={"deliver_once_more": {"config": config}})


@pytest.mark.long
def test_replayed_part_comes_again_with_the_same_ids_and_the_position_stays(site):
    deliver(site, write(site, "insert into customers values (9)"))
    before, position = lines(site), status(site).position
    customers = [line["event_id"] for line in before if line["relation"] == "customers"]
    assert site.run("replay_sink", run_config=replay(tables=["customers"])).success
    assert [line["event_id"] for line in lines(site)[len(before) :]] == customers
    assert status(site).position == position


@pytest.mark.parametrize("job", ["redrive_sink", "replay_sink"])
def test_sink_that_is_not_in_the_file_is_named(site, job):
    redrive = dg.RunConfig(ops={"deliver_dead_letters": {"config": {"sink": "none"}}})
    config = redrive if job == "redrive_sink" else replay("none")
    failed = failure(site.run(job, run_config=config))
    assert failed.metadata["error"].value == "NoSuchSink"


@pytest.mark.long
def test_status_shows_indices_and_sinks_in_one_table(site):
    """A cluster that is away does not hide the sinks."""
    deliver(site, write(site))
    with running(site):
        until_refused(site)
    text = f"{site.yaml.read_text()}\n".replace("search: {}", "search: {orders: {table: orders}}")
    file = PipelineFile(
        file="pgstream.yaml",
        text=text,
        search=SearchCluster(url="http://127.0.0.1:9"),
        **site.resources(),
    )
    shown = {reader.reader: reader for reader in reader_status(file.open())}
    assert list(shown) == ["orders", "archive", "blocked"]
    assert [reader.kind for reader in shown.values()] == ["index", "sink", "sink"]
    assert (shown["orders"].state, shown["orders"].position) == ("unknown", None)
    assert shown["archive"].position == status(site).position
    assert (shown["archive"].state, shown["archive"].lag_bytes) == ("not running", 0)
    assert shown["archive"].next_step == "pgstream sink run archive"
    assert "cannot deliver now" in (shown["blocked"].error or "")
    rows = render.readers(list(shown.values())).split("\n")[3:6]
    assert [row.split()[:2] for row in rows] == [
        ["orders", "index"],
        ["archive", "sink"],
        ["blocked", "sink"],
    ]
