"""Changes as records of Kafka: topic, key, value and headers. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache
from typing import Final, NamedTuple, TypeAlias

from pgstream_dagster.config.kafka import KafkaConfig
from pgstream_dagster.lsn import Lsn
from pgstream_dagster.readers.change import Change
from pgstream_dagster.schema.changes import Op
from pgstream_dagster.sinks.debezium import Debezium
from pgstream_dagster.sinks.envelope import Envelope
from pgstream_dagster.sinks.kafka.hooks import Hooks
from pgstream_dagster.sinks.kafka.keys import old_row_key

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


def records_of(config: KafkaConfig, pipeline: str, hooks: Hooks) -> Records:
    """The records of changes as a sink is configured; `HookFailed` comes before the first one."""
    return FORMS[config.envelope](config, pipeline, hooks)


class _Ours:
    """Our message, with a key of the sink's strategy."""

    def __init__(self, config: KafkaConfig, pipeline: str, hooks: Hooks) -> None:
        self._hooks, self._envelope = hooks, Envelope(pipeline)
        self._has_tombstones = config.has_tombstones

    def __call__(self, change: Change) -> Iterator[Record]:
        name, key = self._hooks.topic(change), self._hooks.key(change)
        headers = _headers(change, self._hooks)
        if self._has_tombstones and change.old_key is not None:
            yield Record(name, old_row_key(change), None, headers)
        yield Record(name, key, self._envelope(change), headers)
        if self._has_tombstones and change.op == Op.DELETE and change.key:
            yield Record(name, key, None, headers)


class _Debezium:
    """Debezium's key and value; an update of the key is a delete and a create, as theirs is."""

    def __init__(self, config: KafkaConfig, pipeline: str, hooks: Hooks) -> None:
        self._hooks = hooks
        self._form = Debezium(pipeline, config.database, config.decimals)
        self._has_tombstones = config.has_tombstones

    def __call__(self, change: Change) -> Iterator[Record]:
        if change.op not in self._form.operations:
            return
        name, headers = self._hooks.topic(change), _headers(change, self._hooks)
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


FORMS: Final[Mapping[str, Callable[[KafkaConfig, str, Hooks], Records]]] = {
    "pgstream": _Ours,
    "debezium": _Debezium,
}
"""The form of records by its name in the file, `envelope`: another one is another entry."""


def _headers(change: Change, hooks: Hooks) -> Headers:
    headers = headers_of(change)
    for name, value_of in hooks.headers:
        headers.append((name, value_of(change)))
    return headers


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
def _transaction(epoch: int, commit_lsn: Lsn) -> tuple[bytes, bytes]:
    return f"{epoch}-{commit_lsn}-".encode(), b"%08x.%016x." % (epoch, commit_lsn)
