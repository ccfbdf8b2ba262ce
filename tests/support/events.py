"""Events of the outbox, as the log has their rows."""

from __future__ import annotations

import json
from typing import Any, Final

from pgstream_dagster.readers.change import Change
from pgstream_dagster.schema.table import TableSchema
from pgstream_dagster.sinks.events import Events
from tests.support.changes import change, schema

EVENTS: Final[TableSchema] = schema(
    {
        "id": "uuid",
        "stream_id": "int8",
        "payload": "jsonb",
        "metadata": "jsonb",
        "created_at": "timestamptz",
        "xid": "xid8",
    },
    ("created_at", "id"),
    namespace="pgstream",
    name="events",
)

XID: Final = 731

CREATED: Final = "2026-01-01 00:00:00.000001+00"


def event_id(number: int) -> str:
    """The id of event `number`."""
    return f"019b76da-a800-7000-8000-{number:012x}"


def row(number: int = 1, payload: str = '{"n": 1}', *, stream: int = 1, **facts: Any) -> Change:
    """The row of an event; `metadata` is an object or text."""
    metadata = facts.pop("metadata", None)
    text = metadata if metadata is None or isinstance(metadata, str) else json.dumps(metadata)
    image = {
        "id": facts.pop("id", event_id(number)),
        "stream_id": str(stream),
        "payload": payload,
        "metadata": text,
        "created_at": CREATED,
        "xid": str(facts.pop("written_in", (7 << 32) + XID)),
    }
    facts.setdefault("ordinal", number)
    return change(facts.pop("op", "insert"), EVENTS, after=image, **facts)


def event(number: int = 1, payload: str = '{"n": 1}', **metadata: Any) -> Change:
    """An event as sinks receive it."""
    made = Events(1).of_change(row(number, payload, metadata=metadata or None))
    assert made is not None
    return made
