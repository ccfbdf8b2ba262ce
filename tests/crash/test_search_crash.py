"""
SIGKILL at every step of indexing and re-indexing, with writes going on.

Readers of the alias see one complete index at every moment, and at the end it is what the log says.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random

import psycopg
import pytest

from pgstream_dagster.config import IndexConfig
from pgstream_dagster.pipeline import Pipeline
from pgstream_dagster.search.reindex import reindex
from pgstream_dagster.search.rollback import rollback
from tests.support.harness import runner, search_pipelines
from tests.support.plugins.cluster import ALL, psql

pytestmark = [pytest.mark.slow, pytest.mark.crash, pytest.mark.one_major("newest")]

# PGSTREAM_TEST_ALL (`make crash`): every step, minutes; else those that differ most.

BUILDING = (
    *("build.recorded", "build.task", "build.loaded", "build.caught_up", "build.verified"),
    *("build.created", "promote.ready", "promote.moved", "promote.recorded", "retire.dropped"),
)
TOLD = BUILDING if ALL else ("promote.moved",)
ROLLING_BACK = ("promote.ready", "promote.moved", "promote.recorded")
TOLD_BACK = ROLLING_BACK if ALL else ("promote.ready",)
REACHED_SECONDS = 4 * runner.END_SECONDS
"""A cold Spark, on a machine that three others keep busy."""

INDEXING = ("index.completed", "index.sent:3", "index.delivered:2")
TOLD_INDEXING = INDEXING if ALL else ("index.sent:3",)


@pytest.fixture
def alias(index_prefix: str) -> str:
    return f"{index_prefix}item"


@pytest.fixture
def of(dsn: str, tmp_path: Path, search_node: object, alias: str) -> Pipeline:
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


@contextmanager
def writing(of: Pipeline) -> Iterator[None]:
    """Rows are added one after the other, and others change without their large value."""
    stop, random = threading.Event(), Random(1)

    def run() -> None:
        with psycopg.connect(of.dsn, autocommit=True) as connection:
            [(last,)] = connection.execute("select max(id) from item").fetchall()
            while not stop.wait(0.1):
                last += 1
                connection.execute("insert into item values (%s, 0, repeat('x', 3000))", [last])
                connection.execute(
                    "update item set n = n + 1 where id = %s", [random.randrange(1, last)]
                )

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def killed(operation: str, of: Pipeline, alias: str, failpoint: str) -> None:
    """Run the operation in a process that dies at the failpoint."""
    process = search_pipelines.spawn(operation, of, alias, failpoint=failpoint)
    try:
        code = process.wait(REACHED_SECONDS)
    finally:
        process.kill()
        process.wait()
    said = (of.state.parent / f"{operation}.log").read_text()
    # A task is a process of its own: its death ends the build with an error.
    reached = 1 if failpoint == "build.task" else -9
    assert code == reached, f"{operation} did not reach {failpoint}:\n{said[-4000:]}"


@pytest.mark.timeout(1200)
def test_readers_see_one_complete_index_whenever_a_reindex_or_a_rollback_is_killed(
    of: Pipeline, alias: str
) -> None:
    with runner.streaming(of), search_pipelines.indexing(of) as indexed:
        search_pipelines.wait_until_indexed(of, alias, indexed)
        with writing(of), search_pipelines.Prober(of, alias):
            for failpoint in TOLD:
                killed("reindex", of, alias, failpoint)
            if ALL:
                killed("reindex", of, alias, "build.loaded")  # and again in the recovery
            done = reindex(of, alias)
            assert done is not None
            for failpoint in TOLD_BACK:
                killed("rollback", of, alias, failpoint)
            back = rollback(of, alias)
        search_pipelines.wait_until_indexed(of, alias, indexed)
        assert search_pipelines.live_index(of, alias) == back.index
        assert search_pipelines.against_log(of, alias).identical
        assert {back.index, back.replaced} == {
            one.index for one in search_pipelines.status_of(of, alias)
        }


@pytest.mark.timeout(600)
def test_index_equals_the_log_whenever_the_indexer_is_killed(of: Pipeline, alias: str) -> None:
    with runner.streaming(of):
        reindex(of, alias)
        with writing(of), search_pipelines.Prober(of, alias):
            for failpoint in TOLD_INDEXING:
                killed("index", of, alias, failpoint)
        with search_pipelines.indexing(of) as indexed:
            search_pipelines.wait_until_indexed(of, alias, indexed)
            assert search_pipelines.against_log(of, alias).identical
