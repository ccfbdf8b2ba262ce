"""The change log as an asset: one long run that lands every committed change."""

import threading
from enum import Enum
from typing import Any, Final

import dagster as dg
from pydantic import Field

from pgstream_dagster.assets.errors import told_to_dagster
from pgstream_dagster.assets.tell import LOOK_SECONDS, News, Teller
from pgstream_dagster.changelog.land import Landed
from pgstream_dagster.operations.attend import attend
from pgstream_dagster.operations.stream import current_lsn, stream
from pgstream_dagster.resources.pipeline import PipelineFile

POOL: Final = "stream"
"""Of the stream only: a second one would wait behind it, not fail on the slot."""


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

    def news(landed: Landed) -> list[News]:
        return [News(context.asset_key, landed.commits, metadata(landed))]

    stop, teller = threading.Event(), Teller(context, news)
    with told_to_dagster():
        opened = pipeline.open()
        until = current_lsn(opened) if config.mode is Mode.drain else None
        landed = attend(
            lambda: stream(opened, stop=stop, until=until, report=teller.put),
            stop=stop,
            look=teller.look,
            look_seconds=LOOK_SECONDS,
        )
    return dg.MaterializeResult(metadata=metadata(landed))


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
