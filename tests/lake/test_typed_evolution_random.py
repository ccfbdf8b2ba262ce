"""A database whose tables and rows change at random: its log and its typed tables have its rows."""

from __future__ import annotations

import os
from collections import Counter
from contextlib import closing
from pathlib import Path
from typing import TypeAlias

import pytest
from pyspark.sql import DataFrame, SparkSession

from pgstream_dagster.pipeline import Pipeline
from pgstream_dagster.tables.merge import merge_tables
from pgstream_dagster.tables.read import read_table
from pgstream_dagster.tables.read_typed import read_typed
from pgstream_dagster.tables.types import RESCUED
from pgstream_dagster.upkeep.setup import setup
from tests.support.harness import rows
from tests.support.harness.random_schema import RandomSchema, catch_up_with_copies
from tests.support.harness.typed_tables import typed_pipeline

pytestmark = [pytest.mark.slow, pytest.mark.one_major("newest"), pytest.mark.timeout(1200)]

FIRST = int(os.environ.get("PGSTREAM_TEST_SEED", "1"))
SEEDS = range(FIRST, FIRST + int(os.environ.get("PGSTREAM_TEST_COUNT", "1")))
ROUNDS, MOVES = 4, 6

Rows: TypeAlias = Counter[tuple[tuple[str, str | None], ...]]


@pytest.mark.long
@pytest.mark.parametrize("seed", SEEDS)
def test_source_log_and_typed_tables_are_equal_after_random_changes(
    dsn: str, tmp_path: Path, spark: SparkSession, seed: int
) -> None:
    """Field 48 to 56: columns, keys and tables change, in transactions and savepoints with rows."""
    pipeline = typed_pipeline(dsn, tmp_path)
    with closing(RandomSchema(dsn, seed)) as source:
        source.create()
        setup(pipeline)
        for _ in range(ROUNDS):
            for _ in range(MOVES):
                source.move()
            catch_up_with_copies(pipeline, source)
            try:
                merge_tables(pipeline)
                assert_equal(pipeline, [".".join(table) for table in source.tables()])
            except BaseException as error:
                error.add_note("\n".join(source.script))
                raise


def assert_equal(pipeline: Pipeline, tables: list[str]) -> None:
    expected = dict(rows.of_source(pipeline.dsn, tables).values())
    for table in tables:
        assert of_log(pipeline, table) == expected[table], f"the fold of {table}"
        assert of_typed(pipeline, table) == expected[table], f"the typed table of {table}"


def of_log(pipeline: Pipeline, table: str) -> Rows:
    return _counted(read_table(pipeline, table).rows)


def of_typed(pipeline: Pipeline, table: str) -> Rows:
    """Texts that the types' values print: those of the source, for the types that are used here."""
    typed = read_typed(pipeline, table).rows
    assert typed.where(f"{RESCUED} is not null").isEmpty()
    names = [name for name in typed.columns if not name.startswith("_")]
    return _counted(typed.select(*(typed[name].cast("string").alias(name) for name in names)))


def _counted(frame: DataFrame) -> Rows:
    return Counter(tuple(sorted(row.asDict().items())) for row in frame.collect())
