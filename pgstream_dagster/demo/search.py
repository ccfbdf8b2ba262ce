"""
The demo's search: two indices are kept current, queried, rebuilt, and compared with the log.

`flights` has many small documents, `distributions` large texts; the demo's pipeline file defines
them.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import closing
from typing import Any, Final

from pgstream_dagster.capture.stream import current_lsn
from pgstream_dagster.demo.printing import Echo, Waiting
from pgstream_dagster.demo.running import Running
from pgstream_dagster.pipeline import Pipeline
from pgstream_dagster.search import generations
from pgstream_dagster.search.cluster import Cluster
from pgstream_dagster.search.index import Indexed, index
from pgstream_dagster.search.index_status import index_status
from pgstream_dagster.search.reindex import Phase, Reindexed, ReindexProgress, difference, reindex
from pgstream_dagster.search.session import opened
from pgstream_dagster.search.verify import Difference
from pgstream_dagster.threads import at_once

HEAP: Final = "1g"
"""For bulk requests of several MB, to two indices at a time."""

LINE_SECONDS: Final = 5.0

QUESTION: Final = "large-scale data processing"
HITS: Final = 3
SHOWN_CHARACTERS: Final = 60

LATE: Final = {
    "query": {
        "bool": {
            "filter": [
                {"term": {"carrier": "UA"}},
                {"term": {"dest": "SFO"}},
                {"range": {"arr_delay": {"gte": 60}}},
            ]
        }
    }
}


def indexing(pipeline: Pipeline) -> Running[Indexed]:
    """The live indexer; it builds the first index of each alias."""
    return Running("index", lambda stop, report: index(pipeline, stop=stop, report=report))


def wait_for_now(pipeline: Pipeline, indexer: Running[Indexed], echo: Echo) -> None:
    """Wait until everything committed before this call is behind every alias."""
    until = current_lsn(pipeline)
    with cluster(pipeline) as connection:

        def is_current(indexed: Indexed) -> bool:
            live = [generations.live(connection, alias) for alias in pipeline.config.search]
            return all(index and indexed.delivered.get(index.index, -1) >= until for index in live)

        waiting = Waiting(f"the indices to reach {until}", echo)
        indexer.wait_until(is_current, waiting, _describe)


def _describe(indexed: Indexed) -> str:
    """How far the indexer is, and the indices it cannot follow."""
    failed = [f"{alias}: {reason}" for alias, reason in indexed.failed.items()]
    return "; ".join([f"{indexed.documents:,} documents written", *failed])


def query(pipeline: Pipeline) -> Iterator[str]:
    """The first hits of a full-text search in `distributions`, and a count of `flights`."""
    body = {
        "size": HITS,
        "_source": ["name", "summary"],
        "query": {"match": {"description": {"query": QUESTION, "operator": "and"}}},
    }
    with cluster(pipeline) as connection:
        answer: dict[str, Any] = connection.request("POST", "/distributions/_search", body)
        late: dict[str, Any] = connection.request("POST", "/flights/_count", LATE)
    hits = answer["hits"]
    yield f"description has all of {QUESTION!r}: {hits['total']['value']} documents"
    for hit in hits["hits"]:
        text = f"{hit['_source']['name']}: {hit['_source']['summary']}"
        yield f"  {hit['_score']:5.2f}  {text[:SHOWN_CHARACTERS]}"
    yield f"United's flights to San Francisco, an hour late or more: {late['count']:,}"


def rebuild(pipeline: Pipeline, aliases: Sequence[str], echo: Echo) -> list[Reindexed]:
    """A new generation behind each of these, concurrently, while the former ones serve."""

    def rebuild_alias(alias: str) -> Reindexed:
        done = reindex(pipeline, alias, on_progress=_Lines(echo))
        assert done is not None  # it is not stopped
        echo(f"  alias {alias}: moved from {done.replaced} to {done.index}")
        return done

    calls = [(alias,) for alias in aliases]
    return list(at_once(rebuild_alias, calls, limit=len(calls)))


def generations_now(pipeline: Pipeline) -> Iterator[str]:
    """The generations of each alias, a line each."""
    for alias in index_status(pipeline):
        for generation in alias.generations:
            counts = f"{generation.state.value}, {generation.documents:,} documents"
            yield f"index {generation.index}: {counts}"


def compare(pipeline: Pipeline) -> dict[str, Difference]:
    """Each live index against the fold of the log at its position; no indexer runs meanwhile."""

    def compare_alias(alias: str) -> tuple[str, Difference]:
        with opened(pipeline) as session:
            generation = session.live(alias)
            assert generation is not None  # the indexer has built one for every alias
            return alias, difference(session, generation, generation.delivered)

    calls = [(alias,) for alias in pipeline.config.search]
    return dict(at_once(compare_alias, calls, limit=len(calls)))


class _Lines:
    """Prints progress: a line per phase, and one every few seconds while documents are added."""

    def __init__(self, echo: Echo) -> None:
        self._echo, self._printed_at = echo, 0.0
        self._phase, self._documents = None, 0

    def __call__(self, progress: ReindexProgress) -> None:
        is_due = time.monotonic() - self._printed_at >= LINE_SECONDS
        has_more = progress.documents > self._documents and is_due
        if progress.phase is Phase.DONE or not (progress.phase is not self._phase or has_more):
            return
        self._phase, self._documents = progress.phase, progress.documents
        self._printed_at = time.monotonic()
        phase = f"{progress.phase.value}, {progress.documents:,} documents"
        self._echo(f"  index {progress.index}: {phase}")


def cluster(pipeline: Pipeline) -> closing[Cluster]:
    """A session with the search engine."""
    if pipeline.search is None:
        raise ValueError("the demo has no search engine")
    return closing(Cluster(pipeline.search))
