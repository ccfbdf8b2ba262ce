"""What a long run reports to Dagster while it continues, from the op's own thread and throttled."""

import logging
import math
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Generic, TypeVar, cast

import dagster as dg

from pgstream_dagster.assets.throttle import EventThrottle

logger = logging.getLogger(__name__)

T = TypeVar("T")

END_TAG: Final = "pgstream/end"
"""On a run that shall end by itself; its value is the reason."""

POLL_SECONDS: Final = 5.0
"""How often a run polls its own status: an orphan of a killed code server must let go soon."""


@dataclass(frozen=True, slots=True)
class ProgressReport:
    """
    How far one asset is; `mark` differs from the last one when a materialization is worthwhile.

    `metadata` is called only when an event is due.
    """

    asset: dg.AssetKey
    mark: int
    metadata: Callable[[], Mapping[str, Any]]


class ProgressReporter(Generic[T]):
    """
    Reports how far a long run is, as events of the assets that it keeps current.

    `reports` turns the operation's newest progress into a report for each of its `assets`.
    """

    def __init__(
        self,
        context: dg.OpExecutionContext,
        reports: Callable[[T], Iterable[ProgressReport]],
        *,
        assets: int = 1,
    ) -> None:
        self._context, self._reports, self._assets = context, reports, assets
        self._progress: T | None = None
        self._throttles: dict[dg.AssetKey, EventThrottle] = {}
        self._began = time.monotonic()

    def put(self, progress: T) -> None:
        """Called by the operation: only stores, so a slow event log holds up nothing."""
        self._progress = progress

    def poll(self) -> None:
        """Called by the op's thread: report what is due."""
        if self._progress is None:
            return
        for report in self._reports(self._progress):
            throttle = self._throttles.setdefault(
                report.asset, EventThrottle(self._began, self._assets)
            )
            if event := throttle.due(time.monotonic(), report.mark):
                self._context.log_event(event(report.asset, metadata=report.metadata()))


def report_check(
    context: dg.OpExecutionContext | dg.AssetExecutionContext,
    asset: dg.AssetKey,
    check: str,
    **outcome: Any,
) -> None:
    """Record the outcome of a check as soon as it is known, outside of a run of that check."""
    evaluation = dg.AssetCheckEvaluation(asset_key=asset, check_name=check, **outcome)
    context.log_event(cast("Any", evaluation))  # not among the types that it declares


def outlasting(*polls: Callable[[], None]) -> Callable[[], None]:
    """
    All of these polls as one that outlasts an outage of Dagster's storage.

    Capture does not need that storage, so what fails there is tried again at the next poll, for as
    long as the run lasts. Each kind of storage has errors of its own: all but Dagster's `Failure`
    count as its outage, and go to the process's own log with their trace.
    """

    def poll_all() -> None:
        for poll in polls:
            try:
                poll()
            except dg.Failure:
                raise
            except Exception:
                logger.exception("Dagster's storage does not answer; the run continues")

    return poll_all


class OwnRun:
    """
    Our own run as Dagster has it: continues only while Dagster has it as started.

    It ends by itself, as a success, when a sensor asks it to (a newer version is deployed) or when
    it has lasted for `hours`: event logs stay small, and a run has the code of its day.
    """

    def __init__(
        self, context: dg.OpExecutionContext, stop: threading.Event, hours: float = math.inf
    ) -> None:
        self._context, self._stop = context, stop
        self._until = time.monotonic() + hours * 3600

    def poll(self) -> None:
        """
        Called by the op's thread.

        Raises:
            Failure: the run was ended in Dagster meanwhile.
        """
        run = require_started(self._context)
        is_over = time.monotonic() >= self._until
        reason = run.tags.get(END_TAG) or (is_over and "its time is over")
        if reason and not self._stop.is_set():
            self._context.log.info("%s: this run ends, the sensor launches the next", reason)
            self._stop.set()


def require_started(context: dg.OpExecutionContext | dg.AssetExecutionContext) -> dg.DagsterRun:
    """
    Our own run, while Dagster has it as started.

    Raises:
        Failure: it has not (raised and not returned: a run that returns is recorded as a success).
    """
    run_id = context.run.run_id
    run = context.instance.get_run_by_id(run_id)
    if run is None or run.status is not dg.DagsterRunStatus.STARTED:
        status = "is gone" if run is None else f"is {run.status.value}"
        raise dg.Failure(f"run {run_id} {status}: it stops", allow_retries=False)
    return run
