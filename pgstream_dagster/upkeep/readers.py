"""
Every reader of the log, as indices, sinks, typed tables: how far, how far behind, and what to do.

What cannot be determined, such as the state of a cluster that is away, is part of the result.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final, Literal

from pgstream_dagster.errors import PgstreamError
from pgstream_dagster.lsn import Lsn
from pgstream_dagster.named import named
from pgstream_dagster.pipeline import Pipeline
from pgstream_dagster.search.index_status import AliasStatus, index_status
from pgstream_dagster.sinks.control import SinkStatus, sink_status


@dataclass(frozen=True, slots=True)
class ReaderStatus:
    """
    One reader; `lag_bytes` of WAL are in the log and not delivered.

    `lag_seconds` is not known of an index. `next_step` is a command, or `None` if there is nothing
    to do.
    """

    reader: str
    kind: Literal["index", "sink", "tables"]
    state: str
    position: Lsn | None = None
    lag_bytes: int | None = None
    lag_seconds: float | None = None
    refused: int = 0
    error: str | None = None
    next_step: str | None = None


@named
def reader_status(pipeline: Pipeline) -> tuple[ReaderStatus, ...]:
    """
    All readers of the pipeline file; none before `setup`. Changes nothing.

    Indices come first, then sinks; all typed tables are one reader.
    """
    try:
        pipeline.require_set_up()
    except PgstreamError:
        return ()
    return (*_indices(pipeline), *_sinks(pipeline), *_typed_tables(pipeline))


def _indices(pipeline: Pipeline) -> Iterator[ReaderStatus]:
    if not pipeline.config.search:
        return
    try:
        aliases = index_status(pipeline)
    except PgstreamError as error:
        for alias in pipeline.config.search:
            yield ReaderStatus(alias, "index", "unknown", error=str(error))
        return
    for alias in aliases:
        yield _index(alias)


def _index(alias: AliasStatus) -> ReaderStatus:
    """The live generation, or else the newest."""
    newest = max(
        alias.generations, key=lambda g: (g.state.value == "live", g.delivered), default=None
    )
    run = "pgstream index run"
    if newest is None:
        return ReaderStatus(alias.alias, "index", "none yet", error=alias.problem, next_step=run)
    step = None
    if newest.outdated is not None:
        step = f"pgstream reindex {alias.alias}"
    elif newest.refused:
        step = f"pgstream redrive {alias.alias}"
    return ReaderStatus(
        *(alias.alias, "index", newest.state.value, newest.delivered, newest.lag_bytes),
        refused=newest.refused,
        error=alias.problem or newest.outdated,
        next_step=step,
    )


def _sinks(pipeline: Pipeline) -> Iterator[ReaderStatus]:
    if not pipeline.config.sinks:
        return
    try:
        sinks = sink_status(pipeline)
    except PgstreamError as error:
        for sink in pipeline.config.sinks:
            yield ReaderStatus(sink, "sink", "unknown", error=str(error))
        return
    for sink in sinks:
        yield ReaderStatus(
            *(sink.sink, "sink", sink.state, sink.position, sink.lag_bytes, sink.lag_seconds),
            refused=sink.refused + sink.held,
            error=sink.error,
            next_step=_next_step(sink),
        )


def _typed_tables(pipeline: Pipeline) -> Iterator[ReaderStatus]:
    if pipeline.config.tables is None:
        return
    from pgstream_dagster.tables.status import TableState, typed_status  # imports Spark

    try:
        status = typed_status(pipeline)
    except PgstreamError as error:
        yield ReaderStatus("typed tables", "tables", "unknown", error=str(error))
        return
    problems = [
        f"{table.table}: {_TYPED_PROBLEMS[table.state]}"
        for table in status.tables
        if table.state in _TYPED_PROBLEMS
    ]
    is_missing = any(table.state is TableState.MISSING for table in status.tables)
    is_behind = bool(status.lag_bytes) or is_missing
    yield ReaderStatus(
        *(f"typed tables ({len(status.tables)})", "tables"),
        "behind" if is_behind else "current",
        *(status.position, status.lag_bytes, status.lag_seconds),
        error="; ".join(problems) or None,
        next_step="pgstream tables run" if is_behind else None,
    )


_TYPED_PROBLEMS: Final[Mapping[str, str]] = {
    "waiting": "changes are missing, waiting for the next copy",
    "held": "changes of its columns wait, 'pgstream tables pending' shows them",
    "missing": "no typed table yet",
}


def _next_step(sink: SinkStatus) -> str | None:
    name = sink.sink.partition(".")[0]
    if sink.is_paused:
        return f"pgstream sink resume {name}"
    if sink.refused or sink.held:
        return f"pgstream sink letters {name}"
    return None if sink.is_running or sink.error else f"pgstream sink run {name}"
