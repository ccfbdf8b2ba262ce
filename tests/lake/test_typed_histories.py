"""Tables that are written again together: small ones from one reading of the log."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession

from pgstream_dagster.changelog import replay
from pgstream_dagster.tables import histories
from pgstream_dagster.tables.histories import Histories
from pgstream_dagster.tables.passes import Step
from pgstream_dagster.upkeep.setup import setup
from tests.support.harness.case import execute
from tests.support.harness.typed_tables import assert_equal, caught_up, typed_pipeline

pytestmark = [pytest.mark.first, pytest.mark.one_major("newest")]

SMALL = ("moved", "keyless", "never_filled", "copied")
LARGE = ("emptied", "large")  # of what the log has


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
        "create table copied (id int primary key, note text)",
        "insert into copied values (1, 'as it was copied'), (2, null)",
        "create table large (id int primary key, note text)",
        "insert into moved select n, 'note', repeat(md5(n::text), 100)"
        " from generate_series(1, 9) n",
        "insert into emptied select generate_series(1, 300)",
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
        "insert into emptied values (1)",
        "delete from keyless where ctid = (select min(ctid) from keyless)",
        "update large set note = 'changed' where id < 10",
    )
    asked = list[tuple[int, bool]]()
    changes = Histories.changes

    def recorded(self: Histories, relation_id: int) -> DataFrame:
        asked.append((relation_id, relation_id in self.small))
        return changes(self, relation_id)

    monkeypatch.setattr(Histories, "changes", recorded)
    done = caught_up(pipeline)
    assert {table.step for table in done.tables} == {Step.REBUILT}
    assert Counter(is_small for _, is_small in asked) == {True: len(SMALL), False: len(LARGE)}
    assert_equal(pipeline, spark, *SMALL, *LARGE)
    keyless = spark.read.format("delta").load(pipeline.lake.typed_table("public.keyless"))
    assert len(keyless.inputFiles()) == 1


def test_a_single_table_is_read_for_itself(
    dsn: str, tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    execute(dsn, "create table t (id int primary key)", "insert into t values (1)")

    def never(*_: object, **__: object) -> None:
        raise AssertionError("rows of one table were kept")

    monkeypatch.setattr(replay, "read_once", never)
    pipeline = typed_pipeline(dsn, tmp_path)
    setup(pipeline)
    [done] = caught_up(pipeline).tables
    assert done.rows == 1
    assert_equal(pipeline, spark, "t")
