"""
Sinks as assets: one per sink of the pipeline file, reported by the job `sinks`.

A materialisation says how far the sink is. As with `change_log`, Dagster cannot materialise them: a
long run that has them as its output would count as in progress.
"""

from collections.abc import Iterable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import dagster as dg

from pgstream_dagster.assets.landing import CHANGE_LOG
from pgstream_dagster.assets.names import Names
from pgstream_dagster.assets.positions import position
from pgstream_dagster.assets.reporter import ProgressReport
from pgstream_dagster.assets.throttle import FRESHNESS
from pgstream_dagster.config import SinkConfig
from pgstream_dagster.lsn import Lsn

if TYPE_CHECKING:
    from pgstream_dagster.sinks.state import Progress

PREFIX: Final = "sinks"

DELIVERED: Final = "everything_delivered"
"""The check of every sink: no dead letters, and nothing that keeps it from delivering."""


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


def progress_reports(names: Names, progress: Mapping[str, "Progress"]) -> Iterable[ProgressReport]:
    """How far each sink is; of a webhook with several subscriptions, the one furthest behind."""
    sinks: dict[str, tuple[int, list[Progress]]] = {}
    for reader, state in progress.items():
        if state.cursor is not None:
            watermark, states = sinks.get(sink := reader.partition(".")[0], (1 << 63, []))
            sinks[sink] = min(watermark, state.cursor.watermark), [*states, state]
    for sink, (watermark, states) in sinks.items():
        facts = partial(_facts, Lsn(watermark), states)
        yield ProgressReport(key_of(names, sink), watermark, facts)


def _facts(watermark: Lsn, states: "Iterable[Progress]") -> dict[str, Any]:
    states = list(states)
    return {
        **position("delivered", watermark),
        "changes": sum(state.changes for state in states),
        "dead_letters": sum(state.refused for state in states),
        "errors": "; ".join(filter(None, (state.error for state in states))),
    }
