"""
SIGKILL at every step of indexing and re-indexing, while writes continue.

Readers of the alias see one complete index at every moment, and at the end it is what the log says.
"""

from __future__ import annotations

import threading
from functools import partial
from pathlib import Path
from random import Random

import psycopg
import pytest

from pgstream_dagster.config import IndexConfig
from pgstream_dagster.pipeline import Pipeline
from pgstream_dagster.search.reindex import reindex
from pgstream_dagster.search.rollback import rollback
from tests.support.harness import runner, search_pipelines
from tests.support.harness.background import in_thread
from tests.support.harness.crash_points import BUILDING, INDEXING, ROLLING_BACK
from tests.support.plugins.cluster import ALL, psql

pytestmark = [pytest.mark.slow, pytest.mark.crash, pytest.mark.one_major("newest")]

REACHED_SECONDS = 4 * runner.END_SECONDS
"""A cold Spark, on a machine that three others keep busy."""

CHOSEN_INDEXING = INDEXING if ALL else ("index.sent:3",)
"""Every step in `make crash`."""


@pytest.fixture
def alias(index_prefix: str) -> str:
    return f"{index_prefix}item"


@pytest.fixture
def pipeline(dsn: str, tmp_path: Path, search_node: object, alias: str) -> Pipeline:
    psql(
        dsn,
        "create table item (id bigint primary key, n int, long text)",
        "alter table item alter long set storage external",
        "insert into item select i, 0, repeat(i::text, 800) from generate_series(1, 200) i",
    )
    config = IndexConfig(table="public.item", keep=1)
    return search_pipelines.made(
        dsn, tmp_path, search_node.url, search_pipelines.CALM, **{alias: config}
    )


def write(dsn: str, stop: threading.Event) -> None:
    """Add rows one after the other, and change others without their large value."""
    random = Random(1)
    with psycopg.connect(dsn, autocommit=True) as connection:
        [(last,)] = connection.execute("select max(id) from item").fetchall()
        while not stop.wait(0.1):
            last += 1
            connection.execute("insert into item values (%s, 0, repeat('x', 3000))", [last])
            connection.execute(
                "update item set n = n + 1 where id = %s", [random.randrange(1, last)]
            )


def killed(operation: str, pipeline: Pipeline, alias: str, failpoint: str) -> None:
    """Run the operation in a process that dies at the failpoint."""
    process = search_pipelines.spawn(operation, pipeline, alias, failpoint=failpoint)
    try:
        code = process.wait(REACHED_SECONDS)
    finally:
        process.kill()
        process.wait()
    output = (pipeline.state.parent / f"{operation}.log").read_text()
    # A task is a process of its own: its death ends the build with an error.
    reached = 1 if failpoint == "build.task" else -9
    assert code == reached, f"{operation} did not reach {failpoint}:\n{output[-4000:]}"


@pytest.mark.long
@pytest.mark.first
@pytest.mark.timeout(1200)
def test_readers_see_one_complete_index_whenever_a_reindex_or_a_rollback_is_killed(
    pipeline: Pipeline, alias: str
) -> None:
    with runner.streaming(pipeline), search_pipelines.indexing(pipeline) as indexed:
        search_pipelines.wait_until_indexed(pipeline, alias, indexed)
        with in_thread(partial(write, pipeline.dsn)), search_pipelines.Prober(pipeline, alias):
            for failpoint in (*BUILDING, "build.loaded"):  # the last one in the recovery
                killed("reindex", pipeline, alias, failpoint)
            done = reindex(pipeline, alias)
            assert done is not None
            for failpoint in ROLLING_BACK:
                killed("rollback", pipeline, alias, failpoint)
            back = rollback(pipeline, alias)
        search_pipelines.wait_until_indexed(pipeline, alias, indexed)
        assert search_pipelines.live_index(pipeline, alias) == back.index
        assert search_pipelines.against_log(pipeline, alias).identical
        assert {back.index, back.replaced} == {
            generation.index for generation in search_pipelines.status_of(pipeline, alias)
        }


@pytest.mark.long
@pytest.mark.timeout(600)
def test_index_equals_the_log_whenever_the_indexer_is_killed(
    pipeline: Pipeline, alias: str
) -> None:
    with runner.streaming(pipeline):
        reindex(pipeline, alias)
        with in_thread(partial(write, pipeline.dsn)), search_pipelines.Prober(pipeline, alias):
            for failpoint in CHOSEN_INDEXING:
                killed("index", pipeline, alias, failpoint)
        with search_pipelines.indexing(pipeline) as indexed:
            search_pipelines.wait_until_indexed(pipeline, alias, indexed)
            assert search_pipelines.against_log(pipeline, alias).identical
