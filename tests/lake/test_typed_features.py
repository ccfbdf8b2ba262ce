"""The features of typed tables' Delta tables: chosen in the file, changed later, left by a kill."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from pgstream_dagster.errors import TableFeaturesKept
from pgstream_dagster.pipeline import Pipeline
from pgstream_dagster.tables.features import Features
from pgstream_dagster.tables.merge import merge_tables
from pgstream_dagster.tables.passes import Step
from pgstream_dagster.tables.target import Target
from tests.support.harness import oracle
from tests.support.harness.case import execute
from tests.support.harness.merge_ends import EndsAt, ends_at
from tests.support.harness.typed_tables import (
    assert_equal,
    caught_up,
    merged_pipeline,
    with_features,
)

pytestmark = pytest.mark.one_major("newest")

__all__ = ["ends_at"]  # a fixture


def reader_features(pipeline: Pipeline, name: str) -> set[str]:
    """What a reader of the table must know."""
    log = oracle.folder_of(pipeline.lake.typed_table(name)) / "_delta_log"
    lines = [line for file in sorted(log.glob("*.json")) for line in file.read_text().splitlines()]
    [*_, protocol] = [json.loads(line)["protocol"] for line in lines if '"protocol"' in line]
    return set(protocol.get("readerFeatures", [])) | (
        {"columnMapping"} if protocol["minReaderVersion"] == 2 else set()
    )


@pytest.mark.long
def test_features_follow_the_file_and_rows_stay_those_of_the_source(
    dsn: str, tmp_path: Path, spark: SparkSession, caplog: pytest.LogCaptureFixture
) -> None:
    execute(
        dsn,
        'create table t (id int primary key, a text, b text, "two words" int)',
        "insert into t select n, 'a' || n, 'b' || n, n from generate_series(1, 20) as n",
    )
    mapped = merged_pipeline(dsn, tmp_path)
    assert reader_features(mapped, "public.t") == {"columnMapping", "deletionVectors"}
    plain = with_features(mapped, column_mapping=False, deletion_vectors=False)
    [done] = merge_tables(plain).tables  # though no change came
    assert done.step is Step.REBUILT
    assert "made again without columnMapping and deletionVectors" in caplog.text
    assert reader_features(plain, "public.t") == set()
    frame = spark.read.format("delta").load(plain.lake.typed_table("public.t"))
    assert frame.columns[:4] == ["id", "a", "b", "two_words"]
    assert merge_tables(plain).tables == []

    execute(dsn, 'alter table t rename "two words" to two_words', "update t set a = 'x'")
    steps = [table.step for table in caught_up(plain).tables]
    execute(dsn, "update t set b = 'y' where id < 4", "delete from t where id = 5")
    steps += [table.step for table in caught_up(plain).tables]
    execute(dsn, "alter table t rename a to c", "alter table t drop b", "delete from t where id=6")
    steps += [table.step for table in caught_up(plain).tables]
    assert steps == [Step.MERGED, Step.MERGED, Step.REBUILT]
    assert reader_features(plain, "public.t") == set()
    assert_equal(plain, spark, "t")

    [done] = merge_tables(mapped).tables
    assert done.step is Step.REBUILT
    assert reader_features(mapped, "public.t") == {"columnMapping", "deletionVectors"}
    assert_equal(mapped, spark, "t")


@pytest.mark.long
def test_table_that_was_being_removed_is_made_again(
    dsn: str, tmp_path: Path, spark: SparkSession, ends_at: EndsAt
) -> None:
    execute(dsn, "create table t (id int primary key)", "insert into t values (1), (2)")
    pipeline = merged_pipeline(dsn, tmp_path)
    plain = with_features(pipeline, deletion_vectors=False)
    folder = oracle.folder_of(pipeline.lake.typed_table("public.t"))
    with ends_at("tables.removing"):
        merge_tables(plain)
    assert (folder / "_removing").exists()
    for entry in sorted((folder / "_delta_log").glob("0*"))[:1]:
        entry.unlink()  # what is left is no table that could be read
    [done] = merge_tables(plain).tables
    assert done.step is Step.REBUILT
    assert not (folder / "_removing").exists()
    assert reader_features(plain, "public.t") == {"columnMapping"}
    assert_equal(plain, spark, "t")


def test_features_of_a_table_on_an_object_store_are_not_taken_back(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    on_s3 = Target("s3://bucket/lake/tables/public.t", spark, None)
    monkeypatch.setattr(on_s3, "_features", Features)
    with pytest.raises(TableFeaturesKept) as raised:
        on_s3._remove_if_wider(Features(column_mapping=False))
    assert raised.value.features == ["columnMapping"]
