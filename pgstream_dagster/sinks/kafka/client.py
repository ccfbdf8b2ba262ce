"""
The settings of librdkafka, from those of a sink. Pure.

Secrets come from the environment that is passed in; no message of ours contains one.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from pgstream_dagster.config.kafka import BrokersConfig, KafkaConfig, SaslConfig, TlsConfig
from pgstream_dagster.errors import MissingSetting

REQUEST_SECONDS: Final = 10.0
"""For one answer of a broker that is up: metadata, a new topic, a watermark."""

TO_THE_END: Final[Mapping[str, Any]] = {"enable.partition.eof": True, "fetch.wait.max.ms": 10}
"""Of a consumer that reads what there is: a broker reports the end of a partition when a request
has waited in vain (500 ms by default)."""

IN_FLIGHT: Final = 5
"""The most with which idempotence keeps order (Kafka's own limit)."""


def connection(config: BrokersConfig, environment: Mapping[str, str]) -> dict[str, Any]:
    """
    How to reach the brokers: of every client.

    Raises:
        MissingSetting: a variable that the sink names is not set.
    """
    servers = config.bootstrap_servers or _secret(
        environment, config.bootstrap_servers_from, "the addresses of the Kafka brokers"
    )
    protocol = ("SASL_" if config.sasl else "") + ("SSL" if config.tls else "PLAINTEXT")
    settings: dict[str, Any] = {
        "bootstrap.servers": servers,
        "client.id": "pgstream",
        "security.protocol": protocol,
        "socket.timeout.ms": int(REQUEST_SECONDS * 1000),
        "reconnect.backoff.ms": 500,  # each attempt that fails is a line of the log
        "reconnect.backoff.max.ms": 1000,  # the follower already waits longer after each failure
        "allow.auto.create.topics": False,
    }
    if config.tls:
        settings |= _tls(config.tls, environment)
    if config.sasl:
        settings |= _sasl(config.sasl, environment)
    return settings


def producing(config: KafkaConfig, *, batch_bytes: int, transactional_id: str) -> dict[str, Any]:
    """How records are sent: idempotent, acknowledged by all in-sync replicas, in order per key."""
    settings: dict[str, Any] = {
        "enable.idempotence": True,
        "acks": "all",
        "max.in.flight.requests.per.connection": IN_FLIGHT,
        "delivery.timeout.ms": int(config.delivery_seconds * 1000),
        "delivery.report.only.error": True,  # a call of Python per record costs as much as its JSON
        "compression.type": config.compression,
        "batch.size": batch_bytes,
        "batch.num.messages": 100_000,  # the bytes are the limit
        "message.max.bytes": config.largest_bytes,
        "queue.buffering.max.messages": 1_000_000,
        "partitioner": "murmur2_random",  # of the Java clients: the same key, the same partition
    }
    if config.exactly_once:
        settings["transactional.id"] = transactional_id
        settings["transaction.timeout.ms"] = int(config.transaction_seconds * 1000)
    return settings


def _tls(config: TlsConfig, environment: Mapping[str, str]) -> dict[str, Any]:
    settings: dict[str, Any] = {
        "ssl.ca.location": config.ca,
        "ssl.certificate.location": config.certificate,
        "ssl.key.location": config.key,
        "ssl.endpoint.identification.algorithm": "https" if config.verify_hostname else "none",
    }
    if config.key_password is not None:
        meaning = "the password of the private key for Kafka"
        settings["ssl.key.password"] = _secret(environment, config.key_password, meaning)
    return {name: value for name, value in settings.items() if value is not None}


def _sasl(config: SaslConfig, environment: Mapping[str, str]) -> dict[str, Any]:
    password = _secret(environment, config.password, "the password for Kafka")
    if config.mechanism != "OAUTHBEARER":
        return {
            "sasl.mechanism": config.mechanism,
            "sasl.username": config.username,
            "sasl.password": password,
        }
    settings: dict[str, Any] = {
        "sasl.mechanism": config.mechanism,
        "sasl.oauthbearer.method": "oidc",
        "sasl.oauthbearer.client.id": config.username,
        "sasl.oauthbearer.client.secret": password,
        "sasl.oauthbearer.token.endpoint.url": config.token_url,
        "sasl.oauthbearer.scope": config.scope,
    }
    return {name: value for name, value in settings.items() if value is not None}


def _secret(environment: Mapping[str, str], variable: str | None, meaning: str) -> str:
    if not variable or not environment.get(variable):
        raise MissingSetting(str(variable), meaning)
    return environment[variable]
