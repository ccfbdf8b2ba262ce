"""Search indices on real servers: what readers of an alias see follows the table."""

from __future__ import annotations

from pathlib import Path

import pytest

from pgstream_dagster.config import IndexConfig
from pgstream_dagster.pipeline import Pipeline
from pgstream_dagster.search.control import State
from pgstream_dagster.search.redrive import redrive
from pgstream_dagster.search.reindex import reindex
from pgstream_dagster.search.rollback import rollback
from tests.support.harness import runner, search_pipelines
from tests.support.plugins.cluster import psql
from tests.support.plugins.wait import until

pytestmark = [pytest.mark.slow, pytest.mark.one_major("newest")]

TABLE = (
    "create table item (id bigint primary key, name text, price numeric(30, 10), tags text[],"
    " extra jsonb, seen timestamptz, long text)"
)
ROWS = (
    "insert into item values"
    " (1, 'one', 1.10, '{a,NULL,\"b c\"}', '{\"n\": 1.50, \"s\": null}',"
    "  '2026-01-02 03:04:05.5+00', repeat('long text ', 100)),"
    " (2, 'two', 12345678901234567890.0123456789, '{}', '[1, \"x\"]', 'infinity', null),"
    " (3, null, 'NaN', null, 'null', null, 'short')"
)
ITEM = {
    "id": 1,
    "name": "one",
    "price": 1.10,
    "tags": ["a", None, "b c"],
    "extra": {"n": 1.50, "s": None},
    "seen": "2026-01-02T03:04:05.5Z",
    "long": "long text " * 100,
}


@pytest.fixture
def alias(index_prefix: str) -> str:
    return f"{index_prefix}item"


@pytest.fixture
def pipeline(dsn: str, tmp_path: Path, search_node: object, alias: str) -> Pipeline:
    """A pipeline with one index, set up; its large text is TOASTed."""
    psql(dsn, TABLE, "alter table item alter long set storage external", ROWS)
    config = IndexConfig(table="public.item")
    return search_pipelines.made(dsn, tmp_path, search_node.url, **{alias: config})


@pytest.mark.long
def test_index_follows_its_table(pipeline: Pipeline, alias: str) -> None:
    with runner.streaming(pipeline), search_pipelines.indexing(pipeline) as indexed:
        search_pipelines.wait_until_indexed(pipeline, alias, indexed)
        documents = search_pipelines.documents(pipeline, alias)
        assert documents["1"] == ITEM
        assert documents["2"]["_rescued"] == {"seen": "infinity"}
        assert documents["3"]["_rescued"] == {"price": "NaN"}
        assert documents["3"]["extra"] is None
        psql(
            pipeline.dsn,
            "insert into item (id, name) values (4, 'four')",
            "update item set name = 'uno' where id = 1",
            "update item set id = 20, name = 'twenty' where id = 2",
            "delete from item where id = 3",
        )
        search_pipelines.wait_until_indexed(pipeline, alias, indexed)
        documents = search_pipelines.documents(pipeline, alias)
        assert documents.keys() == {"1", "20", "4"}
        assert documents["1"] == ITEM | {"name": "uno"}
        assert documents["20"]["tags"] == []
        assert documents["20"]["_rescued"] == {"seen": "infinity"}
        assert search_pipelines.against_log(pipeline, alias).identical
        psql(pipeline.dsn, "truncate item", "insert into item (id, name) values (7, 'seven')")
        search_pipelines.wait_until_indexed(pipeline, alias, indexed)
        assert search_pipelines.documents(pipeline, alias).keys() == {"7"}


@pytest.mark.long
def test_reindex_moves_the_alias_and_rollback_brings_it_back(
    pipeline: Pipeline, alias: str
) -> None:
    with runner.streaming(pipeline), search_pipelines.indexing(pipeline) as indexed:
        search_pipelines.wait_until_indexed(pipeline, alias, indexed)
        first = search_pipelines.live_index(pipeline, alias)
        done = reindex(pipeline, alias)
        assert done is not None
        assert done.replaced == first
        assert done.documents == 3
        assert search_pipelines.live_index(pipeline, alias) == done.index != first
        psql(pipeline.dsn, "update item set name = 'new' where id = 1")
        search_pipelines.wait_until_indexed(pipeline, alias, indexed)
        assert search_pipelines.documents(pipeline, alias)["1"] == ITEM | {"name": "new"}
        until(lambda: search_pipelines.status_of(pipeline, alias)[0].state is State.KEPT)
        assert rollback(pipeline, alias).index == first
        assert search_pipelines.documents(pipeline, alias)["1"] == ITEM | {"name": "new"}
        psql(pipeline.dsn, "delete from item where id = 1")
        search_pipelines.wait_until_indexed(pipeline, alias, indexed)
        assert search_pipelines.documents(pipeline, alias).keys() == {"2", "3"}
        assert search_pipelines.against_log(pipeline, alias).identical


@pytest.mark.long
def test_former_indices_are_retired_but_for_those_to_keep(pipeline: Pipeline, alias: str) -> None:
    with runner.streaming(pipeline):
        names = [done.index for _ in range(3) if (done := reindex(pipeline, alias)) is not None]
    assert [
        generation.index for generation in search_pipelines.status_of(pipeline, alias)
    ] == names[1:]


@pytest.mark.long
def test_refused_document_is_a_dead_letter_until_its_row_is_mended(
    pipeline: Pipeline, alias: str
) -> None:
    ip = IndexConfig(table="public.item", mapping={"name": {"type": "ip"}})
    pipeline = search_pipelines.with_search(pipeline, pipeline.search.url, **{alias: ip})
    psql(pipeline.dsn, "update item set name = '10.0.0.' || id")
    with runner.streaming(pipeline), search_pipelines.indexing(pipeline) as indexed:
        search_pipelines.wait_until_indexed(pipeline, alias, indexed)
        psql(pipeline.dsn, "update item set name = 'no address' where id = 2")
        psql(pipeline.dsn, "insert into item (id, name) values (9, '10.0.0.9')")
        search_pipelines.wait_until_indexed(pipeline, alias, indexed)
        assert "9" in search_pipelines.documents(pipeline, alias)
        assert search_pipelines.status_of(pipeline, alias)[0].refused == 1
        done = redrive(pipeline, alias)
        assert (done.sent, done.refused) == (1, 1)
        psql(pipeline.dsn, "update item set name = '10.0.0.7' where id = 2")
        search_pipelines.wait_until_indexed(pipeline, alias, indexed)
        assert search_pipelines.documents(pipeline, alias)["2"]["name"] == "10.0.0.7"
        assert search_pipelines.status_of(pipeline, alias)[0].refused == 0
        assert search_pipelines.against_log(pipeline, alias).identical


@pytest.mark.long
def test_columns_that_change_are_followed(pipeline: Pipeline, alias: str) -> None:
    with runner.streaming(pipeline), search_pipelines.indexing(pipeline) as indexed:
        search_pipelines.wait_until_indexed(pipeline, alias, indexed)
        psql(
            pipeline.dsn,
            "alter table item add more int",
            "alter table item rename name to title",
            "alter table item drop tags",
            "update item set more = 5 where id = 1",
        )
        search_pipelines.wait_until_indexed(pipeline, alias, indexed)
        documents = search_pipelines.documents(pipeline, alias)["1"]
        assert documents["more"] == 5
        assert documents["name"] == "one"
        assert documents["long"] == ITEM["long"]
        assert "tags" not in documents
        done = reindex(pipeline, alias)
        assert done is not None
        assert search_pipelines.documents(pipeline, alias)["1"]["title"] == "one"


@pytest.mark.long
def test_table_copied_again_gets_a_new_index_by_itself(pipeline: Pipeline, alias: str) -> None:
    with runner.streaming(pipeline), search_pipelines.indexing(pipeline) as indexed:
        search_pipelines.wait_until_indexed(pipeline, alias, indexed)
        first = search_pipelines.live_index(pipeline, alias)
        psql(pipeline.dsn, "alter table item alter price type text using 'was ' || price")
        until(
            lambda: search_pipelines.live_index(pipeline, alias) != first,
            seconds=runner.END_SECONDS,
        )
        search_pipelines.wait_until_indexed(pipeline, alias, indexed)
        assert search_pipelines.documents(pipeline, alias)["1"]["price"] == "was 1.1000000000"
