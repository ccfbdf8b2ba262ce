"""What a long run tells Dagster meanwhile, from the op's own thread and at a calm pace."""

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
"""On a run that shall end by itself; its value says why."""

LOOK_SECONDS: Final = 5.0
"""Between looks at our own run: an orphan of a killed code server must let go soon."""


@dataclass(frozen=True, slots=True)
class ProgressReport:
    """
    How far one asset is; `mark` is another one when that is worth a materialization.

    `metadata` is asked only when something is told.
    """

    asset: dg.AssetKey
    mark: int
    metadata: Callable[[], Mapping[str, Any]]


class ProgressReporter(Generic[T]):
    """
    Tells how far a long run is, as events of the assets it keeps current.

    `news` turns what the operation reported last into what may be told; `assets` is how many
    assets that is about.
    """

    def __init__(
        self,
        context: dg.OpExecutionContext | dg.AssetExecutionContext,
        news: Callable[[T], Iterable[ProgressReport]],
        *,
        assets: int = 1,
    ) -> None:
        self._context, self._news, self._assets = context, news, assets
        self._report: T | None = None
        self._paces: dict[dg.AssetKey, EventThrottle] = {}
        self._began = time.monotonic()

    def put(self, report: T) -> None:
        """Called by the operation: only remembers, so a slow event log holds up nothing."""
        self._report = report

    def look(self) -> None:
        """Called by the op's thread: tell what is due."""
        report = self._report
        if report is None:
            return
        for news in self._news(report):
            self._tell(news)

    def _tell(self, news: ProgressReport) -> None:
        pace = self._paces.setdefault(news.asset, EventThrottle(self._began, assets=self._assets))
        event = pace.due(time.monotonic(), news.mark)
        if event == "materialization":
            told = dg.AssetMaterialization(news.asset, metadata=news.metadata())
            self._context.log_event(told)
        elif event == "observation":
            self._context.log_event(dg.AssetObservation(news.asset, metadata=news.metadata()))


def report_check(
    context: dg.OpExecutionContext | dg.AssetExecutionContext, evaluation: dg.AssetCheckEvaluation
) -> None:
    """The outcome of a check, whenever it is known; its type is not among those of `log_event`."""
    context.log_event(cast("Any", evaluation))


def steadily(*looks: Callable[[], None]) -> Callable[[], None]:
    """
    All of these looks as one that outlives an outage of Dagster's storage.

    Capture does not need that storage, so what cannot be asked or told there is tried again at the
    next look, for as long as the run lasts. Each kind of storage has errors of its own: all but
    Dagster's `Failure` count as its outage, and go to the process's own log with their trace.
    """

    def look() -> None:
        for one in looks:
            try:
                one()
            except dg.Failure:
                raise
            except Exception:
                logger.exception("Dagster cannot be asked or told, the run goes on")

    return look


class OwnRun:
    """
    Our own run as Dagster has it: goes on only while it is taken for running.

    It ends by itself, as a success, when a sensor asks it to (a newer version is deployed) or when
    it has lasted for `hours`: event logs stay small, and a run has the code of its day.
    """

    def __init__(
        self,
        context: dg.OpExecutionContext | dg.AssetExecutionContext,
        stop: threading.Event,
        hours: float = math.inf,
    ) -> None:
        self._context, self._stop = context, stop
        self._until = time.monotonic() + hours * 3600

    def look(self) -> None:
        """
        Called by the op's thread.

        Raises:
            Failure: somebody ended this run meanwhile.
        """
        run = require_started(self._context)
        if asked := run.tags.get(END_TAG):
            self._end(asked)
        elif time.monotonic() >= self._until:
            self._end("its time is over")

    def _end(self, why: str) -> None:
        if not self._stop.is_set():
            self._context.log.info("%s: this run ends, the sensor launches the next", why)
            self._stop.set()


def require_started(context: dg.OpExecutionContext | dg.AssetExecutionContext) -> dg.DagsterRun:
    """
    Our own run, while Dagster takes it for running.

    Raises:
        Failure: it does not (raised and not returned: a run that returns is recorded as a success).
    """
    run_id = context.run.run_id
    run = context.instance.get_run_by_id(run_id)
    if run is None or run.status is not dg.DagsterRunStatus.STARTED:
        said = "is gone" if run is None else f"is {run.status.value}"
        raise dg.Failure(f"run {run_id} {said}: it stops", allow_retries=False)
    return run
