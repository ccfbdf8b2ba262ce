"""The keys of a RabbitMQ sink: the address, and the exchange or queue of messages."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field, model_validator

from pgstream_dagster.config.queues import QueueConfig
from pgstream_dagster.config.section import Variable


class RabbitConfig(QueueConfig):
    """Messages to exchanges or queues of RabbitMQ."""

    places: ClassVar[tuple[str, ...]] = ("exchange", "queue")

    url_from: Variable = Field(
        description="The variable with the address: `amqp://user:password@host:5672/vhost`;"
        " `amqps:` is with TLS."
    )
    exchange: str | None = Field(
        default=None,
        min_length=1,
        description="The exchange of messages; the metadata `exchange` of an event goes over it.",
    )
    routing_key: str | None = Field(
        default=None,
        description="The routing key of messages; the metadata `routing_key` of an event goes over"
        " it. Empty unless either is given.",
    )
    queue: str | None = Field(
        default=None,
        min_length=1,
        description="The queue of messages, by the default exchange; the metadata `queue` of an"
        " event goes over all three keys.",
    )
    declare: bool = Field(
        default=False,
        description="Whether the sink declares `exchange`, or `queue`, as durable when it starts.",
    )
    exchange_type: Literal["topic", "direct", "fanout", "headers"] = Field(
        default="topic", description="The type with which `exchange` is declared."
    )

    @model_validator(mode="after")
    def _one_place(self) -> RabbitConfig:
        if self.queue is not None and (self.exchange is not None or self.routing_key is not None):
            raise ValueError("'queue' goes without 'exchange' and 'routing_key'")
        if self.declare and not self.has_place:
            raise ValueError("'declare' needs 'exchange' or 'queue'")
        return self
