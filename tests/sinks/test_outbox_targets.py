"""
Events of one stream in every kind of target, which are all away for a while but for one.

`make outage SECONDS=7200` is the same with an absence of two hours.
"""

from __future__ import annotations

import asyncio
import json
import os
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple

import boto3
import nats
import pytest
from nats.js.api import StreamConfig

from pgstream_dagster import Pipeline, setup
from pgstream_dagster.sinks import run as sinks_run
from tests.support.harness.background import in_thread
from tests.support.harness.outbox_receiver import outbox_pipeline
from tests.support.harness.outbox_writers import (
    committed,
    require_groups_in_order,
    writing,
)
from tests.support.harness.queue_servers import NatsServer, RabbitServer, RedisServer, SqsServer
from tests.support.harness.runner import streaming
from tests.support.plugins.cluster import psql
from tests.support.plugins.kafka import read
from tests.support.plugins.search import ask
from tests.support.plugins.wait import until
from tests.support.webhooks import SECRET, Receiver

AWAY_SECONDS: Final = float(os.environ.get("PGSTREAM_TEST_AWAY_SECONDS", "5"))

AWS: Final = {
    "aws_access_key_id": "key",
    "aws_secret_access_key": "geheim",
    "region_name": "elasticmq",
}


class Arrived(NamedTuple):
    """An event at a target; `position` is empty where the target has no place for it."""

    id: str
    position: str
    payload: Any


@dataclass
class Webhook:
    """A receiver that can be away, and is then back on its port."""

    calls: list[Arrived] = field(default_factory=list)
    port: int = 0
    _running: Receiver | None = None

    def start(self) -> None:
        self._running = Receiver(port=self.port).__enter__()
        self.port = self._running.port

    def stop(self) -> None:
        if self._running is not None:
            self._running.__exit__(None, None, None)
            self.calls += map(self._arrived, self._running.calls)
            self._running = None

    def arrived(self) -> list[Arrived]:
        live = [] if self._running is None else self._running.calls
        return self.calls + [self._arrived(call) for call in list(live)]

    @staticmethod
    def _arrived(call: Any) -> Arrived:
        return Arrived(call.id, call.headers["x-pgstream-position"], call.json)


@dataclass
class Target:
    """A sink's configuration, what ends and starts its server, and what it has got."""

    config: dict[str, Any]
    server: Any
    arrived: Callable[[], list[Arrived]]
    order: Literal["all", "groups", "none"] = "all"


@pytest.fixture
def webhook() -> Iterator[Webhook]:
    made = Webhook()
    made.start()
    yield made
    made.stop()


@pytest.fixture
def targets(
    webhook, own_kafka, own_search_node, redis_server, rabbit_server, nats_server, sqs_server
) -> Iterator[dict[str, Target]]:
    hook = {
        "secret": "SECRET",
        "allow_private_addresses": True,
        "subscriptions": {"all": {"url": f"http://127.0.0.1:{webhook.port}/hook"}},
    }
    kafka = {"bootstrap_servers": own_kafka.servers, "topic": "jobs", "create": {"partitions": 1}}
    ask(own_search_node, "PUT", "/jobs", {})
    yield {
        "hook": Target({"webhook": hook}, webhook, webhook.arrived),
        "kafka": Target({"kafka": kafka}, own_kafka, lambda: of_kafka(own_kafka.servers)),
        "search": Target(
            {"documents": {"url_from": "SEARCH_URL", "index": "jobs"}},
            own_search_node,
            lambda: of_index(own_search_node),
            "none",
        ),
        "redis": Target(
            {"redis": {"url_from": "REDIS_URL", "stream": "jobs-of-all"}},
            redis_server,
            lambda: of_redis(redis_server),
        ),
        "rabbit": of_rabbit(rabbit_server),
        "nats": of_nats(nats_server),
        "sqs": of_sqs(sqs_server),
    }
    for server in (redis_server, rabbit_server, nats_server, sqs_server):
        server.start()


@pytest.fixture
def pipeline(dsn, tmp_path, spark, targets) -> Pipeline:
    sinks = {name: target.config | {"outbox": {"stream": 1}} for name, target in targets.items()}
    archive = {"files": {"folder": str(tmp_path / "archive")}, "outbox": {"stream": 1}}
    environment = {
        "SECRET": SECRET,
        "SEARCH_URL": targets["search"].server.url,
        "REDIS_URL": targets["redis"].server.url,
        "RABBIT_URL": targets["rabbit"].server.url,
        "NATS_URL": targets["nats"].server.url,
        "AWS_ACCESS_KEY_ID": "key",
        "AWS_SECRET_ACCESS_KEY": "geheim",
    }
    made = outbox_pipeline(dsn, tmp_path, archive=archive, **sinks)
    return replace(made, environment=environment)


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.one_major("newest")
def test_targets_that_were_away_get_everything_in_commit_order_without_new_events(
    pipeline, dsn, tmp_path, targets
) -> None:
    """P60, B66: neither the application, nor the slot, nor another sink waits meanwhile."""
    setup(pipeline)
    with streaming(pipeline), in_thread(lambda stop: sinks_run.run(pipeline, stop=stop)):
        with writing(dsn, 0.02 if AWAY_SECONDS < 60 else 2.0):
            until(lambda: all(target.arrived() for target in targets.values()), every=1.0)
            for target in targets.values():
                target.server.stop()
            before = len(committed(dsn)), confirmed(dsn)
            threading.Event().wait(AWAY_SECONDS)
        events = committed(dsn)
        assert len(events) > before[0]
        assert confirmed(dsn) > before[1]
        until(lambda: len(ids(of_files(tmp_path))) == len(events), every=1.0)
        for target in targets.values():
            target.server.start()
        for target in targets.values():
            until(
                lambda target=target: len(ids(target.arrived())) >= len(events),
                progress=lambda target=target: len(target.arrived()),
                every=2.0,
            )
    for target in targets.values():
        require_equal(target, events)


def confirmed(dsn: str) -> int:
    """Bytes of WAL that the slot has no more need of."""
    query = (
        "select pg_wal_lsn_diff(confirmed_flush_lsn, '0/0')::int8 from pg_replication_slots"
        " where database = current_database()"
    )
    [(position,)] = psql(dsn, query)
    return int(position)


def ids(arrived: list[Arrived]) -> set[str]:
    return {event.id for event in arrived}


def require_equal(target: Target, events: dict[str, Any]) -> None:
    """Every committed event, and no other; the first ones of each in commit order."""
    arrived = target.arrived()
    first = {event.id: event for event in reversed(arrived)}
    assert {event_id: event.payload for event_id, event in first.items()} == events
    order = [first[event_id] for event_id in dict.fromkeys(event.id for event in arrived)]
    if target.order != "none":
        require_groups_in_order([event.payload for event in order])
    if target.order == "all":
        positions = [event.position for event in order]
        assert positions == sorted(positions)


# --- what has arrived ---------------------------------------------------------------------------


def of_files(folder: Path) -> list[Arrived]:
    lines = list[bytes]()
    for path in sorted((folder / "archive").glob("*.ndjson")):
        lines += path.read_bytes().split(b"\n")[:-1]
    made = [json.loads(line) for line in lines]
    return [Arrived(line["id"], line["position"], line["payload"]) for line in made]


def of_kafka(servers: str) -> list[Arrived]:
    return [
        Arrived(
            record.headers["pgstream.event_id"].decode(),
            record.headers["pgstream.position"].decode(),
            json.loads(record.value),
        )
        for record in read(servers, "jobs")
    ]


def of_index(node: Any) -> list[Arrived]:
    ask(node, "POST", "/jobs/_refresh")
    documents, after = list[Arrived](), list[Any]()
    while True:
        search = {"size": 5000, "sort": ["_id"]} | ({"search_after": after} if after else {})
        hits = ask(node, "POST", "/jobs/_search", search)["hits"]["hits"]
        documents += [Arrived(hit["_id"], "", hit["_source"]) for hit in hits]
        if not hits:
            return documents
        after = hits[-1]["sort"]


def of_redis(server: RedisServer) -> list[Arrived]:
    with server.client() as client:
        entries = [fields for _, fields in client.xrange("jobs-of-all")]
    return [Arrived(e["id"], e["position"], json.loads(e["payload"])) for e in entries]


def of_rabbit(server: RabbitServer) -> Target:
    taken = list[Arrived]()
    with server.connection() as connection:
        connection.channel().queue_declare("jobs-of-all", durable=True)

    def take() -> list[Arrived]:
        with server.connection() as connection:
            channel = connection.channel()
            while True:
                method, properties, body = channel.basic_get("jobs-of-all", auto_ack=True)
                if method is None:
                    return taken
                position = properties.headers["pgstream-position"]
                taken.append(Arrived(properties.message_id, position, json.loads(body)))

    return Target({"rabbitmq": {"url_from": "RABBIT_URL", "queue": "jobs-of-all"}}, server, take)


def of_nats(server: NatsServer) -> Target:
    async def on(work: Callable[[Any], Any]) -> Any:
        client = await nats.connect(server.url, allow_reconnect=False)
        try:
            return await work(client.jetstream())
        finally:
            await client.close()

    async def read_all(stream: Any) -> list[Arrived]:
        count = (await stream.stream_info("jobs-of-all")).state.messages
        subscription = await stream.subscribe("jobs.all", ordered_consumer=True)
        return [_of_message(await subscription.next_msg(30)) for _ in range(count)]

    asyncio.run(on(lambda s: s.add_stream(StreamConfig("jobs-of-all", subjects=["jobs.all"]))))
    config = {"nats": {"url_from": "NATS_URL", "subject": "jobs.all"}}
    return Target(config, server, lambda: asyncio.run(on(read_all)))


def _of_message(message: Any) -> Arrived:
    headers = message.headers
    return Arrived(headers["Nats-Msg-Id"], headers["pgstream-position"], json.loads(message.data))


def of_sqs(server: SqsServer) -> Target:
    taken, sqs = list[Arrived](), boto3.client("sqs", endpoint_url=server.url, **AWS)
    fifo = {"FifoQueue": "true"}
    url = sqs.create_queue(QueueName="jobs-of-all.fifo", Attributes=fifo)["QueueUrl"]

    def take() -> list[Arrived]:
        while messages := sqs.receive_message(
            QueueUrl=url,
            MaxNumberOfMessages=10,
            MessageAttributeNames=["All"],
            AttributeNames=["All"],
        ).get("Messages"):
            for message in messages:
                attributes = message["MessageAttributes"]
                taken.append(
                    Arrived(
                        attributes["pgstream-id"]["StringValue"],
                        attributes["pgstream-position"]["StringValue"],
                        json.loads(message["Body"]),
                    )
                )
                sqs.delete_message(QueueUrl=url, ReceiptHandle=message["ReceiptHandle"])
        return taken

    config = {"endpoint_url": server.url, "region": "elasticmq", "queue_url": url}
    return Target({"sqs": config}, server, take, "groups")
