"""The Redis sink on a real server: what arrives, in which order, and what happens when it fails."""

from __future__ import annotations

import json
import threading
from collections import Counter
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest

from pgstream_dagster.config.redis import RedisConfig
from pgstream_dagster.errors import SinkRefused, SinkUnreachable
from pgstream_dagster.sinks.base import NotNow, Refused
from pgstream_dagster.sinks.redis.sink import RedisSink
from tests.support.harness.outbox_events import batch, event, order, outages_while_killed
from tests.support.harness.queue_servers import RedisServer


def sink_of(server: RedisServer | str, **keys: Any) -> RedisSink:
    config = RedisConfig.model_validate({"url_from": "REDIS_URL", **keys})
    url = server if isinstance(server, str) else server.url
    return RedisSink(config, pipeline="shop", sink="jobs", environment={"REDIS_URL": url})


@pytest.fixture
def opened(redis_server: RedisServer) -> Iterator[RedisSink]:
    sink = sink_of(redis_server, stream="orders")
    sink.open()
    yield sink
    sink.close()


def entries(server: RedisServer, stream: str = "orders") -> list[dict[str, str]]:
    with server.client() as client:
        return [fields for _, fields in client.xrange(stream)]


def ids(server: RedisServer, stream: str = "orders") -> list[str]:
    return [fields["id"] for fields in entries(server, stream)]


def test_an_event_arrives_with_body_id_position_and_time(
    opened: RedisSink, redis_server: RedisServer
) -> None:
    assert opened.deliver(batch(event(7, {"amount": 12345678901234567}))) == {}
    (fields,) = entries(redis_server)
    assert fields == {
        "id": "e7",
        "payload": '{"amount": 12345678901234567}',
        "position": "00000001.00000000001a2b3c.8000000000000007",
        "committed_at": "2026-01-01T00:00:00.000001Z",
    }


def test_a_change_of_a_table_arrives_in_our_envelope(
    opened: RedisSink, redis_server: RedisServer
) -> None:
    assert opened.deliver(batch(order(42))) == {}
    (fields,) = entries(redis_server)
    assert fields["id"] == "1-0/1A2B3C-42"
    assert json.loads(fields["payload"])["after"]["id"] == 42


def test_a_stream_has_its_messages_in_order(opened: RedisSink, redis_server: RedisServer) -> None:
    assert opened.deliver(batch(*(event(n, group_id=n % 7) for n in range(2_345)))) == {}
    assert ids(redis_server) == [f"e{n}" for n in range(2_345)]


def test_metadata_goes_over_the_configured_stream(
    opened: RedisSink, redis_server: RedisServer
) -> None:
    assert opened.deliver(batch(event(1), event(2, stream="others"), event(3))) == {}
    assert ids(redis_server) == ["e1", "e3"]
    assert ids(redis_server, "others") == ["e2"]


def test_an_event_without_any_stream_is_refused_and_the_others_flow(
    redis_server: RedisServer,
) -> None:
    sink = sink_of(redis_server)
    sink.open()
    changes = [event(1, group_id="a"), event(2, stream="s"), event(3, stream="s", group_id="a")]
    verdicts = sink.deliver(batch(*changes))
    reason = "the event's metadata has no 'stream', and sinks.jobs.redis.stream gives none"
    assert verdicts[0] == Refused(reason)
    assert isinstance(verdicts[2], NotNow) and verdicts[2].is_behind
    assert set(verdicts) == {0, 2} and ids(redis_server, "s") == ["e2"]


def test_a_stream_keeps_about_as_many_entries_as_configured(redis_server: RedisServer) -> None:
    sink = sink_of(redis_server, stream="orders", max_len=1_000)
    sink.open()
    assert sink.deliver(batch(*(event(n) for n in range(5_000)))) == {}
    assert 1_000 <= len(ids(redis_server)) < 1_200


def test_an_event_for_a_key_of_another_type_is_refused_and_the_others_flow(
    opened: RedisSink, redis_server: RedisServer
) -> None:
    redis_server.client().set("text", "x")
    verdicts = opened.deliver(batch(event(1), event(2, stream="text"), event(3)))
    assert verdicts == {1: Refused("key 'text' is no stream: it is of type 'string'")}
    assert ids(redis_server) == ["e1", "e3"]


def test_a_configured_stream_of_another_type_is_an_error_with_the_remedy(
    opened: RedisSink, redis_server: RedisServer
) -> None:
    redis_server.client().set("orders", "x")
    with pytest.raises(SinkRefused, match=r"no stream.*name another stream in sinks\.jobs\.redis"):
        opened.deliver(batch(event(1)))


def test_a_message_larger_than_the_server_takes_is_refused(redis_server: RedisServer) -> None:
    with redis_server.client() as client:
        client.config_set("proto-max-bulk-len", 1 << 20)
    sink = sink_of(redis_server, stream="orders")
    sink.open()
    verdicts = sink.deliver(batch(event(1), event(2, "x" * (1 << 20)), event(3)))
    with redis_server.client() as client:
        client.config_set("proto-max-bulk-len", 512 << 20)
    assert list(verdicts) == [1] and "larger than the server's" in verdicts[1].reason
    assert ids(redis_server) == ["e1", "e3"]


def test_a_batch_that_comes_again_is_added_once(redis_server: RedisServer) -> None:
    changes = batch(*(event(n) for n in range(1_200)))
    for _ in range(2):
        sink = sink_of(redis_server, stream="orders")
        sink.open()
        assert sink.deliver(changes) == {}
        sink.close()
    assert ids(redis_server) == [f"e{n}" for n in range(1_200)]


def test_without_a_record_of_ids_a_batch_that_comes_again_is_there_twice(
    redis_server: RedisServer,
) -> None:
    sink = sink_of(redis_server, stream="orders", deduplicate_seconds=0)
    sink.open()
    for _ in range(2):
        assert sink.deliver(batch(event(1))) == {}
    assert ids(redis_server) == ["e1", "e1"] and redis_server.client().keys() == ["orders"]


def test_ids_that_are_old_enough_are_forgotten_once_a_batch_is_delivered(
    redis_server: RedisServer,
) -> None:
    sink = sink_of(redis_server, stream="orders", deduplicate_seconds=60)
    sink.open()
    sink.deliver(batch(event(1)))
    with redis_server.client() as client:
        (record,) = client.keys("*pgstream*")
        client.zadd(record, {"e1": 1})  # as if it had been added long ago
        sink.deliver(batch(event(2)))
        assert client.zrange(record, 0, -1) == ["e2"]
        client.zadd(record, {"e2": 1})
        again = sink_of(redis_server, stream="orders", deduplicate_seconds=60)
        again.open()
        again.deliver(batch(event(2), event(3)))  # the first after a start, however late
    assert ids(redis_server) == ["e1", "e2", "e3"]


def test_a_stream_that_was_deleted_gets_its_messages_again(
    opened: RedisSink, redis_server: RedisServer
) -> None:
    opened.deliver(batch(event(1)))
    redis_server.client().delete("orders")
    opened.deliver(batch(event(1)))
    assert ids(redis_server) == ["e1"]


def test_keys_have_the_payload_under_prefix_and_id_or_what_metadata_names(
    redis_server: RedisServer,
) -> None:
    sink = sink_of(redis_server, key_prefix="order:", ttl_seconds=500)
    sink.open()
    assert sink.deliver(batch(event(1), event(2, key="newest"), order(3))) == {}
    with redis_server.client() as client:
        assert sorted(client.keys()) == ["newest", "order:1-0/1A2B3C-3", "order:e1"]
        assert client.get("newest") == '{"n": 2}'
        assert 490 <= client.ttl("order:e1") <= 500


def test_the_last_message_of_a_key_wins(redis_server: RedisServer) -> None:
    sink = sink_of(redis_server, key_prefix="")
    sink.open()
    assert sink.deliver(batch(*(event(n, key="k") for n in range(1_500)))) == {}
    assert redis_server.client().get("k") == '{"n": 1499}'


def test_places_that_the_user_may_not_write_are_refused_where_only_an_event_names_them(
    redis_server: RedisServer,
) -> None:
    with redis_server.client() as client:
        client.execute_command("ACL SETUSER ann on >secret ~orders* ~{orders*}* ~order:* +@all")
    url = redis_server.url.replace(":pa55-word", "ann:secret")
    streams, keys = sink_of(url, stream="orders"), sink_of(url, key_prefix="order:")
    wrong = sink_of(url, stream="payments")
    for sink in (streams, keys, wrong):
        sink.open()
    verdicts = streams.deliver(batch(event(1, stream="payments"), event(2)))
    assert list(verdicts) == [0] and isinstance(verdicts[0], Refused)
    verdicts = keys.deliver(batch(event(1, key="payments"), event(2)))
    assert list(verdicts) == [0] and isinstance(verdicts[0], Refused)
    with pytest.raises(SinkRefused, match="give the user the right"):
        wrong.deliver(batch(event(1)))
    assert ids(redis_server) == ["e2"] and redis_server.client().get("order:e2") == '{"n": 2}'


def test_a_server_without_memory_is_waited_for(
    opened: RedisSink, redis_server: RedisServer
) -> None:
    with redis_server.client() as client:
        client.config_set("maxmemory", 1)
        try:
            with pytest.raises(SinkUnreachable, match="maxmemory"):
                opened.deliver(batch(event(1)))
        finally:
            client.config_set("maxmemory", 0)
    assert opened.deliver(batch(event(1))) == {}
    assert ids(redis_server) == ["e1"]


def test_a_wrong_password_is_an_error_that_does_not_have_it(redis_server: RedisServer) -> None:
    sink = sink_of(redis_server.url.replace("pa55-word", "wrong-secret"), stream="orders")
    with pytest.raises(SinkRefused, match="url_from names") as raised:
        sink.open()
    assert "wrong-secret" not in str(raised.value)


@pytest.mark.parametrize(
    "url", ["redis://:geheim@no-such-host.invalid:6379", "redis://127.0.0.1:1"]
)
def test_a_host_that_does_not_answer_is_tried_again(url: str) -> None:
    sink = sink_of(url, stream="orders")
    with pytest.raises(SinkUnreachable, match="cannot deliver now") as raised:
        sink.open()
    assert "geheim" not in str(raised.value)
    sink.close()


def test_an_address_of_something_else_is_an_error_that_does_not_have_it() -> None:
    with pytest.raises(SinkRefused, match="REDIS_URL has no address of Redis") as raised:
        sink_of("http://user:geheim@host", stream="orders")
    assert "geheim" not in str(raised.value)


def test_a_server_that_is_killed_in_mid_batch_gets_every_message_once_and_in_order(
    redis_server: RedisServer,
) -> None:
    count = 20_000
    changes = [event(n, "x" * 500, group_id=n % 5) for n in range(count)]
    kill = partial(_kill_in_between, redis_server)
    outages = outages_while_killed(kill, lambda: sink_of(redis_server, stream="orders"), changes)
    assert outages > 0
    assert ids(redis_server) == [f"e{n}" for n in range(count)]
    assert Counter(ids(redis_server)).most_common(1)[0][1] == 1


def _kill_in_between(server: RedisServer, is_over: threading.Event) -> None:
    """Kill the server once it has some of the messages, and start it again."""
    with server.client() as client:
        while client.xlen("orders") < 500 and not is_over.is_set():
            pass
    server.kill()
    server.start()
