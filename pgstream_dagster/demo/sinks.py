"""
The demo's sinks: the log is delivered to three targets, and each of them is compared.

Kafka has every change of the log once, in order for each key; the webhook receiver every change at
least once, in order; the second database has the rows of the source, with masked values in place of
plain ones.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from typing import Final, NamedTuple, TypeAlias, cast

import pyarrow as pa
from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from pgstream_dagster.changelog import replay
from pgstream_dagster.delta import jvm
from pgstream_dagster.demo import masked, outbox
from pgstream_dagster.demo.printing import Echo, Waiting, problem
from pgstream_dagster.demo.receiver import Event
from pgstream_dagster.demo.running import Running
from pgstream_dagster.demo.targets import MASKED, Targets
from pgstream_dagster.lsn import Lsn
from pgstream_dagster.patterns import OWN_NAMESPACE
from pgstream_dagster.pipeline import Pipeline
from pgstream_dagster.readers.change import Change
from pgstream_dagster.sinks.kafka.messages import EVENT_ID, POSITION
from pgstream_dagster.sinks.run import run
from pgstream_dagster.sinks.state import Progress

TOPICS: Final = "demo."
"""How the topics of the pipeline file begin; the rest is the table's name."""

EVENTS: Final = "events"
PARTNER: Final = "partner"
"""The sinks of `pgstream.yaml` whose targets receive changes as they are in the log."""

PLACE: Final = (
    *("epoch", "commit_lsn", "ordinal", "end_lsn"),
    *("op", "namespace", "relation", "relation_id"),
)
"""What a change's id is made of, in the order of its fields."""

ANSWER_SECONDS: Final = 30.0

CONSUME_SECONDS: Final = 0.2
"""A call waits for as many messages as it may return, even behind the last one of all topics."""

AT_A_TIME: Final = 10_000

Ids: TypeAlias = Mapping[str, Sequence[str]]
"""Table to the ids of its changes, in order."""


class Compared(NamedTuple):
    """A target: what it has, and how that is not what it should have; `None`: not at all."""

    target: str
    has: str
    problem: str | None

    def lines(self) -> Iterator[str]:
        """For people."""
        result = "identical" if self.problem is None else f"DIFFERENT: {self.problem}"
        yield f"{self.target:<14}{self.has}"
        yield f"log = {self.target:<8}{result}"


def delivering(pipeline: Pipeline, targets: Targets) -> Running[Mapping[str, Progress]]:
    """Delivers the log to all sinks, each in a thread of its own."""
    return Running(
        "sinks",
        lambda stop, report: run(
            pipeline,
            stop=stop,
            report=lambda progress: report(dict(progress)),
            environment=targets.variables,
        ),
    )


def wait_for(running: Running[Mapping[str, Progress]], count: int, until: Lsn, echo: Echo) -> None:
    """Wait until `count` sinks have received everything that committed before a position."""

    def is_delivered(progress: Mapping[str, Progress]) -> bool:
        reached = [_is_at(sink, until) for sink in progress.values()]
        return len(reached) == count and all(reached)

    waiting = Waiting(f"the sinks to reach {until}", echo)
    running.wait_until(is_delivered, waiting, _describe)


def _is_at(progress: Progress, until: Lsn) -> bool:
    cursor = progress.cursor
    return cursor is not None and cursor.pending is None and cursor.watermark >= until


def _describe(progress: Mapping[str, Progress]) -> str:
    """How far each sink is, and what keeps it from delivering."""
    return "; ".join(
        f"{name}: {sink.changes:,} changes{f' ({sink.error})' if sink.error else ''}"
        for name, sink in progress.items()
    )


def compare(pipeline: Pipeline, targets: Targets, received: Sequence[Event]) -> list[Compared]:
    """Each target against log or source; nothing is written meanwhile."""
    receiver, log = targets.receiver, changes_of_tables(pipeline)
    events, partner = (pipeline.config.sink(name).operations for name in (EVENTS, PARTNER))
    return [
        compare_records(ids(log, events), committed(targets.servers)),
        compare_events(ids(log, partner), received, receiver.calls, receiver.forged),
        Compared(MASKED, *masked.compare(pipeline, targets)),
        *compare_outbox(pipeline, targets),
    ]


def compare_outbox(pipeline: Pipeline, targets: Targets) -> Iterator[Compared]:
    """Both targets of the outbox against the events of the log."""
    events, receiver = outbox.event_ids(pipeline), targets.receiver
    records = [
        # Kafka keeps the order of a key within a topic.
        outbox.Arrival(
            record.event_id, f"{record.relation} {record.key!r}", record.position.decode()
        )
        for record in committed(targets.servers, outbox.TOPICS)
    ]
    yield Compared("late", *outbox.compare(events, records))
    has, differs = outbox.compare(events, receiver.late)
    yield Compared("desk", f"{has}, {receiver.turned_away:,} refused while away", differs)


# --- the log ------------------------------------------------------------------------------------


def changes_of_tables(pipeline: Pipeline) -> pa.Table:
    """Every change of the source's own tables in the log, in order; columns `PLACE`."""
    spark = jvm.spark(pipeline.jvm)
    with pipeline.open() as opened:
        newest = {oid: versions[-1] for oid, (_, versions) in opened.copied_relations().items()}
        oids = [oid for oid, table in newest.items() if table.namespace != OWN_NAMESPACE]
        changes = replay.history(spark, pipeline.lake, opened.epoch, oids).select(*PLACE)
        return changes.toArrow().sort_by([(name, "ascending") for name in PLACE[:3]])


def ids(log: pa.Table, operations: Collection[str]) -> Ids:
    """The ids of the changes that a sink of these operations receives."""
    by_table: dict[str, list[str]] = {}
    for epoch, commit_lsn, ordinal, end_lsn, op, *names in zip(
        *(column.to_pylist() for column in log.columns), strict=True
    ):
        if op in operations:
            change = Change(epoch, Lsn(commit_lsn), ordinal, Lsn(end_lsn), op, *names, schema=None)
            by_table.setdefault(change.relation, []).append(change.event_id)
    return by_table


# --- Kafka --------------------------------------------------------------------------------------


class Record(NamedTuple):
    """What a consumer gets of one change."""

    relation: str
    key: bytes | None
    event_id: str
    position: bytes


def committed(servers: str, topics: str = TOPICS) -> Iterator[Record]:
    """The records of topics that begin so, as a consumer gets them that reads what is committed."""
    settings_of_consumer = {
        "bootstrap.servers": servers,
        "group.id": "demo",
        "enable.auto.commit": False,
        "enable.partition.eof": True,
        "isolation.level": "read_committed",
    }
    with closing(Consumer(settings_of_consumer)) as consumer:
        partitions = [
            TopicPartition(name, number, 0)
            for name, topic in consumer.list_topics(timeout=ANSWER_SECONDS).topics.items()
            for number in topic.partitions
            if name.startswith(topics)
        ]
        consumer.assign(partitions)
        ended, answered = 0, time.monotonic()
        while ended < len(partitions):
            messages = consumer.consume(AT_A_TIME, timeout=CONSUME_SECONDS)
            if messages:
                answered = time.monotonic()
            elif time.monotonic() - answered > ANSWER_SECONDS:
                raise KafkaException(KafkaError(KafkaError._TIMED_OUT))
            for message in messages:
                error = message.error()
                if error is None:
                    yield _record(message)
                elif error.code() == KafkaError._PARTITION_EOF:
                    ended += 1
                else:
                    raise KafkaException(error)


def _record(message: Message) -> Record:
    headers = dict(cast("list[tuple[str, bytes]]", message.headers()))
    relation = str(message.topic()).removeprefix(TOPICS)
    return Record(relation, message.key(), headers[EVENT_ID].decode(), headers[POSITION])


def compare_records(ids: Ids, records: Iterable[Record]) -> Compared:
    """Whether each change of the log is there once, and those of each key are in order."""
    counts: Counter[tuple[str, str]] = Counter()
    latest: dict[tuple[str, bytes | None], bytes] = {}
    disordered = 0
    for record in records:
        counts[record.relation, record.event_id] += 1
        key = record.relation, record.key
        disordered += latest.get(key, b"") > record.position
        latest[key] = record.position
    expected = Counter(
        (table, event_id) for table, of_table in ids.items() for event_id in of_table
    )
    problems = {
        "missing": (expected - counts).total(),
        "twice or unknown": (counts - expected).total(),
        "out of order": disordered,
    }
    has = f"{counts.total():,} records in {len(ids)} topics"
    return Compared("Kafka", has, problem(problems))


# --- webhooks -----------------------------------------------------------------------------------


def compare_events(ids: Ids, received: Sequence[Event], calls: int, forged: int) -> Compared:
    """Whether each change of the log came at least once, at first in the order of the log."""
    first: dict[str, dict[str, None]] = {}
    for event in received:
        first.setdefault(event.relation, {}).setdefault(event.event_id)
    problems = {"without a valid signature": forged, "missing": 0, "unknown or out of order": 0}
    for table in ids.keys() | first.keys():
        expected, arrived = ids.get(table, ()), list(first.get(table, ()))
        problems["missing"] += len(set(expected) - set(arrived))
        in_order = [event_id for event_id in expected if event_id in first.get(table, ())]
        problems["unknown or out of order"] += in_order != arrived
    has = f"{len(received):,} changes in {calls:,} signed calls"
    return Compared("webhook", has, problem(problems))
