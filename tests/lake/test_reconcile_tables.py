"""Source, log and typed tables at one position: equal while all continue; every damage is named."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from pgstream_dagster.assets.tables import outcome
from pgstream_dagster.config.tables import OnSchemaChange
from pgstream_dagster.errors import NoTypedTable, NoTypedTables
from pgstream_dagster.pipeline import Pipeline
from pgstream_dagster.tables.merge import merge_tables
from pgstream_dagster.tables.run import PAUSE_SECONDS
from pgstream_dagster.tables.status import typed_status
from pgstream_dagster.upkeep import reconcile_tables as module
from pgstream_dagster.upkeep.differences import TableDifference
from pgstream_dagster.upkeep.reconcile_tables import TypedReconciliation, reconcile_tables
from tests.support.harness import runner
from tests.support.harness.case import execute
from tests.support.harness.typed_tables import caught_up, merged_pipeline

pytestmark = pytest.mark.one_major("newest")

KINDS: dict[str, list[str | None]] = {
    "numeric": ["NaN", "1.50", None, "1e40"],
    "numeric(8,2)": ["NaN", "1.50", "-0.01", "0"],
    "float8": ["NaN", "-0", "1e300", "0"],
    "date": ["infinity", "0044-03-15 BC", "2026-02-28", None],
    "timestamp": ["2026-02-28 01:02:03.000004", "infinity", None, "2026-10-25 02:30:00"],
    "timestamptz": ["2026-10-25 00:30:00+00", "2026-10-25 01:30:00+00", "infinity", None],
    "bytea": ["\\x00ff", "", None, "\\xff"],
    "timestamp[]": ["{2026-01-01 00:00:00.000001,NULL}", "{}", None, "{{2026-01-01}}"],
    "tstzrange": ["[2026-01-01,2026-01-02)", "empty", "(,infinity]", None],
    "jsonb": ['{"a": 1.10}', "null", None, "[1e400]"],
    "text": ["", 'é"\\', None, "NULL"],
}
"""By type: what four rows have."""


def kinds() -> list[str]:
    columns = ", ".join(f"c{n} {type_}" for n, type_ in enumerate(KINDS))
    rows = [
        ", ".join("null" if v is None else f"'{v}'" for v in (texts[n] for texts in KINDS.values()))
        for n in range(4)
    ]
    return [
        f"create table kinds (id int primary key, {columns})",
        *(f"insert into kinds values ({n + 1}, {row})" for n, row in enumerate(rows)),
    ]


@pytest.fixture(scope="module")
def pipeline(
    module_dsn: str, tmp_path_factory: pytest.TempPathFactory, spark: SparkSession
) -> Pipeline:
    """Tables that have been merged once, and changed since; each test leaves them undamaged."""
    dsn = module_dsn
    execute(
        dsn,
        "create table orders (id int primary key, note text, price numeric(8,2))",
        "insert into orders select n, 'note ' || n, n from generate_series(1, 40) as n",
        "create table places (region text, at date, name text, primary key (region, at))",
        "insert into places values ('north', '2026-01-01', 'a'), ('north', 'infinity', 'b')",
        "create table bag (v text, gone int)",
        "alter table bag replica identity full",
        "insert into bag values ('x', 1), ('x', 2), (null, 1)",
        *kinds(),
    )
    made = merged_pipeline(dsn, tmp_path_factory.mktemp("typed"))
    execute(dsn, "insert into bag values ('x', 3)", "delete from bag where gone = 2")
    caught_up(made)
    execute(
        dsn,
        "alter table bag drop gone",
        "update orders set note = 'changed' where id < 5",
        "update orders set id = id + 100 where id = 7",
        "update kinds set id = id + 10, c2 = -c2",
        "update places set name = 'c' where at = 'infinity'",
        "delete from orders where id = 9",
        "insert into bag values ('x'), ('y')",
    )
    runner.catch_up(made)
    return made


def compared(pipeline: Pipeline, *tables: str) -> dict[str, TypedReconciliation]:
    with runner.streaming(pipeline):
        done = reconcile_tables(pipeline, tables or None)
    assert done.identical == all(table.identical for table in done.tables)
    return {table.table: table for table in done.tables}


@contextmanager
def merging(pipeline: Pipeline) -> Generator[None]:
    """Merges one after the other, as `run_tables` makes them when each takes too long."""
    stop, failures = threading.Event(), list[BaseException]()

    def merge() -> None:
        try:
            while not stop.wait(PAUSE_SECONDS):
                merge_tables(pipeline)
        except BaseException as error:  # noqa: BLE001 - raised again below
            failures.append(error)

    thread = threading.Thread(target=merge)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()
    assert not failures, failures


@pytest.mark.slow
def test_a_held_table_is_not_compared_and_does_not_keep_up(
    dsn: str, tmp_path: Path, spark: SparkSession
) -> None:
    """Its columns have the names of the source, and rows that a rebuild may not bring."""
    del spark
    execute(dsn, "create table t (id int primary key, n int)", "insert into t values (1, 1)")
    held = merged_pipeline(dsn, tmp_path, on_schema_change=OnSchemaChange.HOLD)
    execute(dsn, "alter table t alter n type bigint", "insert into t values (2, 2)")
    caught_up(held)
    table = compared(held)["public.t"]
    assert (table.typed, table.identical) == (None, False)
    assert table.reason is not None
    assert "pgstream tables approve" in table.reason
    status = typed_status(held)
    assert not outcome(status.tables[0], status)["passed"]


@pytest.mark.long
def test_source_log_and_typed_tables_are_identical_while_all_continue(pipeline: Pipeline) -> None:
    ended = threading.Event()

    def write() -> None:
        for n in itertools.count(1):
            execute(
                pipeline.dsn,
                f"begin; insert into orders values ({1000 + n}, 'new', {n});"
                f" update orders set price = price + 1 where id % 10 = {n % 10};"
                f" delete from orders where id = {1000 + n - 5};"
                f" insert into bag values ('{n}'); commit",
            )
            if ended.wait(1):
                return

    writer = threading.Thread(target=write)
    writer.start()
    try:
        with runner.streaming(pipeline), merging(pipeline):
            done = reconcile_tables(pipeline)
    finally:
        ended.set()
        writer.join()
    assert [t.table for t in done.tables] == [
        *("public.bag", "public.kinds", "public.orders", "public.places"),
    ]
    assert done.identical, done


@pytest.mark.long
def test_every_damage_of_a_typed_table_is_named_and_a_rebuild_repairs_it(
    pipeline: Pipeline, spark: SparkSession
) -> None:
    execute(pipeline.dsn, "delete from orders where id >= 1000", "delete from bag where v <> 'x'")
    caught_up(pipeline)

    def damage(name: str, statement: str) -> None:
        spark.sql(statement.format(f"delta.`{pipeline.lake.typed_table(name)}`"))

    damage("public.orders", "DELETE FROM {0} WHERE id = 3")
    damage("public.orders", "UPDATE {0} SET price = 0.01 WHERE id = 4")
    damage("public.orders", "UPDATE {0} SET note = NULL WHERE id = 5")
    damage("public.orders", "UPDATE {0} SET _commit_lsn = 1 WHERE id = 6")
    damage("public.orders", "INSERT INTO {0} SELECT * FROM {0} WHERE id = 8")
    damage("public.orders", "INSERT INTO {0} (id, note) VALUES (777, 'too many')")
    damage("public.places", "UPDATE {0} SET _rescued = map('at', '-infinity') WHERE name = 'c'")
    damage("public.bag", "DELETE FROM {0} WHERE v IS NULL")
    damage("public.kinds", "UPDATE {0} SET c2 = double('-0.0') WHERE id = 12")
    damage("public.kinds", "UPDATE {0} SET _rescued = NULL WHERE id = 11")
    tables = compared(pipeline)
    assert {name: table.reason for name, table in tables.items() if table.reason} == {}
    assert all(table.source and table.source.identical for table in tables.values())
    differences = {name: table.typed for name, table in tables.items()}
    assert differences["public.orders"] == TableDifference(
        40,
        39,
        only_in_source_count=2,
        only_in_log_count=1,
        differing_count=3,
        only_in_source=(("777",), ("8",)),
        only_in_log=(("3",),),
        differing=((("4",), ("price",)), (("5",), ("note",)), (("6",), ("_commit_lsn",))),
    )
    assert differences["public.places"] == TableDifference(
        2,
        2,
        only_in_source_count=1,
        only_in_log_count=1,
        only_in_source=(("north", "-infinity"),),
        only_in_log=(("north", "infinity"),),
    )
    assert differences["public.bag"] == TableDifference(3, 4, only_in_log_count=1)
    assert differences["public.kinds"] == TableDifference(
        4,
        4,
        differing_count=2,
        differing=((("11",), ("_rescued",)), (("12",), ("c2",))),
    )
    merge_tables(pipeline, rebuild=list(tables))
    assert all(table.identical for table in compared(pipeline).values())


@pytest.mark.long
def test_tables_without_a_typed_table_are_refused_by_name(pipeline: Pipeline) -> None:
    with pytest.raises(NoTypedTable, match=r"'nothing'.*there are: public\.bag, public\.kinds"):
        reconcile_tables(pipeline, ["nothing"])
    without = runner.new_pipeline(pipeline.dsn, pipeline.state.parent)
    with pytest.raises(NoTypedTables):
        reconcile_tables(without)


@pytest.mark.long
def test_merges_that_are_always_faster_are_reported(
    pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module.Work, "pinned", lambda *_: None)
    [table] = compared(pipeline, "orders").values()
    assert not table.identical
    assert table.reason == "merges went past every snapshot; let them pause meanwhile"


@pytest.mark.long
def test_merges_continue_where_a_reconciliation_has_merged_to(pipeline: Pipeline) -> None:
    execute(pipeline.dsn, "insert into orders values (500, 'x', 1)")
    assert compared(pipeline, "orders")["public.orders"].identical
    execute(pipeline.dsn, "update orders set note = 'y' where id = 500")
    done = caught_up(pipeline)
    assert [(t.table, t.changes) for t in done.tables] == [("public.orders", 1)]
