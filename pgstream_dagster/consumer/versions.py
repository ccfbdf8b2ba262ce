"""
The versions of the source's tables, as the writing sink's topic of schemas has them.

The topic is read to its end at the first need, and further whenever a record names a version that
is not known: a version is durable there before the first record that has it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass, field, replace
from typing import Any, Final

import msgspec
from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from pgstream_dagster.changelog.consumed import EPOCH
from pgstream_dagster.lsn import Lsn
from pgstream_dagster.schema.table import TableSchema
from pgstream_dagster.sinks.kafka.client import REQUEST_SECONDS, TO_THE_END
from pgstream_dagster.values.parse import Parse, parse

TOGETHER: Final = frozenset({"table", "schema"})
"""Keys with which all rows of a table are in one partition."""

Name = tuple[str, str, str]
"""Schema id, namespace and name, as messages have them."""


@dataclass(frozen=True, slots=True)
class Version:
    """One version of a table; `is_spread`: its rows are in several partitions, by their key."""

    schema: TableSchema
    since: Lsn
    is_spread: bool
    parsers: Mapping[str, Parse] = field(repr=False)

    def text(self, column: str, raw: msgspec.Raw) -> str | None:
        """The text of a value; a name that no column has comes from a modifier, and is text."""
        return self.parsers.get(column, _other)(bytes(raw).decode())


class Versions:
    """What was read of the topic; one thread uses it."""

    def __init__(self, connection: Mapping[str, Any], topic: str) -> None:
        self._settings = {
            **connection,
            "group.id": "pgstream",  # librdkafka asks for one; none is used
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
            **TO_THE_END,
        }
        self._topic, self._offset = topic, 0
        self._versions: dict[Name, Version] = {}

    def find(self, name: Name) -> Version | None:
        """
        A version; `None` if the topic has none of this name.

        Raises:
            KafkaException
        """
        if name not in self._versions:
            self.read_on()
        return self._versions.get(name)

    def of_relation(self, relation_id: int) -> list[tuple[TableSchema, Lsn]]:
        """All known versions of a relation, in their order, and since when each holds."""
        versions = (v for v in self._versions.values() if v.schema.relation_id == relation_id)
        return [(v.schema, v.since) for v in sorted(versions, key=lambda v: v.since)]

    def read_on(self) -> None:
        """
        Read what was written since the last time.

        Raises:
            KafkaException
        """
        with closing(Consumer(self._settings)) as consumer:
            consumer.assign([TopicPartition(self._topic, 0, self._offset)])
            while (record := _next(consumer)) is not None:
                self._offset = (record.offset() or 0) + 1
                facts = json.loads(record.value() or b"{}")
                if "schema" in facts:  # else the record says where changes go
                    name, version = _version(facts)
                    self._versions[name] = version


def _next(consumer: Consumer) -> Message | None:
    record = consumer.poll(REQUEST_SECONDS)
    if record is None:
        raise KafkaException(KafkaError(KafkaError._TIMED_OUT))
    error = record.error()
    if error is None:
        return record
    if error.code() == KafkaError._PARTITION_EOF:
        return None
    raise KafkaException(error)


def _version(facts: Mapping[str, Any]) -> tuple[Name, Version]:
    schema = TableSchema.from_json(json.dumps(facts["schema"]))
    parsers = {column.name: parse(column.value_type) for column in schema.columns}
    is_spread = bool(schema.key) and facts["key"] not in TOGETHER
    name = (facts["schema_id"], schema.namespace, schema.name)
    ours = replace(schema, epoch=EPOCH)
    return name, Version(ours, Lsn.parse(facts["since"]), is_spread, parsers)


_other: Final = parse("text")
