"""Histories of a real source: at any position what it showed, however a pass ended."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from random import Random
from typing import Any

import psycopg
import pytest
from pyspark.sql import DataFrame, SparkSession

from pgstream_dagster.copy.snapshot import snapshot
from pgstream_dagster.errors import BeforeFirstCopy, HistoryNameTaken, HistoryNeedsKey, NotYetInLog
from pgstream_dagster.lsn import Lsn
from pgstream_dagster.pipeline import Pipeline
from pgstream_dagster.tables import target as typed_target
from pgstream_dagster.tables.history import merge
from pgstream_dagster.tables.history.as_of import read_as_of
from pgstream_dagster.tables.history.columns import OWN
from pgstream_dagster.tables.merge import merge_tables
from pgstream_dagster.tables.passes import Step
from pgstream_dagster.tables.types import RESCUED
from pgstream_dagster.upkeep.setup import setup
from tests.support.harness import runner
from tests.support.harness.case import execute
from tests.support.harness.merge_ends import Ended, EndsAt, ends_at, kill_merge
from tests.support.harness.rows import PINNED
from tests.support.harness.typed_tables import (
    all_rows,
    assert_equal,
    caught_up,
    frame_rows,
    merged_pipeline,
    typed_pipeline,
)

pytestmark = pytest.mark.one_major("newest")

__all__ = ["ends_at"]  # a fixture

BIG = "repeat(md5(random()::text), 300)"
"""A text that Postgres stores outside of its row."""

TABLES = ("orders", "logs")


@dataclass(frozen=True)
class Shown:
    """What the source showed in quiet: its position, its time, and the rows of each table."""

    at: Lsn
    time: datetime
    rows: dict[str, Counter[str]]


def shown(dsn: str) -> Shown:
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute(PINNED[0])
        position = connection.execute(
            "select pg_catalog.pg_current_wal_lsn()::text, clock_timestamp()"
        ).fetchone()
        assert position is not None
        rows = {
            table: Counter(
                json.dumps(json.loads(text), sort_keys=True)
                for (text,) in connection.execute(
                    psycopg.sql.SQL("select to_jsonb(t)::text from public.{} as t").format(
                        psycopg.sql.Identifier(table)
                    )
                )
            )
            for table in TABLES
        }
    return Shown(Lsn.parse(position[0]), position[1], rows)


def statement(random: Random) -> str:
    """A change of some rows, of either table."""
    key, other = random.randrange(40), random.randrange(100, 1000)
    return random.choice(
        [
            f"update orders set note = 'n{other}' where id = {key}",
            f"update orders set price = price where id = {key}",
            f"update orders set body = {BIG}, day = null where id = {key}",
            f"delete from orders where id = {key}",
            (
                f"insert into orders values ({key}, 'again', {BIG}, {key}, '2026-01-01')"
                " on conflict do nothing"
            ),
            (
                f"update orders set id = {other} where id = {key} and not exists"
                f" (select from orders where id = {other})"
            ),
            (
                "update orders set id = id - 100 where id = (select max(id) from orders)"
                " and not exists (select from orders as o"
                " where o.id = (select max(id) - 100 from orders))"
            ),
            f"insert into logs (text) values ('{other}')",
            f"delete from logs where id % 7 = {key % 7}",
        ]
    )


def transaction(random: Random) -> str:
    return (
        "begin; " + "; ".join(statement(random) for _ in range(random.randint(1, 4))) + "; commit"
    )


@pytest.fixture
def pipeline(dsn: str, tmp_path: Path, spark: SparkSession) -> Pipeline:
    execute(
        dsn,
        "create table orders"
        " (id int primary key, note text, body text, price numeric(8,2), day date)",
        "alter table orders alter body set storage external",
        f"insert into orders select n, 'note ' || n, {BIG}, n, 'infinity'"
        " from generate_series(1, 30) as n",
        "create table logs (id serial primary key, text text)",
        "insert into logs (text) select 'line ' || n from generate_series(1, 10) as n",
    )
    return merged_pipeline(dsn, tmp_path, include=("public.orders",), history=("public.ord*",))


def history(pipeline: Pipeline, spark: SparkSession) -> DataFrame:
    return spark.read.format("delta").load(pipeline.lake.typed_table("public.orders__history"))


def assert_as_rebuilt(pipeline: Pipeline, spark: SparkSession) -> None:
    """The history that grew is the one that is made from the start of the log."""
    grown = all_rows(history(pipeline, spark))
    merge_tables(pipeline, rebuild=["public.orders"])
    assert grown == all_rows(history(pipeline, spark))


@pytest.mark.long
def test_what_ended_a_row_is_in_the_history(pipeline: Pipeline, spark: SparkSession) -> None:
    execute(
        pipeline.dsn,
        "update orders set note = 'new' where id = 1",
        "update orders set note = note where id = 2",
        "delete from orders where id = 3",
        "update orders set id = 400 where id = 4",
        "begin; delete from orders where id = 5;"
        " insert into orders values (5, 'other', 'b', 1, null); commit",
        "begin; update orders set note = 'unseen' where id = 6;"
        " update orders set note = 'seen' where id = 6; commit",
    )
    caught_up(pipeline)
    snapshot(pipeline, ["public.orders"])
    [*_] = caught_up(pipeline).tables
    ended = {
        row["id"]: row["_ended_by"]
        for row in history(pipeline, spark).where("not _is_current").collect()
    }
    assert ended == {1: "update", 3: "delete", 4: "key change", 5: "delete", 6: "update"}
    current = history(pipeline, spark).where("_is_current")
    assert current.count() == 29
    assert {row["note"] for row in current.where("id = 6").collect()} == {"seen"}
    execute(pipeline.dsn, "truncate orders")
    caught_up(pipeline)
    by_end = history(pipeline, spark).groupBy("_ended_by").count().collect()
    assert {row["_ended_by"]: row["count"] for row in by_end} == {
        "update": 2,
        "delete": 2,
        "key change": 1,
        "truncate": 29,
    }


@pytest.mark.long
def test_table_is_as_the_source_showed_it_at_any_position(
    pipeline: Pipeline, spark: SparkSession
) -> None:
    random, moments = Random(20), [shown(pipeline.dsn)]
    runner.catch_up(pipeline)
    steps = Counter[Any]()
    for number in range(4):
        for _ in range(5):
            execute(pipeline.dsn, *(transaction(random) for _ in range(random.randint(1, 3))))
            moments.append(shown(pipeline.dsn))
        if number == 1:
            runner.catch_up(pipeline)
            snapshot(pipeline, ["public.orders"])
        if number == 2:
            execute(pipeline.dsn, "begin; truncate orders; " + transaction(random)[7:])
            moments.append(shown(pipeline.dsn))
        if number == 3:
            execute(pipeline.dsn, "alter table orders rename note to remark")
            execute(pipeline.dsn, "alter table orders rename remark to note")
        steps.update((t.name, t.step) for t in caught_up(pipeline).tables)
    assert steps["public.orders__history", Step.MERGED] >= 2
    assert steps["public.orders__history", Step.REBUILT] >= 2
    assert len(moments) > 20
    for number, moment in enumerate(moments):
        if number % 7 == 0:
            assert_read_as_of(pipeline, moment)
        valid = (
            history(pipeline, spark)
            .where(is_valid(moment.at))
            .drop(*sorted(OWN.keys() - {RESCUED}))
        )
        assert frame_rows(pipeline.dsn, valid, "orders") == moment.rows["orders"]
    assert_as_rebuilt(pipeline, spark)
    assert_equal(pipeline, spark, "orders")
    with pytest.raises(BeforeFirstCopy, match="first copy at"):
        read_as_of(pipeline, "orders", Lsn(1))
    with pytest.raises(NotYetInLog):
        read_as_of(pipeline, "orders", Lsn(1 << 60))


def is_valid(at: Lsn) -> str:
    """As a reader of the table writes it; nothing commits exactly at a position of a quiet one."""
    return f"_valid_from_lsn <= {int(at)} and (_valid_to_lsn is null or _valid_to_lsn > {int(at)})"


def assert_read_as_of(pipeline: Pipeline, moment: Shown) -> None:
    """At the position and at the time; from the history, and from the log where there is none."""
    for at in (moment.at, moment.time):
        read = read_as_of(pipeline, "orders", at)
        assert read.uri.endswith("orders__history")
        assert frame_rows(pipeline.dsn, read.rows, "orders") == moment.rows["orders"]
    read = read_as_of(pipeline, "logs", moment.at)
    assert read.uri == pipeline.lake.change_log
    assert frame_rows(pipeline.dsn, read.rows, "logs") == moment.rows["logs"]


ENDS = {
    "history.merged": ("update orders set note = note || '!', id = id + 100 where id < 10",),
    "tables.evolving": (
        "alter table orders rename note to remark",
        "alter table orders add extra text",
        "update orders set extra = remark where id % 4 = 0",
    ),
}


@pytest.mark.long
@pytest.mark.parametrize("failpoint", ["history.merged", "tables.evolving"])
def test_a_pass_that_ended_anywhere_is_done_by_the_next(
    failpoint: str,
    pipeline: Pipeline,
    spark: SparkSession,
    ends_at: EndsAt,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    execute(pipeline.dsn, *ENDS[failpoint])
    runner.catch_up(pipeline)
    if failpoint.startswith("tables"):
        monkeypatch.setattr(merge.HistoryTarget, "evolve", ending("evolve"))
        with pytest.raises(Ended):
            merge_tables(pipeline)
        monkeypatch.undo()
    else:
        with ends_at(failpoint):
            merge_tables(pipeline)
    merge_tables(pipeline)
    assert_as_rebuilt(pipeline, spark)


@pytest.mark.long
@pytest.mark.crash
@pytest.mark.parametrize("failpoint", ["tables.rebuilt", "history.merged", "history.passed"])
def test_a_killed_pass_is_done_by_the_next(
    failpoint: str, pipeline: Pipeline, spark: SparkSession
) -> None:
    begins_again = ["truncate orders", "insert into orders values (1, 'again', 'a', 2, null)"]
    execute(pipeline.dsn, *ENDS["history.merged"])
    execute(pipeline.dsn, *(begins_again if failpoint == "tables.rebuilt" else []))
    runner.catch_up(pipeline)
    kill_merge(pipeline, failpoint)
    merge_tables(pipeline)
    assert_equal(pipeline, spark, "orders")
    assert_as_rebuilt(pipeline, spark)


def ending(name: str) -> Callable[..., None]:
    """A method of the typed table that does its work, and then the process ends."""
    original = getattr(typed_target.Target, name)

    def method(*arguments: Any) -> None:
        original(*arguments)
        raise Ended

    return method


def test_a_table_that_can_have_no_history_any_more_holds_up_no_other(
    dsn: str, tmp_path: Path, spark: SparkSession
) -> None:
    execute(
        dsn,
        "create table t (id int primary key)",
        "alter table t replica identity full",
        "create table u (id int primary key)",
    )
    pipeline = typed_pipeline(dsn, tmp_path, history=("t", "u"))
    setup(pipeline)
    caught_up(pipeline).require_all()
    execute(
        dsn,
        "alter table t drop constraint t_pkey",
        "insert into t values (1), (1)",
        "insert into u values (1)",
    )
    done = caught_up(pipeline)
    assert {table.name for table in done.tables} == {"public.t", "public.u", "public.u__history"}
    with pytest.raises(HistoryNeedsKey, match=r"'public\.t' has no key"):
        done.require_all()
    assert_equal(pipeline, spark, "t", "u")
    execute(dsn, "alter table t rename to v")
    with pytest.raises(HistoryNeedsKey, match=r"'public\.v' has no key"):
        caught_up(pipeline).require_all()
    execute(dsn, "truncate v", "alter table v add primary key (id)", "insert into v values (2)")
    assert passed_to(pipeline, "public.t__history") == (Step.REBUILT, 1)
    execute(dsn, "insert into v values (3)")
    assert passed_to(pipeline, "public.t__history") == (Step.MERGED, 2)


def passed_to(pipeline: Pipeline, name: str) -> tuple[Step, int]:
    """What a pass without errors did to a table, and how many rows that has then."""
    done = caught_up(pipeline)
    done.require_all()
    (table,) = [table for table in done.tables if table.name == name]
    return table.step, table.rows


@pytest.mark.long
def test_a_history_with_the_name_of_a_typed_table_is_left_out(dsn: str, tmp_path: Path) -> None:
    execute(
        dsn,
        "create table t (id int primary key)",
        "create table t__history (id int primary key)",
        "create table u (id int primary key)",
    )
    pipeline = typed_pipeline(dsn, tmp_path, history=("t", "u"))
    setup(pipeline)
    done = caught_up(pipeline)
    assert [table.name for table in done.tables][-1] == "public.u__history"
    with pytest.raises(HistoryNameTaken, match="history_name"):
        done.require_all()


@pytest.mark.parametrize(
    "failpoint",
    [
        "tables.passed",
        *(
            pytest.param(name, marks=pytest.mark.long)
            for name in ("tables.rebuilt", "history.passed")
        ),
    ],
)
def test_a_history_whose_folder_another_table_got_is_built_again(
    failpoint: str, dsn: str, tmp_path: Path, ends_at: EndsAt
) -> None:
    execute(dsn, "create table t (id int primary key)", "insert into t values (1)")
    pipeline = typed_pipeline(dsn, tmp_path, history=("t",))
    setup(pipeline)
    caught_up(pipeline).require_all()
    execute(dsn, "create table t__history (a int primary key)")
    runner.catch_up(pipeline)
    with ends_at(failpoint):
        merge_tables(pipeline)
    with pipeline.open() as opened:
        position = opened.require_watermark()
    at_once = read_as_of(pipeline, "public.t", position)
    assert (at_once.uri, [row.id for row in at_once.rows.collect()]) == (
        pipeline.lake.change_log,
        [1],
    )
    excluding = typed_pipeline(dsn, tmp_path, history=("t",), exclude=("public.t__history",))
    assert passed_to(excluding, "public.t__history") == (Step.REBUILT, 1)
    from_history = read_as_of(excluding, "public.t", position)
    assert (from_history.uri, [row.id for row in from_history.rows.collect()]) == (
        pipeline.lake.typed_table("public.t__history"),
        [1],
    )
