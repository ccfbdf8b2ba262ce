"""Redrive and replay of a subscription: what a stop repeats, and what they wait for."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest

from pgstream_dagster import Pipeline
from pgstream_dagster.sinks import control, follow, state
from pgstream_dagster.sinks import run as sinks_run
from pgstream_dagster.sinks.run import opened
from pgstream_dagster.sinks.webhook import delivery
from pgstream_dagster.stop import Cancelled, Stop
from tests.support.harness.runner import catch_up
from tests.support.harness.webhook_sinks import (
    FILE,
    by_name,
    delivering,
    pipeline_of_t,
    webhook,
    with_sinks,
)
from tests.support.plugins.cluster import psql
from tests.support.plugins.wait import until
from tests.support.webhooks import SECRET, Call, Receiver, Reply

pytestmark = [pytest.mark.slow, pytest.mark.one_major("newest")]

NAME = "hooks.erp"

LETTERS = 19
"""Fewer than with which a subscriber counts as away."""


@pytest.fixture
def pipeline(dsn: str, tmp_path: Path, spark: object, monkeypatch: pytest.MonkeyPatch) -> Pipeline:
    monkeypatch.setenv("SECRET", SECRET)
    return pipeline_of_t(dsn, tmp_path)


def keys(receiver: Receiver) -> list[int]:
    return [call.json["key"]["id"] for call in receiver.calls]


def insert(pipeline: Pipeline, first: int, last: int) -> None:
    """One transaction that is in the log when this returns."""
    psql(pipeline.dsn, f"insert into t select generate_series({first}, {last})")
    catch_up(pipeline)


@contextmanager
def subscribed(pipeline: Pipeline) -> Iterator[tuple[Pipeline, Receiver]]:
    """A subscription that has started; its process has ended, and may be run by the test."""
    with Receiver() as receiver:
        made = with_sinks(pipeline, hooks=webhook({"erp": receiver.url}))
        with delivering(made, SECRET=SECRET):
            until(lambda: NAME in by_name(made), every=0.3)
        yield made, receiver


def stopping(stop: threading.Event, receiver: Receiver, at: int) -> None:
    """Let the receiver request a stop in a call."""

    def answer(_call: Call) -> Reply:
        if len(receiver.calls) + 1 == at:
            stop.set()
        return Reply()

    receiver.answer = answer


@pytest.mark.long
def test_ctrl_c_of_a_redrive_repeats_no_call(pipeline: Pipeline, tmp_path: Path) -> None:
    gate = threading.Event()
    with subscribed(pipeline) as (made, receiver):
        receiver.answer = lambda call: Reply(400)
        with delivering(made, SECRET=SECRET):
            insert(made, 1, LETTERS)
            until(lambda: by_name(made)[NAME].refused == LETTERS, every=0.3)
        receiver.calls.clear()
        receiver.answer = lambda call: Reply(after=gate if len(receiver.calls) == 2 else None)
        with redriving(made, tmp_path, receiver.url) as process:
            until(lambda: receiver.at_once and len(receiver.calls) == 2, seconds=120)
            process.send_signal(signal.SIGINT)
            gate.set()
            _, errors = process.communicate(timeout=60)
        assert process.returncode == 128 + signal.SIGINT, errors
        assert 3 <= len(receiver.calls) < LETTERS
        [status] = control.redrive(made, "hooks")
        assert (keys(receiver), status.refused) == ([*range(1, LETTERS + 1)], 0)


@contextmanager
def redriving(made: Pipeline, folder: Path, url: str) -> Iterator[subprocess.Popen[bytes]]:
    """`pgstream sink redrive hooks`, in a process."""
    (folder / "pgstream.yaml").write_text(FILE.format(name=made.name, url=url))
    environment = {
        "PGSTREAM_DSN": made.dsn,
        "PGSTREAM_LAKE": str(folder / "lake"),
        "PGSTREAM_STATE": str(folder / "state"),
    }
    process = subprocess.Popen(
        [sys.executable, "-m", "pgstream_dagster.cli", "sink", "redrive", "hooks"],
        cwd=folder,
        env={**os.environ, **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    try:
        yield process
    finally:
        process.kill()
        process.wait()


@pytest.mark.long
def test_a_replay_that_is_stopped_goes_on_where_it_was(pipeline: Pipeline) -> None:
    """The command is stopped, then a process that continues with it, and another one ends it."""
    with subscribed(pipeline) as (made, receiver):
        with delivering(made, SECRET=SECRET):
            insert(made, 1, 9)
            until(lambda: len(receiver.calls) == 9)
        receiver.calls.clear()
        stop = Stop()
        stopping(stop, receiver, at=3)
        with pytest.raises(Cancelled):
            control.replay(made, "hooks", "start", stop=stop)
        assert keys(receiver) == [1, 2, 3]
        stop = Stop()
        stopping(stop, receiver, at=6)
        sinks_run.run(made, stop=stop, environment={"SECRET": SECRET})
        assert keys(receiver) == [*range(1, 7)]
        with delivering(made, SECRET=SECRET):
            until(lambda: len(receiver.calls) >= 9)
            until(lambda: _progress(made).replayed == 1, every=0.2)
        assert keys(receiver) == [*range(1, 10)]


@pytest.mark.long
def test_a_redrive_does_not_wait_for_the_end_of_a_batch(
    pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(delivery, "PART_SECONDS", 0.0)
    monkeypatch.setattr(follow, "REQUEST_SECONDS", 0.0)
    gate = threading.Event()

    def held(call: Call) -> Reply:
        return Reply(after=gate if call.json["key"]["id"] == 105 else None)

    with subscribed(pipeline) as (made, receiver):
        receiver.answer = lambda call: Reply(400)
        with delivering(made, SECRET=SECRET):
            insert(made, 1, 1)
            until(lambda: by_name(made)[NAME].refused == 1, every=0.3)
            receiver.answer = held
            insert(made, 101, 120)
            until(lambda: receiver.at_once and len(receiver.calls) == 5)
            with ThreadPoolExecutor(1) as pool:
                asked = pool.submit(control.redrive, made, "hooks")
                until(lambda: _redrives(made) == 1, every=0.2)
                gate.set()
                [status] = asked.result()
            assert status.refused == 0
            until(lambda: len(receiver.calls) == 22)
    assert keys(receiver) == [1, *range(101, 106), 1, *range(106, 121)]


def _redrives(pipeline: Pipeline) -> int:
    with opened(pipeline) as session:
        return state.request(session.log, NAME).redrives


def _progress(pipeline: Pipeline) -> state.Progress:
    with opened(pipeline) as session:
        return state.progress(session.log, NAME)
