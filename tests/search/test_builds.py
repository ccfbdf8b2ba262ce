"""What a live indexer has to build, in a process of its own, and a build that is told to stop."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager, closing
from pathlib import Path
from typing import NoReturn

import pytest

from pgstream_dagster.config import IndexConfig
from pgstream_dagster.delta import jvm
from pgstream_dagster.embedded.processes import children
from pgstream_dagster.errors import SearchFailed
from pgstream_dagster.pipeline import Pipeline
from pgstream_dagster.search import build, builds, index
from pgstream_dagster.search.builds import BuildProcess
from pgstream_dagster.search.cluster import Cluster
from pgstream_dagster.search.index import Indexed
from pgstream_dagster.search.reindex import planned, reindex
from tests.support.harness import runner, search_pipelines
from tests.support.plugins.cluster import psql
from tests.support.plugins.wait import until

pytestmark = [pytest.mark.slow, pytest.mark.one_major("newest")]


@pytest.fixture
def alias(index_prefix: str) -> str:
    return f"{index_prefix}item"


@pytest.fixture
def pipeline(dsn: str, tmp_path: Path, search_node: object, alias: str) -> Pipeline:
    psql(
        dsn,
        "create table item (id bigint primary key, n int)",
        "insert into item select i, i from generate_series(1, 100) i",
    )
    config = IndexConfig(table="public.item", keep=0)
    return search_pipelines.made(dsn, tmp_path, search_node.url, **{alias: config})


def indexing_apart(pipeline: Pipeline) -> AbstractContextManager[Callable[[], Indexed]]:
    return search_pipelines.indexing(pipeline, BuildProcess().build)


def build_processes(parent: int | None = None) -> list[int]:
    """The build processes of a process, by default of this one."""
    lines = {pid: Path(f"/proc/{pid}/cmdline") for pid in children(parent or os.getpid())}
    return [pid for pid, line in lines.items() if builds.PROCESS.encode() in command_line(line)]


def command_line(line: Path) -> bytes:
    try:
        return line.read_bytes()
    except OSError:  # it has just ended
        return b""


def test_dry_run_says_what_the_cluster_does_not_accept_and_leaves_nothing(
    pipeline: Pipeline, alias: str
) -> None:
    assert pipeline.search is not None
    wrong = IndexConfig(table="public.item", mapping={"n": {"type": "text", "analyzer": "klingon"}})
    with runner.streaming(pipeline):
        assert planned(pipeline, alias).alias == alias
        with pytest.raises(SearchFailed, match="klingon"):
            planned(
                search_pipelines.with_search(pipeline, pipeline.search.url, **{alias: wrong}), alias
            )
    with closing(Cluster(pipeline.search)) as cluster:
        assert cluster.aliases(f"{alias}-*") == {}


@pytest.mark.long
@pytest.mark.timeout(600)
def test_build_whose_jvm_is_killed_is_tried_again(
    pipeline: Pipeline,
    alias: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(index, "AGAIN_SECONDS", 1.0)
    with (
        runner.streaming(pipeline),
        indexing_apart(pipeline) as indexed,
    ):
        until(lambda: [children(pid) for pid in build_processes()], seconds=runner.END_SECONDS)
        [builder] = build_processes()
        until(lambda: children(builder), seconds=runner.END_SECONDS)
        for jvm_process in children(builder):
            os.kill(jvm_process, signal.SIGKILL)
        search_pipelines.wait_until_indexed(pipeline, alias, indexed)
        assert search_pipelines.against_log(pipeline, alias).identical
    assert f"re-index of {alias} failed" in caplog.text


@pytest.mark.long
@pytest.mark.timeout(300)
def test_index_is_built_in_a_process_that_ends_afterwards(
    pipeline: Pipeline, alias: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", logger="pgstream_dagster")
    with (
        runner.streaming(pipeline),
        indexing_apart(pipeline) as indexed,
    ):
        until(build_processes, seconds=runner.END_SECONDS)
        search_pipelines.wait_until_indexed(pipeline, alias, indexed)
        assert search_pipelines.against_log(pipeline, alias).identical
        until(lambda: not build_processes(), seconds=runner.END_SECONDS)
        assert f"alias {alias} is on {alias}-000001" in caplog.text  # told by the other process


@pytest.mark.long
@pytest.mark.timeout(300)
def test_index_is_built_again_after_its_process_was_killed(
    pipeline: Pipeline,
    alias: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(index, "AGAIN_SECONDS", 1.0)
    until(lambda: not build_processes())  # the former test's
    with (
        runner.streaming(pipeline),
        indexing_apart(pipeline) as indexed,
    ):
        until(build_processes, seconds=runner.END_SECONDS)
        for process in build_processes():
            os.kill(process, signal.SIGKILL)
        until(lambda: "its process ended with -9" in caplog.text, seconds=runner.END_SECONDS)
        search_pipelines.wait_until_indexed(pipeline, alias, indexed)
        assert search_pipelines.against_log(pipeline, alias).identical
    assert build_processes() == []


@pytest.mark.long
@pytest.mark.timeout(300)
def test_build_process_ends_with_an_indexer_that_is_killed(pipeline: Pipeline, alias: str) -> None:
    with runner.streaming(pipeline):
        indexer = search_pipelines.spawn("index", pipeline, alias)
        try:
            until(lambda: build_processes(indexer.pid), seconds=runner.END_SECONDS)
            [process] = build_processes(indexer.pid)
        finally:
            indexer.kill()
            indexer.wait()
        until(lambda: not Path(f"/proc/{process}").exists(), seconds=60)


@pytest.mark.long
@pytest.mark.timeout(300)
def test_indexer_that_is_asked_to_stop_leaves_no_process(pipeline: Pipeline) -> None:
    with runner.streaming(pipeline), indexing_apart(pipeline):
        until(build_processes, seconds=runner.END_SECONDS)
    assert build_processes() == []


@pytest.mark.long
@pytest.mark.timeout(120)
def test_stop_cancels_what_spark_does(
    pipeline: Pipeline, alias: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    stop = threading.Event()

    def endless(*_: object) -> NoReturn:
        stop.set()
        jvm.spark(pipeline.jvm).range(10**16).selectExpr("sum(id % 7)").collect()
        raise AssertionError("it ended by itself")

    with runner.streaming(pipeline):
        first = reindex(pipeline, alias)
        monkeypatch.setattr(build, "load", endless)
        assert reindex(pipeline, alias, stop=stop) is None
        assert search_pipelines.live_index(pipeline, alias) == first.index
        monkeypatch.undo()
        second = reindex(pipeline, alias)
        assert second.index > first.index
