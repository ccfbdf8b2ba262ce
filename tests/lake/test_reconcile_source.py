"""A real source against a real lake, at one position, while both continue."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from pgstream_dagster.capture.due import request_copy
from pgstream_dagster.changelog.lake import Lake
from pgstream_dagster.changelog.ledger import Ledger
from pgstream_dagster.config import parse
from pgstream_dagster.delta import jvm
from pgstream_dagster.errors import NoSuchTable, NotSetUp, WatermarkBehind
from pgstream_dagster.lsn import Lsn
from pgstream_dagster.pipeline import Pipeline
from pgstream_dagster.upkeep.differences import TableDifference
from pgstream_dagster.upkeep.reconcile import Reconciliation, reconcile
from pgstream_dagster.upkeep.setup import setup
from tests.support.harness import runner
from tests.support.plugins.cluster import psql
from tests.support.plugins.lake import SETTINGS, plant

pytestmark = pytest.mark.one_major("oldest")

TABLES = [
    "create table orders (id int primary key, note text, doc text)",
    "alter table orders alter doc set storage external",
    "insert into orders select i, 'n' || i, repeat('d', 4000) from generate_series(1, 200) i",
    "create table bag (a int, b text)",
    "alter table bag replica identity full",
    "insert into bag select i % 5, null from generate_series(1, 50) i",
    "create table nothing (id int primary key)",
    "create table measured (day int, id int, v text) partition by list (day)",
    "alter table measured add primary key (day, id)",
    "create table measured_1 partition of measured for values in (1)",
    "create table measured_2 partition of measured for values in (2)",
    "insert into measured select 1 + i % 2, i, 'v' from generate_series(1, 100) i",
]
NAMES = ["public.bag", "public.measured", "public.nothing", "public.orders"]

WORK = [
    "update orders set note = 'changed' where id % 3 = 0",
    "update orders set id = id + 1000 where id % 5 = 0",
    "update orders set note = null where id > 1100",
    "delete from orders where id % 7 = 0",
    "delete from bag where ctid in (select min(ctid) from bag group by a)",
    "update bag set b = '' where a = 1",
    "update measured set day = 3 - day where id < 20",
    "alter table orders rename note to remark",
    "alter table orders add column n int default 7",
    "insert into orders values (5000, 'after', null, 8)",
    "truncate nothing",
    "alter table measured add column silent text default 'seen by no change'",
]


@pytest.fixture
def pipeline(dsn: str, tmp_path: Path, spark: SparkSession) -> Pipeline:
    """A pipeline whose tables are copied and whose stream has not run."""
    psql(dsn, *TABLES)
    config = parse("pipeline: shop\ncapture: {catalog_check_seconds: 1}")
    made = Pipeline(config, dsn, Lake(str(tmp_path / "lake")), SETTINGS, tmp_path / "state")
    setup(made)
    return made


def by_name(reconciliation: Reconciliation) -> dict[str, TableDifference | None]:
    return {table.table: table.difference for table in reconciliation.tables}


@pytest.mark.long
def test_source_and_log_are_identical_while_both_go_on(pipeline: Pipeline, dsn: str) -> None:
    with runner.streaming(pipeline):
        psql(dsn, *WORK)
        reconciliation = reconcile(pipeline)
    assert [table.table for table in reconciliation.tables] == NAMES
    assert reconciliation.identical, reconciliation
    rows = psql(dsn, *(f"select count(*) from {name}" for name in ["orders"]))
    assert {table.table: table.source_rows for table in reconciliation.tables}[
        "public.orders"
    ] == rows[0][0]


@pytest.mark.long
def test_every_planted_difference_is_found_and_nothing_is_left_behind(
    pipeline: Pipeline, tmp_path: Path
) -> None:
    def key(value: int) -> dict[str, Any]:
        return {"key": [str(value)]}

    plant(
        pipeline.lake,
        "orders",
        {"op": "update", "after": {"id": "1", "note": "planted"}, **key(1)},
        {"op": "update", "after": {"id": "2", "note": None, "doc": ""}, **key(2)},
        {"op": "delete", "before": {"id": "3"}, **key(3)},
        {"op": "insert", "after": {"id": "900", "note": None, "doc": None}, **key(900)},
    )
    plant(pipeline.lake, "bag", {"op": "insert", "after": {"a": "1", "b": None}})
    with runner.streaming(pipeline):
        reconciliation = by_name(reconcile(pipeline, NAMES))
    assert reconciliation == {
        "public.orders": TableDifference(
            200,
            200,
            only_in_source_count=1,
            only_in_log_count=1,
            differing_count=2,
            only_in_source=(("3",),),
            only_in_log=(("900",),),
            differing=((("1",), ("note",)), (("2",), ("doc", "note"))),
        ),
        "public.bag": TableDifference(50, 51, only_in_log_count=1),
        "public.nothing": TableDifference(0, 0),
        "public.measured": TableDifference(100, 100),
    }
    assert not list((tmp_path / "lake").glob("reconcile-*"))


@pytest.mark.long
def test_table_that_waits_for_its_copy_is_reported_as_not_compared(
    pipeline: Pipeline, dsn: str
) -> None:
    [(oid,)] = psql(dsn, "select 'public.orders'::regclass::oid::bigint")
    request_copy(
        Ledger(pipeline.lake, jvm.gateway(SETTINGS)), 1, [oid], Lsn(1 << 60), "a test wants it"
    )
    patient = parse("pipeline: shop\ncapture: {catalog_check_seconds: 3600}")
    with runner.streaming(replace(pipeline, config=patient)):
        reconciliation = reconcile(pipeline, ["public.orders", "public.bag"], timeout_seconds=20)
    assert by_name(reconciliation) == {"public.orders": None, "public.bag": TableDifference(50, 50)}
    assert "a test wants it" in (reconciliation.tables[1].reason or "")
    assert not reconciliation.identical


def test_table_that_is_not_published_is_an_error(pipeline: Pipeline) -> None:
    with pytest.raises(NoSuchTable):
        reconcile(pipeline, ["public.missing"])


def test_log_that_does_not_get_there_is_an_error(pipeline: Pipeline) -> None:
    with pytest.raises(WatermarkBehind):
        reconcile(pipeline, timeout_seconds=0.5)


def test_pipeline_that_is_not_set_up_is_an_error(
    dsn: str, tmp_path: Path, spark: SparkSession
) -> None:
    config = parse("pipeline: shop")
    unmade = Pipeline(config, dsn, Lake(str(tmp_path / "none")), SETTINGS, tmp_path / "state")
    with pytest.raises(NotSetUp):
        reconcile(unmade)
