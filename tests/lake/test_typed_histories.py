"""Tables that are written again together: small ones from one reading of the log."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from pgstream_dagster.changelog import replay
from pgstream_dagster.tables import histories
from pgstream_dagster.tables.passes import Step
from pgstream_dagster.upkeep.setup import setup
from tests.support.harness.case import execute
from tests.support.harness.typed_tables import assert_equal, caught_up, typed_pipeline

pytestmark = pytest.mark.one_major("newest")

SMALL = ("moved", "emptied", "keyless", "never_filled")


def test_small_tables_are_read_from_the_log_once_and_large_ones_for_themselves(
    dsn: str, tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    execute(
        dsn,
        "create table moved (id int primary key, note text, body text)",
        "alter table moved alter body set storage external",
        "create table emptied (id int primary key)",
        "create table keyless (a int, b text)",
        "alter table keyless replica identity full",
        "create table never_filled (id int primary key, at timestamptz)",
        "create table large (id int primary key, note text)",
        "insert into moved select n, 'note', repeat(md5(n::text), 100)"
        " from generate_series(1, 9) n",
        "insert into emptied select generate_series(1, 5)",
        "insert into keyless values (1, 'twice'), (1, 'twice'), (2, null)",
        "insert into large select n, 'note ' || n from generate_series(1, 300) n",
    )
    monkeypatch.setattr(histories, "SMALL_ROWS", 100)
    pipeline = typed_pipeline(dsn, tmp_path)
    setup(pipeline)
    execute(
        dsn,
        "update moved set id = 100, note = 'without its body' where id = 1",
        "update moved set note = null where id = 2",
        "delete from moved where id = 3",
        "truncate emptied",
        "delete from keyless where ctid = (select min(ctid) from keyless)",
        "update large set note = 'changed' where id < 10",
    )
    alone = list[int]()
    scan = replay.relation_changes
    monkeypatch.setattr(
        replay, "relation_changes", lambda *args: (alone.append(args[3]), scan(*args))[1]
    )
    done = caught_up(pipeline)
    assert {table.step for table in done.tables} == {Step.REBUILT}
    assert len(alone) == 1
    assert_equal(pipeline, spark, *SMALL, "large")
    keyless = spark.read.format("delta").load(pipeline.lake.typed_table("public.keyless"))
    assert len(keyless.inputFiles()) == 1


def test_a_single_table_is_read_for_itself(
    dsn: str, tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    execute(dsn, "create table t (id int primary key)", "insert into t values (1)")

    def never(*_: object, **__: object) -> None:
        raise AssertionError("rows of one table were kept")

    monkeypatch.setattr(replay, "kept", never)
    pipeline = typed_pipeline(dsn, tmp_path)
    setup(pipeline)
    [done] = caught_up(pipeline).tables
    assert done.rows == 1
    assert_equal(pipeline, spark, "t")
