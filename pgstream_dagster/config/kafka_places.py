"""
What the pipeline file has that needs a Postgres to read from, where Kafka is the source.

Of the file as it is written, so that other problems do not hide these.
"""

from __future__ import annotations

from typing import Any

from pgstream_dagster.config.written import keys_of


def kafka_problems(content: dict[str, Any]) -> list[str]:
    """A problem for each key that needs a Postgres to read from, where Kafka is the source."""
    source = keys_of(content.get("source"))
    if "kafka" not in source:
        return []
    problems = [
        f"source.{key}: is for Postgres, and the source is Kafka"
        for key in ("slot", "publication", "tables", "exclude", "modifiers", "schema_triggers")
        if key in source
    ]
    if "copy" in content:
        problems.append("copy: is for Postgres, and the source is Kafka")
    if "messages" in keys_of(content.get("capture")):
        problems.append("capture.messages: is for Postgres, and the source is Kafka")
    for name, sink in keys_of(content.get("sinks")).items():
        targets = keys_of(sink)
        if "postgres" in targets and keys_of(targets["postgres"]).get("schema") != "existing":
            fact = "must be 'existing': tables can be created only as a Postgres source has them"
            problems.append(f"sinks.{name}.postgres.schema: {fact}")
        if "webhook" in targets and not keys_of(targets["webhook"]).get("subscriptions"):
            fact = "is required: a table of subscriptions is one of a Postgres source"
            problems.append(f"sinks.{name}.webhook.subscriptions: {fact}")
    return problems
