"""What the sections of queues share: an address from a variable, and where messages go."""

from __future__ import annotations

from typing import ClassVar, Final

from pydantic import Field

from pgstream_dagster.config.section import Section

TIMEOUT_SECONDS: Final = 10.0
"""For one answer of a server that is up; a longer wait is an outage, and reported as one."""


class QueueConfig(Section):
    """A queue: events of the outbox may name their own place in it, changes of tables do not."""

    places: ClassVar[tuple[str, ...]] = ()
    """The keys that give messages a place by default; at least one of them is needed for that."""

    timeout_seconds: float = Field(
        default=TIMEOUT_SECONDS,
        ge=0.1,
        le=600,
        description="Seconds after which a server that does not answer counts as unreachable.",
    )

    @property
    def has_place(self) -> bool:
        """Whether a message that names no place itself has one."""
        return any(getattr(self, name) is not None for name in self.places)
