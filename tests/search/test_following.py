"""What the live indexer does by itself, and what it leaves to a person."""

from __future__ import annotations

import threading
from dataclasses import replace
from pathlib import Path

import pytest

from pgstream_dagster import setup
from pgstream_dagster.changelog.lake import Lake
from pgstream_dagster.config import IndexConfig
from pgstream_dagster.lsn import Lsn
from pgstream_dagster.pipeline import Pipeline
from pgstream_dagster.readers import log_reader
from pgstream_dagster.search import index
from pgstream_dagster.search.compare import compare
from pgstream_dagster.search.index_status import index_status
from pgstream_dagster.search.reindex import catch_up, reindex
from pgstream_dagster.search.rollback import rollback
from pgstream_dagster.search.session import opened
from tests.support.harness import runner, search_pipelines
from tests.support.plugins.cluster import psql
from tests.support.plugins.search import ask
from tests.support.plugins.wait import until

pytestmark = [pytest.mark.slow, pytest.mark.one_major("newest")]

AGAIN_SECONDS = 1.0
OTHER_BYTES = "documents are not the log's bytes"


@pytest.fixture
def alias(index_prefix: str) -> str:
    return f"{index_prefix}item"


@pytest.fixture
def other(index_prefix: str) -> str:
    return f"{index_prefix}other"


def made(dsn: str, folder: Path, url: str, **indices: IndexConfig) -> Pipeline:
    """A pipeline with these indices, set up."""
    for table in {config.table for config in indices.values()}:
        psql(
            dsn,
            f"create table {table} (id bigint primary key, n int, v text)",
            f"insert into {table} select i, i, 'v' from generate_series(1, 100) i",
        )
    return search_pipelines.made(dsn, folder, url, **indices)


ITEM, OTHER = IndexConfig(table="public.item"), IndexConfig(table="public.other")


@pytest.fixture
def pipeline(dsn: str, tmp_path: Path, search_node: object, alias: str) -> Pipeline:
    """A pipeline with one index."""
    return made(dsn, tmp_path, search_node.url, **{alias: ITEM})


@pytest.fixture
def two_indices(dsn: str, tmp_path: Path, search_node: object, alias: str, other: str) -> Pipeline:
    """A pipeline with two indices."""
    return made(dsn, tmp_path, search_node.url, **{alias: ITEM, other: OTHER})


def with_index(pipeline: Pipeline, alias: str, **changes: object) -> Pipeline:
    """The same pipeline after the definition of an index changed in its file."""
    search = pipeline.config.search
    changed = {**search, alias: search[alias].model_copy(update=changes)}
    return search_pipelines.with_search(pipeline, pipeline.search.url, **changed)


@pytest.mark.long
def test_alias_that_is_taken_holds_up_no_other(
    two_indices: Pipeline, search_node, alias: str, other: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    pipeline = two_indices
    monkeypatch.setattr(index, "AGAIN_SECONDS", AGAIN_SECONDS)
    ask(search_node, "PUT", f"/{alias}")  # not an index of pgstream
    with runner.streaming(pipeline), search_pipelines.indexing(pipeline) as indexed:
        search_pipelines.wait_until_indexed(pipeline, other, indexed)
        assert alias in indexed().failed
        [taken, whole] = index_status(pipeline)
        assert "which pgstream has not made" in taken.problem
        assert whole.problem is None
        ask(search_node, "DELETE", f"/{alias}")
        until(lambda: search_pipelines.live_index(pipeline, alias), seconds=runner.END_SECONDS)
        search_pipelines.wait_until_indexed(pipeline, alias, indexed)
        assert indexed().failed == {}


@pytest.mark.long
def test_changed_definition_of_an_index_gets_another_one(
    two_indices: Pipeline, alias: str, other: str
) -> None:
    pipeline = two_indices
    with runner.streaming(pipeline):
        first, _ = reindex(pipeline, alias), reindex(pipeline, other)
        narrow = with_index(pipeline, alias, columns=("id", "n"))
        narrow = with_index(narrow, other, mapping={"v": {"type": "keyword"}}, reindex="manual")
        with search_pipelines.indexing(narrow) as indexed:
            until(
                lambda: search_pipelines.live_index(narrow, alias) != first.index,
                seconds=runner.END_SECONDS,
            )
            search_pipelines.wait_until_indexed(narrow, alias, indexed)
            assert search_pipelines.documents(narrow, alias)["1"] == {"id": 1, "n": 1}
            [left] = search_pipelines.status_of(narrow, other)
            assert "pgstream.yaml" in left.outdated


@pytest.mark.long
def test_index_of_another_change_log_is_built_again(
    pipeline: Pipeline, dsn: str, tmp_path: Path, alias: str
) -> None:
    first = reindex(pipeline, alias)
    far = Lsn(1 << 60)  # the source of the former log was another one, with more WAL
    with opened(pipeline, alias) as session:
        control = session.control(alias)
        control.hold(control.generations()[-1].number).release(delivered=far, copied_at=far)
    psql(dsn, f"select pg_drop_replication_slot('{pipeline.config.source.slot}')")
    psql(dsn, "delete from item where id < 10")
    again = replace(pipeline, lake=Lake(str(tmp_path / "again")), state=tmp_path / "state again")
    setup(again)
    assert "another change log" in str(compare(again, alias).reason)
    psql(dsn, "update item set n = 1000 where id = 10")
    manual = with_index(again, alias, reindex="manual")
    with runner.streaming(again):
        with search_pipelines.indexing(manual):
            until(lambda: search_pipelines.status_of(manual, alias)[0].outdated)
            assert search_pipelines.live_index(manual, alias) == first.index
        with search_pipelines.indexing(again) as indexed:
            until(
                lambda: search_pipelines.live_index(again, alias) != first.index,
                seconds=runner.END_SECONDS,
            )
            search_pipelines.wait_until_indexed(again, alias, indexed)
    documents = search_pipelines.documents(again, alias)
    assert (len(documents), documents["10"]["n"]) == (91, 1000)


@pytest.mark.long
def test_index_that_a_rollback_chose_stays_until_a_reindex(pipeline: Pipeline, alias: str) -> None:
    with runner.streaming(pipeline):
        first = reindex(pipeline, alias)
        wrong = with_index(pipeline, alias, columns=("id", "n"))
        second = reindex(wrong, alias)
        assert rollback(wrong, alias).index == first.index
        with search_pipelines.indexing(wrong) as indexed:
            until(lambda: search_pipelines.status_of(wrong, alias)[0].outdated)
            search_pipelines.wait_until_indexed(wrong, alias, indexed)
            assert search_pipelines.live_index(wrong, alias) == first.index
            third = reindex(wrong, alias)
            assert third.replaced == first.index
        assert third.index > second.index


@pytest.mark.long
def test_alias_follows_a_table_by_its_current_name(pipeline: Pipeline, alias: str) -> None:
    with runner.streaming(pipeline) as check:
        reindex(pipeline, alias)
        psql(
            pipeline.dsn, "alter table item rename to thing", "update thing set n = -1 where id = 1"
        )
        renamed = with_index(pipeline, alias, table="public.thing")
        with opened(renamed) as session:
            until(lambda: check() or alias in session.relations(), seconds=runner.END_SECONDS)
        done = reindex(renamed, alias)
        assert done.documents == 100
        assert search_pipelines.documents(renamed, alias)["1"]["n"] == -1


@pytest.mark.long
def test_index_far_behind_catches_up_by_parts(
    pipeline: Pipeline, alias: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_reader, "REPLAYED_ROWS", 10)
    with runner.streaming(pipeline):
        reindex(pipeline, alias)
        for low in range(1, 100, 7):
            psql(pipeline.dsn, f"update item set n = -n where id between {low} and {low + 6}")
        flushed = runner.flushed(pipeline.dsn)
        with opened(pipeline) as session:
            until(lambda: session.watermark() >= flushed, seconds=runner.END_SECONDS)
            control = session.control(alias)
            lease = control.hold(control.generations()[-1].number)
            indexer = session.indexer(alias, lease)
            sizes = []
            while (batch := indexer.reader._replayed([lease.generation.relation_id])) is not None:
                sizes.append(batch.changes.num_rows)
                indexer.apply(batch.changes, batch.watermark)
            catch_up(session, indexer, threading.Event())
            lease.leave()
        assert sum(sizes) == 100
        assert max(sizes) <= 10 + 7  # transactions are whole
        assert search_pipelines.against_log(pipeline, alias).identical


@pytest.mark.long
def test_stop_in_the_comparison_leaves_the_alias(pipeline: Pipeline, alias: str) -> None:
    stop = threading.Event()
    with runner.streaming(pipeline):
        first = reindex(pipeline, alias)
        done = reindex(
            pipeline,
            alias,
            stop=stop,
            on_progress=lambda progress: stop.set() if progress.phase == "verifying" else None,
        )
        assert done is None
        assert search_pipelines.live_index(pipeline, alias) == first.index


@pytest.mark.long
def test_comparison_is_by_value(
    pipeline: Pipeline, search_node, alias: str, caplog: pytest.LogCaptureFixture
) -> None:
    """And bytes are equal, too, except where another client wrote the document."""
    caplog.set_level("INFO", logger="pgstream_dagster.search.verify")
    pipeline = with_index(pipeline, alias, settings={"number_of_shards": 3})
    with runner.streaming(pipeline), search_pipelines.indexing(pipeline) as indexed:
        psql(pipeline.dsn, "update item set n = -1 where id = 1", "delete from item where id = 2")
        search_pipelines.wait_until_indexed(pipeline, alias, indexed)
    assert search_pipelines.against_log(pipeline, alias).identical
    assert OTHER_BYTES not in caplog.text
    version = ask(search_node, "GET", f"/{alias}/_doc/3")["_version"]

    def put(document: int, **members: object) -> None:
        path = f"/{alias}/_doc/{document}?version={version}&version_type=external_gte"
        ask(search_node, "PUT", path, members)

    put(3, v="v", n=3, id=3)
    assert search_pipelines.against_log(pipeline, alias).identical
    assert OTHER_BYTES in caplog.text
    put(3, v="v", n=4, id=3)
    put(2, v="v", n=2, id=2)
    ask(search_node, "DELETE", f"/{alias}/_doc/5")
    difference = search_pipelines.against_log(pipeline, alias)
    assert (difference.differing, difference.only_in_index, difference.only_in_log) == (1, 1, 1)
    assert difference.sample == ("2", "3", "5")
