"""
Sinks as assets: one per sink of the pipeline file, reported by the job `sinks`.

A materialisation says how far the sink is. As with `change_log`, Dagster cannot materialise them: a
long run that has them as its output would count as in progress.
"""

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import dagster as dg

from pgstream_dagster.assets.landing import CHANGE_LOG
from pgstream_dagster.assets.names import Names
from pgstream_dagster.assets.positions import position
from pgstream_dagster.assets.reporter import ProgressReport
from pgstream_dagster.assets.throttle import FRESHNESS
from pgstream_dagster.config import SinkConfig
from pgstream_dagster.errors import PgstreamError
from pgstream_dagster.lsn import Lsn

if TYPE_CHECKING:
    from pgstream_dagster.pipeline import Pipeline
    from pgstream_dagster.sinks.control import SinkStatus
    from pgstream_dagster.sinks.state import Progress

PREFIX: Final = "sinks"

DELIVERED: Final = "everything_delivered"
"""The check of every sink: no dead letters, and nothing that keeps it from delivering."""


KEEPS_UP: Final = "keeps_up"
"""The check of every sink: it is not far behind the log."""

LAG_SECONDS: Final = 600.0
"""Behind the log, after which a sink is reported: a copy of a table, or a restart, takes less."""


def key_of(names: Names, sink: str) -> dg.AssetKey:
    """The key of a sink's asset."""
    return names.key(PREFIX, sink)


def sink_assets(names: Names, sinks: Mapping[str, SinkConfig]) -> list[dg.AssetSpec]:
    """An asset per sink."""
    return [
        names.spec(
            *(PREFIX, sink),
            deps=[names.key(CHANGE_LOG)],
            group_name=PREFIX,
            kinds={config.target},
            freshness_policy=FRESHNESS,
            description=f"The changes of {', '.join(config.tables)}, delivered from the log. The"
            " job 'sinks' delivers them and reports its progress here.",
        )
        for sink, config in sinks.items()
    ]


def progress_reports(
    names: Names, pipeline: "Pipeline", progress: Mapping[str, "Progress"]
) -> Iterable[ProgressReport]:
    """How far each sink is; of a webhook with several subscriptions, the one furthest behind."""
    sinks: dict[str, list[Progress]] = {}
    for reader, state in progress.items():
        if state.cursor is not None or state.error is not None:
            sinks.setdefault(reader.partition(".")[0], []).append(state)
    for sink, states in sinks.items():
        watermarks = [state.cursor.watermark for state in states if state.cursor is not None]
        watermark = min(watermarks, default=Lsn(0))
        refused = sum(state.refused for state in states)
        errors = "; ".join(filter(None, (state.error for state in states)))
        facts = {
            **position("delivered", watermark),
            "changes": sum(state.changes for state in states),
            "dead_letters": refused,
            "errors": errors,
        }
        # Also a sink that delivers nothing has something to report: why.
        mark = hash((watermark, refused, errors))
        yield ProgressReport(key_of(names, sink), mark, partial(_facts, pipeline, states, facts))


def _facts(
    pipeline: "Pipeline", states: "Sequence[Progress]", facts: Mapping[str, Any]
) -> dict[str, Any]:
    """With the lag as it is now, as numbers for plots; without while the lake cannot be read."""
    from pgstream_dagster.sinks.control import lag_of

    try:
        with pipeline.open() as opened:
            watermark = opened.watermark() or Lsn(0)
    except PgstreamError:
        return {**facts}
    return {**facts, **_furthest([lag_of(state, watermark) for state in states])}


def readers_of(pipeline: "Pipeline", sink: str) -> list["SinkStatus"]:
    """The status of a sink's readers."""
    from pgstream_dagster.sinks.control import sink_status

    return sink_status(pipeline, [sink])


def lag(readers: "Sequence[SinkStatus]") -> dict[str, Any]:
    """That of the reader furthest behind."""
    return _furthest([(reader.lag_bytes, reader.lag_seconds) for reader in readers])


def _furthest(lags: "Sequence[tuple[int | None, float | None]]") -> dict[str, Any]:
    return {
        "lag_bytes": max((size or 0 for size, _ in lags), default=0),
        "lag_seconds": max((seconds or 0.0 for _, seconds in lags), default=0.0),
    }
