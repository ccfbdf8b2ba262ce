"""Events of the outbox, and changes of a table, made by hand for the tests of queues."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Sequence
from typing import Any

from pgstream_dagster.errors import SinkUnreachable
from pgstream_dagster.readers.change import Change, ChangeBatch
from pgstream_dagster.sinks.base import Sink
from pgstream_dagster.sinks.events import Events
from tests.support.changes import change
from tests.support.events import row


def event(number: int, payload: Any = None, **metadata: Any) -> Change:
    """Event `number` of stream 1, with a short id, as a sink with `outbox` gets it."""
    text = json.dumps({"n": number} if payload is None else payload)
    made = Events(1).of_change(row(number, text, metadata=metadata, id=f"e{number}"))
    assert made is not None
    return made


def order(number: int, note: str = "") -> Change:
    """A change of row `number` of `public.orders`."""
    return change(after={"id": str(number), "amount": "9.90", "note": note}, ordinal=number)


def batch(*changes: Change) -> ChangeBatch:
    return ChangeBatch(list(changes), "1")


def outages_while_killed(
    kill: Callable[[threading.Event], None], make: Callable[[], Sink], changes: Sequence[Change]
) -> int:
    """
    Deliver a batch while `kill`, in a thread, ends the server and starts it again; the outages.

    As the follower does: the batch comes again, to a new sink, until it is delivered. `kill` gets
    what is set once that is over.
    """
    is_over = threading.Event()
    killer = threading.Thread(target=kill, args=(is_over,))
    killer.start()
    try:
        return _outages(make, changes)
    finally:
        is_over.set()
        killer.join()


def _outages(make: Callable[[], Sink], changes: Sequence[Change]) -> int:
    outages = 0
    while True:
        sink = make()
        try:
            sink.open()
            assert sink.deliver(batch(*changes)) == {}
        except SinkUnreachable:
            outages += 1
            continue
        finally:
            sink.close()
        return outages
