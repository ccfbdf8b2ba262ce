"""Index status: every alias with its generations, how far they are, what was refused."""

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
    """One generation; `lag_bytes` of WAL are in the log and not in the index."""

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
    One alias; without a live generation its table waits for its copy, or its first build.

    `problem`: why the alias cannot be pgstream's, if so.
    """

    alias: str
    table: str
    generations: tuple[GenerationStatus, ...]
    problem: str | None = None


@named
def index_status(pipeline: Pipeline) -> list[AliasStatus]:
    """What the search cluster has of this pipeline; nothing is changed."""
    with opened(pipeline) as session:
        return [_of(session, alias) for alias in pipeline.config.search]


def _of(session: SearchSession, alias: str) -> AliasStatus:
    on, problem = None, None
    try:
        on = generations.live(session.cluster, alias)
    except AliasTaken as error:
        problem = str(error)
    watermark = session.watermark()
    found = [
        _generation(session, generation, watermark, on)
        for generation in session.control(alias).generations()
    ]
    return AliasStatus(alias, session.config(alias).table, tuple(found), problem)


def _generation(
    session: SearchSession, generation: Generation, watermark: Lsn, on: generations.Live | None
) -> GenerationStatus:
    is_live = on is not None and on.index == generation.index
    state = generation.state
    if is_live:
        state = State.LIVE
    elif state is State.LIVE:
        state = State.KEPT
    is_there = session.cluster.exists(generation.index)
    return GenerationStatus(
        generation.index,
        state,
        generation.delivered,
        max(0, watermark - generation.delivered),
        generations.count(session.cluster, generation) if is_there else 0,
        len(session.letters.open(generation.index)),
        generation.outdated,
    )
