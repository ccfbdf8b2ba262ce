"""The connection string of the role that owns the outbox. No I/O."""

from __future__ import annotations

from pgstream_dagster.errors import MissingSetting
from pgstream_dagster.pipeline import Pipeline


def owner_dsn(pipeline: Pipeline) -> str:
    """
    That of `outbox.dsn_variable`, or else of the pipeline.

    Raises:
        NotForKafka: the source of the pipeline is Kafka.
        MissingSetting: the variable is not set.
    """
    pipeline.require_postgres("outbox")
    config = pipeline.config.outbox
    if config is None or config.dsn_variable is None:
        return pipeline.dsn
    dsn = pipeline.environment.get(config.dsn_variable, "")
    if not dsn:
        raise MissingSetting(
            config.dsn_variable, "the connection string of the role that owns the outbox"
        )
    return dsn
