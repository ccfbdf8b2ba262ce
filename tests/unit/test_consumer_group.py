"""What a reading pipeline says when the brokers refuse it."""

from __future__ import annotations

import pytest
from confluent_kafka import KafkaError

from pgstream_dagster.config.kafka_source import KafkaSourceConfig
from pgstream_dagster.consumer.group import failed
from pgstream_dagster.errors import BrokerRefused


@pytest.mark.parametrize("code", [KafkaError._UNKNOWN_TOPIC, KafkaError.UNKNOWN_TOPIC_OR_PART])
def test_the_remedy_for_a_missing_topic_names_keys_that_a_source_has(code: int) -> None:
    error = failed(KafkaError(code))
    assert isinstance(error, BrokerRefused)
    assert error.remedy.startswith("start the sink that writes it, or correct ")
    assert {"topics", "schemas_topic"} <= KafkaSourceConfig.model_fields.keys()
    assert "'create'" not in error.remedy
