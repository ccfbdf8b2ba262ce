"""A process that slept through its replacement hands no further record to its producer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from pgstream_dagster.config.kafka import KafkaConfig
from pgstream_dagster.errors import SinkLost
from pgstream_dagster.readers.change import ChangeBatch
from pgstream_dagster.sinks.kafka import admin
from pgstream_dagster.sinks.kafka import sink as sink_module
from pgstream_dagster.sinks.kafka.sink import KafkaSink
from tests.support.changes import change


class Producer:
    """Takes records into its queue, and delivers none by itself."""

    made: Producer

    def __init__(self, *_: object, **__: object) -> None:
        self.produced, self.queued, self.limit = 0, 0, 1_000_000
        Producer.made = self

    def produce(self, *_: object, **__: object) -> None:
        if self.queued >= self.limit:
            raise BufferError
        self.produced, self.queued = self.produced + 1, self.queued + 1

    def poll(self, _seconds: float) -> int:
        return 0

    def purge(self, **_: object) -> None:
        self.queued = 0

    def __len__(self) -> int:
        return self.queued


class Fence:
    """Raises after so many checks, as the lease of a sink that was taken over does."""

    def __init__(self, checks: int) -> None:
        self.left = checks

    def __call__(self, _seconds: float) -> None:
        self.left -= 1
        if self.left < 0:
            raise SinkLost("events")


@pytest.fixture
def sink(monkeypatch: pytest.MonkeyPatch) -> KafkaSink:
    nothing: Callable[..., Any] = lambda *_, **__: None  # noqa: E731
    monkeypatch.setattr(sink_module, "Producer", Producer)
    monkeypatch.setattr(sink_module, "AdminClient", nothing)
    monkeypatch.setattr(admin, "check", nothing)
    monkeypatch.setattr(KafkaSink, "_prepare", nothing)
    config = KafkaConfig(bootstrap_servers="nowhere", topic="t")
    made = KafkaSink(config, pipeline="shop", sink="events", environment={})
    made.open()
    return made


def batch(fence: Fence) -> ChangeBatch:
    changes = [change(after={"id": str(n), "amount": "1", "note": ""}) for n in range(3_000)]
    return ChangeBatch(changes, require=fence)


def test_no_record_follows_the_loss_of_the_lease(sink: KafkaSink) -> None:
    with pytest.raises(SinkLost):
        sink.deliver(batch(Fence(100)))
    assert Producer.made.produced == 100
    assert Producer.made.queued == 0  # nor does one that waited in the producer


def test_records_are_not_waited_for_after_the_loss_of_the_lease(sink: KafkaSink) -> None:
    with pytest.raises(SinkLost):
        sink.deliver(batch(Fence(3_010)))  # while brokers acknowledge nothing
    assert Producer.made.queued == 0


def test_room_is_not_waited_for_after_the_loss_of_the_lease(sink: KafkaSink) -> None:
    Producer.made.limit = 50
    with pytest.raises(SinkLost):
        sink.deliver(batch(Fence(60)))
    assert (Producer.made.produced, Producer.made.queued) == (50, 0)
