"""The keys of an SQS sink: the queue, and where AWS is reached."""

from __future__ import annotations

from typing import ClassVar

from pydantic import Field

from pgstream_dagster.config.queues import QueueConfig


class SqsConfig(QueueConfig):
    """Messages to queues of Amazon SQS."""

    places: ClassVar[tuple[str, ...]] = ("queue_url",)

    queue_url: str | None = Field(
        default=None,
        min_length=1,
        description="The URL of the queue; the metadata `queue_url` of an event goes over it. One"
        " that ends with `.fifo` keeps the order of groups, and drops repetitions.",
    )
    region: str | None = Field(
        default=None,
        min_length=1,
        description="The region; without it, the one of AWS' own configuration.",
    )
    endpoint_url: str | None = Field(
        default=None,
        min_length=1,
        description="Where SQS is, if it is not AWS' own: a private endpoint, or ElasticMQ.",
    )
