"""Functions of the pipeline file that give topic, key and headers of records."""

from __future__ import annotations

import re

import pytest

from pgstream_dagster.config.kafka import KafkaConfig
from pgstream_dagster.errors import SinkRefused
from pgstream_dagster.readers.change import Change
from pgstream_dagster.sinks.kafka.hooks import HookFailed, function, hooks_of
from pgstream_dagster.sinks.kafka.messages import Records
from pgstream_dagster.sinks.kafka.sink import KafkaSink
from tests.support.changes import change


def by_customer(change: Change) -> str:
    return str((change.after or {}).get("id"))


def nothing(change: Change) -> None:
    return None


def number(change: Change) -> int:
    return 5


def broken(change: Change) -> str:
    raise KeyError("a value of the row")


def topic_of(change: Change) -> str:
    return f"orders.{change.op}" if change.op != "delete" else "a b"


INSERT = change(after={"id": "1", "amount": None, "note": None})


def kafka(**keys: str) -> KafkaConfig:
    named = {key: f"{__name__}:{name}" for key, name in keys.items()}
    return KafkaConfig.model_validate({"bootstrap_servers": "localhost", **named})


def test_functions_give_topic_key_and_headers() -> None:
    config = kafka(topic="topic_of", key="by_customer", identity="by_customer", version="nothing")
    hooks = hooks_of(config, "shop")
    [[(topic, key, _, headers)]] = Records(config, "shop", hooks).of_changes([INSERT])
    assert (topic, key) == ("orders.insert", b"1")
    assert headers[-2:] == [("pgstream.identity", b"1"), ("pgstream.version", None)]
    deleted = change("delete", before={"id": "1"})
    assert hooks.topics([INSERT, deleted]) == {"orders.insert"}


@pytest.mark.parametrize("key", ["key", "identity", "version", "topic"])
@pytest.mark.parametrize("name", ["broken", "number"])
def test_a_function_that_fails_concerns_its_change_and_shows_no_value(key: str, name: str) -> None:
    config = kafka(**{key: name})
    [failed] = Records(config, "shop", hooks_of(config, "shop")).of_changes([INSERT])
    assert isinstance(failed, HookFailed)
    assert re.search(f":{name} (raised KeyError in|gave)", str(failed))
    assert "a value of the row" not in str(failed)


def test_a_topic_that_kafka_does_not_take_fails_its_change() -> None:
    config = kafka(topic="topic_of")
    with pytest.raises(HookFailed, match="no name of a topic"):
        hooks_of(config, "shop").topic(change("delete", before={"id": "1"}))


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("no.such.module:key", "ModuleNotFoundError"),
        ("json:no_such_function", "AttributeError"),
        ("json:__name__", "it is no function"),
    ],
)
def test_a_function_that_is_not_there_stops_the_sink(name: str, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        function(name)
    config = KafkaConfig(bootstrap_servers="localhost", key=name)
    with pytest.raises(SinkRefused, match=r"correct sinks\.events\.kafka"):
        KafkaSink(config, pipeline="shop", sink="events", environment={})
