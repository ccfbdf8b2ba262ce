"""The RabbitMQ sink on a real server: what arrives, and what happens when it fails."""

from __future__ import annotations

import itertools
import json
import threading
from collections.abc import Iterator
from functools import partial
from typing import Any, NamedTuple

import pika
import pytest

from pgstream_dagster.config.rabbitmq import RabbitConfig
from pgstream_dagster.errors import SinkRefused, SinkUnreachable
from pgstream_dagster.sinks.base import NotNow, Refused
from pgstream_dagster.sinks.rabbitmq.sink import RabbitSink
from tests.support.harness.outbox_events import batch, event, order, outages_while_killed
from tests.support.harness.queue_servers import RabbitServer

_numbers = itertools.count(1)


class Taken(NamedTuple):
    """A message as a consumer gets it."""

    id: str
    body: str
    properties: pika.BasicProperties


def sink_of(server: RabbitServer | str, **keys: Any) -> RabbitSink:
    config = RabbitConfig.model_validate({"url_from": "RABBIT_URL", **keys})
    url = server if isinstance(server, str) else server.url
    return RabbitSink(config, pipeline="shop", sink="jobs", environment={"RABBIT_URL": url})


@pytest.fixture
def queue(rabbit_server: RabbitServer) -> str:
    """A new durable queue."""
    return made(rabbit_server, f"orders-{next(_numbers)}")


def made(server: RabbitServer, name: str, **arguments: Any) -> str:
    with server.connection() as connection:
        connection.channel().queue_declare(name, durable=True, arguments=arguments)
    return name


@pytest.fixture
def opened(rabbit_server: RabbitServer, queue: str) -> Iterator[RabbitSink]:
    sink = sink_of(rabbit_server, queue=queue)
    sink.open()
    yield sink
    sink.close()


def take(server: RabbitServer, queue: str) -> list[Taken]:
    """All messages of a queue."""
    with server.connection() as connection:
        channel, taken = connection.channel(), list[Taken]()
        while True:
            method, properties, body = channel.basic_get(queue, auto_ack=True)
            if method is None:
                return taken
            taken.append(Taken(properties.message_id, body.decode(), properties))


def ids(server: RabbitServer, queue: str) -> list[str]:
    return [message.id for message in take(server, queue)]


def test_an_event_arrives_persistent_with_body_id_and_headers(
    opened: RabbitSink, rabbit_server: RabbitServer, queue: str
) -> None:
    assert opened.deliver(batch(event(7, {"amount": 12345678901234567}))) == {}
    (message,) = take(rabbit_server, queue)
    assert (message.id, message.body) == ("e7", '{"amount": 12345678901234567}')
    assert message.properties.delivery_mode == 2
    assert message.properties.content_type == "application/json"
    assert message.properties.headers == {
        "pgstream-id": "e7",
        "pgstream-position": "00000001.00000000001a2b3c.8000000000000007",
        "pgstream-committed-at": "2026-01-01T00:00:00.000001Z",
    }


def test_a_change_of_a_table_arrives_in_our_envelope(
    opened: RabbitSink, rabbit_server: RabbitServer, queue: str
) -> None:
    assert opened.deliver(batch(order(42))) == {}
    (message,) = take(rabbit_server, queue)
    assert message.id == "1-0/1A2B3C-42" and json.loads(message.body)["after"]["id"] == 42


def test_messages_arrive_in_order(
    opened: RabbitSink, rabbit_server: RabbitServer, queue: str
) -> None:
    assert opened.deliver(batch(*(event(n, group_id=n // 3) for n in range(1_200)))) == {}
    assert ids(rabbit_server, queue) == [f"e{n}" for n in range(1_200)]


def test_metadata_goes_over_the_configuration(rabbit_server: RabbitServer, queue: str) -> None:
    other, third = f"{queue}-other", made(rabbit_server, f"{queue}-third")
    sink = sink_of(rabbit_server, exchange=f"{queue}-x", routing_key="a.b", declare=True)
    sink.open()
    made(rabbit_server, other)
    with rabbit_server.connection() as connection:
        channel = connection.channel()
        channel.queue_bind(queue, f"{queue}-x", "a.*")
        channel.queue_bind(other, f"{queue}-x", "c.*")
        channel.exchange_declare(f"{queue}-y", "fanout", durable=True)
        channel.queue_bind(third, f"{queue}-y")
    changes = [event(1), event(2, routing_key="c.d"), event(3, exchange=f"{queue}-y")]
    assert sink.deliver(batch(*changes, event(4, queue=third))) == {}
    sink.close()
    assert ids(rabbit_server, queue) == ["e1"]
    assert ids(rabbit_server, other) == ["e2"]
    assert ids(rabbit_server, third) == ["e3", "e4"]


def test_an_event_without_any_place_is_refused_and_the_others_flow(
    rabbit_server: RabbitServer, queue: str
) -> None:
    sink = sink_of(rabbit_server)
    sink.open()
    changes = [event(1, group_id=1), event(2, queue=queue), event(3, queue=queue, group_id=1)]
    verdicts = sink.deliver(batch(*changes))
    sink.close()
    reason = "the event's metadata has no 'exchange', and sinks.jobs.rabbitmq.exchange gives none"
    assert verdicts[0] == Refused(reason)
    assert isinstance(verdicts[2], NotNow) and verdicts[2].is_behind
    assert set(verdicts) == {0, 2} and ids(rabbit_server, queue) == ["e2"]


def test_an_unroutable_message_is_refused_and_the_others_flow(
    opened: RabbitSink, rabbit_server: RabbitServer, queue: str
) -> None:
    """B75."""
    verdicts = opened.deliver(batch(event(1), event(2, queue="no-such-queue"), event(3)))
    assert list(verdicts) == [1] and isinstance(verdicts[1], Refused)
    assert "'no-such-queue': no queue takes it (NO_ROUTE)" in verdicts[1].reason
    assert ids(rabbit_server, queue) == ["e1", "e3"]


def test_an_exchange_that_only_an_event_names_and_that_does_not_exist_refuses_it(
    opened: RabbitSink, rabbit_server: RabbitServer, queue: str
) -> None:
    verdicts = opened.deliver(batch(event(1), event(2, exchange="no-such"), event(3)))
    assert list(verdicts) == [1] and isinstance(verdicts[1], Refused)
    assert "no exchange 'no-such'" in verdicts[1].reason
    assert {"e1", "e3"} == set(ids(rabbit_server, queue))
    assert opened.deliver(batch(event(4))) == {}


def test_a_configured_exchange_that_does_not_exist_is_an_error_with_the_remedy(
    rabbit_server: RabbitServer,
) -> None:
    sink = sink_of(rabbit_server, exchange="no-such")
    sink.open()
    with pytest.raises(SinkRefused, match=r"add 'declare: true' to sinks\.jobs\.rabbitmq"):
        sink.deliver(batch(event(1)))
    sink.close()


def test_what_was_declared_otherwise_is_an_error_with_the_remedy(
    rabbit_server: RabbitServer, queue: str
) -> None:
    full = made(rabbit_server, f"{queue}-full", **{"x-max-length": 1})
    sink = sink_of(rabbit_server, queue=full, declare=True)
    with pytest.raises(SinkRefused, match="delete what was declared otherwise"):
        sink.open()


def test_a_message_larger_than_the_server_takes_is_refused_and_the_others_flow(
    opened: RabbitSink, rabbit_server: RabbitServer, queue: str
) -> None:
    changes = [event(1), event(2, "x" * (1 << 20), group_id=1), event(3), event(4, group_id=1)]
    verdicts = opened.deliver(batch(*changes))
    assert isinstance(verdicts[1], Refused) and "larger than" in verdicts[1].reason
    assert isinstance(verdicts[3], NotNow) and set(verdicts) == {1, 3}
    assert {"e1", "e3"} == set(ids(rabbit_server, queue))


def test_a_routing_key_that_is_too_long_is_refused(opened: RabbitSink) -> None:
    verdicts = opened.deliver(batch(event(1, queue="q" * 300)))
    assert verdicts == {0: Refused("its exchange or routing key has over 255 bytes")}


def test_a_full_queue_is_waited_for(rabbit_server: RabbitServer, queue: str) -> None:
    full = {"x-max-length": 1, "x-overflow": "reject-publish"}
    own, other = (made(rabbit_server, f"{queue}-{name}", **full) for name in ("own", "other"))
    sink = sink_of(rabbit_server, queue=own)
    sink.open()
    assert sink.deliver(batch(event(1), event(2, queue=other))) == {}
    verdicts = sink.deliver(batch(event(3), event(4, queue=other)))
    assert [getattr(verdict, "is_away", None) for verdict in verdicts.values()] == [True, False]
    assert ids(rabbit_server, own) == ["e1"]
    assert list(sink.deliver(batch(event(3), event(4, queue=other)))) == [1]
    sink.close()


@pytest.mark.parametrize("wrong", [("guest:guest", "guest:geheim"), ("%2F", "no-such-host")])
def test_a_wrong_password_or_virtual_host_is_an_error_without_the_password(
    rabbit_server: RabbitServer, wrong: tuple[str, str]
) -> None:
    sink = sink_of(rabbit_server.url.replace(*wrong), queue="q")
    with pytest.raises(SinkRefused, match="check the variable that") as raised:
        sink.open()
    assert "geheim" not in str(raised.value)


@pytest.mark.parametrize("host", ["no-such-host.invalid", "127.0.0.1:1"])
def test_a_host_that_does_not_answer_is_tried_again(host: str) -> None:
    sink = sink_of(f"amqp://guest:geheim@{host}/%2F", queue="q")
    with pytest.raises(SinkUnreachable, match="cannot deliver now") as raised:
        sink.open()
    assert "geheim" not in str(raised.value)
    sink.close()


def test_an_address_of_something_else_is_an_error_that_does_not_have_it() -> None:
    with pytest.raises(SinkRefused, match="RABBIT_URL has no address of RabbitMQ") as raised:
        sink_of("http://user:geheim@host", queue="q")
    assert "geheim" not in str(raised.value)


@pytest.mark.long
def test_a_server_that_is_killed_in_mid_batch_gets_every_message_in_order_of_its_group(
    rabbit_server: RabbitServer, queue: str
) -> None:
    count = 6_000
    changes = [event(n, group_id=n % 50) for n in range(count)]
    kill = partial(_kill_in_between, rabbit_server, queue)
    outages = outages_while_killed(kill, lambda: sink_of(rabbit_server, queue=queue), changes)
    assert outages > 0
    first = list(dict.fromkeys(ids(rabbit_server, queue)))  # a consumer drops what it has seen
    assert len(first) == count
    for group in range(50):
        numbers = [n for n in (int(name[1:]) for name in first) if n % 50 == group]
        assert numbers == sorted(numbers)


def _kill_in_between(server: RabbitServer, queue: str, is_over: threading.Event) -> None:
    """Kill the server once it has some of the messages, and start it again."""
    with server.connection() as connection:
        channel = connection.channel()
        while not is_over.is_set():
            if channel.queue_declare(queue, passive=True).method.message_count > 500:
                break
    server.kill()
    server.start()
