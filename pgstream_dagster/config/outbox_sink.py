"""The keys of a sink that delivers events of the outbox instead of changes."""

from __future__ import annotations

from typing import Final

from pydantic import Field

from pgstream_dagster.config.section import Section

EVENTS_TABLE: Final = "pgstream.events"
"""Where applications and subscriptions write events."""


class OutboxSinkConfig(Section):
    """Which events of the outbox a sink delivers."""

    stream: int = Field(
        ge=-(1 << 63),
        le=(1 << 63) - 1,
        description="The stream whose events the sink delivers, each as the subscription or the"
        " application wrote it: the message is the event's payload.",
    )
