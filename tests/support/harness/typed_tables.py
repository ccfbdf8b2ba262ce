"""Pipelines with typed tables, and the rows of these as Postgres would print them."""

from __future__ import annotations

import argparse
import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg import sql
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql import types as T

from pgstream_dagster.config import PipelineConfig
from pgstream_dagster.config.tables import TablesConfig
from pgstream_dagster.pipeline import Pipeline
from pgstream_dagster.tables import merge
from pgstream_dagster.tables.columns import OWN
from pgstream_dagster.tables.merge import merge_tables
from pgstream_dagster.tables.passes import Merged, merging
from pgstream_dagster.tables.read_typed import read_typed
from pgstream_dagster.tables.types import RESCUED
from pgstream_dagster.upkeep.setup import setup
from tests.support.harness import runner
from tests.support.harness.rows import PINNED


@pytest.fixture(
    params=[
        pytest.param(merge.DIRECT_BYTES, id="directly"),
        pytest.param(-1, id="by Spark", marks=pytest.mark.long),
    ]
)
def each_way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Merges take one way; the test runs for each."""
    monkeypatch.setattr(merge, "DIRECT_BYTES", request.param)


def typed_pipeline(dsn: str, folder: Path, **tables: Any) -> Pipeline:
    """A pipeline of everything in the database, with typed tables."""
    pipeline = runner.new_pipeline(dsn, folder)
    config = PipelineConfig(
        pipeline=pipeline.name, capture=pipeline.config.capture, tables=TablesConfig(**tables)
    )
    pipeline.state.mkdir(parents=True, exist_ok=True)
    return replace(pipeline, config=config)


def merged_pipeline(dsn: str, folder: Path, **tables: Any) -> Pipeline:
    """As `typed_pipeline`, set up, with all that is committed in its typed tables."""
    pipeline = typed_pipeline(dsn, folder, **tables)
    setup(pipeline)
    caught_up(pipeline)
    return pipeline


def with_features(pipeline: Pipeline, **features: bool) -> Pipeline:
    """The pipeline after a change of its file."""
    config = pipeline.config.model_copy(update={"tables": TablesConfig(**features)})
    return replace(pipeline, config=config)


def caught_up(pipeline: Pipeline) -> Merged:
    """Land and merge everything that is committed."""
    runner.catch_up(pipeline)
    return merge_tables(pipeline)


def assert_equal(pipeline: Pipeline, spark: SparkSession, *tables: str) -> None:
    """Compare typed tables with the source, row by row, in quiet; under their own names."""
    for table in tables:
        expected = source_rows(pipeline.dsn, table)
        actual = typed_rows(pipeline, spark, f"public.{table}")
        assert actual == expected, (
            f"{table}: missing {list((expected - actual).items())[:3]},"
            f" too many {list((actual - expected).items())[:3]}"
        )


def source_rows(dsn: str, table: str) -> Counter[str]:
    """The rows as JSON of Postgres."""
    with psycopg.connect(dsn, autocommit=True) as connection:
        for statement in PINNED[:1]:
            connection.execute(statement)
        query = sql.SQL("select to_jsonb(t)::text from public.{} as t").format(
            sql.Identifier(table)
        )
        return Counter(_canonical(text) for (text,) in connection.execute(query))


@cache
def for_few_rows(spark: SparkSession) -> SparkSession:
    """A session that does not change its plans underway, which reads few rows in half the time."""
    return merging(spark, 0)


def typed_rows(pipeline: Pipeline, spark: SparkSession, name: str) -> Counter[str]:
    """
    The rows of a typed table, each read by Postgres as a row of the source.

    So values are compared by the source's own text of them.
    """
    frame = for_few_rows(spark).read.format("delta").load(pipeline.lake.typed_table(name))
    return frame_rows(pipeline.dsn, frame, name.removeprefix("public."))


def values_of(pipeline: Pipeline, table: str, key: str, *names: str) -> dict[Any, Any]:
    """By a column that tells rows apart: the value of another one, or a tuple of several."""
    typed = read_typed(pipeline, table).rows.select(f"`{key}`", *(f"`{name}`" for name in names))
    return {row[0]: row[1] if len(names) == 1 else tuple(row[1:]) for row in typed.collect()}


def all_rows(frame: DataFrame) -> Counter[str]:
    """Every value of every row."""
    return Counter(str(sorted(row.asDict().items(), key=str)) for row in frame.collect())


def frame_rows(dsn: str, frame: DataFrame, table: str) -> Counter[str]:
    """As `typed_rows`, of a frame with the columns of a typed table."""
    columns = [column for column in frame.columns if column not in OWN]
    rows = frame.select(*(_readable(frame, column) for column in columns), RESCUED).collect()
    values = [[(row[RESCUED] or {}).get(c, row[c]) for c in columns] for row in rows]
    return _as_in_source(dsn, table, columns, values)


def _readable(frame: DataFrame, column: str) -> Column:
    """What psycopg gives to Postgres as it is: an array, bytes, or text."""
    is_kept = isinstance(frame.schema[column].dataType, T.ArrayType | T.BinaryType)
    value = F.col(f"`{column}`")
    return value if is_kept else value.cast("string").alias(column)


def _as_in_source(
    dsn: str, table: str, columns: Sequence[str], values: Sequence[Sequence[Any]]
) -> Counter[str]:
    with psycopg.connect(dsn) as connection, connection.cursor() as cursor:
        cursor.execute(PINNED[0])
        like = sql.SQL("create temp table r (like public.{})").format(sql.Identifier(table))
        cursor.execute(like)
        insert = sql.SQL("insert into r ({}) values ({})").format(
            sql.SQL(", ").join(map(sql.Identifier, columns)),
            sql.SQL(", ").join([sql.Placeholder()] * len(columns)),
        )
        cursor.executemany(insert, values)
        cursor.execute("select to_jsonb(r)::text from r")
        return Counter(_canonical(text) for (text,) in cursor)


def _canonical(text: str) -> str:
    return json.dumps(json.loads(text), sort_keys=True)


def main() -> None:
    """One merge, in a process that a test kills."""
    parser = argparse.ArgumentParser()
    parser.add_argument("dsn")
    parser.add_argument("folder", type=Path)
    parser.add_argument("tables", type=TablesConfig.model_validate_json)
    parser.add_argument("rebuild", nargs="*")
    given = parser.parse_args()
    pipeline = typed_pipeline(given.dsn, given.folder, **dict(given.tables))
    merge_tables(pipeline, rebuild=given.rebuild)


if __name__ == "__main__":
    main()
