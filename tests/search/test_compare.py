"""A live index against the log while both continue."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random

import psycopg
import pytest
from pyspark.sql import DataFrame, SparkSession

from pgstream_dagster.config import IndexConfig
from pgstream_dagster.copy.snapshot import snapshot
from pgstream_dagster.lsn import Lsn
from pgstream_dagster.pipeline import Pipeline
from pgstream_dagster.schema.layout import CHANGES_DDL
from pgstream_dagster.search import verify
from pgstream_dagster.search.compare import compare
from pgstream_dagster.search.control import Generation, State
from pgstream_dagster.search.reindex import reindex
from tests.support.harness import runner, search_pipelines
from tests.support.plugins.cluster import psql
from tests.support.plugins.search import ask
from tests.support.plugins.wait import until

pytestmark = [pytest.mark.slow, pytest.mark.one_major("newest")]

ROWS = 500


@pytest.fixture
def alias(index_prefix: str) -> str:
    return f"{index_prefix}item"


@pytest.fixture
def pipeline(dsn: str, tmp_path: Path, search_node: object, alias: str) -> Pipeline:
    psql(
        dsn,
        "create table item (id bigint primary key, n int, long text)",
        f"insert into item select i, 0, 'text' from generate_series(1, {ROWS}) i",
    )
    config = IndexConfig(table="public.item", keep=0)
    return search_pipelines.made(
        dsn, tmp_path, search_node.url, search_pipelines.CALM, **{alias: config}
    )


@contextmanager
def writing(pipeline: Pipeline) -> Iterator[None]:
    """Rows of the upper half are changed, moved to other keys, deleted and added all the time."""
    stop, random = threading.Event(), Random(1)

    def run() -> None:
        with psycopg.connect(pipeline.dsn, autocommit=True) as connection:
            for new in range(10 * ROWS, 10**9):
                if stop.wait(0.05):
                    return
                old = random.randrange(ROWS // 2 + 1, ROWS + 1)
                connection.execute("update item set n = n + 1 where id = %s", [old])
                connection.execute("update item set id = %s where id = %s", [new, old])
                connection.execute("delete from item where id = %s", [new - 3])
                connection.execute("insert into item values (%s, 0, 'late')", [-new])

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


@pytest.mark.long
def test_live_index_equals_the_log_while_changes_go_on(pipeline: Pipeline, alias: str) -> None:
    with runner.streaming(pipeline), search_pipelines.indexing(pipeline) as indexed:
        search_pipelines.wait_until_indexed(pipeline, alias, indexed)
        with writing(pipeline):
            compared = [compare(pipeline, alias) for _ in range(2)]
        for comparison in compared:
            assert comparison.identical, comparison
            assert comparison.difference is not None
            assert comparison.difference.rows >= ROWS // 2  # nothing touches these
        assert compared[0].at < compared[-1].at


@pytest.mark.long
def test_document_that_was_tampered_with_is_named(
    pipeline: Pipeline, search_node, alias: str
) -> None:
    with runner.streaming(pipeline), search_pipelines.indexing(pipeline) as indexed:
        search_pipelines.wait_until_indexed(pipeline, alias, indexed)
        index = search_pipelines.live_index(pipeline, alias)
        ask(search_node, "POST", f"/{index}/_update/7", {"doc": {"n": 70}})
        ask(search_node, "DELETE", f"/{index}/_doc/8")
        ask(search_node, "PUT", f"/{index}/_doc/unknown", {"id": 1})
        with writing(pipeline):
            compared = compare(pipeline, alias)
    assert not compared.identical
    assert compared.difference is not None
    assert compared.difference.sample == ("7", "8", "unknown")
    counts = compared.difference
    assert (counts.differing, counts.only_in_log, counts.only_in_index) == (1, 1, 1)


@pytest.mark.long
def test_index_that_is_due_for_a_reindex_is_not_compared(pipeline: Pipeline, alias: str) -> None:
    assert compare(pipeline, alias).reason == "no index is behind it yet"
    config = pipeline.config.search[alias].model_copy(update={"reindex": "manual"})
    pipeline = search_pipelines.with_search(pipeline, pipeline.search.url, **{alias: config})
    with runner.streaming(pipeline), search_pipelines.indexing(pipeline) as indexed:
        search_pipelines.wait_until_indexed(pipeline, alias, indexed)
        psql(
            pipeline.dsn,
            "alter table item alter n type text",
            "update item set n = 'x' where id = 1",
        )
        search_pipelines.wait_until_indexed(pipeline, alias, indexed)
        compared = compare(pipeline, alias)
        assert compared.difference is None
        assert compared.reason
        assert reindex(pipeline, alias) is not None
        snapshot(pipeline, ["public.item"])
        assert compare(pipeline, alias).reason == "its table was copied again"
        # A copy that the retype asked for may land after the one made by hand.
        until(
            lambda: reindex(pipeline, alias) is not None and compare(pipeline, alias).identical,
            seconds=300,
        )


@pytest.fixture
def generation() -> Generation:
    return Generation("a", 1, State.LIVE, 1, 5, Lsn(1), Lsn(1), ())


def changes(spark: SparkSession, *rows: dict[str, object]) -> DataFrame:
    names = [column.split()[0] for column in CHANGES_DDL.split(", ")]
    return spark.createDataFrame(
        [tuple(row.get(name) for name in names) for row in rows], CHANGES_DDL
    )


def ids(frame: DataFrame) -> set[str]:
    return {row["id"] for row in frame.collect()}


def test_changes_touch_the_documents_of_both_keys(
    spark: SparkSession, generation: Generation
) -> None:
    before = spark.createDataFrame([("1",), ("2",)], "id STRING")
    log = changes(
        spark,
        {"op": "update", "key": ["3"], "old_key": ["2"]},
        {"op": "insert", "key": ["a", None]},
    )
    assert ids(verify.ids_of(log, before, generation)) == {"3", "2", r"a|\N"}


def test_truncate_touches_every_document(spark: SparkSession, generation: Generation) -> None:
    before = spark.createDataFrame([("1",), ("2",)], "id STRING")
    log = changes(spark, {"op": "truncate"}, {"op": "insert", "key": ["9"]})
    assert ids(verify.ids_of(log, before, generation)) == {"1", "2", "9"}


def test_columns_that_make_the_id_are_taken_from_both_images(spark: SparkSession) -> None:
    by_columns = Generation("a", 1, State.LIVE, 1, 5, Lsn(1), Lsn(1), (), ("v",))
    before = spark.createDataFrame([("1",)], "id STRING")
    log = changes(
        spark,
        {"op": "update", "before": {"v": "1", "w": "2"}, "after": {"v": "3", "w": "2"}},
        {"op": "insert", "after": {"v": None}},
        {"op": "delete", "before": {"v": "4"}},
    )
    assert ids(verify.ids_of(log, before, by_columns)) == {"1", "3", "sha256:null", "4"}
