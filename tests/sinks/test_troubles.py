"""What is wrong with one sink, or in one process, concerns no other."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from pgstream_dagster import setup
from pgstream_dagster.errors import SinkFailed, SinkRefused
from pgstream_dagster.pipeline import Pipeline
from pgstream_dagster.sinks import run as sinks_run
from pgstream_dagster.sinks import state
from pgstream_dagster.sinks.state import Progress, SinkLease, store_problem
from tests.support.harness.background import in_thread
from tests.support.harness.runner import catch_up, new_pipeline
from tests.support.harness.sink_receiver import TABLES, Receiver, delivering, status_of, with_sinks
from tests.support.plugins.cluster import psql
from tests.support.plugins.wait import until

pytestmark = [pytest.mark.slow, pytest.mark.one_major("newest")]


@pytest.fixture
def pipeline(dsn: str, tmp_path: Path, spark: object) -> Pipeline:
    psql(dsn, *TABLES)
    pipeline = new_pipeline(dsn, tmp_path)
    setup(pipeline)
    return pipeline


def test_an_error_without_a_name_ends_its_sink_alone(pipeline, dsn, monkeypatch, caplog) -> None:
    """P87: it has failed until it is started again; P92: the others deliver."""
    pipeline = with_sinks(pipeline, **{name: {"stdout": {}, "tables": ["t"]} for name in "ab"})
    bad, good = Receiver(), Receiver()
    bad.errors = [ZeroDivisionError("with a value of a row")]
    with delivering(pipeline, monkeypatch, a=bad, b=good):
        good.wait_for(2)
        until(lambda: "ZeroDivisionError in" in (status_of(pipeline, "a").error or ""))
        psql(dsn, "insert into t values (3, 'three')")
        catch_up(pipeline)
        good.wait_for(3)
        assert status_of(pipeline, "a").state == "failed"
        assert (status_of(pipeline, "b").state, status_of(pipeline, "b").error) == ("running", None)
    assert bad.received == []
    assert "with a value" not in caplog.text
    assert "sink_receiver.py" in caplog.text
    # Started again, it continues where it was.
    with delivering(pipeline, monkeypatch, a=bad, b=good):
        bad.wait_for(3)
    assert status_of(pipeline, "a").error is None


@pytest.mark.long
def test_a_process_ends_when_no_sink_is_left(pipeline, monkeypatch) -> None:
    pipeline = with_sinks(pipeline, **{name: {"stdout": {}, "tables": ["t"]} for name in "ab"})
    receivers = {name: Receiver() for name in "ab"}
    for receiver in receivers.values():
        receiver.errors = [ZeroDivisionError()]
    with (
        pytest.raises(SinkFailed, match="ended by an error of pgstream, ZeroDivisionError in"),
        delivering(pipeline, monkeypatch, **receivers),
    ):
        until(receivers["a"].check, seconds=60)


@contextmanager
def held_elsewhere(
    pipeline: Pipeline, reader: str, monkeypatch: pytest.MonkeyPatch
) -> Iterator[None]:
    """A process on another machine delivers for a reader."""
    with sinks_run.opened(pipeline) as session:
        with monkeypatch.context() as patched:
            patched.setattr(state, "this_process", lambda: "another-place:1:1")
            lease = SinkLease(session.log, reader)
        yield
        lease.release()


def problem(pipeline: Pipeline) -> str | None:
    with sinks_run.opened(pipeline) as session:
        return state.progress(session.log, "hooks").error


def test_a_second_process_that_cannot_listen_leaves_the_state_of_the_first(
    pipeline, monkeypatch
) -> None:
    pipeline = with_sinks(pipeline, hooks={"stdout": {}})

    def cannot_listen(*_: object) -> None:
        raise SinkRefused("hooks", "port 8089 is taken", "choose another")

    monkeypatch.setattr(sinks_run, "targets", cannot_listen)
    monkeypatch.setattr(sinks_run, "WARN_SECONDS", 0.2)
    shown = dict[str, Progress]()

    def run(stop: threading.Event) -> object:
        return sinks_run.run(pipeline, stop=stop, report=shown.update)

    with held_elsewhere(pipeline, "hooks.erp", monkeypatch), in_thread(run, "sinks"):
        until(lambda: "hooks" in shown)
        assert "is taken" in (shown["hooks"].error or "")
        assert problem(pipeline) is None
    with in_thread(run, "sinks"):  # no process delivers: now it is the sink's problem
        until(lambda: "is taken" in (problem(pipeline) or ""))


class NoReaders:
    """A webhook whose subscriptions have not come yet."""

    def readers(self) -> dict[str, object]:
        return {}

    def is_over(self, _reader: str) -> bool:
        return False

    def close(self) -> None:
        """Nothing is shared."""


def test_a_process_that_can_deliver_clears_what_another_one_could_not(
    pipeline, monkeypatch
) -> None:
    pipeline = with_sinks(pipeline, hooks={"stdout": {}})
    monkeypatch.setattr(sinks_run, "targets", lambda *_: NoReaders())
    monkeypatch.setattr(sinks_run, "WARN_SECONDS", 0.2)
    with in_thread(lambda stop: sinks_run.run(pipeline, stop=stop), "sinks"):
        with sinks_run.opened(pipeline) as session:
            store_problem(session.log, "hooks", "port 8089 is taken")
        until(lambda: problem(pipeline) is None)
