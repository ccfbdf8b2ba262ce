"""The keys of the transactional outbox on the source."""

from __future__ import annotations

from typing import Final

from pydantic import Field

from pgstream_dagster.config.section import Section, Variable

DAYS_AHEAD: Final = 3
"""Without maintenance for so long, events still go to partitions of their days."""

KEEP_DAYS: Final = 7
"""A week of outage of a target can be delivered from the table."""


class OutboxConfig(Section):
    """The daily partitions of `pgstream.events`."""

    days_ahead: int = Field(
        default=DAYS_AHEAD,
        ge=1,
        le=365,
        description="Days after today that have a partition already.",
    )
    keep_days: int = Field(
        default=KEEP_DAYS,
        ge=0,
        le=3650,
        description="Days that are kept; older ones are dropped once every sink has delivered"
        " them.",
    )
    max_bytes: int | None = Field(
        default=None,
        ge=1 << 20,
        le=1 << 50,
        description="Size of all events above which old days are dropped although a sink has not"
        " delivered them, with an alert. Without it they stay.",
    )
    dsn_variable: Variable | None = Field(
        default=None,
        description="Environment variable that holds the connection string of the role that owns"
        " the outbox. Without it: `PGSTREAM_DSN`.",
    )
