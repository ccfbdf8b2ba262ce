"""
Maintenance of the outbox's partitions, which must not drop what a sink has yet to deliver.

How far the sinks of this pipeline are is noted on the source first, so that another pipeline's
maintenance respects it, too.
"""

from __future__ import annotations

from contextlib import closing

from pgstream_dagster.errors import NotSetUp
from pgstream_dagster.lsn import Lsn
from pgstream_dagster.named import named
from pgstream_dagster.outbox.install import require_installed
from pgstream_dagster.outbox.maintain import Maintained
from pgstream_dagster.outbox.owner import APPLICATION, maintain_pipeline, owner_dsn
from pgstream_dagster.pipeline import Pipeline
from pgstream_dagster.sinks.control import delivered_events
from pgstream_dagster.source.connect import connect
from pgstream_dagster.source.query import query


@named
def maintain_outbox(pipeline: Pipeline, *, force: bool = False) -> Maintained:
    """
    Note how far the sinks are, then make and drop days as the pipeline file says.

    Raises:
        NotForKafka, MissingSetting, OutboxMissing, OutboxOutdated, OutboxNewer, AccessRefused
    """
    register_sinks(pipeline)
    return maintain_pipeline(pipeline, force=force)


def register_sinks(pipeline: Pipeline) -> None:
    """Note on the source how far each sink has delivered; removed ones are forgotten."""
    delivered = _delivered(pipeline)
    with closing(connect(owner_dsn(pipeline), application_name=APPLICATION)) as session:
        require_installed(session)
        query(
            session,
            "outbox/register_sinks",
            pipeline=pipeline.name,
            sinks=list(delivered),
            stream_ids=[stream for stream, _ in delivered.values()],
            lsns=[str(lsn) for _, lsn in delivered.values()],
        )


def _delivered(pipeline: Pipeline) -> dict[str, tuple[int, Lsn]]:
    """As `delivered_events`; before `setup`, no sink has delivered anything."""
    of_outbox = {n: s.outbox.stream for n, s in pipeline.config.sinks.items() if s.outbox}
    if not of_outbox:
        return {}
    try:
        return delivered_events(pipeline)
    except NotSetUp:
        return {sink: (stream, Lsn(0)) for sink, stream in of_outbox.items()}
