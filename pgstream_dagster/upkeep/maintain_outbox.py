"""
Maintenance of the outbox's partitions, which must not drop what a sink has yet to deliver.

How far the sinks of this pipeline are is noted on the source first, so that another pipeline's
maintenance respects it, too.
"""

from __future__ import annotations

from collections.abc import Mapping

from pgstream_dagster.errors import NotSetUp
from pgstream_dagster.lsn import Lsn
from pgstream_dagster.named import named
from pgstream_dagster.outbox.maintain import Maintained, maintain
from pgstream_dagster.outbox.owner import outbox_config, owner_session
from pgstream_dagster.pipeline import Pipeline
from pgstream_dagster.sinks.control import delivered_events
from pgstream_dagster.source.connect import Session
from pgstream_dagster.source.query import query


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

        def register() -> None:
            _register(session, pipeline.name, _delivered(pipeline))

        return maintain(session, outbox_config(pipeline), force=force, register=register)


def _register(session: Session, pipeline: str, delivered: Mapping[str, tuple[int, Lsn]]) -> None:
    """Note on the source how far each sink has delivered; removed ones are forgotten."""
    query(
        session,
        "outbox/register_sinks",
        pipeline=pipeline,
        sinks=list(delivered),
        stream_ids=[stream for stream, _ in delivered.values()],
        lsns=[str(lsn) for _, lsn in delivered.values()],
    )


def _delivered(pipeline: Pipeline) -> dict[str, tuple[int, Lsn]]:
    """As `delivered_events`; before `setup`, no sink has delivered anything."""
    streams = pipeline.config.outbox_streams
    if not streams:
        return {}
    try:
        return delivered_events(pipeline)
    except NotSetUp:
        return {sink: (stream, Lsn(0)) for sink, stream in streams.items()}
