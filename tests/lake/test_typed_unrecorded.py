"""Typed tables that are not as the last pass recorded them: it ended before, or they are gone."""

from __future__ import annotations

import shutil
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from pgstream_dagster.delta import uri
from pgstream_dagster.delta.entries import LOG_FOLDER
from pgstream_dagster.lsn import Lsn
from pgstream_dagster.pipeline import OpenPipeline, Pipeline
from pgstream_dagster.tables import merge
from pgstream_dagster.tables.merge import merge_tables
from pgstream_dagster.tables.read_typed import read_typed
from pgstream_dagster.upkeep.setup import setup
from tests.support.harness import runner
from tests.support.harness.case import execute
from tests.support.harness.merge_ends import Ended, EndsAt, ends_at
from tests.support.harness.typed_tables import (
    assert_equal,
    caught_up,
    merged_pipeline,
    typed_pipeline,
)

pytestmark = pytest.mark.one_major("newest")

__all__ = ["ends_at"]  # a fixture


def columns(pipeline: Pipeline, table: str = "public.t") -> list[str]:
    names = read_typed(pipeline, table).rows.columns
    return sorted(name for name in names if not name.startswith("_"))


@pytest.mark.long
def test_a_change_that_is_taken_back_after_a_pass_ended_is_taken_back_in_the_table(
    dsn: str,
    tmp_path: Path,
    spark: SparkSession,
    ends_at: EndsAt,
) -> None:
    execute(
        dsn,
        "create table t (id int primary key, a text)",
        "insert into t values (1, 'of t')",
        "create table u (id int primary key, a text)",
        "insert into u values (2, 'of u')",
    )
    pipeline = merged_pipeline(dsn, tmp_path)
    swap = ["alter table t rename to x", "alter table u rename to t", "alter table x rename to u"]
    for there, back in (
        (["alter table t rename a to b"], ["alter table t rename b to a"]),
        (["alter table t add c int"], ["alter table t drop c"]),
        (swap, swap),
    ):
        execute(dsn, *there)
        runner.catch_up(pipeline)
        with ends_at("tables.passed"):
            merge_tables(pipeline)
        execute(dsn, *back)
        caught_up(pipeline)
        assert columns(pipeline) == ["a", "id"], there
        assert_equal(pipeline, spark, "t", "u")


@pytest.mark.long
def test_a_table_that_is_removed_is_made_again_although_a_pass_ended_before(
    dsn: str,
    tmp_path: Path,
    spark: SparkSession,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    execute(dsn, "create table t (id int primary key)", "insert into t values (1)")
    pipeline = merged_pipeline(dsn, tmp_path)
    folder = uri.local(pipeline.lake.typed_table("public.t"))
    assert folder is not None
    former = tmp_path / "former"
    shutil.copytree(folder, former)
    shutil.rmtree(folder)

    def ended(*_: object) -> None:
        raise Ended

    monkeypatch.setattr("pgstream_dagster.tables.target.Target._replace", ended)
    with pytest.raises(Ended):
        merge_tables(pipeline)
    monkeypatch.undo()
    assert (folder / LOG_FOLDER).exists()
    merge_tables(pipeline)
    assert_equal(pipeline, spark, "t")
    execute(dsn, "insert into t values (2)")
    caught_up(pipeline)
    shutil.rmtree(folder)
    shutil.copytree(former, folder)  # from a backup, older than the progress
    execute(dsn, "insert into t values (3)")
    caught_up(pipeline)
    assert_equal(pipeline, spark, "t")


@pytest.mark.long
def test_a_table_that_takes_the_name_of_another_one_takes_its_typed_table(
    dsn: str, tmp_path: Path, spark: SparkSession
) -> None:
    execute(
        dsn,
        "create table orders (id int primary key)",
        "insert into orders values (1)",
        "create table orders_new (id int primary key, note text)",
        "insert into orders_new values (1, 'new')",
    )
    pipeline = merged_pipeline(dsn, tmp_path)
    execute(
        dsn,
        "alter table orders rename to orders_old",
        "alter table orders_new rename to orders",
        "insert into orders values (2, 'newer')",
    )
    caught_up(pipeline)
    assert_equal(pipeline, spark, "orders", "orders_old")


def test_a_pass_that_waited_for_its_turn_is_of_the_epoch_that_is_now(
    dsn: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise it would write all tables again with the rows of the former source."""
    execute(dsn, "create table t (id int primary key)")
    pipeline = typed_pipeline(dsn, tmp_path)
    setup(pipeline)
    seen = list[int]()

    @contextmanager
    def turn(waiting: OpenPipeline) -> Generator[None]:
        waiting.ledger.record_identity(replace(waiting.identity, epoch=2))
        yield

    def merged(opened: OpenPipeline, *_: object, **__: object) -> None:
        seen.append(opened.epoch)

    monkeypatch.setattr(merge, "turn", turn)
    monkeypatch.setattr(merge, "merge_upto", merged)
    monkeypatch.setattr(OpenPipeline, "require_watermark", lambda _: Lsn(1))
    merge_tables(pipeline)
    assert seen == [2]
