"""The checks of slot and tables while a stream runs: what Postgres reports, lag, and outcomes."""

import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, Final

import dagster as dg

from pgstream_dagster.assets.positions import position
from pgstream_dagster.assets.reporter import report_check
from pgstream_dagster.errors import PgstreamError
from pgstream_dagster.lsn import Lsn
from pgstream_dagster.pipeline import Pipeline
from pgstream_dagster.source.slot import SlotState
from pgstream_dagster.upkeep.health import finding, slot_state

SLOT_HEALTH: Final = "slot_health"
TABLES_FIT: Final = "tables_fit"

CHECK_SECONDS: Final = 300.0
"""Between evaluations while nothing changes; 3 KB of event log each. A change is reported at
once."""

POLL_SECONDS: Final = 30.0
"""Between queries of the slot: a connection each."""


class SlotHealth:
    """The slot of a stream that runs in this process, reported from the op's thread."""

    def __init__(
        self, context: dg.OpExecutionContext, pipeline: Pipeline, asset: dg.AssetKey
    ) -> None:
        self._context, self._pipeline, self._asset = context, pipeline, asset
        self._checked_at = self._polled_at = time.monotonic()
        self._severity: dg.AssetCheckSeverity | None = None

    def poll(self) -> None:
        """Evaluate the check when it is due, and whenever its outcome changed."""
        now = time.monotonic()
        if now - self._polled_at < POLL_SECONDS:
            return
        self._polled_at = now
        with suppress(PgstreamError):  # the stream reports that itself, and waits
            self._evaluate(slot_state(self._pipeline), now)

    def _evaluate(self, state: SlotState | None, now: float) -> None:
        outcome = slot_outcome(state)
        severity = None if outcome["passed"] else outcome["severity"]
        if severity is not self._severity or now - self._checked_at >= CHECK_SECONDS:
            self._checked_at, self._severity = now, severity
            report_check(self._context, self._asset, SLOT_HEALTH, **outcome)

    def lag(self, watermark: Lsn) -> dict[str, Any]:
        """
        How far the watermark is behind the source; empty while the source does not answer.

        On a source with other databases a few seconds of their WAL always count as lag.
        """
        try:
            state = slot_state(self._pipeline)
        except PgstreamError:
            return {}
        if state is None:
            return {}
        retained = {} if state.retained_bytes is None else {"retained_bytes": state.retained_bytes}
        return {"lag_bytes": max(state.wal_lsn - watermark, 0), **retained}


class TablesFit:
    """The tables that a stream in this process cannot capture whole, from the op's thread."""

    def __init__(
        self, context: dg.OpExecutionContext, pipeline: Pipeline, asset: dg.AssetKey
    ) -> None:
        self._context, self._path, self._asset = context, pipeline.heartbeat_file, asset
        self._reported: Sequence[str] | None = None

    def poll(self) -> None:
        """Report the check when its outcome changed; reads the stream's heartbeat."""
        from pgstream_dagster.upkeep.status import StreamHeartbeat, last_heartbeat

        heartbeat = last_heartbeat(StreamHeartbeat, self._path)
        unfit = None if heartbeat is None else heartbeat.unfit_tables
        if unfit is not None and unfit != self._reported:
            self._reported = unfit
            report_check(self._context, self._asset, TABLES_FIT, **tables_outcome(unfit))


def tables_outcome(unfit: Sequence[str]) -> dict[str, Any]:
    """The outcome of the check `tables_fit`."""
    return {
        "passed": not unfit,
        "severity": dg.AssetCheckSeverity.WARN,
        "description": "\n".join(unfit) or None,
    }


def slot_outcome(state: SlotState | None) -> dict[str, Any]:
    """The outcome of the check `slot_health`; an error where changes are lost or will not come."""
    problem = finding(state)
    is_fatal = problem is not None and problem.is_fatal
    return {
        "passed": problem is None,
        "severity": dg.AssetCheckSeverity.ERROR if is_fatal else dg.AssetCheckSeverity.WARN,
        "description": None if problem is None else problem.message,
        "metadata": {} if state is None else _slot_metadata(state),
    }


def _slot_metadata(state: SlotState) -> dict[str, Any]:
    """The slot as the server reports it, without what it does not report."""
    confirmed = state.confirmed_lsn
    facts = {
        "slot": state.slot,
        "wal_status": None if state.wal_status is None else state.wal_status.value,
        "safe_wal_bytes": state.safe_wal_bytes,
        "retained_bytes": state.retained_bytes,
        "lag_bytes": state.lag_bytes,
        **({} if confirmed is None else position("confirmed", confirmed)),
        "reader_pid": state.active_pid,
        "inactive_seconds": state.inactive_seconds,
    }
    return {name: value for name, value in facts.items() if value is not None}
