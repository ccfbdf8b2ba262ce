"""Pipelines with webhook sinks, delivered to in this process."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from pgstream_dagster.config import SinkConfig
from pgstream_dagster.pipeline import Pipeline
from pgstream_dagster.sinks import run as sinks_run
from pgstream_dagster.sinks.control import SinkStatus, sink_status
from tests.support.harness.background import in_thread

QUICK = {"first_seconds": 0.05, "longest_seconds": 0.2, "attempts": 2}


def webhook(subscribers: Mapping[str, str] | None = None, **more: Any) -> dict[str, Any]:
    """A sink that posts to these URLs, or to those of the table."""
    listed = {name: {"url": url} for name, url in (subscribers or {}).items()}
    own = {"secret": "SECRET", "allow_private_addresses": True, "subscriptions": listed}
    return {"webhook": own | more, "tables": ["t"], "start": "now", "retry": QUICK}


def with_sinks(pipeline: Pipeline, **sinks: dict[str, Any]) -> Pipeline:
    """The pipeline with these sinks in its file."""
    parsed = {name: SinkConfig.model_validate(sink) for name, sink in sinks.items()}
    return replace(pipeline, config=pipeline.config.model_copy(update={"sinks": parsed}))


@contextmanager
def delivering(pipeline: Pipeline, **environment: str) -> Iterator[None]:
    """The sinks in a thread while the block runs."""

    def run(stop: threading.Event) -> None:
        sinks_run.run(pipeline, stop=stop, environment=environment)

    with in_thread(run, "sinks"):
        yield


def by_name(pipeline: Pipeline) -> dict[str, SinkStatus]:
    """The status of each reader."""
    return {status.sink: status for status in sink_status(pipeline)}
