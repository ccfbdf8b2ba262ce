"""The keys of a Kafka sink in the pipeline file, and what librdkafka is told."""

from __future__ import annotations

from typing import get_args

import pytest

from pgstream_dagster.config import parse
from pgstream_dagster.config.kafka import KafkaConfig
from pgstream_dagster.errors import InvalidPipeline, MissingSetting
from pgstream_dagster.sinks.kafka.client import connection, producing
from pgstream_dagster.sinks.kafka.messages import FORMS

FILE = "pipeline: shop\nsinks:\n  events:\n    kafka: {keys}\n"


def kafka(keys: str) -> KafkaConfig:
    config = parse(FILE.format(keys=keys)).sink("events").kafka
    assert config is not None
    return config


@pytest.mark.parametrize(
    ("keys", "problem"),
    [
        ("{}", "needs either 'bootstrap_servers' or 'bootstrap_servers_from'"),
        ("{bootstrap_servers: a, bootstrap_servers_from: B}", "needs either"),
        ("{bootstrap_servers: a, topic: '{table}'}", "has {table}, which is not one of {pipeline}"),
        ("{bootstrap_servers: a, topic: 'a b'}", "letters, digits"),
        ("{bootstrap_servers: a, topic: '{namespace'}", "is no template"),
        ("{bootstrap_servers: a, topic: '{relation!r}'}", "which is not one of"),
        ("{bootstrap_servers: a, key: row}", "must be primary_key, table, schema, or a function"),
        ("{bootstrap_servers: a, envelope: avro}", "envelope: must be 'pgstream' or 'debezium'"),
        ("{bootstrap_servers: a, envelope: debezium, key: table}", "Debezium's keys"),
        ("{bootstrap_servers: a, tombstones: true, key: schema}", "stand for many rows"),
        ("{bootstrap_servers: a, progress_topic: '{relation}'}", "one per sink"),
        ("{bootstrap_servers: a, schemas_topic: s, key: 'a.b:c'}", "a function for 'key'"),
        ("{bootstrap_servers: a, schemas_topic: s, topic: 'a.b:c'}", "a function for 'topic'"),
        (
            "{bootstrap_servers: a, schemas_topic: s, create: {cleanup_policy: compact}}",
            "does not go with compacted topics",
        ),
        (
            "{bootstrap_servers: a, exactly_once: true, transaction_seconds: 20.0}",
            "must not be more",
        ),
        ("{bootstrap_servers: a, tls: {certificate: c.pem}}", "belong together"),
        ("{bootstrap_servers: a, sasl: {mechanism: PLAIN}}", "needs 'username' and 'password'"),
        (
            "{bootstrap_servers: a, sasl: {mechanism: OAUTHBEARER, username: u, password: P}}",
            "'token_url' belongs to OAUTHBEARER",
        ),
        (
            "{bootstrap_servers: a, sasl: {mechanism: PLAIN, username: u, password: 'secret!'}}",
            "must be the name of an environment variable",
        ),
        ("{bootstrap_servers: a, acks: 1}", "unknown key"),
    ],
)
def test_a_wrong_setting_is_refused_with_the_reason(keys: str, problem: str) -> None:
    with pytest.raises(InvalidPipeline) as raised:
        kafka(keys)
    assert problem in str(raised.value)


def test_every_form_that_the_file_may_name_is_made() -> None:
    names = get_args(KafkaConfig.model_fields["envelope"].annotation)
    assert set(names) == FORMS.keys()


@pytest.mark.parametrize(
    ("keys", "has_tombstones"),
    [
        ("", False),
        (", envelope: debezium", True),
        (", envelope: debezium, tombstones: false", False),
        (", create: {cleanup_policy: 'compact,delete'}", True),
        (", create: {}", False),
        (", tombstones: true", True),
    ],
)
def test_tombstones_follow_the_form_and_the_topic(keys: str, has_tombstones: bool) -> None:
    assert kafka(f"{{bootstrap_servers: a{keys}}}").has_tombstones is has_tombstones


def test_the_producer_is_idempotent_and_waits_for_all_replicas() -> None:
    config = kafka("{bootstrap_servers: a}")
    settings = producing(config, batch_bytes=1000, transactional_id="x")
    assert settings["enable.idempotence"] is True
    assert settings["acks"] == "all"
    assert settings["max.in.flight.requests.per.connection"] <= 5
    assert "transactional.id" not in settings


def test_secrets_come_from_the_variables() -> None:
    config = kafka(
        "{bootstrap_servers_from: SERVERS, tls: {ca: ca.pem, certificate: c.pem, key: k.pem,"
        " key_password: KEY_PASSWORD}, sasl: {mechanism: SCRAM-SHA-512, username: me,"
        " password: PASSWORD}}"
    )
    environment = {"SERVERS": "b:9092", "KEY_PASSWORD": "k", "PASSWORD": "p"}
    settings = connection(config, environment)
    assert settings["bootstrap.servers"] == "b:9092"
    assert settings["security.protocol"] == "SASL_SSL"
    assert (settings["sasl.mechanism"], settings["sasl.password"]) == ("SCRAM-SHA-512", "p")
    assert (settings["ssl.key.password"], settings["ssl.ca.location"]) == ("k", "ca.pem")
    assert "PASSWORD" in config.model_dump_json() and '"p"' not in config.model_dump_json()


def test_a_token_is_fetched_for_oauthbearer() -> None:
    config = kafka(
        "{bootstrap_servers: a, sasl: {mechanism: OAUTHBEARER, username: client, password: S,"
        " token_url: 'https://idp/token', scope: kafka}}"
    )
    settings = connection(config, {"S": "secret"})
    assert settings["sasl.oauthbearer.method"] == "oidc"
    assert settings["sasl.oauthbearer.client.secret"] == "secret"
    assert settings["sasl.oauthbearer.token.endpoint.url"] == "https://idp/token"


def test_a_variable_that_is_not_set_is_named() -> None:
    config = kafka("{bootstrap_servers_from: SERVERS}")
    with pytest.raises(MissingSetting, match="SERVERS is not set"):
        connection(config, {})
