"""The role that owns the outbox of a pipeline, as the pipeline file says."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import closing, contextmanager
from typing import Final

from pgstream_dagster.config.outbox import OutboxConfig
from pgstream_dagster.pipeline import Pipeline
from pgstream_dagster.settings import required
from pgstream_dagster.source.connect import Session, connect

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
    meaning = "the connection string of the role that owns the outbox"
    return required(pipeline.environment, config.dsn_variable, meaning)


def outbox_config(pipeline: Pipeline) -> OutboxConfig:
    """The section `outbox` of the pipeline file, or its defaults."""
    return pipeline.config.outbox or OutboxConfig()


@contextmanager
def owner_session(pipeline: Pipeline) -> Generator[Session]:
    """A session of that role; raises what `owner_dsn` and `connect` raise."""
    with closing(connect(owner_dsn(pipeline), application_name=APPLICATION)) as session:
        yield session
