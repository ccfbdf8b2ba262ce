"""The change log as an asset: one long run that lands every committed change."""

import threading
import time
from enum import Enum
from typing import Any, Final

import dagster as dg
from pydantic import Field

from pgstream_dagster.assets.errors import told_to_dagster
from pgstream_dagster.assets.pace import Pace
from pgstream_dagster.changelog.land import Landed
from pgstream_dagster.operations.attend import attend
from pgstream_dagster.operations.stream import current_lsn, stream
from pgstream_dagster.resources.pipeline import PipelineFile

POOL: Final = "stream"
"""Of the stream only: a second one would wait behind it, not fail on the slot."""

LOOK_SECONDS: Final = 5.0
"""Between looks at our own run: an orphan of a killed code server must leave the slot soon."""


class Mode(Enum):
    """How long a run goes on."""

    stream = "stream"
    drain = "drain"


class StreamConfig(dg.Config):
    """Run configuration of the job `stream`."""

    mode: Mode = Field(
        default=Mode.stream,
        description="stream: until terminated. drain: until everything that was committed when "
        "the run began has landed.",
    )


@dg.asset(
    group_name="landing",
    kinds={"postgres", "deltalake"},
    owners=["team:data"],
    pool=POOL,
)
def change_log(
    context: dg.AssetExecutionContext, config: StreamConfig, pipeline: PipelineFile
) -> dg.MaterializeResult[Any]:
    """
    Every committed change of the published tables, each once, in commit order.

    One long run; terminating it lands and confirms what is complete, and the next run goes on
    from there.
    """
    stop, teller = threading.Event(), Teller(context)
    with told_to_dagster():
        opened = pipeline.open()
        until = current_lsn(opened) if config.mode is Mode.drain else None
        landed = attend(
            lambda: stream(opened, stop=stop, until=until, report=teller.landed),
            stop=stop,
            look=teller.look,
            look_seconds=LOOK_SECONDS,
        )
    return dg.MaterializeResult(metadata=metadata(landed))


class Teller:
    """Tells Dagster how far the stream is, from the op's own thread."""

    def __init__(self, context: dg.AssetExecutionContext) -> None:
        self._context = context
        self._landed: Landed | None = None
        self._pace = Pace(time.monotonic())

    def landed(self, landed: Landed) -> None:
        """Called by the stream's thread: only remembers, so a slow event log holds up nothing."""
        self._landed = landed

    def look(self) -> None:
        """
        Called by the op's thread: tell what is due.

        Raises:
            Failure: somebody ended this run meanwhile (raised and not returned: a run that
                returns is recorded as a success).
        """
        self._require_started()
        landed = self._landed
        if landed is None:
            return
        event = self._pace.due(time.monotonic(), landed.commits)
        if event == "materialization":
            self._tell(dg.AssetMaterialization(self._context.asset_key, metadata=metadata(landed)))
        elif event == "observation":
            self._tell(dg.AssetObservation(self._context.asset_key, metadata=metadata(landed)))

    def _tell(self, event: dg.AssetMaterialization | dg.AssetObservation) -> None:
        self._context.log_event(event)

    def _require_started(self) -> None:
        run_id = self._context.run.run_id
        run = self._context.instance.get_run_by_id(run_id)
        status = None if run is None else run.status
        if status is not dg.DagsterRunStatus.STARTED:
            said = "is gone" if status is None else f"is {status.value}"
            raise dg.Failure(f"run {run_id} {said}: it stops", allow_retries=False)


def metadata(landed: Landed) -> dict[str, Any]:
    """
    How far the log is, for people (text) and for plots (numbers).

    `rows` and `commits` are this run's.
    """
    return {
        "watermark": str(landed.watermark),
        "watermark_lsn": int(landed.watermark),
        "rows": landed.rows,
        "commits": landed.commits,
        "delta_version": landed.version,
    }
