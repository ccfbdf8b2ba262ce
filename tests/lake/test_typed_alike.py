"""Tables with the same columns, as tenants have them: one query types the new rows of all."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession

from pgstream_dagster.pipeline import Pipeline
from pgstream_dagster.tables import new_rows
from pgstream_dagster.tables.passes import Step
from tests.support.harness.case import execute
from tests.support.harness.typed_tables import assert_equal, caught_up, merged_pipeline

pytestmark = [pytest.mark.first, pytest.mark.one_major("newest")]

COLUMNS = (
    "(id int, part text, amount numeric(8,2), at timestamptz, notes text[], body text,"
    ' "Its. raw" bytea, primary key (id, part))'
)
ALIKE = ("a", "b", "c")
OTHERS = ("renamed", "unsent")
NEVER = ("by_number_1", "by_number_2", "variant_1", "variant_2")
"""Alike, but of types that are not typed together."""


@pytest.fixture
def tenants(dsn: str, tmp_path: Path) -> Pipeline:
    """Tables that are alike, and others that are not."""
    execute(
        dsn,
        *(f"create table {table} {COLUMNS}" for table in (*ALIKE, *OTHERS)),
        "alter table renamed rename notes to remarks",
        "alter table unsent alter body set storage external",
        *(
            f"insert into {table} select n, 'p', n, '2026-01-01', array['x', null], 'body'"
            " from generate_series(1, 9) n"
            for table in (*ALIKE, "renamed")
        ),
        "insert into unsent values (1, 'p', 1, '2026-01-01', '{}', repeat(md5('1'), 100))",
    )
    return merged_pipeline(dsn, tmp_path)


def test_tables_that_are_alike_are_typed_together(
    dsn: str, tenants: Pipeline, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    together = recorded(monkeypatch)
    change(dsn)
    done = caught_up(tenants)
    assert {table.step for table in done.tables} == {Step.MERGED}
    assert [len(relations) for relations in together] == [len(ALIKE)]
    assert_equal(tenants, spark, *ALIKE, *OTHERS)


@pytest.mark.long
def test_a_table_with_many_bytes_is_typed_alone(
    dsn: str, tenants: Pipeline, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    together = recorded(monkeypatch)
    monkeypatch.setattr(new_rows, "TOGETHER_BYTES", 1 << 13)
    change_alike(dsn, "a", "b")
    execute(dsn, "update c set body = repeat(md5(id::text), 40)")
    caught_up(tenants)
    assert [len(relations) for relations in together] == [len(ALIKE) - 1]
    assert_equal(tenants, spark, *ALIKE)


@pytest.mark.long
def test_tables_whose_keys_or_values_only_spark_compares_are_typed_alone(
    dsn: str, tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    execute(
        dsn,
        "create table by_number_1 (id numeric(6,2) primary key, note text)",
        "create table by_number_2 (id numeric(6,2) primary key, note text)",
        "create table variant_1 (id int primary key, document jsonb)",
        "create table variant_2 (id int primary key, document jsonb)",
        "insert into by_number_1 values (1.0, 'one')",
        "insert into by_number_2 values (2.0, 'two')",
        "insert into variant_1 values (1, '{}')",
        "insert into variant_2 values (1, '{}')",
    )
    document = {"columns": {"document": {"json": "variant"}}}
    types = {f"public.variant_{n}": document for n in (1, 2)}
    pipeline = merged_pipeline(dsn, tmp_path, types=types)
    together = recorded(monkeypatch)
    execute(
        dsn,
        "update by_number_1 set id = id + 1, note = note || '!'",
        "update by_number_2 set note = note || '!'",
        "update variant_1 set document = document || '{\"n\": 1}'",
        "update variant_2 set document = document || '{\"n\": [null]}'",
    )
    done = caught_up(pipeline)
    assert {table.step for table in done.tables} == {Step.MERGED}
    assert together == []
    assert_equal(pipeline, spark, *NEVER)


def recorded(monkeypatch: pytest.MonkeyPatch) -> list[Collection[int]]:
    """The relations of each query for several."""
    together, chosen = list[Collection[int]](), new_rows.of_relations

    def of_relations(rows: DataFrame, relation_ids: Collection[int]) -> DataFrame:
        together.append(relation_ids)
        return chosen(rows, relation_ids)

    monkeypatch.setattr(new_rows, "of_relations", of_relations)
    return together


def change(dsn: str) -> None:
    """New values of every kind in all tables; `c` has nothing but an ended key."""
    change_alike(dsn, "a", "b", "renamed")
    execute(
        dsn,
        "insert into c values (77, 'gone', 1)",
        "delete from c where id = 77",
        "update unsent set amount = amount + 1",
    )


def change_alike(dsn: str, *tables: str) -> None:
    """New values: NULL, rescued, moved, ended."""
    for table in tables:
        execute(
            dsn,
            f"update {table} set amount = amount + 1, at = null where id < 4",
            f"update {table} set at = 'infinity', part = 'of {table}' where id = 5",
            f"update {table} set at = '0044-03-15 BC', \"Its. raw\" = '\\x00ff' where id = 6",
            f"delete from {table} where id = 7",
            f"insert into {table} (id, part, body) values (0, '', '{table}')"
            " on conflict (id, part) do update set amount = 'NaN'",
        )
