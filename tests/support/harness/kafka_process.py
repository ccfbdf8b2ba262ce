"""
A process that writes a fixed history to Kafka in transactions, for tests that kill it.

`python -m tests.support.harness.kafka_process CONFIG COUNT` continues from the committed progress,
and writes to stdout the number of each transaction that it begins.
"""

from __future__ import annotations

import sys
from typing import Final

from pgstream_dagster.config.kafka import KafkaConfig
from pgstream_dagster.readers.change import Change, ChangeBatch
from pgstream_dagster.sinks.kafka.sink import KafkaSink
from tests.support.changes import change, schema

PROCESS: Final = "tests.support.harness.kafka_process"
"""This module, for `background.start`."""

COUNTERS: Final = schema({"id": "int8", "n": "int8"}, name="counters")
ROWS: Final = 7
"""Of the table: each transaction changes some of them."""

CHANGES: Final = 10
"""Of a transaction."""


def transaction(number: int) -> list[Change]:
    """Changes of several rows; their ordinals grow through the whole history."""
    first = number * CHANGES
    return [
        change("update", COUNTERS, after={"id": str(n % ROWS), "n": str(n)}, ordinal=n)
        for n in range(first, first + CHANGES)
    ]


def expected(count: int) -> list[str]:
    """The ids of all changes up to a transaction, in order."""
    return [sent.event_id for number in range(count) for sent in transaction(number)]


def main() -> None:
    """Deliver what the topic does not have yet."""
    config, count = KafkaConfig.model_validate_json(sys.argv[1]), int(sys.argv[2])
    sink = KafkaSink(config, pipeline="shop", sink="events", environment={})
    for number in range(int(sink.open() or 0), count):
        sys.stdout.write(f"{number}\n")
        sys.stdout.flush()
        assert sink.deliver(ChangeBatch(transaction(number), str(number + 1))) == {}
    sink.close()


if __name__ == "__main__":
    main()
