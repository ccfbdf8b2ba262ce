"""
What the sinks of the outbox have delivered, noted on the source: it outlives the lake.

After the lake was lost, `setup` tells the sinks of the new one, and they leave out the events that
were delivered. What came after the last note comes again, with the same ids.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from contextlib import closing
from typing import Final

from pgstream_dagster.changelog.sink_log import SinkLog
from pgstream_dagster.changelog.table_specs import create_sinks
from pgstream_dagster.delta import jvm
from pgstream_dagster.errors import NotSetUp, PgstreamError
from pgstream_dagster.lsn import Lsn
from pgstream_dagster.outbox.install import installed_version, require_installed
from pgstream_dagster.outbox.owner import owner_session
from pgstream_dagster.pipeline import Pipeline
from pgstream_dagster.sinks import state
from pgstream_dagster.sinks.control import DeliveredEvents, delivered_events
from pgstream_dagster.source.connect import Session
from pgstream_dagster.source.query import query

logger = logging.getLogger(__name__)

FIRST_GENERATION: Final = state.Request().generation


def register(session: Session, pipeline: Pipeline) -> None:
    """Note on the source how far each sink has delivered; removed ones are forgotten."""
    delivered = _delivered(pipeline)
    query(
        session,
        "outbox/register_sinks",
        pipeline=pipeline.name,
        log_id=next((events.log_id for events in delivered.values()), ""),
        sinks=list(delivered),
        stream_ids=[events.stream for events in delivered.values()],
        generations=[events.generation for events in delivered.values()],
        lsns=[str(events.before) for events in delivered.values()],
        has_all=[events.has_all for events in delivered.values()],
    )


def carry_over(pipeline: Pipeline) -> None:
    """
    Before a log begins: tell its sinks what was delivered from a former log of this pipeline.

    What cannot be read is a warning: everything that the table has comes again then.
    """
    streams = pipeline.config.outbox_streams
    if not streams:
        return
    try:
        delivered = _noted(pipeline, streams)
    except PgstreamError as error:
        logger.warning("sinks deliver all events of the table again: %s", error)
        return
    gateway = jvm.gateway(pipeline.jvm)
    create_sinks(pipeline.lake, gateway)
    with closing(SinkLog(pipeline.lake, gateway)) as log:
        for reader, noted in delivered.items():
            state.ask(log, reader, delivered_before=noted)
            logger.info(
                "sink %s leaves out the events that a former log has delivered; to deliver them"
                " again, run pgstream sink reset %s",
                *(reader, reader.partition(".")[0]),
            )


def _noted(pipeline: Pipeline, streams: Mapping[str, int]) -> dict[str, tuple[int, str]]:
    """Stream and snapshot of each reader that still delivers the same stream."""
    with owner_session(pipeline) as session:
        if installed_version(session) is None:
            return {}
        require_installed(session)
        rows = query(session, "outbox/delivered_before", pipeline=pipeline.name)
    return {
        reader: (stream, snapshot)
        for reader, stream, snapshot in rows
        if streams.get(name := reader.partition(".")[0]) == stream
        and pipeline.config.sink(name).postgres is None  # it gets all rows of a copy
    }


def _delivered(pipeline: Pipeline) -> dict[str, DeliveredEvents]:
    """As `delivered_events`; before `setup`, no sink has delivered anything."""
    streams = pipeline.config.outbox_streams
    if not streams:
        return {}
    try:
        return delivered_events(pipeline)
    except NotSetUp:
        return {
            sink: DeliveredEvents(stream, FIRST_GENERATION, Lsn(0), log_id="")
            for sink, stream in streams.items()
        }
