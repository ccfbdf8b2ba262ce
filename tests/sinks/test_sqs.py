"""The SQS sink on ElasticMQ: what arrives, and what happens when it fails."""

from __future__ import annotations

import itertools
import json
import threading
from collections.abc import Iterator
from functools import partial
from typing import Any, NamedTuple

import boto3
import pytest

from pgstream_dagster.config.sqs import SqsConfig
from pgstream_dagster.errors import SinkRefused, SinkUnreachable
from pgstream_dagster.sinks.base import NotNow, Refused
from pgstream_dagster.sinks.sqs.sink import SqsSink
from tests.support.harness.outbox_events import batch, event, order, outages_while_killed
from tests.support.harness.queue_servers import SqsServer

_numbers = itertools.count(1)

KEYS = {"AWS_ACCESS_KEY_ID": "key", "AWS_SECRET_ACCESS_KEY": "geheim"}


class Taken(NamedTuple):
    """A message as a consumer gets it."""

    id: str
    body: str
    attributes: dict[str, str]
    group: str | None


def sink_of(server: SqsServer | str, **keys: Any) -> SqsSink:
    url = server if isinstance(server, str) else server.url
    settings = {"endpoint_url": url, "region": "elasticmq", "timeout_seconds": 5, **keys}
    config = SqsConfig.model_validate(settings)
    return SqsSink(config, pipeline="shop", sink="jobs", environment=KEYS)


def client(server: SqsServer) -> Any:
    return boto3.client(
        "sqs",
        endpoint_url=server.url,
        region_name="elasticmq",
        aws_access_key_id="key",
        aws_secret_access_key="geheim",
    )


def made(server: SqsServer, name: str) -> str:
    attributes = {"FifoQueue": "true"} if name.endswith(".fifo") else {}
    url = client(server).create_queue(QueueName=name, Attributes=attributes)["QueueUrl"]
    return str(url)


@pytest.fixture
def queue(sqs_server: SqsServer) -> str:
    """The URL of a new FIFO queue."""
    return made(sqs_server, f"orders-{next(_numbers)}.fifo")


@pytest.fixture
def opened(sqs_server: SqsServer, queue: str) -> Iterator[SqsSink]:
    sink = sink_of(sqs_server, queue_url=queue)
    sink.open()
    yield sink
    sink.close()


def take(server: SqsServer, queue: str) -> list[Taken]:
    """All messages of a queue."""
    sqs, taken = client(server), list[Taken]()
    while messages := sqs.receive_message(
        QueueUrl=queue,
        MaxNumberOfMessages=10,
        MessageAttributeNames=["All"],
        AttributeNames=["All"],
    ).get("Messages"):
        for message in messages:
            taken.append(_taken(message))
            sqs.delete_message(QueueUrl=queue, ReceiptHandle=message["ReceiptHandle"])
    return taken


def _taken(message: Any) -> Taken:
    attributes = {name: v["StringValue"] for name, v in message["MessageAttributes"].items()}
    group = message["Attributes"].get("MessageGroupId")
    return Taken(attributes["pgstream-id"], message["Body"], attributes, group)


def ids(server: SqsServer, queue: str) -> list[str]:
    return [message.id for message in take(server, queue)]


def test_an_event_arrives_with_body_id_group_and_attributes(
    opened: SqsSink, sqs_server: SqsServer, queue: str
) -> None:
    assert opened.deliver(batch(event(7, {"amount": 12345678901234567}, group_id="a"))) == {}
    (message,) = take(sqs_server, queue)
    assert message == Taken(
        "e7",
        '{"amount": 12345678901234567}',
        {
            "pgstream-id": "e7",
            "pgstream-position": "00000001.00000000001a2b3c.8000000000000007",
            "pgstream-committed-at": "2026-01-01T00:00:00.000001Z",
        },
        "a",
    )


def test_a_change_of_a_table_arrives_in_our_envelope_and_the_group_of_its_row(
    opened: SqsSink, sqs_server: SqsServer, queue: str
) -> None:
    assert opened.deliver(batch(order(42))) == {}
    (message,) = take(sqs_server, queue)
    assert message.id == "1-0/1A2B3C-42" and json.loads(message.body)["after"]["id"] == 42
    assert message.group == "public.orders:42"


def test_a_group_that_sqs_takes_as_no_id_has_its_hash(
    opened: SqsSink, sqs_server: SqsServer, queue: str
) -> None:
    assert opened.deliver(batch(event(1, group_id="größe 1"), event(2, group_id="größe 1"))) == {}
    groups = {message.group for message in take(sqs_server, queue)}
    assert len(groups) == 1 and all(len(group or "") == 64 for group in groups)


@pytest.mark.long
def test_messages_of_a_group_arrive_in_order_and_repetitions_once(
    opened: SqsSink, sqs_server: SqsServer, queue: str
) -> None:
    """B74."""
    changes = batch(*(event(n, group_id=n % 10) for n in range(200)))
    assert opened.deliver(changes) == opened.deliver(changes) == {}
    numbers = [int(name[1:]) for name in ids(sqs_server, queue)]
    assert sorted(numbers) == list(range(200))
    for group in range(10):
        assert [n for n in numbers if n % 10 == group] == list(range(group, 200, 10))


def test_metadata_goes_over_the_configured_queue(
    opened: SqsSink, sqs_server: SqsServer, queue: str
) -> None:
    other = made(sqs_server, f"others-{next(_numbers)}")
    assert opened.deliver(batch(event(1), event(2, queue_url=other), event(3))) == {}
    assert set(ids(sqs_server, queue)) == {"e1", "e3"}
    assert ids(sqs_server, other) == ["e2"]


def test_an_event_without_any_queue_is_refused_and_the_others_flow(
    sqs_server: SqsServer, queue: str
) -> None:
    sink = sink_of(sqs_server)
    sink.open()
    place = {"queue_url": queue}
    changes = [event(1, group_id=1), event(2, **place), event(3, group_id=1, **place)]
    verdicts = sink.deliver(batch(*changes))
    sink.close()
    reason = "the event's metadata has no 'queue_url', and sinks.jobs.sqs.queue_url gives none"
    assert verdicts[0] == Refused(reason)
    assert isinstance(verdicts[2], NotNow) and verdicts[2].is_behind
    assert set(verdicts) == {0, 2} and ids(sqs_server, queue) == ["e2"]


def test_a_queue_that_only_an_event_names_and_that_does_not_exist_refuses_it(
    opened: SqsSink, sqs_server: SqsServer, queue: str
) -> None:
    wrong = f"{sqs_server.url}/000000000000/no-such-queue"
    verdicts = opened.deliver(batch(event(1), event(2, queue_url=wrong), event(3)))
    assert list(verdicts) == [1] and isinstance(verdicts[1], Refused)
    assert "no-such-queue" in verdicts[1].reason
    assert set(ids(sqs_server, queue)) == {"e1", "e3"}


def test_a_configured_queue_that_does_not_exist_is_an_error_with_the_remedy(
    sqs_server: SqsServer,
) -> None:
    sink = sink_of(sqs_server, queue_url=f"{sqs_server.url}/000000000000/no-such-queue")
    with pytest.raises(SinkRefused, match=r"check sinks\.jobs\.sqs\.queue_url"):
        sink.open()
    sink.close()


def test_a_message_that_is_too_large_is_refused_and_the_others_flow(
    opened: SqsSink, sqs_server: SqsServer, queue: str
) -> None:
    changes = [event(1), event(2, "x" * (2 << 20), group_id=1), event(3), event(4, group_id=1)]
    verdicts = opened.deliver(batch(*changes))
    assert isinstance(verdicts[1], Refused) and isinstance(verdicts[3], NotNow)
    assert set(verdicts) == {1, 3} and set(ids(sqs_server, queue)) == {"e1", "e3"}


@pytest.mark.parametrize("host", ["no-such-host.invalid", "127.0.0.1:1"])
def test_a_host_that_does_not_answer_is_tried_again(host: str) -> None:
    sink = sink_of(f"http://{host}", queue_url=f"http://{host}/1/q")
    with pytest.raises(SinkUnreachable, match="cannot deliver now") as raised:
        sink.open()
    assert "geheim" not in str(raised.value)
    sink.close()


def test_keys_that_are_missing_are_an_error_with_the_remedy(
    sqs_server: SqsServer, queue: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", "/nonexistent")
    config = SqsConfig(queue_url=queue, endpoint_url=sqs_server.url, region="elasticmq")
    sink = SqsSink(config, pipeline="shop", sink="jobs", environment={})
    with pytest.raises(SinkRefused, match="set AWS' variables"):
        sink.open()
    sink.close()


@pytest.mark.long
def test_a_server_that_is_killed_in_mid_batch_gets_every_message_in_order_of_its_group(
    sqs_server: SqsServer, queue: str
) -> None:
    count = 600
    changes = [event(n, group_id=n % 10) for n in range(count)]
    kill = partial(_kill_in_between, sqs_server, queue)
    outages = outages_while_killed(kill, lambda: sink_of(sqs_server, queue_url=queue), changes)
    assert outages > 0
    first = list(dict.fromkeys(ids(sqs_server, queue)))  # a consumer drops what it has seen
    numbers = [int(name[1:]) for name in first]
    assert sorted(numbers) == list(range(count))
    for group in range(10):
        assert [n for n in numbers if n % 10 == group] == list(range(group, count, 10))


def _kill_in_between(server: SqsServer, queue: str, is_over: threading.Event) -> None:
    """Kill the server once it has some of the messages, and start it again."""
    sqs, name = client(server), "ApproximateNumberOfMessages"
    while not is_over.is_set():
        answer = sqs.get_queue_attributes(QueueUrl=queue, AttributeNames=[name])
        if int(answer["Attributes"][name]) > 100:
            break
    server.kill()
    server.start()
