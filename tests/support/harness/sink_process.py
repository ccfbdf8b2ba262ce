"""
A process that writes a fixed history to a target, for tests that kill it.

`python -m tests.support.harness.sink_process DSN COUNT` continues from the target's cursor.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Final

from pgstream_dagster.readers.change import ChangeBatch
from pgstream_dagster.sinks.postgres import PostgresSink, Target
from tests.support.harness.sink_changes import History, batch, version

COUNTERS: Final = version("counters", {"id": "integer", "n": "integer"}, relation_id=1)
EVENTS: Final = version("events", {"n": "integer"}, key=(), relation_id=2)
LARGE: Final = 7
"""Every seventh transaction comes in three batches."""

TABLES: Final = (
    "create table counters (id int primary key, n int)",
    "create table events (n int)",
)


def history(count: int) -> Iterator[ChangeBatch]:
    """
    Transaction `n` adds event `n` and moves a counter to the key `n`.

    The events have no key and the key moves each time, so one twice or one too few shows.
    """
    h = History()
    yield batch(h.insert(COUNTERS, id="0", n="0"), cursor="0")
    for number in range(1, count + 1):
        h.end()
        text = str(number)
        parts = [
            h.update(COUNTERS, (str(number - 1),), id=text, n=text),
            h.insert(EVENTS, n=text),
        ]
        if number % LARGE:
            yield batch(*parts, cursor=text)
            continue
        extra = [h.insert(EVENTS, n=f"-{text}") for _ in range(2)]
        yield batch(extra[0], cursor=f"{text} begun", ends=False)
        yield batch(parts[0], extra[1], cursor=f"{text} half", ends=False)
        yield batch(parts[1], cursor=text)


def expected_events(count: int) -> list[int]:
    """Every event that the history has up to a transaction."""
    large = [-number for number in range(1, count + 1) if number % LARGE == 0]
    return sorted([*range(1, count + 1), *large, *large])


def main() -> None:
    """Deliver what the target does not have yet."""
    dsn, count = sys.argv[1], int(sys.argv[2])
    sink = PostgresSink(Target("shop", "replica", dsn))
    cursor = sink.open()
    is_due = cursor is None
    for changes in history(count):
        if is_due:
            assert sink.deliver(changes) == {}
        is_due = is_due or changes.cursor == cursor
    sink.close()


if __name__ == "__main__":
    main()
