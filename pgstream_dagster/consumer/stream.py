"""The stream of a pipeline, whatever its source."""

from __future__ import annotations

import threading

from pgstream_dagster.changelog.land import Landed, Report
from pgstream_dagster.pipeline import Pipeline


def run_stream(
    pipeline: Pipeline, *, stop: threading.Event, is_drain: bool, report: Report
) -> Landed:
    """
    Land changes until `stop` is set; or, with `is_drain`, all that the source has now.

    Raises as `capture.stream.stream` or `consumer.consume.consume` does.
    """
    if pipeline.config.source.kafka is not None:
        from pgstream_dagster.consumer.consume import consume

        return consume(pipeline, stop=stop, is_drain=is_drain, report=report)
    from pgstream_dagster.capture.stream import current_lsn, stream

    until = current_lsn(pipeline) if is_drain else None
    return stream(pipeline, stop=stop, until=until, report=report)
