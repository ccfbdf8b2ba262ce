"""
Events of the outbox: rows of `pgstream.events` go in, changes that sinks deliver come out. Pure.

An event is a change of op `message`: its `payload` is the body, as Postgres' text of `jsonb`, so
that numbers keep every digit; `after` has the other columns of its row. Its key is the group that
its metadata or payload names, within which the order holds; without one it is behind no other.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from pgstream_dagster.readers.change import Change, Image, Key
from pgstream_dagster.schema.changes import FIRST_EPOCH, Op

GROUP: Final = "group_id"
"""The member of the metadata, or else of the payload, that names the group."""

FAILED: Final = "pgstream_error"
"""The member of the metadata that says why a subscription could not make the event."""

XIDS: Final = 1 << 32
"""The log has transaction ids without their epoch."""


class Events:
    """Of the rows of the table of events, those of one stream."""

    def __init__(
        self, stream: int, *, as_rows: bool = False, delivered_before: str | None = None
    ) -> None:
        """
        `as_rows`: they stay rows of their table, for a target that has tables.

        `delivered_before`: Postgres' text of a snapshot; rows of the log's first epoch that were
        copied, of transactions that it sees, are left out. In a later one, the source may have been
        restored, and its transaction ids used again.
        """
        self._stream, self._as_rows = str(stream), as_rows
        self._delivered = None if delivered_before is None else Snapshot.parse(delivered_before)

    def of_change(self, change: Change) -> Change | None:
        """The event that a row is; `None` for one of another stream, or one that was only moved."""
        row = change.after
        if row is None or row.get("stream_id") != self._stream or _is_moved(change, row):
            return None
        if self._is_delivered(change, row):
            return None
        return change if self._as_rows else _event(change, row)

    def _is_delivered(self, change: Change, row: Image) -> bool:
        is_first_copy = change.op == Op.READ and change.epoch == FIRST_EPOCH
        return self._delivered is not None and is_first_copy and _xid(row) in self._delivered


def metadata_of(row: Image) -> dict[str, Any] | None:
    """The metadata of an event, none is empty; `None` if it is no JSON object that can be read."""
    try:
        metadata = msgspec.json.decode(row.get("metadata") or "{}")
    except UNREADABLE:
        return None
    return metadata if isinstance(metadata, dict) else {} if metadata is None else None


UNREADABLE: Final = (msgspec.DecodeError, RecursionError)
"""JSON of Postgres may be nested more deeply, and have larger numbers, than Python takes."""


class _Payload(msgspec.Struct):
    group_id: msgspec.Raw = msgspec.Raw()


_PAYLOAD: Final = msgspec.json.Decoder(_Payload)


def group_of(metadata: Mapping[str, Any], payload: str | None) -> str | None:
    """The group of an event; `None`: it is behind no other event."""
    group = metadata.get(GROUP)
    if group is None and payload is not None and f'"{GROUP}"' in payload:
        group = _of_payload(payload)
    return None if group is None else str(group)


def _of_payload(payload: str) -> object:
    try:
        raw = _PAYLOAD.decode(payload).group_id
    except UNREADABLE:  # no object, or one that is nested too deeply
        return None
    try:
        return msgspec.json.decode(raw) if raw else None
    except UNREADABLE:
        return bytes(raw).decode()


@dataclass(frozen=True, slots=True)
class Snapshot:
    """
    The transactions that a snapshot sees: those that had ended before `end` and are not `open`.

    Source:
        https://www.postgresql.org/docs/current/functions-info.html#FUNCTIONS-INFO-SNAPSHOT
    """

    end: int
    open: frozenset[int]

    @classmethod
    def parse(cls, text: str) -> Snapshot:
        """That of a `pg_snapshot` as text, `xmin:xmax:xip_list`."""
        _, end, xids = text.split(":")
        return cls(int(end), frozenset(map(int, filter(None, xids.split(",")))))

    def __contains__(self, xid: int | None) -> bool:
        return xid is not None and xid < self.end and xid not in self.open


def _xid(row: Image) -> int | None:
    written = row.get("xid")
    return None if written is None else int(written)


def _is_moved(change: Change, row: Image) -> bool:
    """Whether a later transaction has moved the row, such as from one partition to another."""
    written = _xid(row)
    return change.xid is not None and written is not None and written % XIDS != change.xid


def _event(change: Change, row: Image) -> Change:
    return msgspec.structs.replace(
        change,
        op=Op.MESSAGE.value,
        schema=None,
        key=_key(row),
        old_key=None,
        payload=row.get("payload"),
        after={name: text for name, text in row.items() if name != "payload"},
    )


def _key(row: Image) -> Key:
    group = group_of(metadata_of(row) or {}, row.get("payload"))
    return ("id", row.get("id")) if group is None else ("group", group)
