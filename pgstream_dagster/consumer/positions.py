"""How far the log is in the topics of its source; reads offsets only, and joins no group."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass

from confluent_kafka import Consumer, KafkaException
from confluent_kafka.admin import AdminClient

from pgstream_dagster.changelog.consumed import ConsumedLog, Partition
from pgstream_dagster.config.kafka_source import KafkaSourceConfig
from pgstream_dagster.consumer.group import bounds, failed, subscribed
from pgstream_dagster.pipeline import OpenPipeline, Pipeline
from pgstream_dagster.sinks.kafka import admin
from pgstream_dagster.sinks.kafka.client import connection


@dataclass(frozen=True, slots=True)
class PartitionStatus:
    """
    One partition of the source.

    `offset`: the first one that is not in the log, `None` before the first start; `behind`: the
    offsets from there to the end, some of which may be markers of transactions.
    """

    topic: str
    partition: int
    offset: int | None
    behind: int


def positions(opened: OpenPipeline) -> tuple[PartitionStatus, ...]:
    """
    Every partition of the topics that exist.

    Raises:
        BrokerUnreachable, BrokerRefused, MissingSetting
    """
    pipeline = opened.pipeline
    with (
        closing(ConsumedLog(pipeline.lake, pipeline.name, opened.gateway)) as log,
        _connected(pipeline) as (consumer, config),
    ):
        return tuple(_status(log, consumer, p) for p in subscribed(consumer, config))


def unfit_topics(pipeline: Pipeline) -> tuple[list[str], list[str]]:
    """
    The topics that the file names and the brokers do not have, and those that are compacted.

    Raises:
        BrokerUnreachable, BrokerRefused, MissingSetting
    """
    with _connected(pipeline) as (consumer, config):
        topics = {p.topic for p in subscribed(consumer, config)}
        names: Sequence[str] = [topic for topic in config.topics if "*" not in topic]
        every = consumer.list_topics(config.schemas_topic, timeout=10).topics
        missing = [topic for topic in names if topic not in topics]
        if every[config.schemas_topic].error is not None:
            missing.append(config.schemas_topic)
        client = AdminClient(connection(config, pipeline.environment))
        return missing, [topic for topic in sorted(topics) if admin.is_compacted(client, topic)]


@contextmanager
def _connected(pipeline: Pipeline) -> Generator[tuple[Consumer, KafkaSourceConfig]]:
    config = pipeline.config.source.kafka
    assert config is not None
    group = config.group_of(pipeline.name)
    settings = {**connection(config, pipeline.environment), "group.id": group}
    try:
        with closing(Consumer(settings)) as consumer:
            yield consumer, config
    except KafkaException as error:
        raise failed(error.args[0]) from error


def _status(log: ConsumedLog, consumer: Consumer, partition: Partition) -> PartitionStatus:
    offset, (low, high) = log.offset(partition), bounds(consumer, partition)
    behind = high - max(low, offset or 0)
    return PartitionStatus(partition.topic, partition.number, offset, behind)
