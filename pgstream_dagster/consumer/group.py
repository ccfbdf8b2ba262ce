"""
One member of a consumer group: its partitions, and records from where the log is.

The log says where each partition begins; the group only says whose it is. What was gathered is
forgotten whenever the group gives partitions out again: its next owner reads it from the log's
offset.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any, Final

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition
from confluent_kafka.admin import AdminClient

from pgstream_dagster.changelog.consumed import ConsumedLog, Partition, Topic
from pgstream_dagster.config.kafka_source import KafkaSourceConfig
from pgstream_dagster.errors import (
    BrokerRefused,
    BrokerUnreachable,
    RecordsGone,
    SourceError,
    TopicChanged,
    TopicCompacted,
)
from pgstream_dagster.sinks.kafka import admin
from pgstream_dagster.sinks.kafka.client import REQUEST_SECONDS
from pgstream_dagster.sinks.kafka.failures import NO_TOPIC, remedy_of

logger = logging.getLogger(__name__)

SESSION_SECONDS: Final = 10
"""After which the partitions of a process that vanished go to others."""

NEW_TOPICS_SECONDS: Final = 10
"""Between looks for new topics that a pattern matches, and for new partitions."""

END_MS: Final = 100
"""How long a broker waits for new records before it reports the end of a partition."""

AT_ONCE: Final = 1_000
"""Records of one call; there are about as many in a fetch."""

NO_TOPIC_REMEDY: Final = (
    "start the sink that writes it, or correct 'topics' and 'schemas_topic' of source.kafka"
)

_GONE: Final = frozenset({KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE})

_LOGIN: Final = frozenset(
    {KafkaError._AUTHENTICATION, KafkaError.SASL_AUTHENTICATION_FAILED, KafkaError._SSL}
)


class Member:
    """
    One process of the group.

    `begins` has where the log is with each of its partitions, as of the records that were given
    out. `moved` is called when partitions are given out again: records that are not landed count
    no more.
    """

    def __init__(
        self,
        config: KafkaSourceConfig,
        connection: Mapping[str, Any],
        group: str,
        log: ConsumedLog,
        moved: Callable[[], None],
    ) -> None:
        self.begins: dict[Partition, int] = {}
        self._has_moved = False
        self._config, self._log, self._moved = config, log, moved
        self._login: KafkaError | None = None
        asking: dict[str, Any] = {**connection, "error_cb": self._heard}
        self._admin = AdminClient(asking, logger=logger)
        self._consumer = Consumer(
            {
                **connection,
                "group.id": group,
                "enable.auto.commit": False,
                "enable.partition.eof": True,
                "fetch.wait.max.ms": END_MS,
                "auto.offset.reset": "error",  # a position that is gone must not be passed over
                "isolation.level": "read_committed",
                # "range" would give all topics of one partition to one process
                "partition.assignment.strategy": "roundrobin",
                "session.timeout.ms": SESSION_SECONDS * 1000,
                "topic.metadata.refresh.interval.ms": NEW_TOPICS_SECONDS * 1000,
                "error_cb": self._heard,
            },
            logger=logger,
        )
        self._consumer.subscribe(
            [_subscription(topic) for topic in config.topics],
            on_assign=self._assigned,
            on_revoke=self._revoked,
            on_lost=self._revoked,
        )

    def close(self) -> None:
        """Leave the group, so that others have the partitions at once."""
        self._consumer.close()

    def records(self, timeout: float, limit: int = AT_ONCE) -> list[Message]:
        """
        Up to `limit` records and ends of partitions, as they come.

        Raises:
            RecordsGone, TopicCompacted, TopicChanged, BrokerRefused, BrokerUnreachable
        """
        self._has_moved = False
        try:
            records = self._consumer.consume(min(limit, AT_ONCE), timeout)
            if self._has_moved:  # some of them may be from before
                self.seek_to_log()
                return []
        except KafkaException as error:
            raise failed(error.args[0]) from error
        if self._login is not None and not records:
            raise failed(self._login)
        for record in records:
            error = record.error()
            if error is not None and error.code() != KafkaError._PARTITION_EOF:
                raise self._error(record, error)
        return records

    def commit(self, ends: Mapping[Partition, int]) -> None:
        """Tell the group how far the log is, for tools that show lag; the log's word counts."""
        self.begins.update(ends)
        offsets = [TopicPartition(p.topic, p.number, end) for p, end in ends.items()]
        try:
            self._consumer.commit(offsets=offsets, asynchronous=False)
        except KafkaException as error:
            logger.info("the group's offsets are not updated: %s", error)

    def seek_to_log(self) -> None:
        """Read every partition from where the log is."""
        self._assign(sorted(self.begins))

    def count(self, topic: str) -> int:
        """How many partitions a topic has."""
        begun = self._log.begun(topic)
        assert begun is not None
        return begun.partitions

    def require_unchanged(self) -> None:
        """
        Make sure that the topics are those that the log began to read.

        Partitions that are added move rows: their changes before and after it have no order.

        Raises:
            TopicChanged, KafkaException
        """
        topics = {p.topic for p in self.begins}
        for topic, now in self._described(topics).items():
            begun = self._log.begun(topic)
            if begun is not None and begun.id != now.id:
                raise TopicChanged(topic, "was deleted and made again")
            if begun is not None and begun.partitions != now.partitions:
                raise TopicChanged(
                    topic, f"had {begun.partitions} partitions and now has {now.partitions}"
                )

    def ends(self) -> dict[Partition, int]:
        """Where each partition of the subscribed topics ends now."""
        return {p: bounds(self._consumer, p)[1] for p in subscribed(self._consumer, self._config)}

    # --- the group ------------------------------------------------------------------------------

    def _assigned(self, _consumer: Consumer, assigned: list[TopicPartition]) -> None:
        every = (Partition(p.topic, p.partition) for p in assigned)
        partitions = sorted(p for p in every if p.topic != self._config.schemas_topic)
        for topic in {p.topic for p in partitions}:
            if admin.is_compacted(self._admin, topic):
                raise TopicCompacted(topic)
        self._assign(partitions)
        logger.info("reads %d partitions", len(assigned))

    def _revoked(self, _consumer: Consumer, _revoked: list[TopicPartition]) -> None:
        self.begins.clear()
        self._has_moved = True
        self._moved()

    def _assign(self, partitions: list[Partition]) -> None:
        self._has_moved = True
        self._moved()
        self._log.refresh()
        self._begin({p.topic for p in partitions})
        # One that was added to its topic since is refused before anything of it is landed.
        self.begins = {p: self._log.offset(p) or 0 for p in partitions}
        self.require_unchanged()
        offsets = [TopicPartition(p.topic, p.number, at) for p, at in self.begins.items()]
        self._consumer.assign(offsets)

    def _begin(self, topics: Iterable[str]) -> None:
        """
        Begin what the log has not begun.

        The first start begins with every topic that exists, as `start` says. One that appears later
        is read from its first record, which must still be there.
        """
        if not self._log.has_begun:
            side = 0 if self._config.start == "earliest" else 1
            existing = {p.topic for p in subscribed(self._consumer, self._config)}
            described = self._described(existing)
            starts = {p: bounds(self._consumer, p)[side] for p in _partitions(described)}
            self._log.begin(described, starts)
        for topic in topics:
            if self._log.begun(topic) is None:
                described = self._described([topic])
                self._log.begin(described, dict.fromkeys(_partitions(described), 0))

    def _described(self, topics: Collection[str]) -> dict[str, Topic]:
        described = admin.describe(self._admin, topics) if topics else {}
        return {name: Topic(*described[name]) for name in sorted(described)}

    def _heard(self, error: KafkaError) -> None:
        """What librdkafka says beside the answers to requests."""
        if error.code() in _LOGIN:
            self._login = error
        logger.info("Kafka: %s", error)

    def _error(self, record: Message, error: KafkaError) -> SourceError:
        topic, partition = record.topic(), record.partition()
        if error.code() in _GONE and topic is not None and partition is not None:
            return RecordsGone(topic, partition, self._log.offset(Partition(topic, partition)) or 0)
        return failed(error)


def failed(error: KafkaError) -> SourceError:
    """The error of ours for one of Kafka's."""
    remedy = NO_TOPIC_REMEDY if error.code() in NO_TOPIC else remedy_of(error, "source.kafka")
    return BrokerUnreachable(error.str()) if remedy is None else BrokerRefused(error.str(), remedy)


def bounds(consumer: Consumer, partition: Partition) -> tuple[int, int]:
    """The first offset of a partition and the one after its last."""
    place = TopicPartition(partition.topic, partition.number)
    return consumer.get_watermark_offsets(place, timeout=REQUEST_SECONDS)


def _partitions(topics: Mapping[str, Topic]) -> list[Partition]:
    return [Partition(name, n) for name, topic in topics.items() for n in range(topic.partitions)]


def subscribed(consumer: Consumer, config: KafkaSourceConfig) -> list[Partition]:
    """The partitions of the topics of changes that exist."""
    topics = consumer.list_topics(timeout=REQUEST_SECONDS).topics
    patterns = [re.compile(_expression(topic)) for topic in config.topics]
    return [
        Partition(name, number)
        for name in sorted(topics)
        if name != config.schemas_topic and any(pattern.fullmatch(name) for pattern in patterns)
        for number in sorted(topics[name].partitions)
    ]


def _subscription(topic: str) -> str:
    """As librdkafka takes it: what begins with ^ is a regular expression."""
    return f"^{_expression(topic)}$" if "*" in topic else topic


def _expression(topic: str) -> str:
    return topic.replace(".", "[.]").replace("*", ".*")
