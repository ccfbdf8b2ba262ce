"""Changes as records of Kafka: topic, key, value and headers. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import Final, NamedTuple, TypeAlias

from pgstream_dagster.config.kafka import KafkaConfig
from pgstream_dagster.lsn import Lsn
from pgstream_dagster.readers.change import Change
from pgstream_dagster.schema.changes import Op
from pgstream_dagster.sinks.debezium import Debezium
from pgstream_dagster.sinks.envelope import Envelope
from pgstream_dagster.sinks.kafka.keys import KeyOf, old_row_key
from pgstream_dagster.sinks.kafka.topics import topic

Headers: TypeAlias = "list[tuple[str, str | bytes | None]]"

EVENT_ID: Final = "pgstream.event_id"
POSITION: Final = "pgstream.position"
OPERATION: Final = "pgstream.op"
SCHEMA_ID: Final = "pgstream.schema_id"
OLD_KEY: Final = "__debezium.oldkey"
NEW_KEY: Final = "__debezium.newkey"

ORDINALS: Final = 1 << 63
"""Added to an ordinal, so that negative ones sort first."""

TRANSACTIONS_KEPT: Final = 512


class Record(NamedTuple):
    """One record; without a value it is a tombstone."""

    topic: str
    key: bytes | None
    value: bytes | None
    headers: Headers

    @property
    def size_bytes(self) -> int:
        """About what it takes in a batch, uncompressed."""
        headers = sum(len(name) + len(value or b"") + 4 for name, value in self.headers)
        return len(self.key or b"") + len(self.value or b"") + headers + RECORD_BYTES


RECORD_BYTES: Final = 128
"""Lengths, deltas and the header of a batch, with some to spare."""

Records: TypeAlias = Callable[[Change], Iterator[Record]]
"""From a change to its records, in order."""


def records_of(config: KafkaConfig, pipeline: str, key_of: KeyOf) -> Records:
    """The records of changes as a sink is configured."""
    if config.envelope == "debezium":
        return _Debezium(config, pipeline)
    return _Ours(config, pipeline, key_of)


class _Ours:
    """Our message, with a key of the sink's strategy."""

    def __init__(self, config: KafkaConfig, pipeline: str, key_of: KeyOf) -> None:
        self._template, self._pipeline = config.topic, pipeline
        self._key_of, self._envelope = key_of, Envelope(pipeline)
        self._has_tombstones = config.has_tombstones

    def __call__(self, change: Change) -> Iterator[Record]:
        name = topic(self._template, self._pipeline, change.namespace, change.relation)
        headers = headers_of(change)
        if self._has_tombstones and change.old_key is not None:
            yield Record(name, old_row_key(change), None, headers)
        key = self._key_of(change)
        yield Record(name, key, self._envelope(change), headers)
        if self._has_tombstones and change.op == Op.DELETE and change.key:
            yield Record(name, key, None, headers)


class _Debezium:
    """Debezium's key and value; an update of the key is a delete and a create, as theirs is."""

    def __init__(self, config: KafkaConfig, pipeline: str) -> None:
        self._template, self._pipeline = config.topic, pipeline
        self._form = Debezium(pipeline, config.database, config.decimals)
        self._has_tombstones = config.has_tombstones

    def __call__(self, change: Change) -> Iterator[Record]:
        if change.op not in self._form.operations:
            return
        name = topic(self._template, self._pipeline, change.namespace, change.relation)
        headers = headers_of(change)
        key = self._form.key(change, change.key)
        if change.old_key is not None:
            old_key = self._form.key(change, change.old_key)
            moved: Headers = [*headers, (NEW_KEY, key or b"")]
            yield Record(name, old_key, self._form.deleted(change), moved)
            if self._has_tombstones:
                yield Record(name, old_key, None, moved)
            created: Headers = [*headers, (OLD_KEY, old_key or b"")]
            yield Record(name, key, self._form.created(change), created)
            return
        yield Record(name, key, self._form.value(change), headers)
        if self._has_tombstones and change.op == Op.DELETE and key is not None:
            yield Record(name, key, None, headers)


def headers_of(change: Change) -> Headers:
    """
    What a receiver needs without reading the value.

    The position sorts as the changes do, byte by byte.
    """
    identity, place = _transaction(change.epoch, change.commit_lsn)
    ordinal = change.ordinal
    number = b"%d" % ordinal if ordinal >= 0 else change.number.encode()
    headers: Headers = [
        (EVENT_ID, identity + number),
        (POSITION, b"%b%016x" % (place, ordinal + ORDINALS)),
        (OPERATION, change.op.encode()),
    ]
    if change.schema is not None:
        headers.append((SCHEMA_ID, b"%d" % change.schema.schema_id))
    return headers


@lru_cache(maxsize=TRANSACTIONS_KEPT)
def _transaction(epoch: int, commit_lsn: int) -> tuple[bytes, bytes]:
    return f"{epoch}-{Lsn(commit_lsn)}-".encode(), b"%08x.%016x." % (epoch, commit_lsn)
