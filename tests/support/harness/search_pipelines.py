"""Search indices in tests: a pipeline with one, the indexer beside a test, what readers see."""

from __future__ import annotations

import json
import logging
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, Self

from pgstream_dagster.config import CaptureConfig, IndexConfig
from pgstream_dagster.errors import SearchUnreachable
from pgstream_dagster.pipeline import Pipeline
from pgstream_dagster.search import generations
from pgstream_dagster.search.answers import NotThere
from pgstream_dagster.search.builds import Build, BuildProcess, build_in_process
from pgstream_dagster.search.cluster import Cluster, SearchSettings
from pgstream_dagster.search.control import State
from pgstream_dagster.search.index import Indexed, index
from pgstream_dagster.search.index_status import GenerationStatus, index_status
from pgstream_dagster.search.reindex import difference, reindex
from pgstream_dagster.search.rollback import rollback
from pgstream_dagster.search.session import opened
from pgstream_dagster.search.verify import Difference
from pgstream_dagster.upkeep.setup import setup
from tests.support.harness import runner
from tests.support.harness.background import in_thread, start
from tests.support.plugins.cluster import psql
from tests.support.plugins.wait import until

CAPTURE: Final = CaptureConfig(flush_seconds=0.1, idle_advance_seconds=1, catalog_check_seconds=1)


CALM: Final = CaptureConfig(flush_seconds=0.5, idle_advance_seconds=1)
"""Fewer files, for what reads all of the log while it grows."""


def with_search(pipeline: Pipeline, url: str, **indices: IndexConfig) -> Pipeline:
    """The same pipeline with indices, by alias."""
    config = pipeline.config.model_copy(update={"search": indices})
    return replace(pipeline, config=config, search=SearchSettings(url))


def made(
    dsn: str, folder: Path, url: str, capture: CaptureConfig = CAPTURE, **indices: IndexConfig
) -> Pipeline:
    """A pipeline with these indices, set up; their tables are there."""
    plain = runner.new_pipeline(dsn, folder, capture=capture)
    plain.state.mkdir(parents=True)
    pipeline = with_search(plain, url, **indices)
    setup(pipeline)
    return pipeline


def behind(pipeline: Pipeline, url: str, ca_file: str, user: str, password: str) -> Pipeline:
    """The same pipeline through a front with TLS and a login."""
    return replace(pipeline, search=SearchSettings(url, user, password, ca_file=ca_file))


@contextmanager
def indexing(
    pipeline: Pipeline, build: Build = build_in_process
) -> Iterator[Callable[[], Indexed]]:
    """The live indexer in a thread while the block runs; what ended it is raised at the end."""
    reports = [Indexed(0)]

    def work(stop: threading.Event) -> None:
        index(pipeline, stop=stop, report=reports.append, build=build)

    with in_thread(work, "index") as check:

        def indexed() -> Indexed:
            check()
            return reports[-1]

        yield indexed


def wait_until_indexed(pipeline: Pipeline, alias: str, indexed: Callable[[], Indexed]) -> None:
    """Until everything committed so far is in the live index of an alias."""
    target = runner.flushed(pipeline.dsn)
    psql(pipeline.dsn, "select pg_logical_emit_message(true, 'pgstream', '')")
    until(
        lambda: indexed().delivered.get(live_index(pipeline, alias) or "", -1) >= target,
        seconds=runner.END_SECONDS,
        every=0.1,
    )


def documents(pipeline: Pipeline, alias: str) -> dict[str, dict[str, Any]]:
    """What readers find behind an alias, by id."""
    assert pipeline.search is not None
    cluster = Cluster(pipeline.search)
    try:
        cluster.request("POST", f"/{alias}/_refresh")
        pages = cluster.pages(alias, {"size": 1000, "sort": ["_doc"]})
        return {hit.id: json.loads(hit.source) for page in pages for hit in page}
    finally:
        cluster.close()


def status_of(pipeline: Pipeline, alias: str) -> list[GenerationStatus]:
    """The generations of an alias."""
    [status] = [status for status in index_status(pipeline) if status.alias == alias]
    return list(status.generations)


def live_index(pipeline: Pipeline, alias: str) -> str | None:
    """The index that an alias is on."""
    assert pipeline.search is not None
    cluster = Cluster(pipeline.search)
    try:
        generation = generations.live(cluster, alias)
        return None if generation is None else generation.index
    finally:
        cluster.close()


def against_log(pipeline: Pipeline, alias: str) -> Difference:
    """The live index against the fold of the log at the position it is recorded at."""
    with opened(pipeline) as search_pipelines:
        generation = search_pipelines.live(alias)
        assert generation is not None
        assert generation.state is State.LIVE
        return difference(search_pipelines, generation, generation.delivered)


class Prober:
    """
    Asks through the alias all the time, and sees one complete index at every moment.

    For a table whose rows are only ever added, with ids from 1 on: what is found is always all of
    them up to some id, and that id never goes back.
    """

    def __init__(self, pipeline: Pipeline, alias: str) -> None:
        assert pipeline.search is not None
        self._cluster, self._alias = Cluster(pipeline.search), alias
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="prober", daemon=True)
        self._seen = 0
        self.samples = 0
        self.breaches: list[str] = []

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *raised: object) -> None:
        self._stop.set()
        self._thread.join()
        self._cluster.close()
        if raised[0] is None:
            assert not self.breaches, self.breaches[:5]
            assert self.samples

    def _run(self) -> None:
        body = {"size": 0, "track_total_hits": True, "aggs": {"last": {"max": {"field": "id"}}}}
        while not self._stop.wait(0.02):
            try:
                answer = self._cluster.request("POST", f"/{self._alias}/_search", body)
            except SearchUnreachable:
                continue  # the test stops the node
            except NotThere:
                self._say("the alias is nowhere")
                continue
            count = answer["hits"]["total"]["value"]
            last = int(answer["aggregations"]["last"]["value"] or 0)
            if count != last or last < self._seen:
                self._say(f"{count} documents up to {last}, after {self._seen}")
            self._seen = max(self._seen, last)
            self.samples += 1

    def _say(self, breach: str) -> None:
        self.breaches.append(breach)


def spawn(
    operation: str, pipeline: Pipeline, alias: str, *, failpoint: str | None = None
) -> subprocess.Popen[bytes]:
    """`index`, `reindex` or `rollback` in a process of its own; SIGKILL at the failpoint."""
    assert pipeline.search is not None
    folder = pipeline.state.parent
    return start(
        "tests.support.harness.search_pipelines",
        *(operation, pipeline.dsn, str(folder), pipeline.search.url, alias),
        pipeline.config.search[alias].model_dump_json(),
        log=folder / f"{operation}.log",
        failpoint=failpoint,
    )


def main() -> None:
    """What the process does."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(threadName)s %(message)s")
    operation, dsn, folder, url, alias, config_json = sys.argv[1:]
    config = IndexConfig.model_validate_json(config_json)
    pipeline = with_search(
        runner.new_pipeline(dsn, Path(folder), capture=CALM), url, **{alias: config}
    )
    if operation == "index":
        stop = threading.Event()
        signal.signal(signal.SIGTERM, lambda *_: stop.set())
        index(pipeline, stop=stop, build=BuildProcess().build)
    elif operation == "reindex":
        reindex(pipeline, alias)
    else:
        rollback(pipeline, alias)


if __name__ == "__main__":
    main()
