"""Typed tables: after any history, and after any end of a merge, the rows of the source."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from pgstream_dagster.tables.merge import Step, merge_tables
from pgstream_dagster.upkeep.setup import setup
from tests.support.harness.case import execute
from tests.support.harness.typed_tables import assert_equal, caught_up, typed_pipeline

pytestmark = pytest.mark.one_major("newest")

BIG = "repeat(md5(random()::text), 300)"
"""A text that Postgres stores outside of its row."""


def test_first_merge_makes_every_table_and_later_ones_merge_what_changed(
    dsn: str, tmp_path: Path, spark: SparkSession
) -> None:
    execute(
        dsn,
        "create table orders (id int primary key, note text, at timestamptz, price numeric(8,2))",
        "create table customers (id bigint primary key, name text)",
        "insert into orders select n, 'note ' || n, now(), n from generate_series(1, 20) as n",
        "insert into customers values (1, 'Ada')",
    )
    pipeline = typed_pipeline(dsn, tmp_path)
    setup(pipeline)
    first = caught_up(pipeline)
    assert {(t.name, t.step) for t in first.tables} == {
        ("public.orders", Step.REBUILT),
        ("public.customers", Step.REBUILT),
    }
    assert_equal(pipeline, spark, "orders", "customers")
    execute(
        dsn,
        "update orders set note = 'changed' where id < 5",
        "delete from orders where id = 7",
        "update orders set id = 100 where id = 8",
        "insert into orders values (101, null, null, null)",
    )
    second = caught_up(pipeline)
    assert [(t.name, t.step, t.rows) for t in second.tables] == [("public.orders", Step.MERGED, 20)]
    assert_equal(pipeline, spark, "orders", "customers")
    assert merge_tables(pipeline).tables == []
