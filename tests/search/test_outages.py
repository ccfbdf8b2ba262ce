"""The search cluster goes away and comes back: what waits, what ends, and that nothing is lost."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from pgstream_dagster import heartbeat
from pgstream_dagster.config import IndexConfig
from pgstream_dagster.errors import (
    BuildFailed,
    IndexGone,
    IndexRefuses,
    PromotionOvertaken,
    SearchError,
    SearchFailed,
    SearchRefused,
    SearchUnreachable,
)
from pgstream_dagster.pipeline import Pipeline
from pgstream_dagster.search import control, generations, index
from pgstream_dagster.search.cluster import Cluster, SearchSettings
from pgstream_dagster.search.control import Generation
from pgstream_dagster.search.generations import Live
from pgstream_dagster.search.index_status import index_status
from pgstream_dagster.search.reindex import Phase, Reindexed, ReindexProgress, reindex
from tests.support.harness import runner, search_pipelines
from tests.support.harness.item_pipeline import made
from tests.support.harness.tls_proxy import tls_proxy
from tests.support.plugins.cluster import psql
from tests.support.plugins.front import Answer, Request, front
from tests.support.plugins.search import ask
from tests.support.plugins.wait import until

pytestmark = [pytest.mark.slow, pytest.mark.one_major("newest")]


@pytest.fixture
def alias(index_prefix: str) -> str:
    return f"{index_prefix}item"


@pytest.mark.long
def test_killed_node_is_waited_for_and_nothing_is_lost(
    dsn: str, tmp_path: Path, own_search_node
) -> None:
    alias = "item"
    pipeline = made(dsn, tmp_path, own_search_node.url, alias)
    with runner.streaming(pipeline), search_pipelines.indexing(pipeline) as indexed:
        search_pipelines.wait_until_indexed(pipeline, alias, indexed)
        psql(dsn, "update item set n = -1 where id <= 50")
        own_search_node.kill()
        psql(dsn, "update item set n = -2 where id = 1", "delete from item where id = 2")
        psql(dsn, "insert into item values (101, 101)")
        own_search_node.start()
        search_pipelines.wait_until_indexed(pipeline, alias, indexed)
        documents = search_pipelines.documents(pipeline, alias)
        assert documents.keys() == {str(n) for n in range(1, 102)} - {"2"}
        assert documents["1"]["n"] == -2
        assert search_pipelines.against_log(pipeline, alias).identical


@pytest.mark.long
@pytest.mark.timeout(600)
def test_node_killed_in_the_middle_of_a_reindex_is_waited_for(
    dsn: str, tmp_path: Path, own_search_node
) -> None:
    alias = "item"
    pipeline = made(dsn, tmp_path, own_search_node.url, alias, rows=100_000)
    killed = threading.Event()

    def kill(progress: ReindexProgress) -> None:
        if progress.phase is Phase.LOADING and progress.documents and not killed.is_set():
            own_search_node.kill()
            killed.set()
            own_search_node.start()

    with runner.streaming(pipeline):
        done = reindex(pipeline, alias, on_progress=kill)
        assert killed.is_set()
        assert done is not None
        assert search_pipelines.against_log(pipeline, alias).documents == 100_000


@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.parametrize("phase", [Phase.VERIFYING, Phase.PROMOTING])
def test_node_killed_late_in_a_reindex_leaves_the_alias_to_the_next_one(
    dsn: str, tmp_path: Path, own_search_node, phase: Phase, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(control, "LEASE_SECONDS", 2.0)  # this process lives on
    monkeypatch.setattr("pgstream_dagster.search.reindex.COMPARISONS", 1)
    alias = "item"
    pipeline = made(dsn, tmp_path, own_search_node.url, alias)
    killed = threading.Event()

    def kill(progress: ReindexProgress) -> None:
        if progress.phase is phase and not killed.is_set():
            killed.set()
            own_search_node.kill()

    with runner.streaming(pipeline):
        first = reindex(pipeline, alias)
        with pytest.raises((SearchUnreachable, BuildFailed)):
            reindex(pipeline, alias, on_progress=kill)
        own_search_node.start()
        until(lambda: search_pipelines.live_index(pipeline, alias) == first.index, seconds=60)
        done = reindex(pipeline, alias)
        assert done is not None
        assert done.replaced == first.index
        assert search_pipelines.against_log(pipeline, alias).identical


@pytest.mark.long
def test_write_to_an_index_that_is_gone_does_not_make_one_without_its_mapping(
    dsn: str, tmp_path: Path, search_node, alias: str
) -> None:
    pipeline = made(dsn, tmp_path, search_node.url, alias)
    with runner.streaming(pipeline):
        done = reindex(pipeline, alias)
        assert done is not None
        with search_pipelines.indexing(pipeline) as indexed:
            search_pipelines.wait_until_indexed(pipeline, alias, indexed)
            ask(search_node, "POST", "/_aliases", removed(done))
            psql(pipeline.dsn, "update item set n = 0")
            until(lambda: indexed().failed)
            assert "does not exist any more" in indexed().failed[alias]
        assert {
            document["n"] for document in search_pipelines.documents(pipeline, alias).values()
        } != {0}


@pytest.mark.long
def test_deleted_index_is_built_again(
    dsn: str, tmp_path: Path, search_node, alias: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(index, "AGAIN_SECONDS", 1.0)
    pipeline = made(dsn, tmp_path, search_node.url, alias)
    with runner.streaming(pipeline), search_pipelines.indexing(pipeline) as indexed:
        search_pipelines.wait_until_indexed(pipeline, alias, indexed)
        ask(search_node, "DELETE", f"/{search_pipelines.live_index(pipeline, alias)}")
        psql(pipeline.dsn, "update item set n = 0")
        until(lambda: search_pipelines.live_index(pipeline, alias), seconds=runner.END_SECONDS)
        search_pipelines.wait_until_indexed(pipeline, alias, indexed)
        assert {
            document["n"] for document in search_pipelines.documents(pipeline, alias).values()
        } == {0}


def until_it_ends(pipeline: Pipeline, alias: str, break_it: Callable[[], object]) -> None:
    """Run an indexer whose index is broken before a row changes; raises what ends it."""
    with search_pipelines.indexing(pipeline) as indexed:
        search_pipelines.wait_until_indexed(pipeline, alias, indexed)
        break_it()
        psql(pipeline.dsn, "update item set n = 0")
        search_pipelines.wait_until_indexed(pipeline, alias, indexed)


def removed(done: Reindexed) -> dict[str, object]:
    """What takes the writer's alias away, as deleting the index would."""
    return {"actions": [{"remove": {"index": done.index, "alias": f"{done.index}.writer"}}]}


def test_index_that_refuses_everything_ends_its_reader_without_dead_letters(
    dsn: str, tmp_path: Path, search_node, alias: str
) -> None:
    pipeline = made(dsn, tmp_path, search_node.url, alias)
    with runner.streaming(pipeline):
        done = reindex(pipeline, alias)
        assert done is not None
        blocks = f"/{done.index}/_settings"
        with pytest.raises((IndexRefuses, SearchRefused)):
            until_it_ends(
                pipeline,
                alias,
                lambda: ask(search_node, "PUT", blocks, {"index.blocks.write": True}),
            )
        ask(search_node, "PUT", blocks, {"index.blocks.write": False})
        assert search_pipelines.status_of(pipeline, alias)[0].refused == 0
        with search_pipelines.indexing(pipeline) as indexed:
            search_pipelines.wait_until_indexed(pipeline, alias, indexed)
            assert {
                document["n"] for document in search_pipelines.documents(pipeline, alias).values()
            } == {0}


@pytest.mark.long
def test_mapping_that_no_document_fits_leaves_the_alias_where_it_was(
    dsn: str, tmp_path: Path, search_node, alias: str
) -> None:
    pipeline = made(dsn, tmp_path, search_node.url, alias)
    with runner.streaming(pipeline):
        done = reindex(pipeline, alias)
        assert done is not None
        wrong = IndexConfig(table="public.item", mapping={"n": {"type": "ip"}})
        with pytest.raises(IndexRefuses):
            reindex(
                search_pipelines.with_search(pipeline, search_node.url, **{alias: wrong}), alias
            )
        assert search_pipelines.live_index(pipeline, alias) == done.index


@pytest.mark.long
def test_tls_with_an_api_key_works(dsn: str, tmp_path: Path, search_node, alias: str) -> None:
    pipeline = made(dsn, tmp_path, search_node.url, alias)
    with runner.streaming(pipeline), tls_proxy(search_node.url, api_key="aWQ6a2V5") as front:
        settings = SearchSettings(front.url, api_key="aWQ6a2V5", ca_file=str(front.ca_file))
        assert reindex(replace(pipeline, search=settings), alias) is not None
        untrusted = replace(settings, ca_file="")
        with pytest.raises(SearchUnreachable) as caught:
            index_status(replace(pipeline, search=untrusted))
        assert "PGSTREAM_SEARCH_CA" in str(caught.value)
        assert "aWQ6a2V5" not in str(caught.value) + repr(settings)


def test_tls_with_a_login_works_and_a_wrong_one_is_named(
    dsn: str, tmp_path: Path, search_node, alias: str
) -> None:
    pipeline = made(dsn, tmp_path, search_node.url, alias)
    with (
        runner.streaming(pipeline),
        tls_proxy(search_node.url, basic=("reader", "secret")) as front,
    ):
        behind = search_pipelines.behind(
            pipeline, front.url, str(front.ca_file), "reader", "secret"
        )
        assert reindex(behind, alias) is not None
        assert index_status(behind)[0].generations
        wrong = search_pipelines.behind(pipeline, front.url, str(front.ca_file), "reader", "wrong")
        with pytest.raises(SearchRefused) as caught:
            index_status(wrong)
        assert "wrong" not in str(caught.value)
        assert "wrong" not in repr(wrong.search)


PAGE = Answer(200, b"<html>Please log in</html>", "text/html")
COMPARING = {"_refresh", "_settings", "_search", "scroll"}
BUSY = Answer(503, b"<html>try again</html>", "text/html")
WRONG = [PAGE, Answer(404, PAGE.body, "text/html"), Answer(520, PAGE.body, "text/html")]


@pytest.mark.long
def test_wrong_answers_of_a_proxy_are_waited_for_and_the_lag_is_shown(
    dsn: str, tmp_path: Path, search_node, alias: str
) -> None:
    wrong: list[Answer | None] = [None]
    with front(lambda request: wrong[0], search_node.url) as proxy:
        pipeline = made(dsn, tmp_path, proxy.url, alias)
        with runner.streaming(pipeline), search_pipelines.indexing(pipeline) as indexed:
            search_pipelines.wait_until_indexed(pipeline, alias, indexed)
            index_before = search_pipelines.live_index(pipeline, alias)
            psql(dsn, "delete from item where id = 99")
            for n, answer in enumerate(WRONG):
                wrong[0] = answer
                psql(dsn, f"update item set n = {-n} where id <= 50")

                def waits_behind(answer: Answer = answer) -> bool:
                    sign = heartbeat.read(pipeline.indexer_heartbeat_file)
                    return (
                        sign is not None
                        and sign.state == "waiting"
                        and str(answer.status) in (sign.reason or "")
                        and (sign.facts["lag_bytes"] or 0) > 0
                    )

                until(waits_behind, seconds=runner.END_SECONDS)
                wrong[0] = None
                search_pipelines.wait_until_indexed(pipeline, alias, indexed)
            assert search_pipelines.live_index(pipeline, alias) == index_before
            documents = search_pipelines.documents(pipeline, alias)
            assert documents["1"]["n"] == -(len(WRONG) - 1)
            assert "99" not in documents
            assert search_pipelines.against_log(pipeline, alias).identical


@pytest.mark.long
def test_a_busy_cluster_during_the_comparison_does_not_end_a_reindex(
    dsn: str, tmp_path: Path, search_node, alias: str
) -> None:
    phases, failed = list[Phase](), set[str]()

    def busy(request: Request) -> Answer | None:
        kind = request.path.partition("?")[0].rpartition("/")[2]
        if phases[-1:] != [Phase.VERIFYING] or kind not in COMPARING or kind in failed:
            return None
        failed.add(kind)
        return BUSY

    with front(busy, search_node.url) as proxy:
        pipeline = made(dsn, tmp_path, proxy.url, alias)
        with runner.streaming(pipeline):
            done = reindex(
                pipeline, alias, on_progress=lambda progress: phases.append(progress.phase)
            )
            assert done is not None
            assert search_pipelines.live_index(pipeline, alias) == done.index
    assert failed == COMPARING


@pytest.mark.long
@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (Answer(400, b'{"error": {"type": "illegal", "reason": "no"}}'), SearchFailed),
        (Answer(503, b'{"error": {"type": "busy", "reason": "no master"}}'), SearchUnreachable),
        (Answer(404, b'{"error": {"type": "aliases_not_found_exception"}}'), PromotionOvertaken),
    ],
    ids=["refused", "busy", "overtaken"],
)
def test_a_promotion_that_fails_says_why(
    dsn: str,
    tmp_path: Path,
    search_node,
    alias: str,
    answer: Answer,
    error: type[SearchError],
) -> None:
    def refuse(request: Request) -> Answer | None:
        return answer if request.path == "/_aliases" else None

    with front(refuse, search_node.url) as proxy:
        pipeline = made(dsn, tmp_path, proxy.url, alias)
        with runner.streaming(pipeline), pytest.raises(error) as caught:
            reindex(pipeline, alias)
    assert type(caught.value) is error


@pytest.mark.long
def test_a_promotion_whose_index_was_deleted_says_so(
    dsn: str, tmp_path: Path, search_node, alias: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    pipeline = made(dsn, tmp_path, search_node.url, alias)
    promote = generations.promote

    def after_a_delete(cluster: Cluster, generation: Generation, over: Live | None) -> Live:
        ask(search_node, "DELETE", f"/{generation.index}")
        return promote(cluster, generation, over)

    monkeypatch.setattr(generations, "promote", after_a_delete)
    with runner.streaming(pipeline), pytest.raises(IndexGone):
        reindex(pipeline, alias)
