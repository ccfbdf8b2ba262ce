"""What went wrong with Kafka, as our errors: by code, never by text. Pure."""

from __future__ import annotations

from typing import Final

from confluent_kafka import KafkaError

from pgstream_dagster.errors import SinkError, SinkLost, SinkRefused, SinkUnreachable

_LOGIN: Final = frozenset({KafkaError._AUTHENTICATION, KafkaError.SASL_AUTHENTICATION_FAILED})
_RIGHTS: Final = frozenset(
    {
        KafkaError.TOPIC_AUTHORIZATION_FAILED,
        KafkaError.CLUSTER_AUTHORIZATION_FAILED,
        KafkaError.GROUP_AUTHORIZATION_FAILED,
        KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
    }
)
_FENCED: Final = frozenset(
    {
        KafkaError._FENCED,
        KafkaError.PRODUCER_FENCED,
        KafkaError.INVALID_PRODUCER_EPOCH,
        KafkaError.TRANSACTION_COORDINATOR_FENCED,
    }
)
NO_TOPIC: Final = frozenset(
    {
        KafkaError._UNKNOWN_TOPIC,
        KafkaError._UNKNOWN_PARTITION,
        KafkaError.UNKNOWN_TOPIC_OR_PART,
    }
)
_CONFIGURATION: Final = frozenset(
    {
        KafkaError.INVALID_REPLICATION_FACTOR,
        KafkaError.INVALID_PARTITIONS,
        KafkaError.INVALID_CONFIG,
        KafkaError.POLICY_VIOLATION,
        KafkaError.TOPIC_EXCEPTION,
        KafkaError.INVALID_TRANSACTION_TIMEOUT,
        KafkaError._INVALID_ARG,  # a setting of librdkafka
        KafkaError.UNSUPPORTED_COMPRESSION_TYPE,
    }
)

OF_ONE_TOPIC: Final = _CONFIGURATION | {KafkaError.TOPIC_AUTHORIZATION_FAILED}
"""The brokers refuse one topic, or to make it: others may be well."""

TOO_LARGE: Final = frozenset(
    {KafkaError.MSG_SIZE_TOO_LARGE, KafkaError.RECORD_LIST_TOO_LARGE, KafkaError.INVALID_MSG_SIZE}
)
"""The broker, or librdkafka with `largest_bytes`, refuses a record for its size."""

NOT_TAKEN: Final = TOO_LARGE | {KafkaError.INVALID_RECORD}
"""A record is refused for what it is: another attempt has the same end."""


def named(sink: str, error: KafkaError, subject: str = "") -> SinkError:
    """The error of ours for one of Kafka's; `subject` is the topic or request that it is about."""
    reason = f"{subject}: {error.str()}" if subject else error.str()
    if error.code() in _FENCED:
        return SinkLost(sink)
    remedy = remedy_of(error, f"sinks.{sink}.kafka")
    return SinkUnreachable(sink, reason) if remedy is None else SinkRefused(sink, reason, remedy)


def remedy_of(error: KafkaError, section: str) -> str | None:
    """What a person must do, in a section of the file; `None`: it may pass by itself."""
    remedies = (remedy for codes, remedy in _REMEDIES if error.code() in codes)
    remedy = next(remedies, None)
    return None if remedy is None else remedy.format(section)


_REMEDIES: Final = (
    (_LOGIN, "check 'sasl' of {} and the variables that it names"),
    (frozenset({KafkaError._SSL}), "check 'tls' of {}"),
    (_RIGHTS, "give the user the right with kafka-acls.sh (docs/guides/kafka.md lists them)"),
    (NO_TOPIC, "create it, or add 'create' to {}"),
    (_CONFIGURATION, "correct {}, or the brokers' settings"),
    (TOO_LARGE, "set 'batch_bytes' of {} to at most the topic's max.message.bytes"),
)
