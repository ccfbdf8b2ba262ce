"""Changes as records of Kafka: topic, key, value and headers. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Final, NamedTuple, Protocol, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pgstream_dagster.config.kafka import KafkaConfig
from pgstream_dagster.lsn import Lsn
from pgstream_dagster.readers.change import Change, changes_of
from pgstream_dagster.schema.changes import Op
from pgstream_dagster.sinks.columns import (
    by_group,
    joined,
    numbers,
    octets_of,
    of_changes,
    transactions,
)
from pgstream_dagster.sinks.debezium import Debezium
from pgstream_dagster.sinks.envelope import Envelope
from pgstream_dagster.sinks.kafka.hooks import EventPlaces, HookFailed, Hooks, event_message
from pgstream_dagster.sinks.kafka.keys import keys_of_version, old_row_key
from pgstream_dagster.sinks.message import ORDINALS, Message

Headers: TypeAlias = "list[tuple[str, str | bytes | None]]"

EVENT_ID: Final = "pgstream.event_id"
POSITION: Final = "pgstream.position"
COMMITTED_AT: Final = "pgstream.committed_at"
OPERATION: Final = "pgstream.op"
SCHEMA_ID: Final = "pgstream.schema_id"
OLD_KEY: Final = "__debezium.oldkey"
NEW_KEY: Final = "__debezium.newkey"

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

RecordFields: TypeAlias = "tuple[str, bytes | None, bytes | None, Headers]"
"""The fields of a `Record`: making one takes as long as to render it."""


KeysAndValues: TypeAlias = "tuple[Sequence[bytes | None], Sequence[bytes]]"
"""Of changes with one record each, tombstones left aside."""


class Form(Protocol):
    """What the records of changes are."""

    def __call__(self, change: Change) -> Iterator[Record]:
        """The records of a change, in order."""
        ...

    def of_version(self, rows: pa.Table, first: Change) -> KeysAndValues | None:
        """
        Those of each change of one version of a table, whether or not it changes a key.

        `None`: columns do not express them. `first` is the change of the first row.
        """
        ...


class Records:
    """The records of changes as a sink is configured."""

    def __init__(self, config: KafkaConfig, pipeline: str, hooks: Hooks) -> None:
        self._form: Form = (
            FORMS[config.envelope](config, pipeline, hooks)
            if hooks.events is None
            else _Events(hooks.events)
        )
        self._hooks, self._has_tombstones = hooks, config.has_tombstones

    def of_changes(
        self, changes: Sequence[Change]
    ) -> Iterator[Sequence[RecordFields] | HookFailed]:
        """Those of each change, in order; or why a function of the file gives none for it."""
        if self._hooks.has_functions:
            return map(self._or_failure, changes)
        return of_changes(changes, self._of_version, self._of_change)

    def _or_failure(self, change: Change) -> Sequence[RecordFields] | HookFailed:
        try:
            return self._of_change(change)
        except HookFailed as error:
            return error

    def _of_change(self, change: Change) -> Sequence[RecordFields]:
        return [*self._form(change)]

    def _of_version(self, rows: pa.Table, first: Change) -> Iterable[Sequence[RecordFields]] | None:
        made = self._form.of_version(rows, first)
        if made is None:
            return None
        ends = _ends(rows, has_tombstones=self._has_tombstones)
        records = _of_rows(self._hooks.topic(first), *made, ends, rows, first)
        has_other_key = rows.column("old_key").is_valid().to_numpy()
        if first.schema is None or not has_other_key.any():
            return records
        results, places = list(records), np.flatnonzero(has_other_key)
        moved = changes_of(rows.take(pa.array(places)), {first.schema.schema_id: first.schema})
        for place, change in zip(places.tolist(), moved, strict=True):
            results[place] = self._of_change(change)
        return results


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

    def of_version(self, rows: pa.Table, first: Change) -> KeysAndValues | None:
        keys = keys_of_version(self._hooks.key, rows, first)
        values = self._envelope.of_version(rows, first)
        return None if keys is None or values is None else (keys, values)


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

    def of_version(self, rows: pa.Table, first: Change) -> KeysAndValues | None:
        return self._form.of_version(rows, first)


class _Events:
    """An event of the outbox: its payload, and headers to drop repetitions and to order by."""

    def __init__(self, places: EventPlaces) -> None:
        self._places = places

    def __call__(self, change: Change) -> Iterator[Record]:
        message = event_message(change)
        name, key = self._places.topic(message), self._places.key(message)
        headers: Headers = [(EVENT_ID, message.id.encode()), (POSITION, message.position.encode())]
        if message.committed_at:
            headers.append((COMMITTED_AT, message.committed_at.encode()))
        yield Record(name, key, message.body, [*headers, *_own_headers(message)])

    def of_version(self, rows: pa.Table, first: Change) -> None:  # noqa: ARG002 - as `Form` has it
        return None


def _own_headers(message: Message) -> Headers:
    """The headers that the event's metadata names."""
    headers = message.route.get("headers")
    if not isinstance(headers, dict):
        return []
    return [(str(name), str(text).encode()) for name, text in headers.items()]


FORMS: Final[Mapping[str, Callable[[KafkaConfig, str, Hooks], Form]]] = {
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


def _of_rows(
    topic: str,
    keys: Iterable[bytes | None],
    values: Iterable[bytes],
    ends: Iterable[bool],
    rows: pa.Table,
    first: Change,
) -> Iterator[Sequence[RecordFields]]:
    """The records of rows of one version; a tombstone follows where it `ends`."""
    headers_of_rows = _headers_of_version(rows, first)
    for key, value, headers, is_end in zip(keys, values, headers_of_rows, ends, strict=True):
        record = (topic, key, value, headers)
        yield (record, (topic, key, None, headers)) if is_end else (record,)


def _ends(rows: pa.Table, *, has_tombstones: bool) -> list[bool]:
    """After which changes a tombstone follows: each deletes the row of a key."""
    if not has_tombstones:
        return [False] * len(rows)
    has_key = pc.greater(pc.list_value_length(rows.column("key")), 0).fill_null(False)  # noqa: FBT003
    return pc.and_(has_key, pc.equal(rows.column("op"), Op.DELETE.value)).to_pylist()


def _headers_of_version(rows: pa.Table, first: Change) -> Iterator[Headers]:
    """`headers_of` each change of a version."""
    group, places = transactions(rows, "epoch", "commit_lsn")
    identities = [f"{epoch}-{Lsn(lsn)}-" for epoch, lsn in places]
    ids = octets_of(joined(by_group(identities, group), numbers(rows)))
    ops = rows.column("op").to_pylist()
    operations = {op: (OPERATION, op.encode()) for op in set(ops)}
    assert first.schema is not None
    version = (SCHEMA_ID, b"%d" % first.schema.schema_id)
    for event_id, position, op in zip(ids, _positions(rows), ops, strict=True):
        yield [(EVENT_ID, event_id), (POSITION, position), operations[op], version]


def _positions(rows: pa.Table) -> list[bytes]:
    """The texts of the positions, each as `headers_of` has it."""
    digits = np.full((len(rows), 8 + 1 + 16 + 1 + 16), ord("."), np.uint8)
    ordinals = rows.column("ordinal").to_numpy().view(np.uint64) + np.uint64(ORDINALS)
    digits[:, :8] = _hexadecimal(rows.column("epoch").to_numpy().astype(">u4"))
    digits[:, 9:25] = _hexadecimal(rows.column("commit_lsn").to_numpy().astype(">u8"))
    digits[:, 26:] = _hexadecimal(ordinals.astype(">u8"))
    return digits.view(f"S{digits.shape[1]}").ravel().tolist()


def _hexadecimal(numbers: np.ndarray) -> np.ndarray:
    text = numbers.tobytes().hex().encode()
    return np.frombuffer(text, np.uint8).reshape(len(numbers), numbers.itemsize * 2)


@lru_cache(maxsize=TRANSACTIONS_KEPT)
def _transaction(epoch: int, commit_lsn: Lsn) -> tuple[bytes, bytes]:
    return f"{epoch}-{commit_lsn}-".encode(), b"%08x.%016x." % (epoch, commit_lsn)
