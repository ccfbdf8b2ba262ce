"""Subscribers that do not answer, and what one sink's problem is to the others: nothing."""

from __future__ import annotations

import json
import logging
import threading
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from pgstream_dagster import setup
from pgstream_dagster.changelog.sink_log import Kind
from pgstream_dagster.pipeline import Pipeline
from pgstream_dagster.sinks.control import sink_letters
from pgstream_dagster.sinks.run import opened
from tests.support.harness.runner import new_pipeline, streaming
from tests.support.harness.webhook_sinks import by_name, delivering, webhook, with_sinks
from tests.support.plugins.cluster import psql
from tests.support.plugins.wait import until
from tests.support.webhooks import SECRET, Call, Receiver, Reply

pytestmark = [pytest.mark.slow, pytest.mark.one_major("newest")]


@pytest.fixture
def pipeline(dsn: str, tmp_path: Path, spark: object) -> Pipeline:
    psql(dsn, "create table t (id bigint primary key)")
    made = new_pipeline(dsn, tmp_path)
    setup(made)
    return made


@pytest.mark.long
def test_a_black_hole_and_a_missing_variable_delay_no_one(pipeline, dsn, tmp_path):
    never = threading.Event()
    with ExitStack() as stack:
        quick = {f"quick{n}": stack.enter_context(Receiver()) for n in range(4)}
        black_hole = stack.enter_context(Receiver(lambda call: Reply(after=never)))
        urls = {name: receiver.url for name, receiver in quick.items()}
        pipeline = with_sinks(
            pipeline,
            hooks=webhook(urls | {"hole": black_hole.url}, client_timeout_seconds=1),
            broken=webhook({"erp": quick["quick0"].url}, secret="NOT_THERE"),
            archive={"files": {"folder": str(tmp_path / "archive")}, "start": "now"},
        )
        with streaming(pipeline), delivering(pipeline, SECRET=SECRET):
            names = [f"hooks.{name}" for name in (*urls, "hole")]
            until(lambda: {*names, "archive"} <= by_name(pipeline).keys(), every=0.3)
            for start in range(0, 500, 50):
                psql(dsn, f"insert into t select generate_series({start}, {start + 49})")
            for receiver in quick.values():
                until(lambda: len(receiver.calls) == 500)  # noqa: B023
            until(lambda: len(lines(tmp_path)) == 500)
            until(lambda: "no answer in time" in (by_name(pipeline)["hooks.hole"].error or ""))
            until(lambda: by_name(pipeline)["hooks.quick0"].changes == 500)  # recorded after calls
            seen = by_name(pipeline)
            never.set()
        assert "NOT_THERE" in (seen["broken"].error or "")
        assert seen["hooks.hole"].refused <= 1
        assert (seen["hooks.quick0"].changes, seen["hooks.quick0"].error) == (500, None)
        for receiver in quick.values():
            keys = [call.json["key"]["id"] for call in receiver.calls]
            assert keys == [str(n) for n in range(500)] or keys == list(range(500))
        # With the variable it delivers, and nothing is wrong with it any more.
        with delivering(pipeline, SECRET=SECRET, NOT_THERE=SECRET):
            until(lambda: "broken.erp" in by_name(pipeline), every=0.3)
            until(lambda: "broken" not in by_name(pipeline), every=0.3)


def lines(folder: Path) -> list[Any]:
    files = sorted((folder / "archive").glob("*.ndjson"))
    return [json.loads(line) for path in files for line in path.read_text().splitlines()]


@pytest.mark.long
def test_failures_are_counted_over_restarts_until_the_subscription_is_disabled(pipeline, dsn):
    with Receiver(lambda call: Reply(503)) as receiver:
        sink = webhook({"erp": receiver.url}, disable_after={"failures": 40})
        pipeline = with_sinks(pipeline, hooks=sink)
        with streaming(pipeline), delivering(pipeline, SECRET=SECRET):
            until(lambda: "hooks.erp" in by_name(pipeline), every=0.3)
            psql(dsn, "insert into t values (1)")
            until(lambda: len(receiver.calls) >= 10)
        first = len(receiver.calls)
        seen = by_name(pipeline)["hooks.erp"]
        assert (seen.health["failures"], seen.refused) == (first, 0)
        with delivering(pipeline, SECRET=SECRET):
            until(lambda: "is disabled" in (by_name(pipeline)["hooks.erp"].error or ""), every=0.3)
        assert len(receiver.calls) == 40
        receiver.answer = lambda call: Reply()
        with delivering(pipeline, SECRET=SECRET):  # a new process tries it, here as if it were one
            until(lambda: "is disabled" in (by_name(pipeline)["hooks.erp"].error or ""), every=0.3)
        assert len(receiver.calls) == 40


@pytest.mark.long
def test_a_path_that_a_subscriber_repeats_is_stored_nowhere(pipeline, dsn, caplog):
    caplog.set_level(logging.DEBUG)
    status = [404]

    def repeating(call: Call) -> Reply:
        return Reply(status[0], body=f"Cannot POST {call.path}".encode())

    with Receiver(repeating) as receiver:
        sink = webhook({"erp": f"{receiver.url}/path-secret"})
        pipeline = with_sinks(pipeline, hooks=sink)
        with streaming(pipeline), delivering(pipeline, SECRET=SECRET):
            until(lambda: "hooks.erp" in by_name(pipeline), every=0.3)
            psql(dsn, "insert into t values (1)")
            until(lambda: by_name(pipeline)["hooks.erp"].refused, every=0.3)
            status[0] = 503
            psql(dsn, "insert into t values (2)")
            until(lambda: by_name(pipeline)["hooks.erp"].error, every=0.3)
            seen = by_name(pipeline)["hooks.erp"]
    letters = sink_letters(pipeline, "hooks")
    with opened(pipeline) as session:
        stored = session.log.get("hooks.erp", Kind.PROGRESS).state
    assert "HTTP 404: Cannot POST ***" in repr(letters)
    assert "HTTP 503: Cannot POST ***" in (seen.error or "")
    assert "HTTP 404: Cannot POST ***" in stored
    assert "path-secret" not in repr((letters, seen)) + stored + caplog.text
