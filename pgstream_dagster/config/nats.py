"""The keys of a NATS sink: the servers, and the subject of messages."""

from __future__ import annotations

from typing import ClassVar

from pydantic import Field

from pgstream_dagster.config.queues import QueueConfig
from pgstream_dagster.config.section import Variable


class NatsConfig(QueueConfig):
    """Messages to streams of NATS JetStream."""

    places: ClassVar[tuple[str, ...]] = ("subject",)

    url_from: Variable = Field(
        description="The variable with the addresses: `nats://user:password@host:4222`, with"
        " commas between several; `tls:` is with TLS."
    )
    subject: str | None = Field(
        default=None,
        min_length=1,
        description="The subject of messages; the metadata `subject` of an event, or `topic`, goes"
        " over it. A stream must have it.",
    )
    stream: str | None = Field(
        default=None,
        min_length=1,
        description="The stream that must have the subject; without it, any may.",
    )
