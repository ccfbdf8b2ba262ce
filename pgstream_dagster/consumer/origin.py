"""Whether a lake is that of a pipeline on Kafka. No I/O."""

from __future__ import annotations

from typing import Final

from pgstream_dagster.changelog.ledger import PipelineIdentity
from pgstream_dagster.errors import SetUpOtherwise

KAFKA: Final = "kafka"
"""In place of a system identifier."""


def require_kafka(identity: PipelineIdentity) -> None:
    """Raises `SetUpOtherwise` for a lake whose changes come from Postgres."""
    if identity.system_id != KAFKA:
        raise SetUpOtherwise(identity.pipeline, "source", "Postgres", KAFKA)
