"""The change log as an asset: one long run that lands every committed change."""

import threading
import time
from enum import Enum
from typing import Any, Final

import dagster as dg
from pydantic import Field

from pgstream_dagster.assets.columns import LOG_COLUMNS, SCHEMA
from pgstream_dagster.assets.errors import told_to_dagster
from pgstream_dagster.assets.health import SlotHealth
from pgstream_dagster.assets.names import Names
from pgstream_dagster.assets.pace import FRESHNESS
from pgstream_dagster.assets.positions import position
from pgstream_dagster.assets.snapshot import SNAPSHOT, Copies
from pgstream_dagster.assets.source import SOURCE
from pgstream_dagster.assets.tell import LOOK_SECONDS, News, OwnRun, Teller, steadily
from pgstream_dagster.changelog.land import Landed
from pgstream_dagster.operations.attend import attend
from pgstream_dagster.operations.stream import current_lsn, stream

CHANGE_LOG: Final = "change_log"

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
    hours: float = Field(
        default=24.0,
        gt=0,
        description="How long the run lasts; then it ends by itself and the sensor launches the "
        "next, with the code of its day and an event log of its own.",
    )


def change_log(names: Names) -> dg.AssetsDefinition:
    """The asset of one pipeline."""

    @dg.asset(
        key=names.key(CHANGE_LOG),
        deps=[names.key(SOURCE), names.key(SNAPSHOT)],
        group_name="landing",
        kinds={"postgres", "deltalake"},
        owners=["team:data"],
        pool=names.of(POOL),
        required_resource_keys=names.resources,
        freshness_policy=FRESHNESS,
        metadata={SCHEMA: LOG_COLUMNS},
        description="Every committed change of the published tables, each once, in commit order."
        " One long run; terminating it lands and confirms what is complete, and the next run goes"
        " on from there.",
    )
    def landed(
        context: dg.AssetExecutionContext, config: StreamConfig
    ) -> dg.MaterializeResult[Any]:
        return _land(context, config, names)

    return landed


def _land(
    context: dg.AssetExecutionContext, config: StreamConfig, names: Names
) -> dg.MaterializeResult[Any]:
    """Stream until stopped, and tell Dagster how far it is."""
    stop = threading.Event()
    with told_to_dagster():
        opened = names.open(context)
        until = current_lsn(opened) if config.mode is Mode.drain else None
        rate, health = _Rate(), SlotHealth(context, opened, names.key(CHANGE_LOG))

        def news(landed: Landed) -> list[News]:
            def told() -> dict[str, Any]:
                return metadata(landed) | rate.of(landed.rows) | health.lag(landed.watermark)

            return [News(context.asset_key, landed.commits, told)]

        run, teller = OwnRun(context, stop, config.hours), Teller(context, news)
        copies = Copies(context, names, opened)
        landed = attend(
            lambda: stream(opened, stop=stop, until=until, report=teller.put),
            stop=stop,
            look=steadily(run.look, teller.look, health.look, copies.look),
            look_seconds=LOOK_SECONDS,
        )
    return dg.MaterializeResult(metadata=metadata(landed))


def metadata(landed: Landed) -> dict[str, Any]:
    """
    How far the log is, for people (text) and for plots (numbers).

    `rows` and `commits` are this run's; `lag_seconds`: from the newest commit to the log.
    """
    return {
        **position("watermark", landed.watermark),
        "rows": landed.rows,
        "commits": landed.commits,
        "delta_version": landed.version,
        "lag_seconds": round(landed.lag_seconds, 3),
    }


class _Rate:
    """Rows a second since it was asked last."""

    def __init__(self) -> None:
        self._at, self._rows = time.monotonic(), 0

    def of(self, rows: int) -> dict[str, float]:
        now = time.monotonic()
        rate = (rows - self._rows) / max(now - self._at, 1e-3)
        self._at, self._rows = now, rows
        return {"rows_per_second": round(rate, 1)}
