"""Topics at the brokers: whether they exist, making them, their limits."""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping
from typing import Any, Final

from confluent_kafka import KafkaError, KafkaException, TopicCollection
from confluent_kafka.admin import (
    AclOperation,  # pyright: ignore[reportPrivateImportUsage] - as its documentation imports it
    AdminClient,
    ConfigResource,  # pyright: ignore[reportPrivateImportUsage] - the same
    NewTopic,  # pyright: ignore[reportPrivateImportUsage] - the same
)

from pgstream_dagster.config.kafka import TopicsConfig
from pgstream_dagster.sinks.kafka.client import REQUEST_SECONDS

POLL_SECONDS: Final = 0.05
LIMIT: Final = "max.message.bytes"
CLEANUP: Final = "cleanup.policy"
BROKER_DEFAULT: Final = -1


def check(client: AdminClient) -> None:
    """
    Make sure that the brokers answer us.

    Raises:
        KafkaException
    """
    client.describe_cluster(request_timeout=REQUEST_SECONDS).result()


def exists(client: AdminClient, topic: str) -> bool:
    """
    Whether a topic exists and is served; asking for its metadata could make it.

    Raises:
        KafkaException
    """
    topics = TopicCollection([topic])
    answers = client.describe_topics(topics, request_timeout=REQUEST_SECONDS)
    try:
        answers[topic].result()
    except KafkaException as error:
        if error.args[0].code() in {KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC}:
            return False
        raise
    return True


def may_write(client: AdminClient, topic: str) -> bool:
    """
    Whether the user may write to a topic, as far as the brokers say.

    Raises:
        KafkaException
    """
    answers = client.describe_topics(
        TopicCollection([topic]),
        include_authorized_operations=True,
        request_timeout=REQUEST_SECONDS,
    )
    allowed = answers[topic].result().authorized_operations
    return not allowed or not {AclOperation.WRITE, AclOperation.ALL}.isdisjoint(allowed)


def describe(client: AdminClient, topics: Collection[str]) -> dict[str, tuple[int, int]]:
    """
    How many partitions topics have, and a positive number for the id that Kafka gave them.

    A topic that is deleted and made again has another id.

    Raises:
        KafkaException
    """
    asked = TopicCollection(list(topics))
    answers = client.describe_topics(asked, request_timeout=REQUEST_SECONDS)
    described = {topic: answer.result() for topic, answer in answers.items()}
    return {topic: (len(d.partitions), _number(d.topic_id)) for topic, d in described.items()}


def _number(topic_id: Any) -> int:
    both = topic_id.get_most_significant_bits() ^ topic_id.get_least_significant_bits()
    return both & ((1 << 62) - 1)


def create(client: AdminClient, topic: str, config: TopicsConfig) -> None:
    """
    Make a topic and wait until it is served; a no-op if it exists.

    Raises:
        KafkaException
    """
    settings: dict[str, str] = {"cleanup.policy": config.cleanup_policy, **config.settings}
    new_topic = NewTopic(
        topic,
        num_partitions=config.partitions,
        replication_factor=config.replication or BROKER_DEFAULT,
        config=settings,
    )
    answers = client.create_topics([new_topic], request_timeout=REQUEST_SECONDS)
    try:
        answers[topic].result()
    except KafkaException as error:
        if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
            raise
    wait_until_served(client, topic)


def wait_until_served(client: AdminClient, topic: str) -> None:
    """
    Wait until the brokers serve a topic that was just made: they hear of it one by one.

    Raises:
        KafkaException
    """
    deadline = time.monotonic() + REQUEST_SECONDS
    while True:
        try:
            limit_bytes(client, topic)
        except KafkaException as error:
            if error.args[0].code() != KafkaError.UNKNOWN_TOPIC_OR_PART:
                raise
            if time.monotonic() > deadline:
                raise
            time.sleep(POLL_SECONDS)
        else:
            if exists(client, topic):
                return


def limit_bytes(client: AdminClient, topic: str) -> int | None:
    """
    The largest batch that a topic takes; `None` without the right to ask.

    Raises:
        KafkaException
    """
    limit = _setting(client, topic, LIMIT)
    return None if limit is None else int(limit)


def is_compacted(client: AdminClient, topic: str) -> bool:
    """
    Whether the brokers remove records of which the topic has a later one of the same key.

    False without the right to ask.

    Raises:
        KafkaException
    """
    return "compact" in (_setting(client, topic, CLEANUP) or "")


def _setting(client: AdminClient, topic: str, name: str) -> str | None:
    """A setting of a topic; `None` without the right to ask."""
    resource = ConfigResource(ConfigResource.Type.TOPIC, topic)
    answers: Mapping[Any, Any] = client.describe_configs(
        [resource], request_timeout=REQUEST_SECONDS
    )
    try:
        settings = answers[resource].result()
    except KafkaException as error:
        if error.args[0].code() == KafkaError.TOPIC_AUTHORIZATION_FAILED:
            return None
        raise
    return str(settings[name].value)
