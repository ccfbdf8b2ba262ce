"""The NATS sink on a real server: what arrives, and what happens when it fails."""

from __future__ import annotations

import asyncio
import itertools
import json
import threading
from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from typing import Any, NamedTuple

import nats
import pytest
from nats.js import JetStreamContext
from nats.js.api import DiscardPolicy, StreamConfig

from pgstream_dagster.config.nats import NatsConfig
from pgstream_dagster.errors import SinkRefused, SinkUnreachable
from pgstream_dagster.sinks.base import NotNow, Refused
from pgstream_dagster.sinks.nats.sink import NatsSink
from tests.support.harness.outbox_events import batch, event, order, outages_while_killed
from tests.support.harness.queue_servers import NatsServer

_numbers = itertools.count(1)


class Stored(NamedTuple):
    """A message as its stream has it."""

    id: str
    subject: str
    body: str
    headers: dict[str, str]


def sink_of(server: NatsServer | str, **keys: Any) -> NatsSink:
    config = NatsConfig.model_validate({"url_from": "NATS_URL", "timeout_seconds": 3, **keys})
    url = server if isinstance(server, str) else server.url
    return NatsSink(config, pipeline="shop", sink="jobs", environment={"NATS_URL": url})


def on(server: NatsServer, work: Callable[[JetStreamContext], Awaitable[Any]]) -> Any:
    async def connected() -> Any:
        client = await nats.connect(server.url, allow_reconnect=False)
        try:
            return await work(client.jetstream())
        finally:
            await client.close()

    return asyncio.run(connected())


def made(server: NatsServer, name: str, **settings: Any) -> str:
    """A stream of all subjects that begin with its name."""
    on(server, lambda js: js.add_stream(StreamConfig(name, subjects=[f"{name}.>"], **settings)))
    return name


@pytest.fixture
def stream(nats_server: NatsServer) -> str:
    return made(nats_server, f"orders-{next(_numbers)}")


@pytest.fixture
def opened(nats_server: NatsServer, stream: str) -> Iterator[NatsSink]:
    sink = sink_of(nats_server, subject=f"{stream}.new", stream=stream)
    sink.open()
    yield sink
    sink.close()


def stored(server: NatsServer, stream: str) -> list[Stored]:
    async def read(js: JetStreamContext) -> list[Stored]:
        count = (await js.stream_info(stream)).state.messages
        subscription = await js.subscribe(f"{stream}.>", ordered_consumer=True)
        return [_stored(await subscription.next_msg(30)) for _ in range(count)]

    return on(server, read)


def _stored(message: Any) -> Stored:
    headers = dict(message.headers)
    return Stored(headers.pop("Nats-Msg-Id"), message.subject, message.data.decode(), headers)


def ids(server: NatsServer, stream: str) -> list[str]:
    return [message.id for message in stored(server, stream)]


def test_an_event_arrives_with_body_id_and_headers(
    opened: NatsSink, nats_server: NatsServer, stream: str
) -> None:
    assert opened.deliver(batch(event(7, {"amount": 12345678901234567}))) == {}
    (message,) = stored(nats_server, stream)
    assert message[:3] == ("e7", f"{stream}.new", '{"amount": 12345678901234567}')
    headers = {name: text for name, text in message.headers.items() if name.startswith("pgstream")}
    assert headers == {
        "pgstream-id": "e7",
        "pgstream-position": "00000001.00000000001a2b3c.8000000000000007",
        "pgstream-committed-at": "2026-01-01T00:00:00.000001Z",
    }


def test_a_change_of_a_table_arrives_in_our_envelope(
    opened: NatsSink, nats_server: NatsServer, stream: str
) -> None:
    assert opened.deliver(batch(order(42))) == {}
    (message,) = stored(nats_server, stream)
    assert message.id == "1-0/1A2B3C-42" and json.loads(message.body)["after"]["id"] == 42


def test_messages_arrive_in_order(opened: NatsSink, nats_server: NatsServer, stream: str) -> None:
    assert opened.deliver(batch(*(event(n, group_id=n // 3) for n in range(1_200)))) == {}
    assert ids(nats_server, stream) == [f"e{n}" for n in range(1_200)]


def test_metadata_goes_over_the_configured_subject(
    opened: NatsSink, nats_server: NatsServer, stream: str
) -> None:
    routes = [{}, {"subject": f"{stream}.s"}, {"topic": f"{stream}.t"}]
    assert opened.deliver(batch(*(event(n, **route) for n, route in enumerate(routes)))) == {}
    subjects = [message.subject for message in stored(nats_server, stream)]
    assert subjects == [f"{stream}.new", f"{stream}.s", f"{stream}.t"]


def test_an_event_without_any_subject_is_refused_and_the_others_flow(
    nats_server: NatsServer, stream: str
) -> None:
    sink = sink_of(nats_server)
    sink.open()
    place = {"subject": f"{stream}.a"}
    changes = [event(1, group_id=1), event(2, **place), event(3, group_id=1, **place)]
    verdicts = sink.deliver(batch(*changes))
    sink.close()
    reason = "the event's metadata has no 'subject', and sinks.jobs.nats.subject gives none"
    assert verdicts[0] == Refused(reason)
    assert isinstance(verdicts[2], NotNow) and verdicts[2].is_behind
    assert set(verdicts) == {0, 2} and ids(nats_server, stream) == ["e2"]


@pytest.mark.parametrize(
    ("subject", "reason"),
    [("no.stream", "is of no stream"), ("a b", "is no subject"), ("a.>", "is no subject")],
)
def test_a_subject_of_an_event_that_takes_no_message_refuses_it_and_the_others_flow(
    opened: NatsSink, nats_server: NatsServer, stream: str, subject: str, reason: str
) -> None:
    """B75: without a stream that acknowledges it, a message is not delivered."""
    verdicts = opened.deliver(batch(event(1), event(2, subject=subject), event(3)))
    assert list(verdicts) == [1] and isinstance(verdicts[1], Refused)
    assert reason in verdicts[1].reason and ids(nats_server, stream) == ["e1", "e3"]


def test_a_subject_of_another_stream_than_the_configured_one_refuses_the_event(
    opened: NatsSink, nats_server: NatsServer, stream: str
) -> None:
    other = made(nats_server, f"{stream}-other")
    verdicts = opened.deliver(batch(event(1, subject=f"{other}.a")))
    assert verdicts == {0: Refused(f"subject '{other}.a' is not of stream {stream!r}")}


def test_a_configured_subject_of_no_stream_is_an_error_with_the_remedy(
    nats_server: NatsServer,
) -> None:
    sink = sink_of(nats_server, subject="no.stream")
    sink.open()
    with pytest.raises(SinkRefused, match=r"correct sinks\.jobs\.nats, create the stream"):
        sink.deliver(batch(event(1)))
    sink.close()


def test_messages_that_are_too_large_are_refused_and_the_others_flow(
    nats_server: NatsServer, stream: str
) -> None:
    small = made(nats_server, f"{stream}-small", max_msg_size=1_000)
    sink = sink_of(nats_server, subject=f"{stream}.a")
    sink.open()
    exact = (1 << 20) - 2  # with the quotes the limit; the headers are over it
    changes = [event(1), event(2, "x" * exact), event(3, "x" * 2_000, subject=f"{small}.a")]
    verdicts = sink.deliver(batch(*changes, event(4)))
    sink.close()
    assert all(isinstance(verdict, Refused) for verdict in verdicts.values())
    assert list(verdicts) == [1, 2] and "max_payload" in verdicts[1].reason
    assert ids(nats_server, stream) == ["e1", "e4"]


def test_a_full_stream_is_waited_for(nats_server: NatsServer, stream: str) -> None:
    full = {"max_msgs": 1, "discard": DiscardPolicy.NEW}
    own, other = (made(nats_server, f"{stream}-{name}", **full) for name in ("own", "other"))
    sink = sink_of(nats_server, subject=f"{own}.a")
    sink.open()
    assert sink.deliver(batch(event(1), event(2, subject=f"{other}.a"))) == {}
    verdicts = sink.deliver(batch(event(3), event(4, subject=f"{other}.a")))
    assert [getattr(verdict, "is_away", None) for verdict in verdicts.values()] == [True, False]
    on(nats_server, lambda js: js.purge_stream(own))
    assert list(sink.deliver(batch(event(3), event(4, subject=f"{other}.a")))) == [1]
    sink.close()


def test_a_batch_that_comes_again_is_stored_once(
    opened: NatsSink, nats_server: NatsServer, stream: str
) -> None:
    changes = batch(*(event(n) for n in range(700)))
    assert opened.deliver(changes) == opened.deliver(changes) == {}
    assert ids(nats_server, stream) == [f"e{n}" for n in range(700)]


def test_subjects_that_the_user_may_not_use_are_refused_where_only_an_event_names_them(
    nats_server: NatsServer, stream: str
) -> None:
    bob = nats_server.url.replace("ann", "bob")
    sink = sink_of(bob, subject=f"{stream}.a", timeout_seconds=1)
    sink.open()
    denied = [f"payments.{name}" for name in (*range(30), "x" * 1000, "Grün", "a\"b'c\\")]
    verdicts = sink.deliver(batch(event(1), *(event(n, subject=s) for n, s in enumerate(denied))))
    assert sink.deliver(batch(event(99))) == {}
    sink.close()
    assert list(verdicts) == list(range(1, len(denied) + 1))
    assert all(isinstance(verdict, Refused) for verdict in verdicts.values()), verdicts
    wrong = sink_of(bob, subject="payments.a", timeout_seconds=1)
    wrong.open()
    with pytest.raises(SinkRefused, match="give the user the right"):
        wrong.deliver(batch(event(1)))
    wrong.close()


def test_a_wrong_password_is_an_error_that_does_not_have_it(nats_server: NatsServer) -> None:
    sink = sink_of(nats_server.url.replace("geheim", "wrong-secret"), subject="a")
    with pytest.raises(SinkRefused, match="check the variable that") as raised:
        sink.open()
    assert "wrong-secret" not in str(raised.value)


@pytest.mark.parametrize("host", ["no-such-host.invalid", "127.0.0.1:1"])
def test_a_host_that_does_not_answer_is_tried_again(host: str) -> None:
    sink = sink_of(f"nats://ann:geheim@{host}", subject="a")
    with pytest.raises(SinkUnreachable, match="cannot deliver now") as raised:
        sink.open()
    assert "geheim" not in str(raised.value)


def test_an_address_of_something_else_is_an_error_that_does_not_have_it() -> None:
    with pytest.raises(SinkRefused, match="NATS_URL has no address of NATS") as raised:
        sink_of("http://user:geheim@host", subject="a")
    assert "geheim" not in str(raised.value)


@pytest.mark.long
def test_a_server_that_is_killed_in_mid_batch_gets_every_message_once_and_in_order(
    nats_server: NatsServer, stream: str
) -> None:
    count = 6_000
    changes = [event(n, group_id=n % 50) for n in range(count)]
    kill = partial(_kill_in_between, nats_server, stream)
    outages = outages_while_killed(
        kill, lambda: sink_of(nats_server, subject=f"{stream}.a"), changes
    )
    assert outages > 0
    arrived = [int(name[1:]) for name in ids(nats_server, stream)]
    assert sorted(arrived) == list(range(count))
    for group in range(50):
        numbers = [n for n in arrived if n % 50 == group]
        assert numbers == sorted(numbers)


def _kill_in_between(server: NatsServer, stream: str, is_over: threading.Event) -> None:
    """Kill the server once it has some of the messages, and start it again."""

    async def some(js: JetStreamContext) -> None:
        while not is_over.is_set():
            if (await js.stream_info(stream)).state.messages > 500:
                return

    on(server, some)
    server.kill()
    server.start()
