"""A typed table that is written again is read and compared before it is swapped in."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeAlias

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from pgstream_dagster.delta.entries import entry_name
from pgstream_dagster.errors import MergeOvertaken, TypedRebuildDiffers
from pgstream_dagster.pipeline import Pipeline
from pgstream_dagster.tables import target
from pgstream_dagster.tables.building import FOLDER
from pgstream_dagster.tables.merge import merge_tables
from pgstream_dagster.tables.passes import Step
from pgstream_dagster.tables.read_typed import read_typed
from tests.support.harness import oracle
from tests.support.harness.case import execute
from tests.support.harness.merge_ends import kill_merge
from tests.support.harness.typed_tables import (
    all_rows,
    assert_equal,
    caught_up,
    merged_pipeline,
    with_features,
)

pytestmark = [pytest.mark.one_major("newest"), pytest.mark.slow]

TABLE = "public.t"

Act: TypeAlias = Callable[[Path], None]


@pytest.fixture
def pipeline(dsn: str, tmp_path: Path, spark: SparkSession) -> Pipeline:
    """With values of every kind that a hash may pass over."""
    execute(
        dsn,
        "create table t (id int primary key, a text, n numeric, f float8[], d date)",
        "insert into t select n, 'a' || n, 'NaN', '{NaN,-0,null}', '2026-01-01'"
        " from generate_series(1, 40) as n",
        "insert into t values (41, null, null, null, null)",
        "insert into t values (42, '', 1.5, '{}', 'infinity')",
    )
    return merged_pipeline(dsn, tmp_path)


@pytest.fixture
def folder(pipeline: Pipeline) -> Path:
    """Of the typed table."""
    return oracle.folder_of(pipeline.lake.typed_table(TABLE))


@contextmanager
def before_the_swap(patch: pytest.MonkeyPatch, folder: Path, act: Act) -> Iterator[None]:
    """What happens to the folder of the new rows once they are written."""

    def reach(name: str) -> None:
        if name == "tables.built":
            act(next((folder.parent / FOLDER / folder.name).iterdir()))

    with patch.context() as patched:
        patched.setattr(target, "reach", reach)
        yield


def one_value_is_another(building: Path) -> None:
    file = next(building.glob("**/part-*.parquet"))
    rows = pq.read_table(file)
    name = rows.schema.names[1]
    values = rows.column(name).to_pylist()
    values[0] = "b1"
    changed = rows.set_column(1, rows.schema.field(name), pa.array(values, pa.string()))
    pq.write_table(changed, file)


def a_row_is_missing(building: Path) -> None:
    file = next(building.glob("**/part-*.parquet"))
    pq.write_table(pq.read_table(file).slice(1), file)


@pytest.mark.long
@pytest.mark.parametrize(
    "damage",
    [one_value_is_another, pytest.param(a_row_is_missing, marks=pytest.mark.long)],
)
def test_rows_that_are_not_those_that_were_written_are_never_seen(
    pipeline: Pipeline,
    folder: Path,
    spark: SparkSession,
    monkeypatch: pytest.MonkeyPatch,
    damage: Act,
) -> None:
    rows, files = all_rows(read_typed(pipeline, TABLE).rows), sorted(folder.glob("**/*.parquet"))
    with (
        before_the_swap(monkeypatch, folder, damage),
        pytest.raises(TypedRebuildDiffers, match="stays as it was"),
    ):
        merge_tables(pipeline, rebuild=[TABLE])
    assert all_rows(read_typed(pipeline, TABLE).rows) == rows
    assert sorted(folder.glob("**/*.parquet")) == files
    assert not list((folder.parent / FOLDER).iterdir())
    execute(pipeline.dsn, "update t set a = 'c' where id = 1")
    [table] = caught_up(pipeline).tables
    assert table.step is Step.MERGED
    assert_equal(pipeline, spark, "t")


@pytest.mark.long
def test_a_table_that_loses_a_feature_is_removed_once_the_new_rows_are_compared(
    pipeline: Pipeline, folder: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = all_rows(read_typed(pipeline, TABLE).rows)
    narrower = with_features(pipeline, deletion_vectors=False)
    with (
        before_the_swap(monkeypatch, folder, one_value_is_another),
        pytest.raises(TypedRebuildDiffers, match="stays as it was"),
    ):
        merge_tables(narrower, rebuild=[TABLE])
    assert all_rows(read_typed(pipeline, TABLE).rows) == rows
    [table] = merge_tables(narrower, rebuild=[TABLE]).tables
    assert table.step is Step.REBUILT
    detail = spark.sql(f"describe detail delta.`{folder}`").first()
    assert detail is not None
    assert "deletionVectors" not in detail["tableFeatures"]
    execute(pipeline.dsn, "update t set a = 'c' where id = 1")
    [table] = caught_up(narrower).tables
    assert table.step is Step.MERGED
    assert_equal(narrower, spark, "t")


@pytest.mark.long
def test_a_commit_of_another_process_meanwhile_stays(
    pipeline: Pipeline, folder: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = folder / "_delta_log"

    def other_commit(_: Path) -> None:
        *_, last = (entry.version for entry in oracle.entries(folder))
        shutil.copy(log / entry_name(last), log / entry_name(last + 1))

    with before_the_swap(monkeypatch, folder, other_commit), pytest.raises(MergeOvertaken):
        merge_tables(pipeline, rebuild=[TABLE])
    merge_tables(pipeline, rebuild=[TABLE])
    assert_equal(pipeline, spark, "t")


@pytest.mark.long
def test_a_reader_of_the_former_version_goes_on(pipeline: Pipeline, spark: SparkSession) -> None:
    """After many versions, of which the log begins with a checkpoint."""
    for number in range(21):
        execute(pipeline.dsn, f"update t set a = '{number}' where id = {number + 1}")
        caught_up(pipeline)
    before = read_typed(pipeline, TABLE).rows
    rows = all_rows(before)
    for _ in range(2):
        [table] = merge_tables(pipeline, rebuild=[TABLE]).tables
        assert (table.step, table.rows) == (Step.REBUILT, 42)
        assert all_rows(before) == rows == all_rows(read_typed(pipeline, TABLE).rows)
    execute(pipeline.dsn, "delete from t where id < 3")
    caught_up(pipeline)
    assert_equal(pipeline, spark, "t")


@pytest.mark.long
@pytest.mark.crash
def test_what_a_killed_rebuild_left_is_removed_by_the_next_pass(
    pipeline: Pipeline, folder: Path, spark: SparkSession
) -> None:
    rows = all_rows(read_typed(pipeline, TABLE).rows)
    kill_merge(pipeline, "tables.built", TABLE)
    assert all_rows(read_typed(pipeline, TABLE).rows) == rows
    assert list((folder.parent / FOLDER).iterdir())
    merge_tables(pipeline)
    assert not (folder.parent / FOLDER).exists()
    merge_tables(pipeline, rebuild=[TABLE])
    assert_equal(pipeline, spark, "t")
