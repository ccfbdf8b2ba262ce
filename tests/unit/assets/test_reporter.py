"""What a long run reports to Dagster, and that it ends when Dagster takes it for ended."""

from __future__ import annotations

import logging
import threading
from functools import partial
from types import SimpleNamespace

import dagster as dg
import pytest

from pgstream_dagster.assets import reporter, search, throttle
from pgstream_dagster.assets.names import Names
from pgstream_dagster.assets.search import op_names
from pgstream_dagster.lsn import Lsn
from pgstream_dagster.search.index import Indexed

NAMES = Names()
reports = partial(search.progress_reports, NAMES)
key_of = partial(search.key_of, NAMES)


class Context:
    """As much of an op's context as is asked for."""

    def __init__(self) -> None:
        self.status: dg.DagsterRunStatus | None = dg.DagsterRunStatus.STARTED
        self.run = SimpleNamespace(run_id="r1")
        self.instance = self
        self.events: list[dg.AssetMaterialization | dg.AssetObservation] = []
        self.tags: dict[str, str] = {}
        self.log = logging.getLogger("test")

    def get_run_by_id(self, run_id: str) -> SimpleNamespace | None:
        if self.status is None:
            return None
        return SimpleNamespace(status=self.status, tags=self.tags)

    def log_event(self, event: dg.AssetMaterialization | dg.AssetObservation) -> None:
        self.events.append(event)


@pytest.fixture
def context(monkeypatch) -> Context:
    monkeypatch.setattr(throttle, "MATERIALIZATION_SECONDS", 0)
    return Context()


def test_every_live_index_is_reported_on_the_page_of_its_alias(context):
    progress = reporter.ProgressReporter(context, reports, assets=2)
    progress.poll()
    assert context.events == []
    at = {"flights-000007": Lsn(0x100), "a-b-000001": Lsn(0x200)}
    progress.put(Indexed(5, at))
    progress.poll()
    assert [event.asset_key for event in context.events] == [key_of("flights"), key_of("a-b")]
    facts = {name: entry.value for name, entry in context.events[0].metadata.items()}
    assert facts == {
        "index": "flights-000007",
        "delivered": "0/100",
        "delivered_lsn": 256,
        "written": 5,
    }


def test_only_what_moved_is_a_materialization(context, monkeypatch):
    progress = reporter.ProgressReporter(context, reports)
    progress.put(Indexed(5, {"a-000001": Lsn(1), "b-000001": Lsn(1)}))
    progress.poll()
    monkeypatch.setattr(throttle, "OBSERVATION_SECONDS", 0)
    progress.put(Indexed(6, {"a-000001": Lsn(2), "b-000001": Lsn(1)}))
    progress.poll()
    assert [type(event) for event in context.events[2:]] == [
        dg.AssetMaterialization,
        dg.AssetObservation,
    ]


@pytest.mark.parametrize(
    ("status", "text"),
    [(None, "is gone"), (dg.DagsterRunStatus.CANCELED, "is CANCELED")],
)
def test_run_that_was_ended_raises(context, status, text):
    context.status = status
    with pytest.raises(dg.Failure, match=f"run r1 {text}: it stops"):
        reporter.OwnRun(context, threading.Event()).poll()


def test_run_goes_on_while_dagster_takes_it_for_running(context):
    stop = threading.Event()
    reporter.OwnRun(context, stop, hours=1).poll()
    assert not stop.is_set()


def test_run_ends_by_itself_when_it_is_asked_to(context):
    stop = threading.Event()
    run = reporter.OwnRun(context, stop)
    context.tags[reporter.END_TAG] = "another version is deployed"
    run.poll()
    assert stop.is_set()


def test_run_ends_by_itself_when_its_time_is_over(context):
    stop = threading.Event()
    reporter.OwnRun(context, stop, hours=0.0).poll()
    assert stop.is_set()


def test_storage_that_is_away_ends_no_run(context, caplog):
    polled: list[str] = []

    def away() -> None:
        raise OSError("no route to Dagster's Postgres")

    poll_all = reporter.outlasting(away, lambda: polled.append("polled"))
    poll_all()
    poll_all()
    assert polled == ["polled", "polled"]
    assert "no route to Dagster's Postgres" in caplog.text


def test_run_that_was_ended_while_the_storage_was_away_stops_when_it_is_back(context):
    context.status = dg.DagsterRunStatus.CANCELED
    run = reporter.OwnRun(context, threading.Event())
    with pytest.raises(dg.Failure, match="is CANCELED"):
        reporter.outlasting(run.poll)()


def test_steps_have_names_of_their_own():
    names = op_names(["a-b__2", "a.b", "a_b", "a_b_2", "flights"])
    assert len(set(names.values())) == 5
    assert names["flights"] == "search__flights"
    assert all(name.replace("_", "").isalnum() for name in names.values())
