"""The pipeline file of a Kafka source: every mistake named with its path, all at once."""

from __future__ import annotations

from pathlib import Path

import pytest

from pgstream_dagster import Pipeline
from pgstream_dagster.config import parse
from pgstream_dagster.errors import InvalidPipeline, MissingSetting, NotForKafka
from pgstream_dagster.sinks.kafka.client import connection

FILE = """
pipeline: copy
source:
  kafka:
    bootstrap_servers: "kafka:9092"
    topics: ["shop.*"]
    schemas_topic: shop.schemas
"""


def test_the_group_is_named_after_the_pipeline() -> None:
    config = parse(FILE).source.kafka
    assert config is not None
    assert (config.group_of("copy"), config.start, config.on_invalid) == (
        "pgstream-copy",
        "earliest",
        "stop",
    )


def test_all_problems_are_reported_at_once() -> None:
    text = """
pipeline: copy
source:
  slot: s
  tables: [orders]
  schema_triggers: true
  kafka: {topics: ["a b"], schemas_topic: "x*", sasl: {mechanism: PLAIN}, tsl: {}, start: now}
copy: {parallel: 3}
capture: {messages: true}
sinks:
  replica: {postgres: {dsn_variable: R}}
  partner: {webhook: {secret: S}}
"""
    with pytest.raises(InvalidPipeline) as caught:
        parse(text)
    assert sorted(caught.value.problems) == [
        "capture.messages: is for Postgres, and the source is Kafka",
        "copy: is for Postgres, and the source is Kafka",
        (
            "sinks.partner.webhook.subscriptions: is required: a table of subscriptions is one of"
            " a Postgres source"
        ),
        (
            "sinks.replica.postgres.schema: must be 'existing': tables can be created only as a"
            " Postgres source has them"
        ),
        "source.kafka.sasl: needs 'username' and 'password' (the name of a variable)",
        "source.kafka.schemas_topic: must name one topic",
        "source.kafka.start: must be 'earliest' or 'latest'",
        "source.kafka.topics[0]: must be a topic, which may have * for any text",
        "source.kafka.tsl: unknown key; did you mean 'tls'?",
        "source.schema_triggers: is for Postgres, and the source is Kafka",
        "source.slot: is for Postgres, and the source is Kafka",
        "source.tables: is for Postgres, and the source is Kafka",
    ]


def test_brokers_are_named_once() -> None:
    with pytest.raises(InvalidPipeline, match="either 'bootstrap_servers' or"):
        parse(FILE + "    bootstrap_servers_from: SERVERS\n")


def test_no_connection_string_is_needed(tmp_path: Path) -> None:
    (tmp_path / "pgstream.yaml").write_text(FILE)
    pipeline = Pipeline.from_file(tmp_path / "pgstream.yaml", {"PGSTREAM_LAKE": str(tmp_path)})
    assert pipeline.dsn == ""
    with pytest.raises(NotForKafka, match="'grants' is for a Postgres source"):
        pipeline.require_postgres("grants")


def test_secrets_come_from_the_variables_that_the_file_names() -> None:
    text = FILE + "    sasl: {mechanism: PLAIN, username: me, password: SECRET}\n    tls: {}\n"
    config = parse(text).source.kafka
    assert config is not None
    settings = connection(config, {"SECRET": "s3"})
    assert (settings["security.protocol"], settings["sasl.password"]) == ("SASL_SSL", "s3")
    with pytest.raises(MissingSetting, match="SECRET"):
        connection(config, {})
