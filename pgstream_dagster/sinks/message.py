"""
What a queue carries: an event of the outbox with its route, or a change in our envelope. Pure.

An event's metadata names where it goes (topic, queue, headers...); the configuration is the
default. An event that names neither is refused: no later attempt finds a place for it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from pgstream_dagster.readers.change import Change
from pgstream_dagster.sinks.base import Refused
from pgstream_dagster.sinks.envelope import Envelope, instant
from pgstream_dagster.sinks.events import FAILED, group_of, metadata_of
from pgstream_dagster.values.exact import string

NO_OBJECT: Final = "the event's metadata is no JSON object that can be read"

ORDINALS: Final = 1 << 63
"""Added to an ordinal, so that negative ones sort first."""


@dataclass(frozen=True, slots=True)
class Message:
    """
    One message: `id` is the same whenever it comes again; those of one `group` stay in order.

    `route` is the metadata of an event, and empty for a change. `position` sorts as the commits do;
    `committed_at` is RFC 3339 in UTC, and empty for copied rows.
    """

    id: str
    body: bytes
    group: str | None
    position: str
    committed_at: str
    route: Mapping[str, Any] = field(default_factory=dict[str, Any])

    def headers(self) -> dict[str, str]:
        """What a consumer needs to drop repetitions and to order, for targets with headers."""
        names = {"pgstream-id": self.id, "pgstream-position": self.position}
        return names | {"pgstream-committed-at": self.committed_at} if self.committed_at else names

    def place(self, name: str, default: str | None, setting: str) -> str | Refused:
        """
        Where the message goes: what its metadata has under `name`, else the default.

        `setting` is the key of the pipeline file that would give a default.
        """
        given = default if self.route.get(name) is None else self.route[name]
        if isinstance(given, str) and given:
            return given
        if given is None:
            return Refused(f"the event's metadata has no {name!r}, and {setting} gives none")
        return Refused(f"the event's metadata has a {name!r} that is no text: {given!r}")


class Messages:
    """Changes of one sink as messages."""

    def __init__(self, pipeline: str) -> None:
        self._envelope: Final = Envelope(pipeline)

    def of_changes(self, changes: Sequence[Change]) -> Iterator[Message | Refused]:
        """The message of each change, or why there is none, in order."""
        return map(self.of_change, changes)

    def of_change(self, change: Change) -> Message | Refused:
        """The message of a change."""
        if is_event(change):
            return of_event(change)
        return Message(
            *(change.event_id, self._envelope(change), _group(change)),
            *(position_of(change), _committed_at(change)),
        )


def is_event(change: Change) -> bool:
    """Whether a change is an event of the outbox (`sinks.events`)."""
    return change.schema is None and change.payload is not None and change.after is not None


def of_event(change: Change) -> Message | Refused:
    """The message of an event, or why it cannot be delivered, now or later."""
    row = change.after or {}
    metadata = metadata_of(row)
    if metadata is None:
        return Refused(NO_OBJECT)
    if FAILED in metadata:
        return Refused(f"its subscription failed: {metadata[FAILED]}")
    return Message(
        row.get("id") or change.event_id,
        (change.payload or "null").encode(),
        group_of(metadata, change.payload),
        position_of(change),
        _committed_at(change),
        metadata,
    )


def lines(changes: Sequence[Change]) -> Iterator[bytes | Refused]:
    """Events as lines of JSON, for targets that have no headers."""
    for change in changes:
        message = of_event(change)
        yield message if isinstance(message, Refused) else _line(change, message)


def _line(change: Change, message: Message) -> bytes:
    row = change.after or {}
    members = {
        "id": string(message.id),
        "position": string(message.position),
        "committed_at": string(message.committed_at) if message.committed_at else "null",
        "metadata": row.get("metadata") or "null",
        "payload": message.body.decode(),
    }
    return ("{" + ",".join(f'"{name}":{text}' for name, text in members.items()) + "}").encode()


def _group(change: Change) -> str:
    key = () if change.key is None else change.key
    return ":".join([f"{change.namespace}.{change.relation}", *(text or "" for text in key)])


def position_of(change: Change) -> str:
    """The position of a change as a text that sorts, byte by byte, as the changes do."""
    return f"{change.epoch:08x}.{int(change.commit_lsn):016x}.{change.ordinal + ORDINALS:016x}"


def _committed_at(change: Change) -> str:
    return "" if change.committed_at_us is None else instant(change.committed_at_us)
