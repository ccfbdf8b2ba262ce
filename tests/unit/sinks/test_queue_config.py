"""The sections of queues: what is refused, and that a missing library is named."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from pgstream_dagster.config.sinks import SinkConfig
from pgstream_dagster.errors import ExtraMissing, MissingSetting
from pgstream_dagster.sinks.targets import target

OUTBOX = {"stream": 1}

PLACED: dict[str, dict[str, Any]] = {
    "redis": {"url_from": "REDIS_URL", "stream": "jobs"},
    "rabbitmq": {"url_from": "RABBIT_URL", "queue": "jobs"},
    "nats": {"url_from": "NATS_URL", "subject": "jobs"},
    "sqs": {"queue_url": "https://sqs.example/1/jobs"},
    "documents": {"url_from": "SEARCH_URL", "index": "jobs"},
}
"""Of each queue, a section that gives every message a place."""

LIBRARIES = {"redis": "redis", "rabbitmq": "pika", "nats": "nats", "sqs": "boto3"}

PLACES = {
    "redis": ("stream", "key_prefix"),
    "rabbitmq": ("exchange", "queue"),
    "nats": ("subject",),
    "sqs": ("queue_url",),
    "documents": ("index",),
}


def sink(**keys: Any) -> SinkConfig:
    return SinkConfig.model_validate(keys)


def without_place(queue: str) -> dict[str, Any]:
    return {key: value for key, value in PLACED[queue].items() if key not in PLACES[queue]}


@pytest.mark.parametrize("queue", PLACED)
def test_changes_of_tables_need_a_place_that_events_may_name_themselves(queue: str) -> None:
    assert sink(**{queue: PLACED[queue]}).target == queue
    assert sink(**{queue: without_place(queue), "outbox": OUTBOX}).target == queue
    with pytest.raises(ValidationError, match=f"`{queue}` needs `{PLACES[queue][0]}`"):
        sink(**{queue: without_place(queue)})


@pytest.mark.parametrize("queue", LIBRARIES)
def test_a_library_that_is_not_installed_is_named_with_its_extra(
    queue: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for module in [m for m in sys.modules if m.startswith(f"pgstream_dagster.sinks.{queue}")]:
        monkeypatch.delitem(sys.modules, module)
    library = LIBRARIES[queue]
    for module in [m for m in sys.modules if m.partition(".")[0] == library]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.setitem(sys.modules, library, None)
    with pytest.raises(ExtraMissing, match=rf"pip install 'pgstream-dagster\[{queue}\]'"):
        made(queue)


def made(queue: str, environment: dict[str, str] | None = None) -> object:
    pipeline = type("AnyPipeline", (), {"name": "shop"})()
    config = sink(**{queue: PLACED[queue]})
    return target(pipeline, "jobs", config, environment or {})


@pytest.mark.parametrize("queue", [name for name in PLACED if "url_from" in PLACED[name]])
def test_a_variable_that_is_not_set_is_named(queue: str) -> None:
    with pytest.raises(MissingSetting, match=PLACED[queue]["url_from"]):
        made(queue)


@pytest.mark.parametrize(
    "keys", [{"queue": "q", "exchange": "x"}, {"queue": "q", "routing_key": "k"}, {"declare": True}]
)
def test_rabbitmq_has_an_exchange_or_a_queue(keys: dict[str, Any]) -> None:
    with pytest.raises(ValidationError, match="'queue'"):
        sink(rabbitmq={"url_from": "RABBIT_URL", **keys}, outbox=OUTBOX)


@pytest.mark.parametrize(
    ("keys", "problem"),
    [
        ({"key_prefix": "a", "stream": "b"}, "'stream' is for streams"),
        ({"key_prefix": "a", "max_len": 5}, "'max_len' is for streams"),
        ({"stream": "b", "ttl_seconds": 5}, "needs 'key_prefix'"),
    ],
)
def test_redis_has_streams_or_keys(keys: dict[str, Any], problem: str) -> None:
    with pytest.raises(ValidationError, match=problem):
        sink(redis={"url_from": "REDIS_URL", **keys})
