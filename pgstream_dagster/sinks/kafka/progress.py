"""
The progress of a sink with `exactly_once`: a record of a topic, written with the changes.

The topic has one partition and belongs to one sink; the last record has the cursor.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import closing
from typing import Any, Final

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from pgstream_dagster.sinks.kafka.client import REQUEST_SECONDS, TO_THE_END
from pgstream_dagster.sinks.kafka.messages import Record

SETTINGS: Final = {
    # Small segments: compaction leaves the one that is written to alone.
    "segment.bytes": str(16 << 20),
}

RECORDS_BACK: Final = 64
"""How far back reading begins; markers of transactions count. Then twice as far, until it is
found."""


def topic(template: str, pipeline: str, sink: str) -> str:
    """The topic of a sink's progress."""
    return f"{template.format(pipeline=pipeline, namespace='', relation='')}.{sink}"


def record(name: str, pipeline: str, sink: str, cursor: str) -> Record:
    """The record of a cursor."""
    key = json.dumps({"pipeline": pipeline, "sink": sink}).encode()
    return Record(name, key, json.dumps({"cursor": cursor}).encode(), [])


def last_cursor(connection: Mapping[str, Any], name: str, key: bytes) -> str | None:
    """
    The cursor of the last committed transaction; `None` before the first.

    Raises:
        KafkaException
    """
    value = last_value(connection, name, key)
    return None if value is None else json.loads(value)["cursor"]


def has_open_transaction(connection: Mapping[str, Any], name: str) -> bool:
    """
    Whether a transaction that wrote to this topic of one partition has not ended.

    Raises:
        KafkaException
    """
    ends = {_end(connection, name, level) for level in ("read_committed", "read_uncommitted")}
    return len(ends) > 1


def _end(connection: Mapping[str, Any], name: str, isolation: str) -> int:
    """The offset at which a reader with this isolation level arrives."""
    settings = {**connection, "group.id": "pgstream", "isolation.level": isolation}
    with closing(Consumer(settings)) as consumer:
        ends = consumer.get_watermark_offsets(TopicPartition(name, 0), timeout=REQUEST_SECONDS)
    return ends[1]


def last_value(connection: Mapping[str, Any], name: str, key: bytes) -> bytes | None:
    """
    The value of the last committed record with a key, of a topic of one partition.

    Raises:
        KafkaException
    """
    settings = {
        **connection,
        "group.id": "pgstream",  # librdkafka asks for one; none is used
        "enable.auto.commit": False,
        "isolation.level": "read_committed",
        **TO_THE_END,
    }
    with closing(Consumer(settings)) as consumer:
        partition = TopicPartition(name, 0)
        low, high = consumer.get_watermark_offsets(partition, timeout=REQUEST_SECONDS)
        back = RECORDS_BACK
        while low < high:
            start = max(low, high - back)
            value = _last(consumer, TopicPartition(name, 0, start), high, key)
            if value is not None or start == low:
                return value
            back *= 2
    return None


def _last(consumer: Consumer, start: TopicPartition, high: int, key: bytes) -> bytes | None:
    """The value of the last record with this key from an offset to the end."""
    consumer.assign([start])
    value: bytes | None = None
    while True:
        message = consumer.poll(REQUEST_SECONDS)
        if message is None:
            raise KafkaException(KafkaError(KafkaError._TIMED_OUT))
        error = message.error()
        if error is None:
            value = message.value() if message.key() == key else value
        elif error.code() != KafkaError._PARTITION_EOF:
            raise KafkaException(error)
        elif (message.offset() or 0) >= high:
            return value
