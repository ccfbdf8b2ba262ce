"""Typed tables kept current: one pass after the other, until it is stopped."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import Final

from pgstream_dagster.backoff import waits
from pgstream_dagster.errors import NoTypedTables, PgstreamError, Retry
from pgstream_dagster.lsn import Lsn
from pgstream_dagster.pipeline import Pipeline
from pgstream_dagster.tables.merge import merge_tables
from pgstream_dagster.tables.passes import Merged

logger = logging.getLogger(__name__)

FIRST_WAIT_SECONDS: Final = 0.5
LONGEST_WAIT_SECONDS: Final = 60.0

PAUSE_SECONDS: Final = 0.1
"""At least, between two passes: another process that waits for its turn polls every 3 ms."""

Report = Callable[[Merged], None]


def run_tables(
    pipeline: Pipeline, *, stop: threading.Event, report: Report = lambda _: None
) -> Merged:
    """
    Merge every `tables.merge_seconds` until `stop` is set; the last pass.

    Waits during an outage of the lake. A pass that takes longer is followed by the next after a
    short pause. Logs the errors of a pass that the one before did not have.

    Raises:
        NotSetUp, NoTypedTables, TypedNameTaken: nothing can be merged.
    """
    if pipeline.config.tables is None:
        raise NoTypedTables(pipeline.name)
    seconds = pipeline.config.tables.merge_seconds
    pauses, last = waits(FIRST_WAIT_SECONDS, LONGEST_WAIT_SECONDS), Merged(Lsn(0), [])
    reported = set[str]()
    while not stop.is_set():
        began_at = time.monotonic()
        try:
            last = merge_tables(pipeline, stop=stop)
        except PgstreamError as error:
            if error.retry is not Retry.LATER:
                raise
            pause = next(pauses)
            logger.warning("%s; trying again in %.1f s", error, pause)
            stop.wait(pause)
            continue
        else:
            report(last)
            errors = set(map(str, last.errors))
            for error in sorted(errors - reported):
                logger.warning("%s", error)
            reported = errors
            pauses = waits(FIRST_WAIT_SECONDS, LONGEST_WAIT_SECONDS)
        stop.wait(max(PAUSE_SECONDS, began_at + seconds - time.monotonic()))
    return last
