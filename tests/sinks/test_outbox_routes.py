"""Events of the outbox go where their metadata says, on real brokers and HTTP servers."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest
import standardwebhooks

from pgstream_dagster.config.kafka import KafkaConfig
from pgstream_dagster.sinks.base import NotNow, Refused
from pgstream_dagster.sinks.kafka.sink import KafkaSink
from pgstream_dagster.sinks.webhook.addresses import is_public
from pgstream_dagster.sinks.webhook.delivery import Limits
from tests.support.events import event, event_id
from tests.support.plugins.kafka import Broker, read
from tests.support.webhooks import SECRET, Call, Receiver, Reply, batch, opened


def kafka_sink(broker: Broker, **keys: Any) -> KafkaSink:
    settings = KafkaConfig.model_validate({"bootstrap_servers": broker.servers, **keys})
    return KafkaSink(settings, pipeline="shop", sink="jobs", environment={}, is_outbox=True)


@pytest.fixture
def jobs(kafka: Broker, topic_prefix: str) -> Iterator[KafkaSink]:
    """A sink whose events without a topic go to `<prefix>default`."""
    sink = kafka_sink(kafka, topic=f"{topic_prefix}default", create={"partitions": 3})
    sink.open()
    yield sink
    sink.close()


def test_record_is_the_payload_with_id_position_and_the_event_s_headers(
    jobs: KafkaSink, kafka: Broker, topic_prefix: str
) -> None:
    given = event(1, '{"n": 1.50}', group_id="a", headers={"tenant": "t9"})
    assert jobs.deliver(batch(given)) == {}
    [record] = read(kafka.servers, f"{topic_prefix}default")
    assert (record.key, record.value) == (b"a", b'{"n": 1.50}')
    assert record.headers == {
        "pgstream.event_id": event_id(1).encode(),
        "pgstream.position": b"00000001.00000000001a2b3c.8000000000000001",
        "pgstream.committed_at": b"2026-01-01T00:00:00.000001Z",
        "tenant": b"t9",
    }


def test_topic_and_key_of_the_metadata_go_before_the_configuration(
    jobs: KafkaSink, kafka: Broker, topic_prefix: str
) -> None:
    """P70, P73, P74."""
    given = [
        event(1, topic=f"{topic_prefix}mine", key="k"),
        event(2, topic=f"{topic_prefix}mine", partition_key="p"),
        event(3),
    ]
    assert jobs.deliver(batch(*given)) == {}
    assert {r.key for r in read(kafka.servers, f"{topic_prefix}mine")} == {b"k", b"p"}
    assert [r.key for r in read(kafka.servers, f"{topic_prefix}default")] == [event_id(3).encode()]


def test_events_of_a_partition_key_are_in_order_in_one_partition(
    jobs: KafkaSink, kafka: Broker, topic_prefix: str
) -> None:
    """B74: with the ids by which a consumer recognizes an event that comes again."""
    given = [event(n, partition_key=f"p{n % 6}") for n in range(60)]
    assert jobs.deliver(batch(*given)) == {}
    records = read(kafka.servers, f"{topic_prefix}default")
    for key in range(6):
        of_key = [record for record in records if record.key == f"p{key}".encode()]
        assert len({record.partition for record in of_key}) == 1
        expected = [event_id(n).encode() for n in range(key, 60, 6)]
        assert [record.headers["pgstream.event_id"] for record in of_key] == expected


def test_event_without_a_topic_is_a_dead_letter_and_the_others_flow(
    kafka: Broker, topic_prefix: str
) -> None:
    sink = kafka_sink(kafka, create={})
    sink.open()
    verdicts = sink.deliver(batch(event(1), event(2, topic=f"{topic_prefix}b"), event(3, topic="")))
    sink.close()
    missing = "the event's metadata has no 'topic', and sinks.jobs.kafka.topic gives none"
    assert verdicts[0] == Refused(missing)
    assert sorted(verdicts) == [0, 2]
    assert len(read(kafka.servers, f"{topic_prefix}b")) == 1


def test_topic_that_only_an_event_names_and_nobody_made_is_its_own_dead_letter(
    kafka: Broker, topic_prefix: str
) -> None:
    """P75, B61."""
    own = f"{topic_prefix}own"
    made = kafka_sink(kafka, topic=own, create={})
    made.open()
    assert made.deliver(batch(event(1))) == {}
    made.close()
    sink = kafka_sink(kafka, topic=own)
    sink.open()
    verdicts = sink.deliver(batch(event(2, topic=f"{topic_prefix}missing"), event(3)))
    sink.close()
    name = f"{topic_prefix}missing"
    reason = f"its topic {name!r} does not exist: make it, or set 'create'"
    assert verdicts == {0: Refused(reason)}
    assert len(read(kafka.servers, own)) == 2


def test_topic_that_a_person_makes_after_a_dead_letter_takes_the_next_event(
    kafka: Broker, topic_prefix: str, jobs: KafkaSink
) -> None:
    sink = kafka_sink(kafka)
    sink.open()
    late = f"{topic_prefix}late"
    assert isinstance(sink.deliver(batch(event(1, topic=late)))[0], Refused)
    assert jobs.deliver(batch(event(2, topic=late))) == {}  # makes it
    assert sink.deliver(batch(event(1, topic=late))) == {}
    sink.close()


@pytest.mark.parametrize("kafka_setting", [False, True])
def test_order_of_a_group_holds_behind_a_dead_letter(
    kafka: Broker, topic_prefix: str, kafka_setting: bool
) -> None:
    sink = kafka_sink(kafka, create={}, exactly_once=kafka_setting, progress_topic=topic_prefix)
    sink.open()
    topic = f"{topic_prefix}t"
    given = [event(1, group_id="a"), event(2, group_id="a", topic=topic), event(3, topic=topic)]
    verdicts = sink.deliver(batch(*given))
    assert isinstance(verdicts[0], Refused)
    assert isinstance(verdicts[1], NotNow)
    sink.close()


def test_one_call_for_events_of_one_address_and_one_for_each_other() -> None:
    """P71, B72: headers of one event never go with another one."""
    limits = Limits(changes_per_request=10)
    with (
        Receiver() as receiver,
        Receiver() as other,
        opened(receiver.url, limits=limits, is_outbox=True) as sink,
    ):
        given = [
            event(1, '{"n": 1}'),
            event(2, '{"n": 2}'),
            event(3, '{"n": 3}', headers={"x-tenant": "a"}),
            event(4, '{"n": 4}', headers={"x-tenant": "b"}),
            event(5, '{"n": 5}', url=other.url),
        ]
        assert sink.deliver(batch(*given)) == {}
    assert [call.json for call in receiver.calls] == [[{"n": 1}, {"n": 2}], [{"n": 3}], [{"n": 4}]]
    assert [call.headers.get("x-tenant") for call in receiver.calls] == [None, "a", "b"]
    assert [call.json for call in other.calls] == [[{"n": 5}]]


def test_call_has_the_event_s_id_and_is_signed_also_for_its_own_url() -> None:
    secret = {"authorization": "Bearer of-the-subscription"}
    with (
        Receiver() as receiver,
        Receiver() as other,
        opened(receiver.url, own_headers=secret, is_outbox=True) as sink,
    ):
        assert sink.deliver(batch(event(1), event(2, url=other.url))) == {}
    [call], [elsewhere] = receiver.calls, other.calls
    assert call.headers["x-pgstream-position"] == "00000001.00000000001a2b3c.8000000000000001"
    for sent, number in ((call, 1), (elsewhere, 2)):
        assert standardwebhooks.Webhook(SECRET).verify(sent.body, dict(sent.headers)) == {"n": 1}
        assert sent.id == event_id(number)
    assert call.headers["authorization"] == "Bearer of-the-subscription"
    assert "authorization" not in elsewhere.headers


def test_event_that_names_the_sink_s_own_url_goes_there_as_any_other() -> None:
    secret = {"authorization": "Bearer of-the-subscription"}
    with (
        Receiver() as receiver,
        opened(receiver.url, own_headers=secret, is_outbox=True) as sink,
    ):
        assert sink.deliver(batch(event(1, url=receiver.url))) == {}
    assert [call.headers["authorization"] for call in receiver.calls] == [*secret.values()]


@pytest.mark.parametrize("topic", ["pgstream.progress.shop.jobs", "__consumer_offsets"])
def test_topic_that_the_sink_or_kafka_keeps_is_no_topic_of_events(
    kafka: Broker, topic: str
) -> None:
    sink = kafka_sink(kafka, create={}, exactly_once=True)
    sink.open()
    verdicts = sink.deliver(batch(event(1, topic=topic)))
    sink.close()
    assert verdicts == {0: Refused(f"its topic {topic!r} is not one for events")}


@pytest.mark.parametrize(
    "metadata", [{"url": "http://xn--a/"}, {"url": "http://[v1.x]/"}, {"headers": {"x": " a"}}]
)
def test_what_the_client_would_not_send_is_refused(metadata: dict[str, Any]) -> None:
    with Receiver() as receiver, opened(receiver.url, is_outbox=True) as sink:
        verdicts = sink.deliver(batch(event(1, **metadata), event(2)))
    assert isinstance(verdicts[0], Refused)
    assert sorted(verdicts) == [0]


def test_how_long_an_event_s_address_wants_to_wait_holds_up_no_other() -> None:
    def later(call: Call) -> Reply:
        return Reply(503, headers={"Retry-After": "86400"})

    with (
        Receiver() as receiver,
        Receiver(later) as busy,
        opened(receiver.url, is_outbox=True) as sink,
    ):
        verdicts = sink.deliver(batch(event(1, url=busy.url), event(2)))
    assert verdicts == {0: NotNow("HTTP 503")}


@pytest.mark.parametrize("worker_count", [1, 2])
def test_silent_address_of_events_is_waited_for_once_a_batch(worker_count: int) -> None:
    gate, limits = threading.Event(), Limits(worker_count=worker_count)
    with (
        Receiver() as receiver,
        Receiver(lambda call: Reply(after=gate)) as silent,
        opened(receiver.url, limits=limits, is_outbox=True, timeout_seconds=0.5) as sink,
    ):
        given = [event(n, url=f"{silent.url}?n={n}", group_id="a") for n in range(3)]
        given += [event(n, url=f"{silent.url}?n={n}", group_id=str(n)) for n in range(3, 20)]
        verdicts = sink.deliver(batch(*given, event(20)))
        gate.set()
    assert sorted(verdicts) == list(range(20))
    assert all(isinstance(v, NotNow) and not v.is_away for v in verdicts.values())
    assert 1 <= len(silent.calls) <= worker_count
    assert receiver.ids == [event_id(20)]


def test_other_address_of_a_host_that_has_a_silent_one_is_called() -> None:
    gate = threading.Event()

    def answer(call: Call) -> Reply:
        return Reply(after=gate) if call.path.endswith("/slow") else Reply()

    with (
        Receiver() as receiver,
        Receiver(answer) as host,
        opened(receiver.url, is_outbox=True, timeout_seconds=0.5) as sink,
    ):
        verdicts = sink.deliver(
            batch(event(1, url=f"{host.url}/slow"), event(2, url=f"{host.url}/fast"))
        )
        gate.set()
    assert sorted(verdicts) == [0]


def refusing(call: Call) -> Reply:
    return Reply(410)


def test_address_of_an_event_that_fails_is_that_event_s_matter() -> None:
    """B61: the subscription is neither disabled nor waited for."""
    with (
        Receiver() as receiver,
        Receiver(refusing) as gone,
        opened(receiver.url, is_outbox=True) as sink,
    ):
        verdicts = sink.deliver(
            batch(
                event(1, url=gone.url),
                event(2, url="http://127.0.0.1:9/none"),
                event(3, url="ftp://example.com"),
                event(4, headers={"webhook-id": "mine"}),
                event(5),
            )
        )
    assert isinstance(verdicts[0], Refused)
    assert isinstance(verdicts[1], NotNow)
    assert not verdicts[1].is_away
    assert verdicts[2] == Refused(
        "the url of the event's metadata must be an http or https address with a host"
    )
    assert verdicts[3] == Refused(
        "the headers of the event's metadata are no object of names and texts"
    )
    assert sorted(verdicts) == [0, 1, 2, 3]
    assert receiver.ids == [event_id(5)]


def test_private_address_of_an_event_is_a_dead_letter() -> None:
    with (
        Receiver() as receiver,
        opened("https://example.com/hook", is_outbox=True, is_allowed=is_public) as sink,
    ):
        verdicts = sink.deliver(batch(event(1, url=receiver.url)))
    assert isinstance(verdicts[0], Refused)
    assert not receiver.calls


def test_groups_are_delivered_at_the_same_time_each_in_order() -> None:
    """P74."""
    gate, limits = threading.Event(), Limits(worker_count=2)

    def answer(call: Call) -> Reply:
        return Reply(after=gate) if call.json["g"] == "a" else Reply()

    given = [
        event(n, f'{{"g": "{"ab"[n % 2]}", "n": {n}}}', group_id="ab"[n % 2]) for n in range(8)
    ]
    with Receiver(answer) as receiver, opened(receiver.url, limits=limits, is_outbox=True) as sink:
        done = threading.Thread(target=lambda: sink.deliver(batch(*given)))
        done.start()
        while [c.json["n"] for c in receiver.calls] != [1, 3, 5, 7]:
            assert done.is_alive()
        gate.set()
        done.join()
    assert [c.json["n"] for c in receiver.calls if c.json["g"] == "a"] == [0, 2, 4, 6]
