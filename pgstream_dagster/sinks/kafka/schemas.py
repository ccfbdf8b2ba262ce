"""
The versions of tables, as records of a compacted topic beside the changes.

A message names the version of its table's columns; the topic says what it is. A version is there
before the first change that was written with it. One record says where changes go, which may not
change: changes of one row in two topics or partitions have no order.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import Any, Final, NamedTuple, Self

from confluent_kafka import KafkaError, KafkaException, Message, Producer

from pgstream_dagster.config.kafka import KafkaConfig
from pgstream_dagster.readers.change import Change, of_versions
from pgstream_dagster.schema.table import TableSchema
from pgstream_dagster.sinks.kafka.client import REQUEST_SECONDS
from pgstream_dagster.sinks.kafka.progress import last_value


class Layout(NamedTuple):
    """Where the changes of a row go: the template of its topic, and what its records' key is."""

    topic: str
    key: str


class SchemaTopic:
    """Writes each version once per connection, and again when a table goes back to one."""

    def __init__(self, topic: str, pipeline: str, layout: Layout) -> None:
        self.topic: Final = topic
        self.layout: Final = layout
        self._pipeline = pipeline
        self._written: dict[int, TableSchema] = {}
        self._error: KafkaError | None = None

    @classmethod
    def of_sink(cls, config: KafkaConfig, pipeline: str) -> Self | None:
        """The topic of a sink; `None` if it has none."""
        if config.schemas_topic is None:
            return None
        topic = config.schemas_topic.format(pipeline=pipeline, namespace="", relation="")
        return cls(topic, pipeline, Layout(config.topic, config.key))

    def recorded_layout(self, connection: Mapping[str, Any]) -> Layout:
        """
        Where changes went from the first one on; recorded before it.

        Raises:
            KafkaException
        """
        key = json.dumps([self._pipeline]).encode()
        recorded = last_value(connection, self.topic, key)
        if recorded is not None:
            return Layout(**json.loads(recorded))
        self._write([(key, json.dumps(self.layout._asdict()).encode())], connection)
        return self.layout

    def forget(self) -> None:
        """Write every version again when it is next needed."""
        self._written.clear()

    def publish(self, changes: Sequence[Change], connection: Mapping[str, Any]) -> None:
        """
        Make the versions of these changes durable.

        Raises:
            KafkaException
        """
        new = [
            schema_record(self._pipeline, self.layout.key, change, schema)
            for change, schema in self._new(of_versions(changes))
        ]
        if new:
            self._write(new, connection)

    def _write(self, records: Iterable[tuple[bytes, bytes]], connection: Mapping[str, Any]) -> None:
        producer = Producer({**connection, "enable.idempotence": True, "acks": "all"})
        for key, value in records:
            producer.produce(self.topic, value, key, on_delivery=self._reported)
        self._error = None
        left = producer.flush(REQUEST_SECONDS)
        if self._error is not None or left:
            self.forget()
            raise KafkaException(self._error or KafkaError(KafkaError._TIMED_OUT))

    def _new(self, changes: Iterable[Change]) -> Iterable[tuple[Change, TableSchema]]:
        last: TableSchema | None = None
        for change in changes:
            schema = change.schema
            if schema is last or schema is None:
                continue
            last = schema
            written = self._written.get(schema.relation_id)
            if written is None or written.version != schema.version:
                self._written[schema.relation_id] = schema
                yield change, schema

    def _reported(self, error: KafkaError | None, _message: Message) -> None:
        self._error = self._error or error


def schema_record(
    pipeline: str, key: str, change: Change, schema: TableSchema
) -> tuple[bytes, bytes]:
    """
    Key and value of the record of a version that `change` was the first to have.

    `since` orders the versions of a table; `key` is how the records of changes are keyed.
    """
    identity = [pipeline, str(schema.schema_id), schema.namespace, schema.name]
    value = {
        "pipeline": pipeline,
        "schema_id": str(schema.schema_id),
        "since": str(change.commit_lsn),
        "key": key,
        "schema": asdict(schema),
    }
    return json.dumps(identity).encode(), json.dumps(value).encode()
