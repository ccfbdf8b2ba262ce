"""A pipeline whose source is Kafka: what our sink wrote, in a log of its own, each change once."""

from __future__ import annotations

import json
import random
import signal
import subprocess
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml
from confluent_kafka import OFFSET_END, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewPartitions, NewTopic

from pgstream_dagster.config.kafka import KafkaConfig
from pgstream_dagster.consumer.consume import REFUSED, consume
from pgstream_dagster.errors import (
    BrokerRefused,
    InvalidRecord,
    NotForKafka,
    RecordsGone,
    SinkRefused,
    TopicChanged,
    TopicCompacted,
)
from pgstream_dagster.pipeline import Pipeline
from pgstream_dagster.readers.change import Change, ChangeBatch
from pgstream_dagster.schema.changes import Op
from pgstream_dagster.sinks.kafka.sink import KafkaSink
from pgstream_dagster.upkeep.check import check
from pgstream_dagster.upkeep.resnapshot import resnapshot
from pgstream_dagster.upkeep.setup import setup
from pgstream_dagster.upkeep.status import status
from tests.support.harness.background import END_SECONDS, start
from tests.support.harness.consumer_process import FILE, pipeline_in
from tests.support.harness.crash_points import CONSUMING
from tests.support.harness.sink_changes import History, version
from tests.support.harness.sink_log import all_changes
from tests.support.plugins.kafka import Broker
from tests.support.plugins.wait import until

PROCESS = "tests.support.harness.consumer_process"

ORDERS = version("orders", {"id": "integer", "note": "text"}, relation_id=16_401)
EVENTS = version("events", {"n": "integer"}, key=(), relation_id=16_402)


class Topics:
    """What another pipeline's sink writes: topics of three partitions, and that of the schemas."""

    def __init__(self, servers: str, prefix: str) -> None:
        self.servers, self.prefix = servers, prefix
        self.history = History()

    def sink(self, **keys: Any) -> KafkaSink:
        settings = {
            "bootstrap_servers": self.servers,
            "topic": f"{self.prefix}{{relation}}",
            "schemas_topic": f"{self.prefix}schemas",
            "create": {"partitions": 3},
            **keys,
        }
        config = KafkaConfig.model_validate(settings)
        return KafkaSink(config, pipeline="shop", sink="events", environment={})

    def write(self, changes: Sequence[Change], **keys: Any) -> None:
        sink = self.sink(**keys)
        sink.open()
        assert sink.deliver(ChangeBatch(list(changes))) == {}
        sink.close()

    def raw(self, topic: str, value: bytes, partition: int = 0) -> None:
        producer = Producer({"bootstrap.servers": self.servers})
        producer.produce(self.prefix + topic, value, b"key", partition)
        assert producer.flush(30) == 0

    def transactions(self, count: int, rows: int = 40) -> list[Change]:
        """Inserts and updates of `rows` rows, and events, in transactions."""
        chance, h, changes = random.Random(count), self.history, list[Change]()
        for number in range(count):
            for _ in range(chance.randint(1, 5)):
                row = {"id": str(chance.randrange(rows)), "note": f"{number}"}
                changes.append(h.update(ORDERS, **row))
            changes.append(h.insert(EVENTS, n=str(number)))
            h.end()
        return changes


@pytest.fixture
def topics(kafka: Broker, topic_prefix: str) -> Topics:
    return Topics(kafka.servers, topic_prefix)


@pytest.fixture
def pipeline(topics: Topics, tmp_path: Path, gateway: object) -> Pipeline:
    return pipeline_on(topics, tmp_path)


def pipeline_on(written: Topics, folder: Path, **keys: Any) -> Pipeline:
    source = {
        "bootstrap_servers": written.servers,
        "topics": [f"{written.prefix}orders", f"{written.prefix}events"],
        "schemas_topic": f"{written.prefix}schemas",
        "group": written.prefix,
        **keys,
    }
    content = {
        "pipeline": "copy_of_shop",
        "source": {"kafka": source},
        "capture": {"flush_seconds": 0.05, "flush_rows": 50},
    }
    folder.mkdir(exist_ok=True)
    (folder / FILE).write_text(yaml.safe_dump(content))
    pipeline = pipeline_in(folder)
    setup(pipeline)
    return pipeline


def drain(pipeline: Pipeline) -> None:
    stop = threading.Event()
    over = threading.Timer(120, stop.set)
    over.start()
    try:
        consume(pipeline, stop=stop, is_drain=True)
    finally:
        over.cancel()
    assert not stop.is_set(), "not everything was landed in time"


def landed(pipeline: Pipeline) -> list[Change]:
    return [change for change in all_changes(pipeline) if change.op != Op.COPY]


def origins(changes: Sequence[Change]) -> list[dict[str, Any]]:
    return [json.loads(change.payload or "") for change in changes]


def require_each_once(pipeline: Pipeline, expected: Sequence[Change]) -> None:
    """Every change is there once, and those of a row are in the source's order."""
    changes = landed(pipeline)
    ids = [origin["event_id"] for origin in origins(changes)]
    assert sorted(ids) == sorted(change.event_id for change in expected)
    by_row: dict[object, list[Any]] = {}
    for change in changes:
        row = (change.relation, change.key)
        by_row.setdefault(row, []).append((change.op, change.before, change.after))
    expected_by_row: dict[object, list[Any]] = {}
    for change in expected:
        row = (change.relation, change.key)
        op = "insert" if change.op == Op.READ else change.op
        expected_by_row.setdefault(row, []).append((op, change.before, change.after))
    assert by_row == expected_by_row
    positions = [change.place for change in changes]
    assert positions == sorted(set(positions))


def test_changes_land_once_in_the_order_of_their_rows(topics: Topics, pipeline: Pipeline) -> None:
    changes = topics.transactions(100)
    topics.write(changes)
    drain(pipeline)
    require_each_once(pipeline, changes)
    drain(pipeline)
    require_each_once(pipeline, changes)


def test_a_landed_change_says_where_it_came_from(topics: Topics, pipeline: Pipeline) -> None:
    h = topics.history
    changes = [h.read(EVENTS, n="1"), h.insert(EVENTS, n=None)]
    topics.write(changes)
    drain(pipeline)
    first, second = landed(pipeline)
    topic = f"{topics.prefix}events"
    (partition,) = {origin["partition"] for origin in origins([first, second])}
    place = {"topic": topic, "partition": partition}
    assert origins([first, second]) == [
        {"event_id": changes[0].event_id, "op": "read", "offset": 0, **place},
        {"event_id": changes[1].event_id, "op": "insert", "offset": 1, **place},
    ]
    assert (first.op, first.after, second.after) == ("insert", {"n": "1"}, {"n": None})


def test_what_a_sink_writes_twice_lands_once(topics: Topics, pipeline: Pipeline) -> None:
    changes = topics.transactions(40)
    topics.write(changes)
    topics.write(changes[10:])
    drain(pipeline)
    topics.write(changes)
    more = topics.transactions(10)
    topics.write(more)
    drain(pipeline)
    require_each_once(pipeline, changes + more)


@pytest.mark.long
def test_a_dead_letter_that_is_delivered_late_lands(topics: Topics, pipeline: Pipeline) -> None:
    changes = topics.transactions(30)
    late = changes[7]
    key = (late.relation, late.key)
    held = [c for c in changes[7:] if (c.relation, c.key) == key]
    topics.write([c for c in changes if c not in held])
    drain(pipeline)
    topics.write(held)
    topics.write(held)
    drain(pipeline)
    require_each_once(pipeline, changes)


@pytest.mark.long
@pytest.mark.parametrize("is_drained", [True, pytest.param(False, marks=pytest.mark.long)])
def test_a_change_that_comes_after_later_ones_of_its_row_is_refused(
    topics: Topics, tmp_path: Path, gateway: object, is_drained: bool
) -> None:
    """As of a sink with `on_failure: skip`; what concerns another row lands."""
    h = topics.history
    first = h.update(ORDERS, id="1", note="first")
    other = h.update(ORDERS, id="2", note="other")
    h.end()
    later = h.update(ORDERS, id="1", note="later")
    pipeline = pipeline_on(topics, tmp_path)
    topics.write([later], create={"partitions": 1})
    if is_drained:
        drain(pipeline)
    topics.write([other, first])
    with pytest.raises(InvalidRecord, match="has later changes of its row"):
        drain(pipeline)
    passing = pipeline_on(topics, tmp_path, on_invalid="dead_letter")
    drain(passing)
    require_each_once(passing, [later, other])


@pytest.mark.long
def test_rows_of_another_copy_are_refused(topics: Topics, pipeline: Pipeline) -> None:
    h = topics.history
    copied = [h.read(EVENTS, n="1")]
    h.end()
    older = [h.read(EVENTS, n="2")]
    h.end()
    topics.write([*copied, h.insert(EVENTS, n="3")])
    drain(pipeline)
    topics.write(older)
    with pytest.raises(InvalidRecord, match="a row of another copy"):
        drain(pipeline)


@pytest.mark.long
def test_a_topic_with_more_partitions_than_before_is_refused_before_anything_of_it_lands(
    topics: Topics, pipeline: Pipeline, kafka: Broker
) -> None:
    changes = topics.transactions(40)
    topics.write(changes)
    drain(pipeline)
    admin = AdminClient({"bootstrap.servers": kafka.servers})
    for answer in admin.create_partitions([NewPartitions(f"{topics.prefix}orders", 6)]).values():
        answer.result()
    topics.write([change for change in topics.transactions(20) if change.relation == "orders"])
    with pytest.raises(TopicChanged, match="had 3 partitions and now has 6"):
        drain(pipeline)
    require_each_once(pipeline, changes)


@pytest.mark.long
def test_a_running_process_refuses_a_topic_that_gets_partitions(
    topics: Topics, pipeline: Pipeline, kafka: Broker
) -> None:
    changes = topics.transactions(5)
    topics.write(changes)
    stop = threading.Event()
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(consume, pipeline, stop=stop)
        try:
            until(lambda: is_landed(pipeline, len(changes)))
            admin = AdminClient({"bootstrap.servers": kafka.servers})
            more = NewPartitions(f"{topics.prefix}orders", 4)
            [answer] = admin.create_partitions([more]).values()
            answer.result()
            with pytest.raises(TopicChanged, match="new lake"):
                running.result(timeout=60)
        finally:
            stop.set()
    require_each_once(pipeline, changes)


@pytest.mark.long
def test_a_topic_that_was_made_again_is_refused(
    topics: Topics, pipeline: Pipeline, kafka: Broker
) -> None:
    """The log has an offset of the former one, which the new one has, too."""
    changes = topics.transactions(5)
    topics.write(changes)
    drain(pipeline)
    admin = AdminClient({"bootstrap.servers": kafka.servers})
    for answer in admin.delete_topics([f"{topics.prefix}orders"]).values():
        answer.result()
    until(lambda: f"{topics.prefix}orders" not in admin.list_topics(timeout=10).topics)
    topics.write(topics.transactions(40))
    with pytest.raises(TopicChanged, match="was deleted and made again"):
        drain(pipeline)
    require_each_once(pipeline, changes)


@pytest.mark.long
def test_a_later_topic_of_which_the_first_records_were_removed_is_refused(
    topics: Topics, pipeline: Pipeline, kafka: Broker
) -> None:
    h = topics.history
    topics.write([h.insert(ORDERS, id="1", note=None)])
    drain(pipeline)
    topics.write([h.insert(EVENTS, n=str(number)) for number in range(9)])
    admin = AdminClient({"bootstrap.servers": kafka.servers})
    removed = [TopicPartition(f"{topics.prefix}events", n, OFFSET_END) for n in range(3)]
    for answer in admin.delete_records(removed).values():
        answer.result()
    with pytest.raises(RecordsGone, match="from offset 0 on"):
        drain(pipeline)


@pytest.mark.long
@pytest.mark.crash
@pytest.mark.parametrize("failpoint", CONSUMING)
def test_nothing_is_lost_or_repeated_after_a_kill_at(
    failpoint: str, topics: Topics, pipeline: Pipeline, tmp_path: Path
) -> None:
    h = topics.history
    copied = [h.read(ORDERS, id=str(number), note=None) for number in range(150)]
    h.end()
    changes = copied + topics.transactions(60)
    topics.write(changes)
    log = tmp_path / "consumer.log"
    killed = start(PROCESS, str(tmp_path), "drain", log=log, failpoint=failpoint)
    assert killed.wait(END_SECONDS) == -signal.SIGKILL, log.read_text()
    drain(pipeline)
    require_each_once(pipeline, changes)


@contextmanager
def consuming(folder: Path, log: Path) -> Iterator[subprocess.Popen[bytes]]:
    process = start(PROCESS, str(folder), "stream", log=log)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def is_landed(pipeline: Pipeline, count: int) -> bool:
    return sum(p.offset or 0 for p in status(pipeline).partitions) >= count


@pytest.mark.long
@pytest.mark.crash
def test_two_processes_share_the_partitions_and_one_takes_over(
    topics: Topics, pipeline: Pipeline, tmp_path: Path
) -> None:
    changes = topics.transactions(100)
    topics.write(changes)
    log = tmp_path / "consumer.log"
    with consuming(tmp_path, log) as first:
        until(lambda: is_landed(pipeline, len(changes)), every=0.5)
        with consuming(tmp_path, log):
            until(lambda: log.read_text().count("reads 3 partitions") >= 2, every=0.2)
            for _ in range(5):
                more = topics.transactions(40)
                topics.write(more)
                changes += more
            until(lambda: is_landed(pipeline, len(changes)), every=0.5)
            first.kill()
            more = topics.transactions(60)
            topics.write(more)
            changes += more
            until(lambda: is_landed(pipeline, len(changes)), every=0.5)
    require_each_once(pipeline, changes)


def test_a_record_of_others_stops_the_stream_with_its_place(
    topics: Topics, pipeline: Pipeline
) -> None:
    changes = topics.transactions(3)
    topics.write(changes)
    topics.raw("orders", b'{"id": 1, "secret": 2}', partition=1)
    with pytest.raises(InvalidRecord, match="no message of a pgstream sink") as raised:
        drain(pipeline)
    facts = raised.value.facts
    assert (facts["topic"], facts["partition"]) == (f"{topics.prefix}orders", 1)
    assert "on_invalid: dead_letter" in str(raised.value)
    assert "secret" not in str(raised.value)


def test_records_of_others_can_be_passed_over(topics: Topics, tmp_path: Path) -> None:
    pipeline = pipeline_on(topics, tmp_path, on_invalid="dead_letter")
    changes = topics.transactions(3)
    topics.write(changes)
    topics.raw("orders", b"none", partition=2)
    more = topics.transactions(3)
    topics.write(more)
    drain(pipeline)
    require_each_once(pipeline, changes + more)
    with pipeline.open() as opened:
        [(_, facts)] = opened.ledger.facts(REFUSED)
    [record] = facts["records"]
    assert (record["topic"], record["partition"]) == (f"{topics.prefix}orders", 2)


@pytest.mark.long
@pytest.mark.parametrize("what", ["a truncate", "a change of the key"])
def test_what_has_no_order_among_partitions_is_refused(
    what: str, topics: Topics, pipeline: Pipeline
) -> None:
    h = topics.history
    changes = [h.insert(ORDERS, id="1", note="a")]
    topics.write(changes)
    moved = h.update(ORDERS, ("1",), id="2", note="b")
    topics.write([h.truncate(ORDERS) if what == "a truncate" else moved])
    with pytest.raises(InvalidRecord, match=rf"{what} of table 'public.orders'.*key: table"):
        drain(pipeline)


@pytest.mark.long
@pytest.mark.parametrize("keys", [{"key": "table"}, {"create": {"partitions": 1}}])
def test_with_a_table_in_one_partition_everything_has_its_order(
    keys: dict[str, Any], topics: Topics, pipeline: Pipeline
) -> None:
    h = topics.history
    changes = [
        h.insert(ORDERS, id="1", note="a"),
        h.update(ORDERS, ("1",), id="2", note="b"),
        h.truncate(ORDERS),
        h.insert(ORDERS, id="1", note="c"),
        h.delete(ORDERS, id="1"),
    ]
    topics.write([*changes, h.insert(EVENTS, n="1")], **keys)
    drain(pipeline)
    orders = [change for change in landed(pipeline) if change.relation == "orders"]
    assert [(c.op, c.key, c.old_key, c.after) for c in orders] == [
        (c.op, c.key, c.old_key, c.after) for c in changes
    ]


@pytest.mark.long
def test_another_pipeline_in_the_topic_is_refused(topics: Topics, pipeline: Pipeline) -> None:
    topics.write(topics.transactions(2))
    drain(pipeline)
    config = topics.sink()._config
    other = KafkaSink(config, pipeline="other", sink="events", environment={})
    other.open()
    other.deliver(ChangeBatch([topics.history.insert(EVENTS, n="5")]))
    other.close()
    with pytest.raises(InvalidRecord, match="pipeline 'other', epoch 1, and this log is of"):
        drain(pipeline)


def test_without_a_topic_of_schemas_the_remedy_is_named(topics: Topics, pipeline: Pipeline) -> None:
    topics.write([topics.history.insert(ORDERS, id="1", note="a")])
    drain(pipeline)
    topics.write([topics.history.insert(EVENTS, n="1")], schemas_topic=None)
    with pytest.raises(InvalidRecord, match=r"does not have its schema.*set 'schemas_topic'"):
        drain(pipeline)


def test_columns_change_while_changes_arrive(topics: Topics, pipeline: Pipeline) -> None:
    h = topics.history
    topics.write([h.insert(ORDERS, id="1", note="a")])
    drain(pipeline)
    h.end()
    wider = version(
        "orders", {"id": "integer", "note": "text", "paid": "boolean"}, relation_id=16_401
    )
    topics.write([h.insert(wider, id="2", note="b", paid="t")])
    drain(pipeline)
    h.end()
    topics.write([h.insert(ORDERS, id="3", note="c")])
    drain(pipeline)
    assert [change.after for change in landed(pipeline)] == [
        {"id": "1", "note": "a"},
        {"id": "2", "note": "b", "paid": "t"},
        {"id": "3", "note": "c"},
    ]
    with pipeline.open() as opened:
        history = [schema for _, schema in opened.schema_log.history(1)]
    names = [len(schema.columns) for schema in history if schema.name == "orders"]
    assert names == [2, 3, 2]


def test_records_that_the_topic_has_removed_are_a_named_error(
    topics: Topics, pipeline: Pipeline, kafka: Broker
) -> None:
    from confluent_kafka import TopicPartition

    topics.write(topics.transactions(20))
    drain(pipeline)
    topics.write(topics.transactions(20))
    partitions = [TopicPartition(f"{topics.prefix}events", n, -1) for n in range(3)]
    admin = AdminClient({"bootstrap.servers": kafka.servers})
    for answer in admin.delete_records(partitions).values():
        answer.result()
    with pytest.raises(RecordsGone, match="no longer has the records from offset 20"):
        drain(pipeline)


@pytest.mark.long
def test_latest_leaves_out_what_the_first_start_finds_and_nothing_else(
    topics: Topics, tmp_path: Path, gateway: object
) -> None:
    h = topics.history
    pipeline = pipeline_on(topics, tmp_path, topics=[f"{topics.prefix}*"], start="latest")
    topics.write([h.insert(ORDERS, id="1", note="before")])
    drain(pipeline)
    h.end()
    # Topic 'events' is made now, with records, while no process reads.
    topics.write([h.insert(ORDERS, id="2", note="after"), h.insert(EVENTS, n="3")])
    drain(pipeline)
    changes = sorted(landed(pipeline), key=lambda change: change.relation)  # topics have no order
    assert [change.after for change in changes] == [{"n": "3"}, {"id": "2", "note": "after"}]


@pytest.mark.parametrize("changed", [{"key": "table"}, {"topic": "other.{relation}"}])
def test_a_sink_whose_changes_would_go_elsewhere_is_refused(
    topics: Topics, changed: dict[str, str]
) -> None:
    topics.write(topics.transactions(1))
    with pytest.raises(SinkRefused, match="set 'topic' and 'key' back"):
        topics.sink(**changed).open()
    topics.write(topics.transactions(1))


def test_a_compacted_topic_is_refused(topics: Topics, pipeline: Pipeline, kafka: Broker) -> None:
    name = f"{topics.prefix}orders"
    client = AdminClient({"bootstrap.servers": kafka.servers})
    client.create_topics([NewTopic(name, 3, config={"cleanup.policy": "compact"})])[name].result()
    topics.write(topics.transactions(1))
    with pytest.raises(TopicCompacted, match=r"--add-config cleanup\.policy=delete"):
        drain(pipeline)
    [fact] = [str(finding) for finding in check(pipeline) if finding.check == "topic"]
    assert f"topic {name!r} is compacted" in fact


def test_a_topic_that_does_not_exist_is_a_named_error(topics: Topics, tmp_path: Path) -> None:
    topics.write(topics.transactions(1))
    pipeline = pipeline_on(topics, tmp_path, topics=[f"{topics.prefix}nothing"])
    with pytest.raises(BrokerRefused, match="start the sink that writes it"):
        drain(pipeline)


@pytest.mark.long
def test_status_shows_tables_and_partitions(topics: Topics, pipeline: Pipeline) -> None:
    changes = topics.transactions(10)
    topics.write(changes)
    drain(pipeline)
    topics.write(topics.transactions(2))
    now = status(pipeline)
    assert now.problem is None
    assert sorted(table.table for table in now.tables) == ["public.events", "public.orders"]
    assert len(now.partitions) == 6
    assert sum(p.offset or 0 for p in now.partitions) == len(changes)
    assert sum(p.behind for p in now.partitions) > 0


def test_what_needs_a_postgres_source_is_refused_by_name(pipeline: Pipeline) -> None:
    with pytest.raises(NotForKafka, match="'resnapshot' is for a Postgres source"):
        resnapshot(pipeline)


def test_check_names_the_topics_that_are_missing(topics: Topics, pipeline: Pipeline) -> None:
    missing = [str(finding) for finding in check(pipeline) if finding.check == "topic"]
    assert len(missing) == 3
    topics.write(topics.transactions(2))
    assert [finding for finding in check(pipeline) if finding.check == "topic"] == []
