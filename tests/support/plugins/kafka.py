"""
Real Kafka brokers for tests: `kafka`, `own_kafka`, `topic_prefix`.

In this order: the brokers that PGSTREAM_TEST_KAFKA names (without TLS or login), an embedded one,
else the test is skipped with the reason. REQUIRE_SERVERS=1 turns the skip into a failure.
"""

from __future__ import annotations

import itertools
import os
import secrets
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from typing import Any, Final, NamedTuple, Protocol, TypeVar, cast

import pytest
from confluent_kafka import Consumer, KafkaError, TopicPartition
from confluent_kafka.admin import AdminClient

from pgstream_dagster.embedded import kafka as embedded
from pgstream_dagster.errors import PgstreamError
from pgstream_dagster.sinks.kafka.client import TO_THE_END
from tests.support.plugins.cluster import add_logs, unavailable

ADDRESS: Final = os.environ.get("PGSTREAM_TEST_KAFKA", "")

AS_BY_DEFAULT: Final = {"auto.create.topics.enable": "true"}
"""Brokers make topics that are only asked for, unless their owner forbids it."""

COMMIT_SECONDS: Final = 0.5
"""For the records of a transaction to be there after its commit."""

_numbers = itertools.count(1)


class Broker(Protocol):
    """What a test may ask of the shared brokers, whichever process started them."""

    @property
    def servers(self) -> str: ...
    def log(self) -> str: ...
    def close(self) -> None: ...


class GivenBroker:
    """The brokers of PGSTREAM_TEST_KAFKA."""

    def __init__(self, servers: str) -> None:
        self.servers = servers

    def log(self) -> str:
        return ""  # stays where the brokers write it

    def close(self) -> None:
        """They are not ours."""


class Read(NamedTuple):
    """One record as a consumer gets it."""

    partition: int
    offset: int
    key: bytes | None
    value: bytes | None
    headers: dict[str, bytes]


def read(
    servers: str, topic: str, isolation: str = "read_committed", **settings: str
) -> list[Read]:
    """All records of a topic, partition by partition, in their order."""
    connection = {"bootstrap.servers": servers, "group.id": "test", **settings}
    consumer = Consumer(
        {
            **connection,
            "enable.auto.commit": False,
            "isolation.level": isolation,
            "fetch.message.max.bytes": 64 << 20,
            **TO_THE_END,
        }
    )
    with closing(consumer):
        partitions = sorted(consumer.list_topics(topic, timeout=30).topics[topic].partitions)
        if isolation == "read_committed":
            _wait_for_commits(connection, [TopicPartition(topic, number) for number in partitions])
        return [record for number in partitions for record in _all(consumer, topic, number)]


def _wait_for_commits(connection: Mapping[str, str], partitions: Sequence[TopicPartition]) -> None:
    """Until no transaction is open, or for a time: a broker answers a commit before it is read."""
    with (
        closing(Consumer({**connection, "isolation.level": "read_committed"})) as committed,
        closing(Consumer({**connection, "isolation.level": "read_uncommitted"})) as written,
    ):
        until = time.monotonic() + COMMIT_SECONDS
        while any(_end(committed, p) != _end(written, p) for p in partitions):
            if time.monotonic() > until:
                return
            time.sleep(0.01)


def _end(consumer: Consumer, partition: TopicPartition) -> int:
    return consumer.get_watermark_offsets(partition, timeout=30)[1]


def _all(consumer: Consumer, topic: str, partition: int) -> Iterator[Read]:
    consumer.assign([TopicPartition(topic, partition, 0)])
    while True:
        message = consumer.poll(30)
        assert message is not None, "the broker does not answer"
        error = message.error()
        if error is not None:
            assert error.code() == KafkaError._PARTITION_EOF, error
            return
        headers = cast("list[tuple[str, bytes]]", message.headers() or [])
        offset = cast("int", message.offset())
        yield Read(partition, offset, message.key(), message.value(), dict(headers))


def stable_end(servers: str, topic: str) -> int:
    """Where the first open transaction of a topic with one partition begins, else its end."""
    settings = {"bootstrap.servers": servers, "group.id": "test"}
    with closing(Consumer({**settings, "isolation.level": "read_committed"})) as consumer:
        return _end(consumer, TopicPartition(topic, 0))


def topics(servers: str, prefix: str) -> dict[str, Any]:
    """The topics whose names begin so."""
    listed = AdminClient({"bootstrap.servers": servers}).list_topics(timeout=30).topics
    return {name: topic for name, topic in listed.items() if name.startswith(prefix)}


def started(settings: Mapping[str, str] | None = None, **options: Any) -> embedded.Kafka:
    """An embedded broker; the test is skipped, or fails, if it cannot be started."""
    return start(embedded.Kafka(settings, **options))


B = TypeVar("B", bound=embedded.Kafka)


def start(broker: B) -> B:
    """Start it; the test is skipped, or fails, if it cannot be started."""
    try:
        broker.start()
    except (PgstreamError, OSError) as error:
        broker.close()
        return unavailable("Kafka", [f"embedded: {error}"])
    except BaseException:
        broker.close()
        raise
    return broker


@pytest.fixture(scope="session")
def kafka() -> Iterator[Broker]:
    """One broker for all tests of the session; a test leaves it running and as it was."""
    broker = GivenBroker(ADDRESS) if ADDRESS else started(AS_BY_DEFAULT)
    try:
        yield broker
    finally:
        broker.close()


@pytest.fixture
def own_kafka() -> Iterator[embedded.Kafka]:
    """A broker of this test alone, which it may stop, kill, restart and configure."""
    broker = started()
    try:
        yield broker
    finally:
        broker.close()


@pytest.fixture
def topic_prefix(kafka: Broker) -> Iterator[str]:
    """How this test's topics begin; what has such a name goes at the end."""
    prefix = f"t{next(_numbers)}-{secrets.token_hex(3)}."
    try:
        yield prefix
    finally:
        names = list(topics(kafka.servers, prefix))
        if names:
            client = AdminClient({"bootstrap.servers": kafka.servers})
            for answer in client.delete_topics(names).values():
                answer.result()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Iterator[None]:
    """Show what the broker said beside a failed test."""
    report = cast("pytest.TestReport", (yield))
    add_logs(report, item, ("kafka", "own_kafka"))
    return report  # type: ignore[return-value]
