"""The role that owns the outbox of a pipeline, and maintenance as the pipeline file says."""

from __future__ import annotations

from contextlib import closing
from typing import Final

from pgstream_dagster.config.outbox import OutboxConfig
from pgstream_dagster.errors import MissingSetting
from pgstream_dagster.outbox.maintain import Maintained, maintain
from pgstream_dagster.pipeline import Pipeline
from pgstream_dagster.source.connect import connect

APPLICATION: Final = "pgstream outbox"


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


def outbox_config(pipeline: Pipeline) -> OutboxConfig:
    """The section `outbox` of the pipeline file, or its defaults."""
    return pipeline.config.outbox or OutboxConfig()


def maintain_pipeline(pipeline: Pipeline, *, force: bool = False) -> Maintained:
    """
    Maintain the partitions as the pipeline file says.

    Raises what `maintain`, `owner_dsn` and `connect` raise.
    """
    config = outbox_config(pipeline)
    with closing(connect(owner_dsn(pipeline), application_name=APPLICATION)) as session:
        return maintain(
            session,
            days_ahead=config.days_ahead,
            keep_days=config.keep_days,
            max_bytes=config.max_bytes,
            force=force,
        )
