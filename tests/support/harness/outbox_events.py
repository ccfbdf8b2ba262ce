"""Events of the outbox, and changes of a table, made by hand for the tests of queues."""

from __future__ import annotations

import json
from typing import Any

from pgstream_dagster.readers.change import Change, ChangeBatch
from pgstream_dagster.sinks.events import Events
from tests.support.changes import change, schema

EVENTS = schema(
    {"id": "int8", "stream_id": "int8", "metadata": "jsonb", "payload": "jsonb"},
    key=("id",),
    namespace="pgstream",
    name="events",
)


def event(number: int, payload: Any = None, **metadata: Any) -> Change:
    """Event `number` of stream 1, as a sink with `outbox` gets it."""
    row = {
        "id": f"e{number}",
        "stream_id": "1",
        "metadata": json.dumps(metadata),
        "payload": json.dumps({"n": number} if payload is None else payload),
    }
    made = Events(1).of_change(change(table=EVENTS, after=row, ordinal=number))
    assert made is not None
    return made


def order(number: int, note: str = "") -> Change:
    """A change of row `number` of `public.orders`."""
    return change(after={"id": str(number), "amount": "9.90", "note": note}, ordinal=number)


def batch(*changes: Change) -> ChangeBatch:
    return ChangeBatch(list(changes), "1")
