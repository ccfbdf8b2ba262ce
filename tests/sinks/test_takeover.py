"""Two processes of the same sinks, of which one is suspended past its lease."""

from __future__ import annotations

import signal
import threading
from pathlib import Path

import pytest
from psycopg.conninfo import conninfo_to_dict

from pgstream_dagster import Pipeline, setup
from pgstream_dagster.sinks import state
from pgstream_dagster.sinks.run import opened
from tests.support.harness.runner import catch_up
from tests.support.harness.sinks_run import delivering
from tests.support.plugins.cluster import psql
from tests.support.plugins.wait import until
from tests.support.webhooks import SECRET, Call, Receiver, Reply

pytestmark = [pytest.mark.slow, pytest.mark.one_major("newest")]

FILE = """
pipeline: {name}
sinks:
  partner:
    start: now
    webhook:
      secret: SECRET
      allow_private_addresses: true
      headers: {{x-process: PROCESS}}
      subscriptions: {{erp: {{url: "{url}", table: t}}}}
"""


class Answers:
    """The first process' calls after its hundredth wait until it is suspended."""

    def __init__(self) -> None:
        self.suspended = threading.Event()
        self._first = 0

    def __call__(self, call: Call) -> Reply:
        self._first += call.headers["x-process"] == "first"
        return Reply(after=self.suspended if self._first > 100 else None)


@pytest.mark.long
def test_a_process_that_slept_through_its_replacement_delivers_no_more(
    dsn: str, tmp_path: Path, spark: object
) -> None:
    psql(dsn, "create table t (id int primary key, n int)", "insert into t values (0, 0)")
    answers = Answers()
    with Receiver(answers) as receiver:
        name = f"p_{conninfo_to_dict(dsn)['dbname']}"
        (tmp_path / "pgstream.yaml").write_text(FILE.format(name=name, url=receiver.url))
        environment = {
            "PGSTREAM_DSN": dsn,
            "PGSTREAM_LAKE": str(tmp_path / "lake"),
            "PGSTREAM_STATE": str(tmp_path / "state"),
            "SECRET": SECRET,
        }
        pipeline = Pipeline.from_file(tmp_path / "pgstream.yaml", environment)
        setup(pipeline)

        def process(name: str):
            return delivering(
                tmp_path, {**environment, "PROCESS": name}, lease_seconds=4.0, name=name
            )

        def calls(name: str) -> list[Call]:
            return [call for call in list(receiver.calls) if call.headers["x-process"] == name]

        with process("first") as first:
            until(lambda: holder(pipeline), every=0.3)
            with process("second"):
                until(lambda: "this process waits for it" in output(tmp_path, "second"), every=0.3)
                psql(dsn, "insert into t select g, g from generate_series(1, 3000) g")
                catch_up(pipeline)
                until(lambda: len(calls("first")) == 100)
                first.send_signal(signal.SIGSTOP)
                answers.suspended.set()
                until(lambda: len(calls("second")) > 100)
                asleep = len(calls("first"))
                first.send_signal(signal.SIGCONT)
                until(lambda: "was taken over" in output(tmp_path, "first"), every=0.3)
                until(lambda: len(set(receiver.ids)) == 3000, progress=lambda: len(receiver.ids))
                # at most the call that it was making when it was stopped
                assert len(calls("first")) <= asleep + 1
                second_ids = [call.id for call in calls("second")]
                assert len(set(second_ids)) == len(second_ids)
                until(lambda: delivered(pipeline) >= len(second_ids), every=0.3)
                assert delivered(pipeline) == len(second_ids)


def holder(pipeline: Pipeline) -> str | None:
    with opened(pipeline) as session:
        return state.progress(session.log, "partner.erp").holder


def delivered(pipeline: Pipeline) -> int:
    with opened(pipeline) as session:
        return state.progress(session.log, "partner.erp").changes


def output(folder: Path, name: str) -> str:
    return (folder / f"{name}.log").read_text(errors="replace")
