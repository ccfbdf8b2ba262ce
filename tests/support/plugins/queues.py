"""
Real servers of queues for tests: `redis_server`, `rabbit_server`, `nats_server`,
`sqs_server`.

Each is started once for all tests of a session; a test that stops one starts it again. What cannot
be started is a test that is skipped with the reason, and with REQUIRE_SERVERS=1 one that fails.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypeVar

import pytest

from pgstream_dagster.errors import PgstreamError
from tests.support.harness.queue_servers import (
    NatsServer,
    QueueServer,
    RabbitServer,
    RedisServer,
    SqsServer,
)
from tests.support.plugins.cluster import unavailable

S = TypeVar("S", bound=QueueServer)


def _running(server: S) -> Iterator[S]:
    try:
        try:
            server.start()
        except (PgstreamError, OSError) as error:
            unavailable(server.name, [str(error)])
        yield server
    finally:
        server.close()


@pytest.fixture(scope="session")
def _shared_redis() -> Iterator[RedisServer]:
    yield from _running(RedisServer())


@pytest.fixture
def redis_server(_shared_redis: RedisServer) -> RedisServer:
    """Redis without any data, which the test may stop, kill and start."""
    _shared_redis.start()
    _shared_redis.client().flushall()
    return _shared_redis


@pytest.fixture(scope="session")
def _shared_rabbit() -> Iterator[RabbitServer]:
    yield from _running(RabbitServer())


@pytest.fixture
def rabbit_server(_shared_rabbit: RabbitServer) -> RabbitServer:
    """RabbitMQ, which the test may stop, kill and start; queues of other tests may be there."""
    _shared_rabbit.start()
    return _shared_rabbit


@pytest.fixture(scope="session")
def _shared_nats() -> Iterator[NatsServer]:
    yield from _running(NatsServer())


@pytest.fixture
def nats_server(_shared_nats: NatsServer) -> NatsServer:
    """NATS with JetStream, which the test may stop, kill and start."""
    _shared_nats.start()
    return _shared_nats


@pytest.fixture(scope="session")
def _shared_sqs() -> Iterator[SqsServer]:
    yield from _running(SqsServer())


@pytest.fixture
def sqs_server(_shared_sqs: SqsServer) -> SqsServer:
    """ElasticMQ, which the test may stop, kill and start."""
    _shared_sqs.start()
    return _shared_sqs
