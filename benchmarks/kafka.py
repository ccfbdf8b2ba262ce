"""`python -m benchmarks.kafka`: changes in memory to an embedded broker that acknowledges them."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator

from pgstream_dagster.config.kafka import KafkaConfig
from pgstream_dagster.embedded.kafka import Kafka
from pgstream_dagster.readers.change import Change, ChangeBatch
from pgstream_dagster.schema.table import Column, ReplicaIdentity, TableSchema
from pgstream_dagster.sinks.kafka.sink import KafkaSink

ROWS = 200_000
BATCH_ROWS = 50_000
ROUNDS = 3
TYPES = {
    "id": "int8",
    "customer": "text",
    "amount": "numeric",
    "paid": "bool",
    "note": "text",
    "at": "timestamptz",
}


def changes(count: int) -> Iterator[Change]:
    """Inserts of six columns, ten in a transaction."""
    columns = tuple(
        Column(name, number, 20, value_type, value_type=value_type)
        for number, (name, value_type) in enumerate(TYPES.items(), start=1)
    )
    key, identity = ("id",), ReplicaIdentity.DEFAULT
    schema = TableSchema(1, 16400, "public", "orders", identity, columns, key)
    for number in range(count):
        row = {
            "id": str(number),
            "customer": f"customer {number}",
            "amount": f"{number}.50",
            "paid": "t",
            "note": "some text of a usual length",
            "at": "2026-01-01 12:00:00+00",
        }
        yield Change(
            *(1, 7_000_000 + number // 10 * 100, number % 10, 7_000_100, "insert"),
            *("public", "orders", 16400, schema),
            key=(str(number),),
            after=row,
            xid=700,
            committed_at_us=1_767_225_600_000_000,
        )


def main() -> None:
    rows = list(changes(ROWS))
    batches = [ChangeBatch(rows[at : at + BATCH_ROWS], "x") for at in range(0, ROWS, BATCH_ROWS)]
    with Kafka(heap="1g") as broker:
        for keys in ({}, {"exactly_once": True}, {"envelope": "debezium"}):
            settings = {"bootstrap_servers": broker.servers, "create": {"partitions": 6}, **keys}
            config = KafkaConfig.model_validate(settings)
            sink = KafkaSink(config, pipeline="shop", sink="events", environment={})
            sink.open()
            for number in range(ROUNDS):
                began, cpu = time.perf_counter(), time.process_time()
                for batch in batches:
                    assert not sink.deliver(batch)
                wall, used = time.perf_counter() - began, time.process_time() - cpu
                print(
                    f"{keys or 'ours'}, round {number + 1}, load {os.getloadavg()[0]:.1f}:"
                    f" {ROWS / wall:,.0f} changes/s, {used / ROWS * 1e6:.1f} us of our CPU each",
                    flush=True,
                )
            sink.close()


if __name__ == "__main__":
    main()
