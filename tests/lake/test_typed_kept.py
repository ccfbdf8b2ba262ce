"""`on_type_change: keep`: a column whose type changes leaves its former values in one beside it."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from pgstream_dagster.config.tables import OnTypeChange
from pgstream_dagster.pipeline import Pipeline
from pgstream_dagster.tables.merge import merge_tables
from pgstream_dagster.tables.passes import Step
from pgstream_dagster.tables.read_typed import read_typed
from pgstream_dagster.upkeep.reconcile_tables import reconcile_tables
from tests.support.harness import runner
from tests.support.harness.case import execute
from tests.support.harness.typed_tables import (
    all_rows,
    caught_up,
    merged_pipeline,
    typed_pipeline,
    values_of,
)
from tests.support.plugins.cluster import psql

pytestmark = [pytest.mark.one_major("newest"), pytest.mark.slow]

AMOUNTS = "select id, amount from t order by id"


@pytest.fixture
def pipeline(dsn: str, tmp_path: Path, spark: SparkSession) -> Pipeline:
    execute(
        dsn,
        "create table t (id int primary key, amount int, note text)",
        "alter table t alter note set storage external",
        "insert into t select n, n * 10, repeat(md5(n::text), 200) from generate_series(1, 40) n",
        "create table bag (amount int)",
        "alter table bag replica identity full",
        "insert into bag values (1)",
    )
    return merged_pipeline(dsn, tmp_path, on_type_change=OnTypeChange.KEEP)


def amounts(dsn: str) -> dict[int, object]:
    return dict(psql(dsn, AMOUNTS))


def column(pipeline: Pipeline, name: str) -> dict[int, object]:
    return values_of(pipeline, "public.t", "id", name)


def step(pipeline: Pipeline) -> Step:
    [table] = [t for t in caught_up(pipeline).tables if t.name == "public.t"]
    return table.step


@pytest.mark.long
def test_former_values_follow_their_rows(pipeline: Pipeline, spark: SparkSession) -> None:
    """By a merge and by a rebuild alike, through copies, moves of keys and another change."""
    dsn = pipeline.dsn
    execute(dsn, "update t set amount = amount + 1 where id < 5", "delete from t where id = 40")
    numbers = amounts(dsn)
    execute(dsn, "alter table t alter amount type text using 'n' || amount")
    assert step(pipeline) is Step.REBUILT
    assert column(pipeline, "amount__v1") == numbers
    assert column(pipeline, "amount") == amounts(dsn)

    execute(
        dsn,
        "update t set amount = 'new' where id < 3",
        "delete from t where id in (4, 5)",
        "insert into t values (5, 'again', 'b')",
        "update t set id = id + 100 where id in (6, 7)",
        "begin; insert into t values (50, 'a', 'b'); update t set id = 51 where id = 50;"
        " update t set amount = 'c' where id = 51; commit",
    )
    assert step(pipeline) is Step.MERGED
    moved = {6: 106, 7: 107}
    expected = {moved.get(i, i): n for i, n in numbers.items() if i != 4} | {5: None, 51: None}
    assert column(pipeline, "amount__v1") == expected
    texts = amounts(dsn)
    assert column(pipeline, "amount") == texts

    execute(
        dsn,
        "alter table t rename amount to total",
        "alter table t alter total type bool using total like 'n%'",
        "update t set id = id + 200 where id = 106",
        "alter table t rename total to sum",
    )
    assert step(pipeline) is Step.REBUILT
    expected[306], texts[306] = expected.pop(106), texts.pop(106)
    assert column(pipeline, "sum__v1") == expected
    assert column(pipeline, "sum__v2") == texts
    grown = all_rows(read_typed(pipeline, "public.t").rows)
    merge_tables(pipeline, rebuild=["public.t"])
    assert all_rows(read_typed(pipeline, "public.t").rows) == grown
    with runner.streaming(pipeline):
        assert [(t.identical, t.reason) for t in reconcile_tables(pipeline).tables] == [
            (True, None)
        ] * 2

    execute(dsn, "truncate t", "insert into t values (1, true, 'b')")
    caught_up(pipeline)
    assert column(pipeline, "sum__v1") == {1: None}
    assert "amount__v1" not in read_typed(pipeline, "public.bag").rows.columns


@pytest.mark.long
def test_only_a_type_that_lacks_values_leaves_a_column(pipeline: Pipeline) -> None:
    """Nor does a table without a key, whose rows cannot be followed; nor one with another key."""
    execute(
        pipeline.dsn,
        "alter table t alter amount type bigint",
        "alter table bag alter amount type text",
    )
    caught_up(pipeline)
    assert read_typed(pipeline, "public.bag").rows.columns[0:2] == ["amount", "_epoch"]
    assert "amount__v1" not in read_typed(pipeline, "public.t").rows.columns
    execute(
        pipeline.dsn,
        "alter table t alter amount type text, add amount__v1 int",
        "update t set amount__v1 = 3",
    )
    caught_up(pipeline)
    typed = read_typed(pipeline, "public.t").rows
    assert typed.schema["amount__v1_100002"].dataType.simpleString() == "bigint"
    assert column(pipeline, "amount__v1") == dict.fromkeys(range(1, 41), 3)
    execute(
        pipeline.dsn,
        "alter table t drop constraint t_pkey, add code int generated always as identity",
        "alter table t add primary key (code)",
    )
    caught_up(pipeline)
    assert "amount__v1_100002" not in read_typed(pipeline, "public.t").rows.columns


@pytest.mark.long
def test_a_type_that_comes_back_is_a_third_column_and_the_file_takes_them_away(
    pipeline: Pipeline, tmp_path: Path
) -> None:
    numbers = amounts(pipeline.dsn)
    execute(
        pipeline.dsn,
        "begin; alter table t alter amount type text using 'n' || amount;"
        " update t set amount = 'x' where id = 1;"
        " alter table t alter amount type int using length(amount); commit",
    )
    caught_up(pipeline)
    assert column(pipeline, "amount__v1") == numbers
    assert column(pipeline, "amount__v2")[1] == "x"
    assert column(pipeline, "amount") == amounts(pipeline.dsn)
    comments = {
        f.name: f.metadata.get("comment") for f in read_typed(pipeline, "public.t").rows.schema
    }
    assert comments["amount__v2"] == "attnum 2, version 2"
    plain = typed_pipeline(pipeline.dsn, tmp_path)
    [table] = merge_tables(plain).tables
    assert table.step is Step.EVOLVED
    assert "amount__v1" not in read_typed(plain, "public.t").rows.columns
    merge_tables(pipeline)
    assert column(pipeline, "amount__v1") == numbers
