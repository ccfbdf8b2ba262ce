"""`on_schema_change: hold`: a table whose columns changed stays as it is until an approval."""

from __future__ import annotations

from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession

from pgstream_dagster.config.tables import OnSchemaChange, TablesConfig, TypedTableConfig
from pgstream_dagster.errors import ApprovalOutdated, NothingHeld, TypedTableHeld
from pgstream_dagster.pipeline import Pipeline
from pgstream_dagster.tables.approval import approve_tables, held_tables
from pgstream_dagster.tables.merge import merge_tables
from pgstream_dagster.tables.passes import Step
from pgstream_dagster.tables.read_typed import read_typed
from pgstream_dagster.upkeep.status import status
from tests.support.harness.case import execute
from tests.support.harness.typed_tables import (
    assert_equal,
    caught_up,
    merged_pipeline,
    source_rows,
    typed_rows,
)

pytestmark = [pytest.mark.one_major("newest"), pytest.mark.slow]


@pytest.fixture
def pipeline(dsn: str, tmp_path: Path, spark: SparkSession) -> Pipeline:
    execute(
        dsn,
        "create table t (id int primary key, a text, b int)",
        "insert into t select n, 'a' || n, n from generate_series(1, 9) as n",
        "create table u (id int primary key)",
    )
    return merged_pipeline(dsn, tmp_path, on_schema_change=OnSchemaChange.HOLD)


def columns(pipeline: Pipeline, table: str = "public.t") -> list[str]:
    names = read_typed(pipeline, table).rows.columns
    return [name for name in names if not name.startswith("_")]


@pytest.mark.long
def test_held_table_stays_while_others_follow_and_is_the_source_after_the_approval(
    pipeline: Pipeline, spark: SparkSession
) -> None:
    execute(pipeline.dsn, "update t set a = 'before' where id = 1")
    caught_up(pipeline)
    before = typed_rows(pipeline, spark, "public.t")
    position = read_typed(pipeline, "public.t").position
    execute(
        pipeline.dsn,
        "begin; update t set a = 'with it' where id = 2; alter table t add c int default 7;"
        " update t set c = 8 where id = 3; commit",
        "insert into u values (1)",
    )
    done = caught_up(pipeline)
    [held] = done.held
    assert [table.name for table in done.tables] == ["public.u"]
    assert (held.table, held.position) == ("public.t", position)
    assert held.changes == ("column \"c\" added: integer default 7; older rows show '7'",)
    assert held_tables(pipeline) == list(status(pipeline).held_tables) == [held]
    execute(pipeline.dsn, "delete from t where id = 4", "update t set id = 40 where id = 5")
    assert caught_up(pipeline).held == [held]
    assert columns(pipeline) == ["id", "a", "b"]
    assert read_typed(pipeline, "public.t").position == position
    assert rows_now(pipeline) == Counter({("1", "before"): 1, **old_rows()})
    assert_equal(pipeline, spark, "u")
    assert approve_tables(pipeline, ["public.t"]) == [replace(held, is_approved=True)]
    done = merge_tables(pipeline)
    assert [(table.name, table.step) for table in done.tables] == [("public.t", Step.REBUILT)]
    assert (done.held, held_tables(pipeline)) == ([], [])
    assert_equal(pipeline, spark, "t", "u")
    assert before != source_rows(pipeline.dsn, "t")
    execute(pipeline.dsn, "update t set b = 0 where id = 40")
    assert [table.step for table in caught_up(pipeline).tables] == [Step.MERGED]
    assert_equal(pipeline, spark, "t", "u")


def old_rows() -> dict[tuple[str, str], int]:
    return {(str(n), f"a{n}"): 1 for n in range(2, 10)}


def rows_now(pipeline: Pipeline) -> Counter[tuple[str, str]]:
    rows = read_typed(pipeline, "public.t").rows.select("id", "a").collect()
    return Counter((str(row["id"]), row["a"]) for row in rows)


@pytest.mark.long
def test_the_history_of_a_held_table_waits_with_it(pipeline: Pipeline, spark: SparkSession) -> None:
    assert pipeline.config.tables is not None
    tables = pipeline.config.tables.model_copy(update={"history": ("*.*",)})
    config = pipeline.config.model_copy(update={"tables": tables})
    pipeline = replace(pipeline, config=config)
    caught_up(pipeline)

    def history(table: str) -> DataFrame:
        return spark.read.format("delta").load(pipeline.lake.typed_table(f"{table}__history"))

    execute(
        pipeline.dsn,
        "alter table t add secret text default 's'",
        "update t set a = 'later' where id = 1",
        "insert into u values (1)",
    )
    assert [table.name for table in caught_up(pipeline).tables] == ["public.u", "public.u__history"]
    assert "secret" not in history("public.t").columns
    assert history("public.t").where("not _is_current").isEmpty()
    execute(pipeline.dsn, "alter table t drop secret", "delete from t where id = 2")
    caught_up(pipeline)
    approve_tables(pipeline)
    done = [(table.name, table.step) for table in merge_tables(pipeline).tables]
    assert done == [("public.t", Step.REBUILT), ("public.t__history", Step.REBUILT)]
    ended = history("public.t").where("not _is_current").select("id", "_ended_by").collect()
    assert sorted(map(tuple, ended)) == [(1, "update"), (2, "delete")]
    execute(pipeline.dsn, "delete from t where id = 3")
    assert [table.step for table in caught_up(pipeline).tables] == [Step.MERGED, Step.MERGED]


@pytest.mark.long
def test_approval_is_for_what_was_shown_and_for_nothing_that_comes_later(
    pipeline: Pipeline, spark: SparkSession
) -> None:
    """Changed and changed back, dropped and made again: each is held, too."""
    execute(pipeline.dsn, "alter table t add c int", "alter table t drop c")
    [first] = caught_up(pipeline).held
    assert [change.split(":")[0] for change in first.changes] == [
        'column "c" added',
        'column "c" dropped, it was integer',
    ]
    execute(pipeline.dsn, "alter table t drop b", "alter table t add b int")
    approve_tables(pipeline, ["public.t"], versions=first.versions)
    done = caught_up(pipeline)
    [second] = done.held
    assert second.versions != first.versions
    assert not second.is_approved
    assert done.tables == []
    with pytest.raises(ApprovalOutdated):
        approve_tables(pipeline, ["public.t"], versions=first.versions)
    approve_tables(pipeline, ["public.t"], versions=second.versions)
    assert caught_up(pipeline).held == []
    assert_equal(pipeline, spark, "t")
    execute(pipeline.dsn, "alter table t rename a to x", "alter table t rename x to a")
    [third] = caught_up(pipeline).held
    approve_tables(pipeline)
    caught_up(pipeline)
    assert third.changes == (
        'column "a" renamed to "x"',
        'column "x" renamed to "a"',
    )
    assert_equal(pipeline, spark, "t")


@pytest.mark.long
def test_another_table_under_the_name_a_key_and_a_type_are_held_a_copy_and_a_truncate_not(
    pipeline: Pipeline, spark: SparkSession
) -> None:
    execute(pipeline.dsn, "truncate t", "insert into t values (1, 'new', 1)")
    assert [table.step for table in caught_up(pipeline).tables] == [Step.REBUILT]
    assert_equal(pipeline, spark, "t")
    for statements in (
        ["alter table t drop constraint t_pkey, add primary key (b)"],
        ["alter table t alter b type text"],
        ["drop table t", "create table t (n int primary key)", "insert into t values (5)"],
    ):
        former = rows_now(pipeline)
        execute(pipeline.dsn, *statements)
        [held] = caught_up(pipeline).held
        assert (held.table, rows_now(pipeline)) == ("public.t", former)
        with pytest.raises(TypedTableHeld):
            merge_tables(pipeline, rebuild=["public.t"])
        approve_tables(pipeline, ["public.t"], versions=held.versions)
        assert caught_up(pipeline).held == []
        assert_equal(pipeline, spark, "t")
    assert columns(pipeline) == ["n"]
    with pytest.raises(NothingHeld):
        approve_tables(pipeline, ["public.t"])


@pytest.mark.long
def test_two_people_approve_at_once_and_a_table_may_have_its_own_policy(
    pipeline: Pipeline, spark: SparkSession
) -> None:
    execute(pipeline.dsn, "alter table t add c int", "alter table u add c int default 1")
    execute(pipeline.dsn, "insert into t values (10)", "insert into u values (10)")
    held = caught_up(pipeline).held
    assert [table.name for table in held] == ["public.t", "public.u"]
    with ThreadPoolExecutor(3) as pool:
        chosen = (["public.t"], ["public.u"], [])
        list(pool.map(lambda tables: approve_tables(pipeline, tables), chosen))
    assert [table.is_approved for table in held_tables(pipeline)] == [True, True]
    assert caught_up(pipeline).held == []
    assert_equal(pipeline, spark, "t", "u")
    own = TypedTableConfig(on_schema_change=OnSchemaChange.APPLY)
    config = TablesConfig(on_schema_change=OnSchemaChange.HOLD, types={"public.u": own})
    mixed = replace(pipeline, config=pipeline.config.model_copy(update={"tables": config}))
    execute(pipeline.dsn, "alter table t drop c", "alter table u drop c")
    assert [table.name for table in caught_up(mixed).held] == ["public.t"]
    applied = replace(
        pipeline, config=pipeline.config.model_copy(update={"tables": TablesConfig()})
    )
    assert merge_tables(applied).held == []
    assert_equal(pipeline, spark, "t", "u")
