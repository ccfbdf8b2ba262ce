"""
The demo's search: two indices kept current, asked, built again, and compared with the log.

`flights` has many small documents, `distributions` large texts; what they are made of stands in the
demo's pipeline file.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from typing import Any, Final

from pgstream_dagster.capture.stream import current_lsn
from pgstream_dagster.demo.printing import Say, Waiting
from pgstream_dagster.demo.running import Running
from pgstream_dagster.pipeline import Pipeline
from pgstream_dagster.search import generations
from pgstream_dagster.search.cluster import Cluster
from pgstream_dagster.search.index import Indexed, index
from pgstream_dagster.search.index_status import index_status
from pgstream_dagster.search.reindex import Phase, Reindexed, ReindexProgress, difference, reindex
from pgstream_dagster.search.session import opened
from pgstream_dagster.search.verify import Difference

HEAP: Final = "1g"
"""Of the search engine: several MB at a time, for two indices."""

LINE_SECONDS: Final = 5.0

QUESTION: Final = "large-scale data processing"
HITS: Final = 3
SHOWN: Final = 60

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
    """The live indexer; it makes the first index of each alias by itself."""
    return Running("index", lambda stop, report: index(pipeline, stop=stop, report=report))


def wait_for_now(pipeline: Pipeline, indexer: Running[Indexed], say: Say) -> None:
    """Until everything committed before this call is behind every alias."""
    until = current_lsn(pipeline)
    with cluster(pipeline) as asked:

        def is_there(indexed: Indexed) -> bool:
            on = [generations.live(asked, alias) for alias in pipeline.config.search]
            return all(live and indexed.delivered.get(live.index, -1) >= until for live in on)

        indexer.wait_until(is_there, Waiting(f"the indices to reach {until}", say), _shown)


def _shown(indexed: Indexed) -> str:
    """How far the indexer is, and what holds an index up."""
    failed = [f"{alias}: {why}" for alias, why in indexed.failed.items()]
    return "; ".join([f"{indexed.documents:,} documents written", *failed])


def ask(pipeline: Pipeline) -> Iterator[str]:
    """A question about the packages that are installed here, its first hits, and one of codes."""
    body = {
        "size": HITS,
        "_source": ["name", "summary"],
        "query": {"match": {"description": {"query": QUESTION, "operator": "and"}}},
    }
    with cluster(pipeline) as asked:
        found: dict[str, Any] = asked.request("POST", "/distributions/_search", body)["hits"]
        late: dict[str, Any] = asked.request("POST", "/flights/_count", LATE)
    yield f"description has all of {QUESTION!r}: {found['total']['value']} documents"
    for hit in found["hits"]:
        said = f"{hit['_source']['name']}: {hit['_source']['summary']}"
        yield f"  {hit['_score']:5.2f}  {said[:SHOWN]}"
    yield f"United's flights to San Francisco, an hour late or more: {late['count']:,}"


def rebuild(pipeline: Pipeline, say: Say) -> list[Reindexed]:
    """A new generation behind each alias, all at a time, while the former ones serve."""

    def one(alias: str) -> Reindexed | None:
        done = reindex(pipeline, alias, on_progress=_Lines(say))
        if done is not None:
            say(f"  alias {alias}: {done.replaced} -> {done.index}")
        return done

    aliases = pipeline.config.search
    with ThreadPoolExecutor(len(aliases), thread_name_prefix="demo-reindex") as pool:
        done = list(pool.map(one, aliases))
    return [each for each in done if each is not None]  # all of them: it is not stopped


def generations_now(pipeline: Pipeline) -> Iterator[str]:
    """What stands behind each alias, a line for each generation."""
    for alias in index_status(pipeline):
        for one in alias.generations:
            yield f"{one.index}: {one.state.value}, {one.documents:,} documents"


def compare(pipeline: Pipeline) -> dict[str, Difference]:
    """Each live index against the fold of the log at its position; no indexer runs meanwhile."""
    with opened(pipeline) as session:
        found: dict[str, Difference] = {}
        for alias in pipeline.config.search:
            generation = session.live(alias)
            assert generation is not None  # every alias was just re-indexed
            found[alias] = difference(session, generation, generation.delivered)
    return found


class _Lines:
    """Progress as lines: one for each phase, and now and then one when there are more documents."""

    def __init__(self, say: Say) -> None:
        self._say, self._said_at = say, 0.0
        self._phase, self._documents = None, 0

    def __call__(self, progress: ReindexProgress) -> None:
        is_due = time.monotonic() - self._said_at >= LINE_SECONDS
        is_more = progress.documents > self._documents and is_due
        is_news = progress.phase is not self._phase or is_more
        if progress.phase is Phase.DONE or not is_news:
            return
        self._phase, self._documents = progress.phase, progress.documents
        self._said_at = time.monotonic()
        self._say(f"  {progress.index}: {progress.phase.value}, {progress.documents:,} documents")


def cluster(pipeline: Pipeline) -> closing[Cluster]:
    """The search engine, to ask."""
    if pipeline.search is None:
        raise ValueError("the demo has no search engine")
    return closing(Cluster(pipeline.search))
