"""The Kafka sink on a real broker: what arrives, in which order, and what happens when it fails."""

from __future__ import annotations

import json
import random
import signal
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient, ConfigResource

from pgstream_dagster.config.kafka import KafkaConfig
from pgstream_dagster.embedded.kafka import Kafka
from pgstream_dagster.errors import SinkLost, SinkRefused, SinkUnreachable
from pgstream_dagster.readers.change import Change, ChangeBatch
from pgstream_dagster.sinks.base import NotNow, Refused
from pgstream_dagster.sinks.kafka.sink import LEFT_OPEN, KafkaSink
from tests.support.changes import change, schema
from tests.support.harness.background import END_SECONDS, start
from tests.support.harness.crash_points import DELIVERING_TO_KAFKA
from tests.support.harness.kafka_process import PROCESS, expected
from tests.support.plugins.kafka import Broker, Read, read, stable_end, topics

DOCS = schema({"id": "int8", "body": "text", "data": "bytea"}, name="docs")


def config(servers: str, topic: str, **keys: Any) -> KafkaConfig:
    keys.setdefault("create", {"partitions": 3})
    settings = {"bootstrap_servers": servers, "topic": topic, **keys}
    return KafkaConfig.model_validate({k: v for k, v in settings.items() if v is not None})


def sink_of(settings: KafkaConfig, name: str = "events", **environment: str) -> KafkaSink:
    return KafkaSink(settings, pipeline="shop", sink=name, environment=environment)


def doc(number: int, body: str = "text", ordinal: int = 0, op: str = "insert") -> Change:
    row = {"id": str(number), "body": body, "data": "\\x00ff"}
    return change(op, DOCS, after=row, ordinal=ordinal)


def deleted(number: int, ordinal: int) -> Change:
    return change("delete", DOCS, before={"id": str(number)}, ordinal=ordinal)


def batch(*changes: Change, cursor: str = "") -> ChangeBatch:
    return ChangeBatch(list(changes), cursor)


@pytest.fixture
def topic(topic_prefix: str) -> str:
    return f"{topic_prefix}{{namespace}}.{{relation}}"


@pytest.fixture
def docs(topic_prefix: str) -> str:
    return f"{topic_prefix}public.docs"


@pytest.fixture
def opened(kafka: Broker, topic: str) -> Iterator[KafkaSink]:
    sink = sink_of(config(kafka.servers, topic))
    assert sink.open() is None
    yield sink
    sink.close()


def ids(records: list[Read]) -> list[str]:
    return [record.headers["pgstream.event_id"].decode() for record in records]


def test_a_change_arrives_with_key_value_and_headers(
    opened: KafkaSink, kafka: Broker, docs: str
) -> None:
    assert opened.deliver(batch(doc(9007199254740993))) == {}
    (record,) = read(kafka.servers, docs)
    assert record.key == b"public.docs:9007199254740993"
    assert json.loads(record.value or b"")["after"] == {
        "id": 9007199254740993,
        "body": "text",
        "data": "\\x00ff",
    }
    assert record.headers == {
        "pgstream.event_id": b"1-0/1A2B3C-0",
        "pgstream.position": b"00000001.00000000001a2b3c.8000000000000000",
        "pgstream.op": b"insert",
        "pgstream.schema_id": str(DOCS.schema_id).encode(),
    }


def test_the_changes_of_a_key_arrive_in_their_order_in_one_partition(
    opened: KafkaSink, kafka: Broker, docs: str
) -> None:
    changes = [doc(number % 50, str(number), ordinal=number) for number in range(5_000)]
    assert opened.deliver(batch(*changes)) == {}
    records = read(kafka.servers, docs)
    assert len(records) == 5_000
    assert len({record.partition for record in records}) == 3
    by_key: dict[bytes | None, list[Read]] = {}
    for record in records:
        by_key.setdefault(record.key, []).append(record)
    for of_key in by_key.values():
        positions = [record.headers["pgstream.position"] for record in of_key]
        assert positions == sorted(positions) and len({r.partition for r in of_key}) == 1


def test_topics_are_made_as_configured(kafka: Broker, topic: str, docs: str) -> None:
    create = {
        "partitions": 4,
        "cleanup_policy": "compact",
        "settings": {"segment.bytes": "2000000"},
    }
    sink = sink_of(config(kafka.servers, topic, create=create))
    sink.open()
    sink.deliver(batch(doc(1)))
    sink.close()
    assert len(topics(kafka.servers, docs)[docs].partitions) == 4
    resource = ConfigResource(ConfigResource.Type.TOPIC, docs)
    admin = AdminClient({"bootstrap.servers": kafka.servers})
    settings = admin.describe_configs([resource])[resource].result()
    assert settings["cleanup.policy"].value == "compact"
    assert settings["segment.bytes"].value == "2000000"


def test_a_topic_that_is_not_there_is_an_error_with_the_remedy(
    kafka: Broker, topic: str, docs: str
) -> None:
    settings = KafkaConfig(bootstrap_servers=kafka.servers, topic=topic)
    sink = sink_of(settings)
    sink.open()
    with pytest.raises(SinkRefused, match=r"add 'create' to sinks\.events\.kafka"):
        sink.deliver(batch(doc(1)))
    assert topics(kafka.servers, docs) == {}


def test_a_tombstone_follows_a_deleted_key_in_a_compacted_topic(
    kafka: Broker, topic: str, docs: str
) -> None:
    sink = sink_of(config(kafka.servers, topic, create={"cleanup_policy": "compact"}))
    sink.open()
    moved = change(
        "update", DOCS, after={"id": "2", "body": "a", "data": None}, old_key=("1",), ordinal=1
    )
    sink.deliver(batch(doc(1), moved, deleted(2, ordinal=2)))
    sink.close()
    first, second = b"public.docs:1", b"public.docs:2"
    assert [(r.key, r.value is None) for r in read(kafka.servers, docs)] == [
        *((first, False), (first, True)),
        *((second, False), (second, False), (second, True)),
    ]


def test_a_record_too_large_for_the_broker_is_refused_and_its_key_waits(
    opened: KafkaSink, kafka: Broker, docs: str
) -> None:
    noise = random.Random(1).randbytes(2_000_000).hex()  # compresses to a half
    verdicts = opened.deliver(
        batch(
            *(doc(1, ordinal=0), doc(2, noise, ordinal=1), doc(1, "after", ordinal=2)),
            *(doc(2, "behind", ordinal=3), doc(3, ordinal=4)),
        )
    )
    assert isinstance(verdicts.pop(1), Refused)
    assert isinstance(verdicts.pop(3), NotNow)
    assert verdicts == {}
    assert sorted(ids(read(kafka.servers, docs))) == [f"1-0/1A2B3C-{n}" for n in (0, 2, 4)]


def test_a_truncate_waits_behind_a_refused_change_of_its_table(
    opened: KafkaSink, kafka: Broker, docs: str
) -> None:
    noise = random.Random(1).randbytes(2_000_000).hex()
    truncate = change("truncate", DOCS, ordinal=1)
    verdicts = opened.deliver(batch(doc(1, noise), truncate, doc(2, ordinal=2)))
    assert [type(verdicts[index]) for index in range(3)] == [Refused, NotNow, NotNow]
    assert read(kafka.servers, docs) == []


def key_of_body(change: Change) -> str | None:
    return (change.after or {})["body"].removeprefix("text ")  # type: ignore[union-attr]


@pytest.mark.parametrize("exactly_once", [False, True])
def test_a_change_of_which_a_function_fails_is_refused_and_its_key_waits(
    kafka: Broker, topic: str, docs: str, topic_prefix: str, *, exactly_once: bool
) -> None:
    keys = {"exactly_once": exactly_once, "progress_topic": f"{topic_prefix}progress"}
    sink = sink_of(config(kafka.servers, topic, key=f"{__name__}:key_of_body", **keys))
    sink.open()
    null = change("insert", DOCS, after={"id": "2", "body": None}, ordinal=1)
    behind = doc(2, "text b", ordinal=2)
    verdicts = sink.deliver(batch(doc(1, "text a"), null, behind, doc(3, "text c", ordinal=3)))
    assert isinstance(refused := verdicts[1], Refused)
    assert "raised AttributeError in" in refused.reason
    assert isinstance(verdicts[2], NotNow)
    if exactly_once:
        assert sink.deliver(batch(doc(1, "text a"), doc(3, "text c", ordinal=3))) == {}
    sink.close()
    assert sorted(r.key or b"" for r in read(kafka.servers, docs)) == [b"a", b"c"]


def test_a_row_of_five_megabytes_is_delivered_where_the_topic_takes_it(
    kafka: Broker, topic: str, docs: str
) -> None:
    create = {"settings": {"max.message.bytes": str(8 << 20)}}
    sink = sink_of(config(kafka.servers, topic, create=create, compression="none"))
    sink.open()
    assert sink.deliver(batch(doc(1, "x" * 5_000_000), doc(2, ordinal=1))) == {}
    sink.close()
    assert sorted(len(record.value or b"") > 5_000_000 for record in read(kafka.servers, docs)) == [
        *(False, True)
    ]


def test_a_topic_that_takes_small_batches_only_gets_small_ones(
    kafka: Broker, topic: str, docs: str
) -> None:
    create = {"settings": {"max.message.bytes": "20000"}}
    sink = sink_of(config(kafka.servers, topic, create=create, compression="none"))
    sink.open()
    changes = [doc(n, "x" * 500, ordinal=n) for n in range(1_000)]
    assert sink.deliver(batch(*changes)) == {}
    sink.close()
    assert len(read(kafka.servers, docs)) == 1_000


def test_a_record_past_our_own_limit_is_refused(kafka: Broker, topic: str) -> None:
    sink = sink_of(config(kafka.servers, topic, largest_bytes=2_000_000, compression="zstd"))
    sink.open()
    verdicts = sink.deliver(batch(doc(1, "x" * 3_000_000), doc(2, ordinal=1)))
    sink.close()
    assert list(verdicts) == [0]
    assert isinstance(verdicts[0], Refused) and "2,000,000" in verdicts[0].reason


def test_debezium_keys_and_values_arrive_with_tombstones(
    kafka: Broker, topic: str, docs: str
) -> None:
    sink = sink_of(config(kafka.servers, topic, envelope="debezium", create={}))
    sink.open()
    truncate = change("truncate", DOCS, ordinal=2)
    assert sink.deliver(batch(doc(1), deleted(1, ordinal=1), truncate)) == {}
    sink.close()
    records = read(kafka.servers, docs)
    assert [record.key for record in records] == [b'{"id":1}', b'{"id":1}', b'{"id":1}', None]
    values = [json.loads(record.value) if record.value else None for record in records]
    assert [value and value["op"] for value in values] == ["c", "d", None, "t"]


@pytest.mark.long
def test_a_broker_that_is_away_is_waited_for_and_nothing_is_lost(own_kafka: Kafka) -> None:
    sink = sink_of(config(own_kafka.servers, "{relation}", delivery_seconds=2))
    sink.open()
    assert sink.deliver(batch(doc(1))) == {}
    own_kafka.kill()
    with pytest.raises(SinkUnreachable):
        sink.deliver(batch(doc(2, ordinal=1), doc(2, "again", ordinal=2)))
    with pytest.raises(SinkUnreachable):
        sink.open()
    own_kafka.start()
    sink.open()
    assert sink.deliver(batch(doc(2, ordinal=1), doc(2, "again", ordinal=2))) == {}
    sink.close()
    arrived = ids(read(own_kafka.servers, "docs"))
    assert list(dict.fromkeys(arrived)) == arrived
    assert sorted(arrived) == [f"1-0/1A2B3C-{n}" for n in range(3)]


@pytest.mark.long
def test_a_broker_that_restarts_during_a_delivery_is_no_failure(own_kafka: Kafka) -> None:
    sink = sink_of(config(own_kafka.servers, "{relation}", delivery_seconds=120))
    sink.open()
    sink.deliver(batch(doc(0)))
    own_kafka.stop()
    starting = threading.Thread(target=own_kafka.start)
    starting.start()
    assert sink.deliver(batch(*(doc(n % 7, ordinal=n) for n in range(1, 1_000)))) == {}
    starting.join()
    sink.close()
    assert len(read(own_kafka.servers, "docs")) == 1_000


# --- exactly once -----------------------------------------------------------------------------


@pytest.fixture
def once(kafka: Broker, topic: str, topic_prefix: str) -> KafkaConfig:
    progress = f"{topic_prefix}progress"
    return config(kafka.servers, topic, exactly_once=True, progress_topic=progress)


def test_the_progress_is_that_of_the_last_committed_batch(once: KafkaConfig) -> None:
    sink = sink_of(once)
    assert sink.open() is None
    for number in range(100):
        assert sink.deliver(batch(doc(number, ordinal=number), cursor=f"at {number}")) == {}
    assert sink.open() == "at 99"
    sink.close()
    other = sink_of(once, "other")
    assert other.open() is None
    other.close()


def test_an_older_producer_is_fenced_by_a_newer_one(
    once: KafkaConfig, kafka: Broker, docs: str
) -> None:
    older, newer = sink_of(once), sink_of(once)
    older.open()
    older.deliver(batch(doc(1), cursor="one"))
    assert newer.open() == "one"
    with pytest.raises(SinkLost):
        older.deliver(batch(doc(2, ordinal=1), cursor="two"))
    assert newer.deliver(batch(doc(2, ordinal=1), cursor="two")) == {}
    newer.close()
    older.close()
    assert sorted(ids(read(kafka.servers, docs))) == ["1-0/1A2B3C-0", "1-0/1A2B3C-1"]


def test_a_refused_change_commits_nothing_until_it_is_left_out(
    once: KafkaConfig, kafka: Broker, docs: str
) -> None:
    sink = sink_of(once.model_copy(update={"largest_bytes": 900_000}))
    sink.open()
    first, large, last = doc(1), doc(2, "x" * 1_000_000, ordinal=1), doc(3, ordinal=2)
    verdicts = sink.deliver(batch(first, large, last, cursor="all"))
    assert isinstance(verdicts[1], Refused)
    assert isinstance(verdicts[0], NotNow) and isinstance(verdicts[2], NotNow)
    assert read(kafka.servers, docs) == []
    assert sink.deliver(batch(first, last, cursor="all")) == {}
    assert sink.open() == "all"
    sink.close()
    assert sorted(ids(read(kafka.servers, docs))) == ["1-0/1A2B3C-0", "1-0/1A2B3C-2"]


def test_what_the_broker_refuses_in_a_transaction_is_refused(once: KafkaConfig) -> None:
    sink = sink_of(once.model_copy(update={"compression": "none"}))
    sink.open()
    verdicts = sink.deliver(batch(doc(1), doc(2, "x" * 2_000_000, ordinal=1), cursor="all"))
    assert isinstance(verdicts[1], Refused) and isinstance(verdicts[0], NotNow)
    assert sink.deliver(batch(doc(1), cursor="all")) == {}
    sink.close()


@pytest.mark.long
@pytest.mark.slow
def test_a_transaction_that_the_broker_timed_out_leaves_no_hole(
    own_kafka: Kafka, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = config(
        *(own_kafka.servers, "{relation}"),
        create={},
        exactly_once=True,
        transaction_seconds=11.0,
        delivery_seconds=10.0,
    )
    own_kafka.stop()
    own_kafka.settings["transaction.abort.timed.out.transaction.cleanup.interval.ms"] = "200"
    own_kafka.start()
    sink = sink_of(settings)
    sink.open()
    sink.deliver(batch(doc(1), cursor="one"))

    def until_aborted(failpoint: str) -> None:
        if failpoint == "kafka.sent":
            begin = stable_end(own_kafka.servers, "docs")
            while stable_end(own_kafka.servers, "docs") == begin:
                pass

    with monkeypatch.context() as patched:
        patched.setattr("pgstream_dagster.sinks.kafka.sink.reach", until_aborted)
        with pytest.raises((SinkLost, SinkUnreachable)):
            sink.deliver(batch(doc(2, ordinal=1), cursor="two"))
    assert sink.open() == "one"
    assert sink.deliver(batch(doc(2, ordinal=1), cursor="two")) == {}
    sink.close()
    assert sorted(ids(read(own_kafka.servers, "docs"))) == ["1-0/1A2B3C-0", "1-0/1A2B3C-1"]


@pytest.mark.long
@pytest.mark.slow
def test_every_change_is_there_once_whenever_the_broker_is_killed(
    own_kafka: Kafka, caplog: pytest.LogCaptureFixture
) -> None:
    """Kafka itself may forget to end a transaction on a partition; the sink says which."""
    settings = {"create": {}, "exactly_once": True, "delivery_seconds": 5.0}
    sink = sink_of(config(own_kafka.servers, "{relation}", **settings))
    batches, chance = 400, random.Random(7)
    delivered, is_over = threading.Semaphore(0), threading.Event()

    def kill_again_and_again() -> None:
        while not is_over.is_set():
            for _ in range(chance.randint(20, 60)):
                delivered.acquire()
            if not is_over.is_set():
                own_kafka.kill()
                own_kafka.start()

    killing = threading.Thread(target=kill_again_and_again)
    killing.start()
    at, failures = 0, 0
    while at < batches:
        try:
            at = int(sink.open() or 0)
            while at < batches:
                changes = [doc(n, ordinal=at * 10 + n) for n in range(10)]
                assert sink.deliver(batch(*changes, cursor=str(at + 1))) == {}
                at += 1
                delivered.release()
        except (SinkUnreachable, SinkLost):
            failures += 1
    is_over.set()
    delivered.release(100)
    killing.join()
    sink.close()
    arrived = Counter(ids(read(own_kafka.servers, "docs")))
    assert set(arrived) == {f"1-0/1A2B3C-{n}" for n in range(batches * 10)}
    doubled = {int(name.split("-")[-1]) // 10 for name, times in arrived.items() if times > 1}
    assert doubled <= {int(cursor or 0) for _, _, cursor in warned(caplog)}
    assert failures > 0


def warned(caplog: pytest.LogCaptureFixture) -> list[tuple[Any, ...]]:
    """The facts of each warning that the brokers left a transaction open."""
    return [record.args for record in caplog.records if record.msg == LEFT_OPEN]


def run(settings: KafkaConfig, batches: int, log: Path, failpoint: str | None = None) -> int:
    """Deliver from the progress on, in a process of its own; its exit code."""
    arguments = settings.model_dump_json(), str(batches)
    return start(PROCESS, *arguments, log=log, failpoint=failpoint).wait(END_SECONDS)


@pytest.mark.long
@pytest.mark.crash
def test_every_change_is_there_once_whenever_the_process_is_killed(
    once: KafkaConfig, kafka: Broker, topic_prefix: str, tmp_path: Path
) -> None:
    log = tmp_path / "sink.log"
    for failpoint in DELIVERING_TO_KAFKA:
        assert run(once, 20, log, failpoint) == -signal.SIGKILL, log.read_text()
    assert run(once, 20, log) == 0, log.read_text()
    counters = f"{topic_prefix}public.counters"
    assert sorted(ids(read(kafka.servers, counters))) == sorted(expected(20))
    everything = read(kafka.servers, counters, "read_uncommitted")
    assert len(everything) > 200, "no kill left a transaction open"


def test_no_old_record_follows_those_of_the_process_that_took_over(
    opened: KafkaSink, kafka: Broker, topic: str, docs: str
) -> None:
    second, checks = sink_of(config(kafka.servers, topic)), list[float]()
    second.open()
    newer = doc(1, "newer", ordinal=9_000)

    def require(seconds: float) -> None:
        """The first one sleeps after a hundred records until it is replaced."""
        checks.append(seconds)
        if len(checks) == 101:
            assert second.deliver(batch(newer)) == {}
        if len(checks) > 100:
            raise SinkLost("events")

    old = [doc(1, str(number), ordinal=number) for number in range(3_000)]
    with pytest.raises(SinkLost):
        opened.deliver(ChangeBatch(old, require=require))
    opened.close()
    second.close()
    received = ids(read(kafka.servers, docs))
    assert newer.event_id in received
    assert len(received) <= 101
