"""
Maintenance of the outbox's partitions, which must not drop what a sink has yet to deliver.

How far the sinks of this pipeline are is noted on the source first, so that another pipeline's
maintenance respects it, too.
"""

from __future__ import annotations

from pgstream_dagster.named import named
from pgstream_dagster.outbox.maintain import Maintained, maintain
from pgstream_dagster.outbox.owner import outbox_config, owner_session
from pgstream_dagster.pipeline import Pipeline
from pgstream_dagster.upkeep.outbox_sinks import register


@named
def maintain_outbox(pipeline: Pipeline, *, force: bool = False) -> Maintained:
    """
    Make days, note how far the sinks are, and drop days as the pipeline file says.

    While the lake is away, days are made, and none is dropped.

    Raises:
        NotForKafka, MissingSetting, OutboxMissing, OutboxOutdated, OutboxNewer, AccessRefused, and
        the lake's
    """
    with owner_session(pipeline) as session:
        return maintain(
            session,
            outbox_config(pipeline),
            force=force,
            register=lambda: register(session, pipeline),
        )
