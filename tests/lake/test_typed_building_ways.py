"""A rebuild beside the table: of names that need quotes, while others work, and again and again."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from pgstream_dagster.changelog.lake import Lake
from pgstream_dagster.tables import target
from pgstream_dagster.tables.building import FOLDER
from pgstream_dagster.tables.merge import merge_tables
from pgstream_dagster.tables.read_typed import read_typed
from pgstream_dagster.tables.status import typed_status
from pgstream_dagster.tables.upkeep import table_names
from pgstream_dagster.upkeep.optimize import optimize
from pgstream_dagster.upkeep.setup import setup
from tests.support.harness import oracle
from tests.support.harness.case import execute
from tests.support.harness.typed_tables import all_rows, caught_up, merged_pipeline, typed_pipeline

pytestmark = [pytest.mark.one_major("newest"), pytest.mark.slow, pytest.mark.long]

ODD = 'create table "Ödd %41 ü" (id int primary key, "a b%20" text, doc jsonb, n numeric(8,2))'


def test_names_that_need_quotes(
    dsn: str, tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    del spark
    execute(
        dsn,
        ODD,
        """insert into "Ödd %41 ü" select n, 'x', '{"a": 1}', 1 from generate_series(1, 9) n""",
    )
    monkeypatch.chdir(tmp_path)
    made = typed_pipeline(dsn, tmp_path, column_mapping=True)
    pipeline = replace(made, lake=Lake("a lake %20 ü"))
    setup(pipeline)
    caught_up(pipeline)
    [name] = [table.name for table in typed_status(pipeline).tables]
    rows = all_rows(read_typed(pipeline, 'public."Ödd %41 ü"').rows)
    for _ in range(2):
        merge_tables(pipeline, rebuild=['public."Ödd %41 ü"'])
        assert all_rows(read_typed(pipeline, 'public."Ödd %41 ü"').rows) == rows
    execute(dsn, """update "Ödd %41 ü" set "a b%20" = 'y' where id = 1""")
    caught_up(pipeline)
    assert (tmp_path / "a lake %20 ü" / "tables" / name).is_dir()


def test_while_others_work(
    dsn: str, tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    del spark
    execute(
        dsn,
        "create table t (id int primary key, a text, b int)",
        "insert into t select n, 'x', n from generate_series(1, 99) n",
        "create table u (id int primary key)",
        "create table bag (a int, r int4range, h float8)",
        "alter table bag replica identity full",
        "insert into bag select 1, '[1,2)', 'NaN' from generate_series(1, 9)",
    )
    types = {"public.t": {"cluster": ["b"], "columns": {"a": {"text": True}}}}
    pipeline = merged_pipeline(dsn, tmp_path, types=types)
    optimize(pipeline)
    folder = oracle.folder_of(pipeline.lake.typed_table("public.t"))
    seen = list[Any]()
    with ThreadPoolExecutor(4) as pool:
        running = list[Any]()

        def reach(name: str) -> None:
            if name == "tables.built" and not running:
                seen.append(table_names(pipeline.lake.typed_folder))
                running.append(pool.submit(optimize, pipeline))
                running.append(pool.submit(merge_tables, pipeline, rebuild=["public.t"]))
                running.append(pool.submit(merge_tables, pipeline))

        monkeypatch.setattr(target, "reach", reach)
        merge_tables(pipeline, rebuild=["public.t", "public.bag", "public.u"])
        for work in running:
            work.result(300)
    monkeypatch.undo()
    assert seen == [["public.bag", "public.t", "public.u"]]
    assert not list((folder.parent / FOLDER).glob("*"))
    execute(dsn, "update t set a = 'z' where id = 1", "delete from bag")
    caught_up(pipeline)
    typed = read_typed(pipeline, "public.t").rows
    assert typed.count() == 99
    assert typed.where("a = 'z'").count() == 1
    assert read_typed(pipeline, "public.bag").rows.count() == 0


def test_a_table_whose_folder_is_gone_and_one_with_other_features(
    dsn: str, tmp_path: Path, spark: SparkSession
) -> None:
    del spark
    execute(
        dsn,
        "create table t (id int primary key, a text)",
        "insert into t select n, 'x' from generate_series(1, 9) n",
    )
    pipeline = merged_pipeline(dsn, tmp_path)
    folder = oracle.folder_of(pipeline.lake.typed_table("public.t"))
    rows = all_rows(read_typed(pipeline, "public.t").rows)
    folder.rename(tmp_path / "away")
    merge_tables(pipeline, rebuild=["public.t"])
    assert all_rows(read_typed(pipeline, "public.t").rows) == rows
    plain = typed_pipeline(dsn, tmp_path, deletion_vectors=False, column_mapping=False)
    merge_tables(plain, rebuild=["public.t"])
    assert all_rows(read_typed(plain, "public.t").rows) == rows
    merge_tables(pipeline, rebuild=["public.t"])
    execute(dsn, "update t set a = 'z' where id = 1")
    caught_up(pipeline)
    assert read_typed(pipeline, "public.t").rows.where("a = 'z'").count() == 1
