"""Trino reads what the page says, by the names of a Hive metastore, equal to the source."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Final

import pyarrow as pa
import pytest

from pgstream_dagster.config.metastore import MetastoreConfig
from pgstream_dagster.delta import jvm
from pgstream_dagster.delta.metastore import connected
from pgstream_dagster.pipeline import Pipeline
from pgstream_dagster.tables.columns import layout
from pgstream_dagster.tables.merge import merge_tables
from tests.readers.compare import as_source_prints, assert_folds_to_source, paid, versions_of
from tests.readers.conftest import Site
from tests.readers.page import cells
from tests.readers.read import PAID
from tests.support.harness import rows
from tests.support.harness.metastore import HiveMetastore
from tests.support.harness.trino import QueryFailed, Trino

INSTALLED: Final = os.environ.get("PGSTREAM_TEST_TRINO", "")
JAVA_HOME: Final = os.environ.get("PGSTREAM_TEST_TRINO_JAVA", "")

pytestmark = [
    pytest.mark.one_major("newest"),
    pytest.mark.slow,
    pytest.mark.long,
    pytest.mark.skipif(
        not (INSTALLED and JAVA_HOME),
        reason="PGSTREAM_TEST_TRINO names no unpacked Trino server, or PGSTREAM_TEST_TRINO_JAVA no"
        " home of a Java for it",
    ),
]

DATABASE: Final = "readers"

NAMES: Final = {
    "change log": "change_log",
    "typed table": "public_orders",
    "typed table of many types": "public_many_20types",
    "typed table with a variant": "public_documents",
    "`column_mapping: false`": "unmapped_orders",
    "both false": "plain_orders",
}
"""Row of the page -> the table's name in the metastore."""

CELLS: Final = {table: cell for (table, reader), cell in cells().items() if reader == "Trino"}

ORDERS: Final = [table for table, name in NAMES.items() if name.endswith("orders")]


@pytest.fixture(scope="module")
def trino(site: Site, metastore: HiveMetastore) -> Iterator[Trino]:
    """A Trino that knows only the metastore, in which a merge has registered typed tables."""
    merge_tables(registering(site.pipeline, metastore))
    others = {
        "change_log": site.pipeline.lake.change_log,
        "unmapped_orders": site.unmapped.lake.typed_table("public.orders"),
        "plain_orders": site.plain.lake.typed_table("public.orders"),
    }
    with connected(jvm.gateway(), metastore.uri, DATABASE) as opened:
        for name, table in others.items():
            opened.register(name, name, table)
    with Trino(Path(INSTALLED), Path(JAVA_HOME), metastore.uri) as server:
        yield server


def registering(pipeline: Pipeline, metastore: HiveMetastore) -> Pipeline:
    """The pipeline after `tables.metastore` was added to its file."""
    assert pipeline.config.tables is not None
    added = {"metastore": MetastoreConfig(uri=metastore.uri, database=DATABASE)}
    tables = pipeline.config.tables.model_copy(update=added)
    return replace(pipeline, config=pipeline.config.model_copy(update={"tables": tables}))


def test_page_has_a_cell_for_every_table() -> None:
    assert CELLS.keys() == NAMES.keys()


def test_a_change_log_folds_to_the_source(trino: Trino, site: Site) -> None:
    assert CELLS["change log"] == "yes"
    assert_folds_to_source(trino.query(f"select * from lake.{DATABASE}.change_log"), site)


@pytest.mark.parametrize("table", [*ORDERS, "typed table of many types"])
def test_the_rows_of_a_typed_table_are_those_of_the_source(
    table: str, trino: Trino, site: Site
) -> None:
    assert CELLS[table] == "yes"
    read = trino.query(f"select * from lake.{DATABASE}.{NAMES[table]}")
    pipeline = {"`column_mapping: false`": site.unmapped, "both false": site.plain}
    relation = "orders" if table in ORDERS else "Many Types"
    assert_is_source_in_milliseconds(read, relation, pipeline.get(table, site.pipeline))


@pytest.mark.parametrize("table", ORDERS)
def test_a_filter_and_an_aggregate_are_those_of_the_source(
    table: str, trino: Trino, site: Site
) -> None:
    read = trino.query(PAID.replace("from t", f"from lake.{DATABASE}.{NAMES[table]}"))
    [[count, total]] = [list(row.values()) for row in read.to_pylist()]
    assert f"{count} {total}" == paid(site.dsn)


def test_a_variant_is_refused(trino: Trino) -> None:
    assert CELLS["typed table with a variant"] == "no"
    with pytest.raises(QueryFailed):
        trino.query(f"select * from lake.{DATABASE}.public_documents")


def assert_is_source_in_milliseconds(read: pa.Table, relation: str, pipeline: Pipeline) -> None:
    """Each value is the source's, but for the microseconds of a `timestamptz`."""
    schema = versions_of(pipeline, relation)[-1]
    config = pipeline.config.tables
    assert config is not None
    columns = layout(schema, {}, is_mapped=config.column_mapping)
    by_lower = {name.lower(): name for name in columns.names}
    renamed = read.rename_columns([by_lower[name] for name in read.column_names])
    assert set(renamed.column_names) == set(columns.names)
    source = rows.of_table(pipeline.dsn, schema.relation_id)
    assert as_source_prints(pipeline.dsn, renamed, columns) == in_milliseconds(source, "at")


def in_milliseconds(source: rows.Rows, column: str) -> rows.Rows:
    """The rows with the column's times as Trino rounds them."""
    return Counter(
        {
            tuple(
                (name, _rounded(text) if name == column and text else text) for name, text in row
            ): count
            for row, count in source.items()
        }
    )


def _rounded(text: str) -> str:
    """A time as Postgres prints it, without microseconds; `infinity` as it is."""
    if not text[0].isdigit():
        return text
    at = datetime.fromisoformat(text) + timedelta(microseconds=500)
    at = at.replace(microsecond=at.microsecond // 1000 * 1000)
    shown = at.strftime("%Y-%m-%d %H:%M:%S.%f").rstrip("0").rstrip(".")
    return f"{shown}+00"
