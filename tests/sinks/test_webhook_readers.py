"""Which subscriptions a request of people reaches, and what is left of one that was removed."""

from __future__ import annotations

from pathlib import Path

import pytest

from pgstream_dagster.errors import (
    NoSuchSink,
    NoSuchSubscription,
    SinkPaused,
    SubscriptionDisabled,
)
from pgstream_dagster.pipeline import Pipeline
from pgstream_dagster.sinks import control, state
from pgstream_dagster.sinks.run import opened
from pgstream_dagster.sinks.webhook.subscription import Subscription, row_name
from pgstream_dagster.sinks.webhook.subscriptions import SubscriptionTable
from tests.support.harness.runner import catch_up
from tests.support.harness.webhook_sinks import (
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


@pytest.fixture
def pipeline(dsn: str, tmp_path: Path, spark: object, monkeypatch: pytest.MonkeyPatch) -> Pipeline:
    monkeypatch.setenv("SECRET", SECRET)
    return pipeline_of_t(dsn, tmp_path)


def insert(pipeline: Pipeline, *ids: int) -> None:
    """Rows that are in the log when this returns."""
    psql(pipeline.dsn, *(f"insert into t values ({number})" for number in ids))
    catch_up(pipeline)


def start(pipeline: Pipeline, *readers: str) -> None:
    until(lambda: set(readers) <= by_name(pipeline).keys(), every=0.3)


@pytest.mark.long
def test_a_request_reaches_every_subscription_past_those_that_are_disabled_or_removed(
    pipeline, dsn
):
    def refuse(_call: Call) -> Reply:
        return Reply(400)

    with Receiver(refuse) as receiver:
        rows = [Subscription(f"{receiver.url}/{number}") for number in range(4)]
        rows.sort(key=lambda row: row_name(row.url, "", ""))
        disabled, removed, away, last = rows
        names = [f"hooks.{row_name(row.url, '', '')}" for row in rows]
        table = SubscriptionTable(dsn)
        for row in rows:
            table.subscribe(row)
        pipeline = with_sinks(pipeline, hooks=webhook(refresh_seconds=0.1))
        with delivering(pipeline, SECRET=SECRET):
            start(pipeline, *names)
            insert(pipeline, 1)
            until(lambda: [by_name(pipeline)[name].refused for name in names] == [1] * 4)
            receiver.answer = lambda call: Reply(
                410 if call.path.endswith(disabled.url[-2:]) else 400
            )
            insert(pipeline, 2)
            until(lambda: "disabled" in (by_name(pipeline)[names[0]].error or ""), every=0.3)
            until(lambda: [by_name(pipeline)[name].refused for name in names] == [1, 2, 2, 2])
        psql(dsn, f"delete from pgstream.webhook_subscriptions where url = '{removed.url}'")
        receiver.answer = lambda call: Reply(503 if call.path.endswith(away.url[-2:]) else 204)
        receiver.calls.clear()
        with pytest.raises(Exception, match="HTTP 503") as caught:
            control.redrive(pipeline, "hooks")
        assert names[2] in str(caught.value)
        delivered = [call.path for call in receiver.calls if call.path.endswith(last.url[-2:])]
        assert len(delivered) == 2
        receiver.answer = lambda call: Reply()
        refused = {status.sink: status.refused for status in control.redrive(pipeline, "hooks")}
        assert refused == {names[0]: 1, names[1]: 2, names[2]: 0, names[3]: 0}
        with pytest.raises(SubscriptionDisabled, match="answered 410 Gone"):
            control.redrive(pipeline, names[0])
        with pytest.raises(NoSuchSubscription):
            control.replay(pipeline, names[1], "start")
        receiver.calls.clear()
        control.replay(pipeline, "hooks", "start")
        assert {call.path for call in receiver.calls} == {
            f"/hook/{row.url[-1]}" for row in (away, last)
        }


@pytest.mark.long
def test_a_subscription_that_comes_back_begins_as_a_new_one(pipeline, dsn):
    with Receiver() as receiver:
        row, table = Subscription(receiver.url), SubscriptionTable(dsn)
        name = f"hooks.{row_name(row.url, '', '')}"
        pipeline = with_sinks(pipeline, hooks=webhook(refresh_seconds=0.1))
        table.subscribe(row)
        with delivering(pipeline, SECRET=SECRET):
            start(pipeline, name)
            insert(pipeline, 1)
            until(lambda: len(receiver.calls) == 1)
            receiver.answer = lambda call: Reply(400)
            insert(pipeline, 2)
            until(lambda: by_name(pipeline)[name].refused == 1, every=0.3)
            table.unsubscribe(row)
            until(lambda: list(by_name(pipeline)) == ["hooks"], every=0.3)
            insert(pipeline, 3)
            receiver.answer = lambda call: Reply()
            table.subscribe(row)
            start(pipeline, name)
            insert(pipeline, 4)
            until(lambda: len(receiver.calls) == 3)
            assert [call.json["key"]["id"] for call in receiver.calls] == [1, 2, 4]
            assert by_name(pipeline)[name].refused == 0
        table.unsubscribe(row)  # while no process delivers
        with delivering(pipeline, SECRET=SECRET):
            until(lambda: list(by_name(pipeline)) == ["hooks"], every=0.3)


def test_a_subscription_that_is_disabled_goes_on_where_it_was(pipeline, dsn):
    with Receiver(lambda call: Reply(410)) as receiver:
        row, table = Subscription(receiver.url), SubscriptionTable(dsn)
        name = f"hooks.{row_name(row.url, '', '')}"
        pipeline = with_sinks(pipeline, hooks=webhook(refresh_seconds=0.1))
        table.subscribe(row)
        with delivering(pipeline, SECRET=SECRET):
            start(pipeline, name)
            insert(pipeline, 1)
            until(lambda: "disabled" in (by_name(pipeline)[name].error or ""), every=0.3)
            insert(pipeline, 2)
            receiver.answer = lambda call: Reply()
            table.subscribe(row)
            until(lambda: len(receiver.calls) == 3)
            assert [call.json["key"]["id"] for call in receiver.calls] == [1, 1, 2]


@pytest.mark.long
def test_a_pause_reaches_a_subscription_that_starts_later(pipeline, dsn):
    with Receiver() as receiver:
        urls = {name: f"{receiver.url}/{name}" for name in ("crm", "erp")}
        pipeline = with_sinks(pipeline, hooks=webhook(urls))
        control.pause(pipeline, "hooks")
        assert by_name(pipeline)["hooks"].is_paused
        with delivering(pipeline, SECRET=SECRET):
            start(pipeline, "hooks.crm", "hooks.erp")
            insert(pipeline, 1)
            with pytest.raises(SinkPaused, match="pgstream sink resume hooks'"):
                control.resume(pipeline, "hooks.erp")
            assert [status.state for status in by_name(pipeline).values()] == ["paused"] * 2
            assert not receiver.calls
            control.pause(pipeline, "hooks.crm")
            control.resume(pipeline, "hooks")
            until(lambda: len(receiver.calls) == 2)
            control.pause(pipeline, "hooks.crm")
            until(lambda: by_name(pipeline)["hooks.crm"].is_paused)
            assert not by_name(pipeline)["hooks.erp"].is_paused
            control.resume(pipeline, "hooks.crm")
            assert not by_name(pipeline)["hooks.crm"].is_paused
        with pytest.raises(NoSuchSubscription, match=r"those that have: hooks\.crm, hooks\.erp"):
            control.pause(pipeline, "hooks.typo")


@pytest.mark.long
def test_a_sink_with_another_target_has_no_subscriptions_any_more(pipeline, dsn, tmp_path):
    with Receiver() as receiver:
        hooks = with_sinks(pipeline, hooks=webhook({"crm": receiver.url, "erp": receiver.url}))
        with delivering(hooks, SECRET=SECRET):
            start(hooks, "hooks.crm", "hooks.erp")
        smaller = with_sinks(pipeline, hooks=webhook({"crm": receiver.url}))
        assert list(by_name(smaller)) == ["hooks.crm"]
        with pytest.raises(NoSuchSubscription):
            control.reset(smaller, "hooks.erp", "now")
    files = {"files": {"folder": str(tmp_path / "files")}, "tables": ["t"]}
    pipeline = with_sinks(pipeline, hooks=files)
    control.pause(pipeline, "hooks")
    control.reset(pipeline, "hooks", "now")
    [status] = by_name(pipeline).values()
    assert (status.sink, status.target, status.is_paused) == ("hooks", "files", True)
    with opened(pipeline) as session:
        generations = [state.request(session.log, r).generation for r in ("hooks", "hooks.crm")]
    assert generations == [2, 1]
    control.resume(pipeline, "hooks")
    assert [status.sink for status in control.redrive(pipeline, "hooks")] == ["hooks"]
    for name in ("hooks.crm", "hook"):
        with pytest.raises(NoSuchSink, match=f"no sink '{name}' .* it has hooks"):
            control.pause(pipeline, name)
