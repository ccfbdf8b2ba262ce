"""Index status: every alias with its generations, their progress and their refused documents."""

from __future__ import annotations

from dataclasses import dataclass

from pgstream_dagster.errors import AliasTaken
from pgstream_dagster.lsn import Lsn
from pgstream_dagster.named import named
from pgstream_dagster.pipeline import Pipeline
from pgstream_dagster.search import generations
from pgstream_dagster.search.control import Generation, State
from pgstream_dagster.search.session import SearchSession, opened


@dataclass(frozen=True, slots=True)
class GenerationStatus:
    """One generation; `lag_bytes` of WAL are in the log but not in the index."""

    index: str
    state: State
    delivered: Lsn
    lag_bytes: int
    documents: int
    refused: int
    outdated: str | None


@dataclass(frozen=True, slots=True)
class AliasStatus:
    """
    One alias; without a live generation its table waits for its copy, or for its first build.

    `problem`: why the alias is not pgstream's, if so.
    """

    alias: str
    table: str
    generations: tuple[GenerationStatus, ...]
    problem: str | None = None


@named
def index_status(pipeline: Pipeline) -> list[AliasStatus]:
    """What the search cluster has of this pipeline; changes nothing."""
    with opened(pipeline) as session:
        return [_alias(session, alias) for alias in pipeline.config.search]


def _alias(session: SearchSession, alias: str) -> AliasStatus:
    live, problem = None, None
    try:
        live = generations.live(session.cluster, alias)
    except AliasTaken as error:
        problem = str(error)
    watermark = session.watermark()
    statuses = [
        _generation(session, generation, watermark, live)
        for generation in session.control(alias).generations()
    ]
    return AliasStatus(alias, session.config(alias).table, tuple(statuses), problem)


def _generation(
    session: SearchSession, generation: Generation, watermark: Lsn, live: generations.Live | None
) -> GenerationStatus:
    state = generation.state
    if live is not None and live.index == generation.index:
        state = State.LIVE
    elif state is State.LIVE:
        state = State.KEPT
    is_there = session.cluster.exists(generation.index)
    return GenerationStatus(
        generation.index,
        state,
        generation.delivered,
        max(0, watermark - generation.delivered),
        session.cluster.count(generation.index) if is_there else 0,
        len(session.letters.open(generation.index)),
        generation.outdated,
    )
