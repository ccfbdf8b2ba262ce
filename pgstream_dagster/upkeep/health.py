"""
What source and search cluster alone show of a pipeline, in one short connection.

No JVM and no lake: sensors, a check and a running stream call this every few minutes.
"""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass
from typing import Final

from pgstream_dagster.errors import PgstreamError, SearchError
from pgstream_dagster.pipeline import Pipeline
from pgstream_dagster.source import publication, slot
from pgstream_dagster.source.connect import connect
from pgstream_dagster.source.slot import SlotState, WalStatus

LITTLE_ROOM_BYTES: Final = 1 << 30
"""Left until the server removes WAL that the slot needs: a busy hour, a minute of a bulk load."""

LONG_LAG_BYTES: Final = 1 << 30
"""A stream that keeps up is some MB behind, even during a bulk load of a minute."""


@dataclass(frozen=True, slots=True)
class Finding:
    """What is wrong with the slot; `is_fatal`: changes are lost, or will not come."""

    message: str
    is_fatal: bool


def slot_state(pipeline: Pipeline) -> SlotState | None:
    """
    The pipeline's slot now; `None` when there is none.

    Raises:
        Unreachable, AccessRefused, ...: the source does not answer.
    """
    with closing(connect(pipeline.dsn)) as connection:
        return slot.inspect(connection, pipeline.config.source.slot)


def published_tables(pipeline: Pipeline) -> list[str]:
    """
    `namespace.name` of every table of the publication now; none without a publication.

    Raises:
        Unreachable, AccessRefused, ...: the source does not answer.
    """
    with closing(connect(pipeline.dsn)) as connection:
        publication.limit_lock_waits(connection)
        tables = publication.published(connection, pipeline.config.source.publication)
    return sorted(table.full_name for table in tables)


def is_read(pipeline: Pipeline) -> bool | None:
    """Whether a process reads the slot; `None`: the source does not answer."""
    if pipeline.config.source.kafka is not None:
        return None  # any number of processes may read it
    try:
        state = slot_state(pipeline)
    except PgstreamError:  # a wrong password is for the stream itself to report
        return None
    return state is not None and state.active_pid is not None


def is_indexed(pipeline: Pipeline) -> bool | None:
    """Whether a process writes to a live index; `None`: there is none, or the cluster fails."""
    if pipeline.search is None:
        return None
    from pgstream_dagster.search.cluster import Cluster
    from pgstream_dagster.search.control import Control

    with closing(Cluster(pipeline.search)) as cluster:
        try:
            answers = [
                Control(cluster, pipeline.name, alias).is_written()
                for alias in pipeline.config.search
            ]
        except SearchError:  # for the indexer itself to report
            return None
    live = [is_written for is_written in answers if is_written is not None]
    return any(live) if live else None


def finding(state: SlotState | None) -> Finding | None:
    """
    The worst problem of a slot; `None`: it has none.

    Source:
        https://www.postgresql.org/docs/current/view-pg-replication-slots.html
    """
    if state is None:
        message = "there is no slot; run 'pgstream setup', or 'pgstream resnapshot'"
    elif state.is_lost:
        why = state.invalidation_reason or "wal_status is lost"
        message = f"the slot is lost ({why}); run 'pgstream resnapshot'"
    elif state.wal_status is WalStatus.UNRESERVED:
        message = "WAL that the slot needs may go at the next checkpoint; read it now"
    else:
        return _warning(state)
    return Finding(message, is_fatal=True)


def _warning(state: SlotState) -> Finding | None:
    if state.active_pid is None:
        seconds = state.inactive_seconds
        since = "" if seconds is None else f", for {seconds:.0f} s"
        message = f"no process reads the slot{since}; start the job 'stream'"
    elif state.safe_wal_bytes is not None and state.safe_wal_bytes < LITTLE_ROOM_BYTES:
        left = f"{max(state.safe_wal_bytes, 0):,} bytes of WAL"
        message = f"{left} until the slot is lost; see max_slot_wal_keep_size"
    elif state.lag_bytes is not None and state.lag_bytes > LONG_LAG_BYTES:
        message = f"{state.lag_bytes:,} bytes of WAL are not in the log yet; does the lag shrink?"
    else:
        return None
    return Finding(message, is_fatal=False)
