"""Pipelines with webhook sinks, delivered to in this process."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from pgstream_dagster.config import SinkConfig
from pgstream_dagster.pipeline import Pipeline
from pgstream_dagster.sinks import run as sinks_run
from pgstream_dagster.sinks.control import SinkStatus, sink_status
from pgstream_dagster.upkeep.setup import setup
from tests.support.harness.background import in_thread
from tests.support.harness.runner import new_pipeline
from tests.support.plugins.cluster import psql

FILE = """
pipeline: {name}
sinks:
  hooks:
    tables: [t]
    webhook:
      secret: SECRET
      allow_private_addresses: true
      subscriptions: {{erp: {{url: "{url}"}}}}
"""
"""A pipeline file with one subscriber, `hooks.erp`, for the command line."""

QUICK = {"first_seconds": 0.05, "longest_seconds": 0.2, "attempts": 2}


def pipeline_of_t(dsn: str, folder: Path, *statements: str) -> Pipeline:
    """A pipeline of table `t`, which has an `id`, with the rows that the statements insert."""
    psql(dsn, "create table t (id bigint primary key)", *statements)
    pipeline = new_pipeline(dsn, folder)
    setup(pipeline)
    return pipeline


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
