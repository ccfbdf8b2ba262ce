"""The change log as an asset: one long run that lands every committed change."""

import threading
import time
from enum import Enum
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import dagster as dg
from pydantic import Field

from pgstream_dagster.assets.columns import LOG_COLUMNS, SCHEMA, location
from pgstream_dagster.assets.health import SlotHealth, TablesFit
from pgstream_dagster.assets.names import Names
from pgstream_dagster.assets.positions import position
from pgstream_dagster.assets.reporter import (
    POLL_SECONDS,
    OwnRun,
    ProgressReport,
    ProgressReporter,
    outlasting,
)
from pgstream_dagster.assets.snapshot import Copies
from pgstream_dagster.assets.throttle import FRESHNESS
from pgstream_dagster.pipeline import Pipeline
from pgstream_dagster.threads import run_in_thread

if TYPE_CHECKING:
    from pgstream_dagster.changelog.land import Landed

CHANGE_LOG: Final = "change_log"


class Mode(Enum):
    """When a run ends."""

    stream = "stream"
    drain = "drain"


class StreamConfig(dg.Config):
    """Run configuration of the job `stream`."""

    mode: Mode = Field(
        default=Mode.stream,
        description="stream: until terminated. drain: until everything that was committed when "
        "the run began has landed, and due copies are made.",
    )
    hours: float = Field(
        default=24.0,
        gt=0,
        description="How long the run lasts; then it ends by itself and the sensor launches the "
        "next, with the code of its day and an event log of its own.",
    )


def change_log(names: Names, *sources: str) -> dg.AssetSpec:
    """
    The asset of one pipeline, made from these others.

    The job `stream` reports it. Dagster cannot materialize it: a long run that has it as its output
    would count as in progress, and hold up every `eager` asset downstream.
    """
    return names.spec(
        CHANGE_LOG,
        deps=[names.key(source) for source in sources],
        group_name="landing",
        kinds={"deltalake"},
        freshness_policy=FRESHNESS,
        metadata={SCHEMA: LOG_COLUMNS},
        description="Every committed change of the source's tables, each once, in order."
        " The job 'stream' lands them and reports its progress here.",
    )


def land_changes(context: dg.OpExecutionContext, names: Names, pipeline: Pipeline) -> None:
    """Land every committed change until terminated; the next run continues from there."""
    from pgstream_dagster.consumer.stream import run_stream

    config, key, stop = StreamConfig(**context.op_config), names.key(CHANGE_LOG), threading.Event()
    is_drain, is_postgres = config.mode is Mode.drain, pipeline.config.source.kafka is None
    rate, health = _Rate(), SlotHealth(context, pipeline, key)

    def progress(landed: "Landed") -> dict[str, Any]:
        rows_per_second = rate.since_last(landed.rows)
        lag = health.lag(landed.watermark) if is_postgres else {}
        return metadata(pipeline, landed) | rows_per_second | lag

    def reports(landed: "Landed") -> list[ProgressReport]:
        return [ProgressReport(key, landed.commits, partial(progress, landed))]

    run, reporter = OwnRun(context, stop, config.hours), ProgressReporter(context, reports)
    tables, copies = TablesFit(context, pipeline, key), Copies(context, names, pipeline)
    of_postgres = (health.poll, tables.poll, copies.poll)
    landed = run_in_thread(
        lambda: run_stream(pipeline, stop=stop, is_drain=is_drain, report=reporter.put),
        stop=stop,
        poll=outlasting(run.poll, reporter.poll, *(of_postgres if is_postgres else ())),
        poll_seconds=POLL_SECONDS,
    )
    final = metadata(pipeline, landed)
    context.log_event(dg.AssetMaterialization(key, metadata=final))
    context.add_output_metadata(final)


def metadata(pipeline: Pipeline, landed: "Landed") -> dict[str, Any]:
    """
    How far the log is, as text for people and as numbers for plots.

    `rows` and `commits` are this run's; `lag_seconds` is from the newest commit to the log.
    """
    return {
        **position("watermark", landed.watermark),
        "rows": landed.rows,
        "commits": landed.commits,
        "delta_version": landed.version,
        "lag_seconds": round(landed.lag_seconds, 3),
        **location(pipeline.lake.change_log),
    }


class _Rate:
    """Rows per second since the last report."""

    def __init__(self) -> None:
        self._at, self._rows = time.monotonic(), 0

    def since_last(self, rows: int) -> dict[str, float]:
        now = time.monotonic()
        rate = (rows - self._rows) / max(now - self._at, 1e-3)
        self._at, self._rows = now, rows
        return {"rows_per_second": round(rate, 1)}
