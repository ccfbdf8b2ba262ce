"""Every reader of the page reads what the page says, in its own process, equal to the source."""

from __future__ import annotations

from typing import Final

import pyarrow as pa
import pytest

from tests.readers.compare import assert_folds_to_source, assert_is_source, paid
from tests.readers.conftest import Readers, Site
from tests.readers.page import cells

pytestmark = [pytest.mark.one_major("newest"), pytest.mark.slow]

COLUMNS: Final = {
    "Spark": "spark",
    "DuckDB": "duckdb",
    "delta-rs": "deltalake",
    "delta-rs, data set": "deltalake_dataset",
    "Polars": "polars",
    "Polars, plugin": "polars_deltalake",
}
"""The columns of the page that a test here reads with; Trino has a test of its own."""

CELLS: Final = {key: cell for key, cell in cells().items() if key[1] in COLUMNS}

RELATIONS: Final = {
    "typed table of many types": "Many Types",
    "typed table with a variant": "documents",
}


@pytest.mark.long
def test_page_has_a_cell_for_every_table_and_reader(site: Site) -> None:
    assert CELLS.keys() == {(table, name) for table in site.folders() for name in COLUMNS}


@pytest.mark.long
@pytest.mark.parametrize(("table", "name"), [key for key, cell in CELLS.items() if cell == "yes"])
def test_what_is_read_is_the_source(table: str, name: str, site: Site, readers: Readers) -> None:
    read = readers.read(COLUMNS[name], table)
    assert read.error is None
    with pa.memory_map(str(read.file)) as file:
        rows_read = pa.ipc.open_file(file).read_all()
    if table == "change log":
        assert_folds_to_source(rows_read, site)
        return
    pipeline = {"`column_mapping: false`": site.unmapped, "both false": site.plain}
    relation = RELATIONS.get(table, "orders")
    assert_is_source(rows_read, relation, pipeline.get(table, site.pipeline))
    if relation == "orders":
        assert read.paid == paid(site.dsn)


@pytest.mark.long
@pytest.mark.parametrize(("table", "name"), [key for key, cell in CELLS.items() if cell == "no"])
def test_what_is_not_read_is_refused(table: str, name: str, readers: Readers) -> None:
    assert readers.read(COLUMNS[name], table).error


@pytest.mark.long
@pytest.mark.parametrize(("table", "name"), [key for key, cell in CELLS.items() if cell == "parts"])
def test_a_variant_is_read_as_its_parts(table: str, name: str, readers: Readers) -> None:
    read = readers.read(COLUMNS[name], table)
    with pa.memory_map(str(read.file)) as file:
        schema = pa.ipc.open_file(file).schema
    assert {field.name for field in schema.field("doc").type} == {"metadata", "value"}
