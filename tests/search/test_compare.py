"""A live index against the log while both go on."""

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
def of(dsn: str, tmp_path: Path, search_node: object, alias: str) -> Pipeline:
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
def writing(of: Pipeline) -> Iterator[None]:
    """Rows of the upper half are changed, moved to other keys, deleted and added all the time."""
    stop, random = threading.Event(), Random(1)

    def run() -> None:
        with psycopg.connect(of.dsn, autocommit=True) as connection:
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


def test_live_index_equals_the_log_while_changes_go_on(of: Pipeline, alias: str) -> None:
    with runner.streaming(of), search_pipelines.indexing(of) as indexed:
        search_pipelines.wait_until_indexed(of, alias, indexed)
        with writing(of):
            found = [compare(of, alias) for _ in range(2)]
        for one in found:
            assert one.identical, one
            assert one.difference is not None
            assert one.difference.rows >= ROWS // 2  # nothing touches these
        assert found[0].at < found[-1].at


def test_document_that_was_tampered_with_is_named(of: Pipeline, search_node, alias: str) -> None:
    with runner.streaming(of), search_pipelines.indexing(of) as indexed:
        search_pipelines.wait_until_indexed(of, alias, indexed)
        index = search_pipelines.live_index(of, alias)
        ask(search_node, "POST", f"/{index}/_update/7", {"doc": {"n": 70}})
        ask(search_node, "DELETE", f"/{index}/_doc/8")
        ask(search_node, "PUT", f"/{index}/_doc/nobody", {"id": 1})
        with writing(of):
            found = compare(of, alias)
    assert not found.identical
    assert found.difference is not None
    assert found.difference.sample == ("7", "8", "nobody")
    counts = found.difference
    assert (counts.differing, counts.only_in_log, counts.only_in_index) == (1, 1, 1)


def test_index_that_is_due_for_a_reindex_is_not_compared(of: Pipeline, alias: str) -> None:
    assert compare(of, alias).reason == "no index is behind it yet"
    config = of.config.search[alias].model_copy(update={"reindex": "manual"})
    of = search_pipelines.with_search(of, of.search.url, **{alias: config})
    with runner.streaming(of), search_pipelines.indexing(of) as indexed:
        search_pipelines.wait_until_indexed(of, alias, indexed)
        psql(of.dsn, "alter table item alter n type text", "update item set n = 'x' where id = 1")
        search_pipelines.wait_until_indexed(of, alias, indexed)
        found = compare(of, alias)
        assert found.difference is None
        assert found.reason
        assert reindex(of, alias) is not None
        snapshot(of, ["public.item"])
        assert compare(of, alias).reason == "its table was copied again"
        # A copy that the retype asked for may land after the one made by hand.
        until(lambda: reindex(of, alias) is not None and compare(of, alias).identical, seconds=300)


@pytest.fixture
def generation() -> Generation:
    return Generation("a", 1, State.LIVE, 1, 5, Lsn(1), Lsn(1), ())


def changes(spark: SparkSession, *said: dict[str, object]) -> DataFrame:
    names = [each.split()[0] for each in CHANGES_DDL.split(", ")]
    return spark.createDataFrame(
        [tuple(each.get(name) for name in names) for each in said], CHANGES_DDL
    )


def ids(found: DataFrame) -> set[str]:
    return {row["id"] for row in found.collect()}


def test_changes_touch_the_documents_of_both_keys(
    spark: SparkSession, generation: Generation
) -> None:
    before = spark.createDataFrame([("1",), ("2",)], "id STRING")
    found = changes(
        spark,
        {"op": "update", "key": ["3"], "old_key": ["2"]},
        {"op": "insert", "key": ["a", None]},
    )
    assert ids(verify.ids_of(found, before, generation)) == {"3", "2", r"a|\N"}


def test_truncate_touches_every_document(spark: SparkSession, generation: Generation) -> None:
    before = spark.createDataFrame([("1",), ("2",)], "id STRING")
    found = changes(spark, {"op": "truncate"}, {"op": "insert", "key": ["9"]})
    assert ids(verify.ids_of(found, before, generation)) == {"1", "2", "9"}


def test_columns_that_make_the_id_are_taken_from_both_images(spark: SparkSession) -> None:
    of = Generation("a", 1, State.LIVE, 1, 5, Lsn(1), Lsn(1), (), ("v",))
    before = spark.createDataFrame([("1",)], "id STRING")
    found = changes(
        spark,
        {"op": "update", "before": {"v": "1", "w": "2"}, "after": {"v": "3", "w": "2"}},
        {"op": "insert", "after": {"v": None}},
        {"op": "delete", "before": {"v": "4"}},
    )
    assert ids(verify.ids_of(found, before, of)) == {"1", "3", "sha256:null", "4"}
