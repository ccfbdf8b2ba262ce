"""Index status: every alias with its generations, how far they are, what was refused."""

from __future__ import annotations

from dataclasses import dataclass

from pgstream_dagster.errors import AliasTaken
from pgstream_dagster.lsn import Lsn
from pgstream_dagster.named import named
from pgstream_dagster.pipeline import Pipeline
from pgstream_dagster.search import generations
from pgstream_dagster.search.control import Generation, State
from pgstream_dagster.search.session import Searching, opened


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
    with opened(pipeline) as searching:
        return [_of(searching, alias) for alias in pipeline.config.search]


def _of(searching: Searching, alias: str) -> AliasStatus:
    on, problem = None, None
    try:
        on = generations.live(searching.cluster, alias)
    except AliasTaken as error:
        problem = str(error)
    watermark = searching.watermark()
    found = [
        _generation(searching, generation, watermark, on)
        for generation in searching.control(alias).generations()
    ]
    return AliasStatus(alias, searching.config(alias).table, tuple(found), problem)


def _generation(
    searching: Searching, generation: Generation, watermark: Lsn, on: generations.Live | None
) -> GenerationStatus:
    is_live = on is not None and on.index == generation.index
    state = generation.state
    if is_live:
        state = State.LIVE
    elif state is State.LIVE:
        state = State.KEPT
    is_there = searching.cluster.exists(generation.index)
    return GenerationStatus(
        generation.index,
        state,
        generation.delivered,
        max(0, watermark - generation.delivered),
        generations.count(searching.cluster, generation) if is_there else 0,
        len(searching.letters.open(generation.index)),
        generation.outdated,
    )
