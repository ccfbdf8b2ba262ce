"""Two at a time on one alias: one of them writes, the other learns that it does not."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from pgstream_dagster.errors import LeaseLost, PromotionOvertaken
from pgstream_dagster.search import control
from pgstream_dagster.search.reindex import Phase, ReindexProgress, reindex
from pgstream_dagster.upkeep.health import is_indexed
from tests.support.harness import runner, search_pipelines
from tests.support.harness.item_pipeline import made
from tests.support.plugins.cluster import psql

pytestmark = [pytest.mark.slow, pytest.mark.one_major("newest")]


@pytest.fixture
def alias(index_prefix: str) -> str:
    return f"{index_prefix}item"


@pytest.mark.long
def test_second_indexer_stands_by_until_the_first_ends(
    dsn: str, tmp_path: Path, search_node, alias: str
) -> None:
    pipeline = made(dsn, tmp_path, search_node.url, alias)
    with runner.streaming(pipeline):
        assert is_indexed(pipeline) is None
        with search_pipelines.indexing(pipeline) as second:
            search_pipelines.wait_until_indexed(pipeline, alias, second)
            with search_pipelines.indexing(pipeline) as first:
                psql(dsn, "insert into item values (101, 101)")
                search_pipelines.wait_until_indexed(pipeline, alias, second)
                assert first().delivered == {}
            assert is_indexed(pipeline)
        assert is_indexed(pipeline) is False


def test_build_that_was_given_up_for_dead_moves_nothing_when_it_wakes(
    dsn: str, tmp_path: Path, search_node, alias: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(control, "LEASE_SECONDS", 1.0)
    pipeline = made(dsn, tmp_path, search_node.url, alias)
    asleep, awake, errors = threading.Event(), threading.Event(), list[BaseException]()

    def sleep(progress: ReindexProgress) -> None:
        if progress.phase is Phase.VERIFYING:
            asleep.set()
            awake.wait(runner.END_SECONDS)

    def zombie() -> None:
        try:
            reindex(pipeline, alias, on_progress=sleep)
        except (LeaseLost, PromotionOvertaken) as error:
            errors.append(error)

    with runner.streaming(pipeline):
        thread = threading.Thread(target=zombie)
        thread.start()
        assert asleep.wait(runner.END_SECONDS)
        threading.Event().wait(1.5)  # its lease ends: time is what is tested
        done = reindex(pipeline, alias)
        assert done is not None
        awake.set()
        thread.join(runner.END_SECONDS)
        assert [type(error) for error in errors] == [LeaseLost]
        assert search_pipelines.live_index(pipeline, alias) == done.index
        assert [generation.index for generation in search_pipelines.status_of(pipeline, alias)] == [
            done.index
        ]
