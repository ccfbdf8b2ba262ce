"""Tables and rows change at random: all that is made from the log has what the source has."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Generator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, TypeAlias

import pytest
from pyspark.sql import DataFrame, SparkSession

from pgstream_dagster.changelog.sink_log import SinkLog
from pgstream_dagster.config import IndexConfig
from pgstream_dagster.config.tables import OnTypeChange
from pgstream_dagster.pipeline import Pipeline
from pgstream_dagster.search.reindex import reindex
from pgstream_dagster.tables.history.as_of import read_as_of
from pgstream_dagster.tables.history.merge import progress_of
from pgstream_dagster.tables.merge import merge_tables
from pgstream_dagster.tables.read import read_table
from pgstream_dagster.tables.read_typed import read_typed
from pgstream_dagster.tables.types import RESCUED
from pgstream_dagster.upkeep.setup import setup
from tests.support.harness import rows, search_pipelines
from tests.support.harness.random_schema import RandomSchema, catch_up_with_copies
from tests.support.harness.typed_tables import all_rows, typed_pipeline
from tests.support.plugins.cluster import psql

pytestmark = [pytest.mark.slow, pytest.mark.one_major("newest"), pytest.mark.timeout(1200)]

FIRST = int(os.environ.get("PGSTREAM_TEST_SEED", "1"))
SEEDS = range(FIRST, FIRST + int(os.environ.get("PGSTREAM_TEST_COUNT", "1")))
ROUNDS, MOVES = 4, 6

KEYED = """
    select i.indrelid::int8, format('%s.%s', n.nspname, c.relname) from pg_index i
    join pg_class c on c.oid = i.indrelid join pg_namespace n on n.oid = c.relnamespace
    where i.indisprimary and n.nspname in ('public', 'other') order by 1
"""

KEPT = re.compile(r"__v\d")

ALONE = {"number_of_replicas": 0}

Rows: TypeAlias = Counter[tuple[tuple[str, str | None], ...]]


@pytest.mark.long
@pytest.mark.parametrize("seed", SEEDS)
def test_all_that_is_made_from_the_log_is_the_source_after_random_changes(
    dsn: str, tmp_path: Path, spark: SparkSession, search_node: Any, index_prefix: str, seed: int
) -> None:
    """Field 48 to 56: columns, keys and tables change, in transactions and savepoints with rows."""
    pipeline = typed_pipeline(dsn, tmp_path, history=("*.*",), on_type_change=OnTypeChange.KEEP)
    with closing(RandomSchema(dsn, seed)) as source:
        source.create()
        setup(pipeline)
        for _ in range(ROUNDS):
            for _ in range(MOVES):
                source.move()
            catch_up_with_copies(pipeline, source)
            tables = names(source)
            with scripted(source):
                merge_tables(pipeline)
                assert_equal(pipeline, tables)
                assert_indexed(pipeline, search_node.url, index_prefix)
        with scripted(source):
            grown = typed_tables(pipeline, source), histories(pipeline, spark)
            merge_tables(pipeline, rebuild=names(source))
            assert grown == (typed_tables(pipeline, source), histories(pipeline, spark))


def names(source: RandomSchema) -> list[str]:
    return [".".join(table) for table in source.tables()]


@contextmanager
def scripted(source: RandomSchema) -> Generator[None]:
    """An error shows what the source was told."""
    try:
        yield
    except BaseException as error:
        error.add_note("\n".join(source.script))
        raise


def assert_equal(pipeline: Pipeline, tables: list[str]) -> None:
    expected = dict(rows.of_source(pipeline.dsn, tables).values())
    with pipeline.open() as opened:
        now = opened.require_watermark()
    for table in tables:
        assert of_log(pipeline, table) == expected[table], f"the fold of {table}"
        for read in (read_typed(pipeline, table), read_as_of(pipeline, table, now)):
            assert texts(read.rows) == expected[table], f"{table}, by {read.uri}"


def assert_indexed(pipeline: Pipeline, url: str, prefix: str) -> None:
    """A new index of each table with a primary key has the rows of the fold."""
    tables = [(f"{prefix}{oid}", table) for oid, table in psql(pipeline.dsn, KEYED)]
    options = {alias: IndexConfig(table=table, settings=ALONE) for alias, table in tables}
    indexed = search_pipelines.with_search(pipeline, url, **options)
    for alias, table in tables:
        reindex(indexed, alias, keep=0)
        difference = search_pipelines.against_log(indexed, alias)
        assert difference.identical, (table, difference)


def of_log(pipeline: Pipeline, table: str) -> Rows:
    return _counted(read_table(pipeline, table).rows)


def texts(typed: DataFrame) -> Rows:
    """What the types' values print: as the source, for the types that are used here."""
    assert typed.where(f"{RESCUED} is not null").isEmpty()
    names = [name for name in typed.columns if not (name.startswith("_") or KEPT.search(name))]
    return _counted(typed.select(*(typed[name].cast("string").alias(name) for name in names)))


def typed_tables(pipeline: Pipeline, source: RandomSchema) -> dict[str, Counter[str]]:
    """The rows of each typed table, with what its columns were before their types changed."""
    return {table: all_rows(read_typed(pipeline, table).rows) for table in names(source)}


def histories(pipeline: Pipeline, spark: SparkSession) -> dict[str, Counter[str]]:
    """The rows of each history that a table has now."""
    with (
        pipeline.open() as opened,
        closing(SinkLog(pipeline.lake, opened.gateway, uri=pipeline.lake.typed_tables)) as log,
    ):
        names = progress_of(log, pipeline.name).read(opened.epoch).tables
    tables = {name: pipeline.lake.typed_table(name) for name in names}
    return {name: all_rows(spark.read.format("delta").load(uri)) for name, uri in tables.items()}


def _counted(frame: DataFrame) -> Rows:
    return Counter(tuple(sorted(row.asDict().items())) for row in frame.collect())
