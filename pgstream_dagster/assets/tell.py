"""What a long run tells Dagster meanwhile, from the op's own thread and at a calm pace."""

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Generic, TypeVar

import dagster as dg

from pgstream_dagster.assets.pace import Pace

T = TypeVar("T")

LOOK_SECONDS: Final = 5.0
"""Between looks at our own run: an orphan of a killed code server must let go soon."""


@dataclass(frozen=True, slots=True)
class News:
    """How far one asset is; `mark` is another one when that is worth a materialization."""

    asset: dg.AssetKey
    mark: int
    metadata: Mapping[str, Any]


class Teller(Generic[T]):
    """
    Tells how far a long run is, as events of the assets it keeps current.

    `news` turns what the operation reported last into what may be told; `assets` is how many
    assets that is about.
    """

    def __init__(
        self,
        context: dg.OpExecutionContext | dg.AssetExecutionContext,
        news: Callable[[T], Iterable[News]],
        *,
        assets: int = 1,
    ) -> None:
        self._context, self._news, self._assets = context, news, assets
        self._report: T | None = None
        self._paces: dict[dg.AssetKey, Pace] = {}
        self._began = time.monotonic()

    def put(self, report: T) -> None:
        """Called by the operation: only remembers, so a slow event log holds up nothing."""
        self._report = report

    def look(self) -> None:
        """
        Called by the op's thread: tell what is due.

        Raises:
            Failure: somebody ended this run meanwhile.
        """
        require_started(self._context)
        report = self._report
        if report is None:
            return
        for news in self._news(report):
            self._tell(news)

    def _tell(self, news: News) -> None:
        pace = self._paces.setdefault(news.asset, Pace(self._began, assets=self._assets))
        event = pace.due(time.monotonic(), news.mark)
        if event == "materialization":
            told = dg.AssetMaterialization(news.asset, metadata=news.metadata)
            self._context.log_event(told)
        elif event == "observation":
            self._context.log_event(dg.AssetObservation(news.asset, metadata=news.metadata))


def require_started(context: dg.OpExecutionContext | dg.AssetExecutionContext) -> None:
    """
    Go on only while Dagster takes our own run for running.

    Raises:
        Failure: it does not (raised and not returned: a run that returns is recorded as a success).
    """
    run_id = context.run.run_id
    run = context.instance.get_run_by_id(run_id)
    status = None if run is None else run.status
    if status is not dg.DagsterRunStatus.STARTED:
        said = "is gone" if status is None else f"is {status.value}"
        raise dg.Failure(f"run {run_id} {said}: it stops", allow_retries=False)
