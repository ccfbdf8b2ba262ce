"""Typed tables: after any history, and after any end of a merge, the rows of the source."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from pgstream_dagster.copy.snapshot import snapshot
from pgstream_dagster.pipeline import Pipeline
from pgstream_dagster.tables import direct
from pgstream_dagster.tables.merge import merge_tables
from pgstream_dagster.tables.passes import Step
from pgstream_dagster.upkeep.setup import setup
from tests.support.harness import oracle
from tests.support.harness.case import execute
from tests.support.harness.typed_tables import (
    assert_equal,
    caught_up,
    each_way,
    merged_pipeline,
    typed_pipeline,
)

pytestmark = pytest.mark.one_major("newest")

__all__ = ["each_way"]  # a fixture

BIG = "repeat(md5(random()::text), 300)"
"""A text that Postgres stores outside of its row."""


def test_first_merge_makes_every_table_and_later_ones_merge_what_changed(
    dsn: str, tmp_path: Path, spark: SparkSession
) -> None:
    """P6 to P8."""
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


@pytest.mark.long
@pytest.mark.usefixtures("each_way")
def test_rows_are_those_of_the_source_whatever_updates_leave_out(
    dsn: str,
    tmp_path: Path,
    spark: SparkSession,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """field 42, 45: values that were not sent, keys that move with them, or are used again."""
    monkeypatch.setattr(direct, "TINY_BYTES", 0)  # small files are marked, too
    execute(
        dsn,
        "create table docs (id text primary key, body text, other text, revision int, day date)",
        "alter table docs alter body set storage external, alter other set storage external",
        f"insert into docs select 'd' || n, {BIG}, {BIG}, 0, 'infinity'"
        " from generate_series(1, 30) as n",
    )
    pipeline = merged_pipeline(dsn, tmp_path)
    assert_equal(pipeline, spark, "docs")
    execute(
        dsn,
        "update docs set revision = 1 where id < 'd2'",
        f"update docs set body = {BIG} where id = 'd2'",
        "update docs set id = 'moved' where id = 'd3'",
        "update docs set id = 'moved again', revision = 2 where id = 'moved'",
        "delete from docs where id = 'd4'",
        "update docs set id = 'd4' where id = 'd5'",  # where another row was
        "begin; update docs set id = 'x' where id = 'd6';"
        " update docs set id = 'd6' where id = 'd7'; update docs set id = 'd7' where id = 'x';"
        " commit",
        "update docs set id = 'gone' where id = 'd8'",
        "delete from docs where id = 'gone'",
        f"insert into docs values ('new', {BIG}, null, 0, '2026-01-01')",
        "update docs set revision = 5 where id = 'new'",
        "update docs set id = 'newer', day = 'infinity' where id = 'new'",
        f"update docs set other = {BIG}, day = null where id = 'd9'",
        "update docs set day = '-infinity' where id = 'd9'",
        "update docs set revision = null, day = '2026-02-28' where id = 'd10'",
    )
    [done] = caught_up(pipeline).tables
    assert done.step is Step.MERGED
    assert_equal(pipeline, spark, "docs")
    execute(dsn, "update docs set id = 'z' || id, revision = 7")
    [done] = caught_up(pipeline).tables
    assert (done.step, done.rows) == (Step.MERGED, 29)
    assert_equal(pipeline, spark, "docs")


def test_columns_follow_the_source(dsn: str, tmp_path: Path, spark: SparkSession) -> None:
    """P2, P4, P5, field 48 to 50: swapped, dropped, added ones; old rows show a default."""
    execute(
        dsn,
        "create table t (id int primary key, a text, b text, c numeric(6,2), d text)",
        "insert into t select n, 'a' || n, 'b' || n, n, 'd' from generate_series(1, 9) as n",
        "create table still (id int primary key)",
    )
    pipeline = merged_pipeline(dsn, tmp_path)
    before = version(pipeline, "public.still")
    steps = []
    for statements in (
        [
            "alter table t rename a to x",
            "alter table t rename b to a",
            "alter table t rename x to b",
            "alter table t drop d",
            "alter table t add e text",
            'alter table t add "B" int',
        ],
        [
            "alter table t add f int default 7",
            "alter table t alter c type numeric(12,2)",
            "alter table t rename c to price",
        ],
    ):
        execute(dsn, *statements, "update t set a = a || '!' where id = 3")
        steps += [table.step for table in caught_up(pipeline).tables]
        assert_equal_columns(pipeline, spark)
    assert steps == [Step.MERGED] * 2
    assert version(pipeline, "public.still") == before


def assert_equal_columns(pipeline: Pipeline, spark: SparkSession) -> None:
    """As `assert_equal`; Spark would not distinguish "B" from b, so it has another name."""
    folder = pipeline.lake.typed_table("public.t")
    frame = spark.read.format("delta").load(folder)
    if "B_7" in frame.columns:
        execute(pipeline.dsn, 'alter table t rename "B" to "B_7"')
        assert_equal(pipeline, spark, "t")
        execute(pipeline.dsn, 'alter table t rename "B_7" to "B"')
    else:
        assert_equal(pipeline, spark, "t")


def version(pipeline: Pipeline, name: str) -> int:
    """The newest version of a typed table."""
    return list(oracle.entries(oracle.folder_of(pipeline.lake.typed_table(name))))[-1].version


@pytest.mark.long
def test_tables_begin_again_where_the_log_does(
    dsn: str, tmp_path: Path, spark: SparkSession
) -> None:
    """P20, field 44, 52, 55: a truncate, a copy, a name taken by another table, no key."""
    execute(
        dsn,
        "create table t (id int primary key, note text)",
        "insert into t select n, 'old' from generate_series(1, 50) as n",
        "create table events (kind text, at timestamptz)",
        "alter table events replica identity full",
        "insert into events select 'same', '2026-01-01 12:00+00' from generate_series(1, 3)",
    )
    pipeline = merged_pipeline(dsn, tmp_path)
    assert_equal(pipeline, spark, "t", "events")
    execute(
        dsn,
        "begin; insert into t values (51, 'lost'); truncate t; insert into t values (1, 'new');"
        " update t set note = 'newer'; commit",
        "insert into events values ('same', '2026-01-01 12:00+00'), ('other', null)",
    )
    steps = {t.name: (t.step, t.rows) for t in caught_up(pipeline).tables}
    assert steps == {"public.t": (Step.REBUILT, 1), "public.events": (Step.APPENDED, 5)}
    assert_equal(pipeline, spark, "t", "events")
    execute(
        dsn,
        "delete from events where ctid = (select min(ctid) from events where kind = 'same')",
        "alter table t rename to former",
        "create table t (id bigint primary key, amount int)",
        "insert into t values (1, 2)",
    )
    steps = {t.name: t.step for t in caught_up(pipeline).tables}
    assert steps == dict.fromkeys(["public.events", "public.t", "public.former"], Step.REBUILT)
    assert_equal(pipeline, spark, "t", "events", "former")
    snapshot(pipeline, ["public.t"])
    execute(dsn, "insert into t values (2, 3)")
    steps = {t.name: t.step for t in caught_up(pipeline).tables}
    assert steps == {"public.t": Step.REBUILT}
    assert_equal(pipeline, spark, "t")
