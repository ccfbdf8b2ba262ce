"""Waits for the log, until everything that committed on the source before now has landed."""

from __future__ import annotations

import time
from typing import Final

from pgstream_dagster.errors import WatermarkBehind
from pgstream_dagster.lsn import Lsn
from pgstream_dagster.pipeline import OpenPipeline
from pgstream_dagster.source.interrupt import session
from pgstream_dagster.source.query import current_lsn, query
from pgstream_dagster.stop import Stop

TIMEOUT_SECONDS: Final = 60.0
"""A stream that keeps up is there within a second; without one the log never gets there."""

POLL_SECONDS: Final = 0.2


def wait_until_landed(
    opened: OpenPipeline,
    lsn: Lsn | None = None,
    *,
    timeout_seconds: float = TIMEOUT_SECONDS,
    stop: Stop,
) -> None:
    """
    Until everything before `lsn`, by default the source's end now, is in the log.

    Raises:
        WatermarkBehind: it is not, and for `timeout_seconds` the log has not come nearer.
    """
    with session(opened.pipeline.dsn, stop) as source:
        lsn = current_lsn(source) if lsn is None else lsn
        query(source, "source/pass_position")
    last, moved_at = Lsn(0), time.monotonic()
    while (watermark := opened.watermark() or Lsn(0)) < lsn:
        if watermark > last:
            last, moved_at = watermark, time.monotonic()
        waited = time.monotonic() - moved_at
        if waited > timeout_seconds:
            raise WatermarkBehind(lsn, watermark, waited)
        stop.sleep(POLL_SECONDS)
