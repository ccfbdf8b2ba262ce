"""The keys of a Kafka source: brokers, topics, consumer group."""

from __future__ import annotations

import re
from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from pgstream_dagster.config.kafka import BrokersConfig


def _topic(text: str) -> str:
    if not re.fullmatch(r"[A-Za-z0-9._*-]{1,249}", text) or text in {".", ".."}:
        raise ValueError("must be a topic, which may have * for any text")
    return text


def _exact(text: str) -> str:
    if "*" in _topic(text):
        raise ValueError("must name one topic")
    return text


TopicPattern = Annotated[str, AfterValidator(_topic)]
Topic = Annotated[str, AfterValidator(_exact)]


class KafkaSourceConfig(BrokersConfig):
    """Changes that another pipeline's Kafka sink wrote, in place of a Postgres database."""

    topics: Annotated[tuple[TopicPattern, ...], Field(min_length=1, strict=False)] = Field(
        description="The topics, which one sink of one pipeline wrote with `envelope: pgstream`;"
        " `*` is any text; `schemas_topic` is none of them."
    )
    schemas_topic: Topic = Field(
        description="The topic with the columns and types, as that sink's `schemas_topic` names it."
    )
    group: str | None = Field(
        default=None,
        min_length=1,
        max_length=249,
        description="The consumer group; `pgstream-` and the pipeline's name. Offsets of record are"
        " those in the lake; the group's are for tools that show lag.",
    )
    start: Literal["earliest", "latest"] = Field(
        default="earliest",
        description="Where the first start begins to read; `latest` leaves out what is there"
        " already. A topic that appears later is read from its first record.",
    )
    on_invalid: Literal["stop", "dead_letter"] = Field(
        default="stop",
        description="What happens at a record that cannot be landed: the stream ends with its"
        " topic, partition and offset, or these are kept in the ledger and it continues.",
    )

    def group_of(self, pipeline: str) -> str:
        """The consumer group of the pipeline's processes."""
        return self.group or f"pgstream-{pipeline}"
