"""
The log to a Kafka broker on this machine: how many changes a second, and how late they are.

`deliveries` is a sink as `pgstream sink run` runs it, over a log that is there already, against
librdkafka alone with the same records ready in memory. `python -m benchmarks.kafka` measures the
sink alone, with rows of the log ready in memory, in each of its forms.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from functools import partial

import pyarrow as pa
from confluent_kafka import Consumer, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from benchmarks.latency import Latency, Times, from_commit
from benchmarks.measure import Measured, load, own
from benchmarks.postgres_sink import row
from benchmarks.sources import Bench, bench, insert
from pgstream_dagster.capture.stream import stream
from pgstream_dagster.config.kafka import KafkaConfig
from pgstream_dagster.config.sinks import SinkConfig
from pgstream_dagster.embedded.kafka import Kafka
from pgstream_dagster.lsn import Lsn
from pgstream_dagster.outbox.install import install
from pgstream_dagster.outbox.maintain import maintain
from pgstream_dagster.pipeline import Pipeline
from pgstream_dagster.readers.change import ChangeBatch, LoggedChanges
from pgstream_dagster.schema.layout import CHANGES
from pgstream_dagster.schema.table import Column, ReplicaIdentity, TableSchema
from pgstream_dagster.sinks.kafka.client import connection, producing
from pgstream_dagster.sinks.kafka.sink import KafkaSink
from pgstream_dagster.sinks.run import run
from pgstream_dagster.sinks.state import Progress
from pgstream_dagster.source.connect import connect
from pgstream_dagster.upkeep.setup import setup

MOST = 1_000_000
"""Changes of a round: their records are in memory for the floor."""

HEAP = "1g"
PARTITIONS = 6
TICKS = "latency.ticks"

SUBSCRIBE = """
insert into pgstream.subscriptions (
    key, stream_id, operation, schema_name, table_name, metadata_extensions
) values (
    'tick', 1, 'INSERT', 'public', 'ticks', '[{"json_path": "group_id", "expression": "new.id"}]'
)
"""

ROWS = 200_000
BATCH_ROWS = 20_000
ROUNDS = 3
TYPES = {
    "id": "int8",
    "customer": "text",
    "amount": "numeric",
    "paid": "bool",
    "note": "text",
    "at": "timestamptz",
}


def deliveries(major: int, rows: int, rounds: int) -> Iterator[tuple[Measured, Measured]]:
    """(ours, librdkafka alone) a round; each round is a new sink with topics of its own."""
    count = min(rows, MOST)
    with bench(major) as on, Kafka(heap=HEAP) as broker:
        setup(on.pipeline)
        insert(on.connection, 1, count)
        until = Lsn.parse(on.wal_lsn())
        stream(on.pipeline, stop=threading.Event(), until=until)
        _deliver(on.pipeline, broker, "warm", count)
        ready = _sent(broker, "warm.bench", count)
        for number in range(rounds):
            work = partial(_deliver, on.pipeline, broker, f"round{number}", count)
            yield own(work, count, on.jvm_pid()), _floor(broker, f"floor{number}", ready)


def latency(major: int, rate: int, seconds: float) -> Latency:
    """From the commit on the source to the record in a consumer's hand."""
    with bench(major, ("create table ticks (id bigint primary key, v text)",)) as on:
        setup(on.pipeline)
        with Kafka(heap=HEAP) as broker:
            return _at(on, broker, rate, seconds)


def event_latency(major: int, rate: int, seconds: float) -> Latency:
    """The same, of the events of a subscription to the rows."""
    with bench(major, ("create table ticks (id bigint primary key, v text)",)) as on:
        with closing(connect(on.server.dsn)) as session:
            install(session)
            maintain(session)
        on.connection.execute("insert into pgstream.streams (id) values (1)")
        on.connection.execute(SUBSCRIBE)
        setup(on.pipeline)
        with Kafka(heap=HEAP) as broker:
            return _at(on, broker, rate, seconds, outbox={"stream": 1})


def _at(on: Bench, broker: Kafka, rate: int, seconds: float, **settings: object) -> Latency:
    pipeline = _with_sink(on.pipeline, broker, "latency", **settings)
    delivered = list[Times]()
    _create(broker, TICKS)
    on.connection.execute("insert into ticks values (-1, 'first')")

    def deliver(_sent: Times, _seen: Times, stop: threading.Event) -> None:
        run(pipeline, stop=stop, environment={})

    def watch(_sent: Times, seen: Times, stop: threading.Event) -> None:
        delivered.append(seen)
        _watch(broker, seen, stop)

    return from_commit(
        on, rate, seconds, [deliver, watch], is_ready=lambda: any(map(len, delivered))
    )


def _watch(broker: Kafka, seen: dict[int, float], stop: threading.Event) -> None:
    settings = {"bootstrap.servers": broker.servers, "group.id": "bench", "fetch.wait.max.ms": 50}
    with closing(Consumer({**settings, "isolation.level": "read_committed"})) as consumer:
        consumer.assign([TopicPartition(TICKS, number, 0) for number in range(PARTITIONS)])
        while not stop.is_set():
            for message in consumer.consume(1_000, timeout=0.01):
                key = message.key()
                if message.error() is None and key is not None:  # group 7 of an event, or table:7
                    seen[int(key.rpartition(b":")[2])] = time.monotonic()


def _with_sink(pipeline: Pipeline, broker: Kafka, name: str, **settings: object) -> Pipeline:
    create = {"partitions": PARTITIONS}
    topic = TICKS if settings else f"{name}.{{relation}}"
    kafka = {"bootstrap_servers": broker.servers, "topic": topic, "create": create}
    sinks = {name: SinkConfig.model_validate({"kafka": kafka, **settings})}
    return replace(pipeline, config=pipeline.config.model_copy(update={"sinks": sinks}))


def _deliver(pipeline: Pipeline, broker: Kafka, name: str, count: int) -> None:
    """Run a sink until it has delivered as many changes."""
    stop = threading.Event()

    def report(progress: Mapping[str, Progress]) -> None:
        if sum(sink.changes for sink in progress.values()) >= count:
            stop.set()

    run(_with_sink(pipeline, broker, name), stop=stop, report=report, environment={})


def _sent(broker: Kafka, topic: str, count: int) -> list[Message]:
    """The records of a topic, as a consumer gets them."""
    records: list[Message] = []
    settings = {"bootstrap.servers": broker.servers, "group.id": "bench"}
    with closing(Consumer(settings)) as consumer:
        consumer.assign([TopicPartition(topic, number, 0) for number in range(PARTITIONS)])
        while len(records) < count:
            records += consumer.consume(10_000, timeout=1)
    return records


def _floor(broker: Kafka, topic: str, records: Sequence[Message]) -> Measured:
    """What librdkafka alone does with these records and our settings."""
    _create(broker, topic)
    ready = [(record.value(), record.key(), record.headers()) for record in records]
    config = KafkaConfig(bootstrap_servers=broker.servers)
    settings = producing(config, batch_bytes=config.batch_bytes, transactional_id="")
    producer = Producer(connection(config, {}) | settings)
    began, cpu = time.perf_counter(), time.process_time()
    for value, key, headers in ready:
        producer.produce(topic, value, key, headers=headers)
    while len(producer):
        producer.poll(0.1)
    return Measured(len(ready), time.perf_counter() - began, time.process_time() - cpu)


def _create(broker: Kafka, topic: str) -> None:
    admin = AdminClient({"bootstrap.servers": broker.servers})
    for answer in admin.create_topics([NewTopic(topic, PARTITIONS, 1)]).values():
        answer.result()


def batches(count: int) -> Iterator[ChangeBatch]:
    """Inserts of six columns, ten in a transaction, as rows of the log."""
    columns = tuple(
        Column(name, number, 20, value_type, value_type=value_type)
        for number, (name, value_type) in enumerate(TYPES.items(), start=1)
    )
    key, identity = ("id",), ReplicaIdentity.DEFAULT
    schema = TableSchema(1, 16400, "public", "orders", identity, columns, key)
    for start in range(0, count, BATCH_ROWS):
        numbers = range(start, min(count, start + BATCH_ROWS))
        rows = pa.Table.from_pylist([_insert(schema, number) for number in numbers], CHANGES)
        yield ChangeBatch(LoggedChanges(rows, {schema.schema_id: schema}), "x")


def _insert(schema: TableSchema, number: int) -> dict[str, object]:
    values = row(number)
    lsn = 7_000_000 + number // 10 * 100
    place = {"epoch": 1, "commit_lsn": lsn, "ordinal": number % 10, "end_lsn": lsn + 100}
    names = {"op": "insert", "namespace": "public", "relation": "orders", "relation_id": 16400}
    content = {"schema_id": schema.schema_id, "key": [values["id"]], "after": list(values.items())}
    return {**place, **names, **content, "xid": 700, "committed_at": 1_767_225_600_000_000}


def main() -> None:
    """The sink alone, in each of its forms."""
    rows = list(batches(ROWS))
    with Kafka(heap=HEAP) as broker:
        for keys in ({}, {"exactly_once": True}, {"envelope": "debezium"}):
            settings = {
                "bootstrap_servers": broker.servers,
                "create": {"partitions": PARTITIONS},
                **keys,
            }
            config = KafkaConfig.model_validate(settings)
            sink = KafkaSink(config, pipeline="shop", sink="events", environment={})
            sink.open()
            for number in range(ROUNDS):
                began, cpu = time.perf_counter(), time.process_time()
                for batch in rows:
                    assert not sink.deliver(batch)
                wall, used = time.perf_counter() - began, time.process_time() - cpu
                print(
                    f"{keys or 'ours'}, round {number + 1}, load {load():.1f}:"
                    f" {ROWS / wall:,.0f} changes/s, {used / ROWS * 1e6:.1f} us of our CPU each",
                    flush=True,
                )
            sink.close()


if __name__ == "__main__":
    main()
