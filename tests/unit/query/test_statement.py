"""What a query's text becomes before it runs."""

from __future__ import annotations

from pathlib import Path

import pytest

from pgstream_dagster.query.catalog import Readable
from pgstream_dagster.query.engine import engine, scan
from pgstream_dagster.query.query import prepare
from pgstream_dagster.query.statement import parsed


@pytest.mark.parametrize(
    ("text", "statement"),
    [
        ("select 'é;' as a;\n-- done;", "select 'é;' as a"),
        ("select 1 ; /* a; */ ; ", "select 1 "),
        ("select 1 -- one;", "select 1 -- one;"),
    ],
)
def test_a_statement_ends_before_its_semicolons(text: str, statement: str, tmp_path: Path) -> None:
    with engine(tmp_path) as connection:
        assert parsed(connection, text).text == statement


def test_a_schema_may_have_the_name_of_a_database_of_the_engine(tmp_path: Path) -> None:
    """Its table is then found as `memory.temp.orders`, as the engine says."""
    with engine(tmp_path) as connection:
        prepare(connection, [Readable("temp", "orders", "select 1 as id")])
        assert connection.execute("from memory.temp.orders").fetchall() == [(1,)]


def test_a_folder_is_named_by_its_uri() -> None:
    """The reader takes `a%20b` for `a b`, the folder of another lake."""
    assert scan(Path("/lakes/a%20b/x")) == "delta_scan('file:///lakes/a%2520b/x')"
