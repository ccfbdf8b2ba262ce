"""What Postgres says of slot and tables while a stream runs: lag, and outcomes of asset checks."""

import time
from collections.abc import Sequence
from typing import Any, Final

import dagster as dg

from pgstream_dagster.assets.positions import position
from pgstream_dagster.assets.reporter import report_check
from pgstream_dagster.errors import PgstreamError
from pgstream_dagster.lsn import Lsn
from pgstream_dagster.pipeline import Pipeline
from pgstream_dagster.source.slot import SlotState
from pgstream_dagster.upkeep.health import Finding, finding, slot_state

SLOT_HEALTH: Final = "slot_health"
TABLES_FIT: Final = "tables_fit"

CHECK_SECONDS: Final = 300.0
"""Between evaluations while all is as it was; 3 KB of event log each. A change is told at once."""

LOOK_SECONDS: Final = 30.0
"""Between looks at the slot: a connection each."""


class SlotHealth:
    """The slot of a stream that runs in this process, told from the op's thread."""

    def __init__(
        self, context: dg.OpExecutionContext, pipeline: Pipeline, asset: dg.AssetKey
    ) -> None:
        self._context, self._pipeline, self._asset = context, pipeline, asset
        self._checked = self._looked = time.monotonic()
        self._found: Finding | None = None

    def look(self) -> None:
        """Evaluate the check when it is due, and whenever its outcome is another one."""
        now = time.monotonic()
        if now - self._looked < LOOK_SECONDS:
            return
        self._looked = now
        state = self._state()
        if isinstance(state, PgstreamError):
            return  # the stream says so itself, and waits
        found = finding(state)
        is_other = (found and found.is_fatal) != (self._found and self._found.is_fatal)
        if is_other or now - self._checked >= CHECK_SECONDS:
            self._checked, self._found = now, found
            report_check(self._context, evaluation(state, self._asset))

    def lag(self, watermark: Lsn) -> dict[str, Any]:
        """
        How far the watermark is behind the source; nothing while the source does not answer.

        On a source with other databases a few seconds of their WAL are always there.
        """
        state = self._state()
        if isinstance(state, PgstreamError) or state is None:
            return {}
        said: dict[str, Any] = {"lag_bytes": max(state.wal_lsn - watermark, 0)}
        if state.retained_bytes is not None:
            said["retained_bytes"] = state.retained_bytes
        return said

    def _state(self) -> SlotState | PgstreamError | None:
        try:
            return slot_state(self._pipeline)
        except PgstreamError as error:
            return error


class TablesFit:
    """What a stream that runs in this process finds of its tables, told from the op's thread."""

    def __init__(
        self, context: dg.OpExecutionContext, pipeline: Pipeline, asset: dg.AssetKey
    ) -> None:
        self._context, self._path, self._asset = context, pipeline.heartbeat_file, asset
        self._reported: Sequence[str] | None = None

    def look(self) -> None:
        """Evaluate the check when its outcome is another one; reads the stream's heartbeat."""
        from pgstream_dagster.upkeep.status import StreamHeartbeat, last_heartbeat

        sign = last_heartbeat(StreamHeartbeat, self._path)
        unfit = None if sign is None else sign.unfit_tables
        if unfit is None or unfit == self._reported:
            return
        self._reported = unfit
        outcome = dg.AssetCheckEvaluation(
            asset_key=self._asset, check_name=TABLES_FIT, **tables_outcome(unfit)
        )
        report_check(self._context, outcome)


def tables_outcome(unfit: Sequence[str]) -> dict[str, Any]:
    """The outcome of the check `tables_fit`."""
    return {
        "passed": not unfit,
        "severity": dg.AssetCheckSeverity.WARN,
        "description": "\n".join(unfit) or None,
    }


def evaluation(state: SlotState | None, asset: dg.AssetKey) -> dg.AssetCheckEvaluation:
    """The outcome of the check, as an event."""
    found = finding(state)
    return dg.AssetCheckEvaluation(
        asset_key=asset,
        check_name=SLOT_HEALTH,
        passed=found is None,
        severity=severity(found),
        description=None if found is None else found.message,
        metadata=slot_metadata(state),
    )


def severity(found: Finding | None) -> dg.AssetCheckSeverity:
    """Whether changes are at stake."""
    is_fatal = found is not None and found.is_fatal
    return dg.AssetCheckSeverity.ERROR if is_fatal else dg.AssetCheckSeverity.WARN


def slot_metadata(state: SlotState | None) -> dict[str, Any]:
    """What the server says of the slot."""
    if state is None:
        return {}
    confirmed = state.confirmed_lsn
    said = {
        "slot": state.slot,
        "wal_status": None if state.wal_status is None else state.wal_status.value,
        "safe_wal_bytes": state.safe_wal_bytes,
        "retained_bytes": state.retained_bytes,
        "lag_bytes": state.lag_bytes,
        **({} if confirmed is None else position("confirmed", confirmed)),
        "reader_pid": state.active_pid,
        "inactive_seconds": state.inactive_seconds,
    }
    return {name: value for name, value in said.items() if value is not None}
