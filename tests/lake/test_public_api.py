"""What `from pgstream_dagster import ...` gives, on a real pipeline."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

import pgstream_dagster
from pgstream_dagster import (
    Pipeline,
    read_changes,
    read_table,
    schema_history,
    setup,
    snapshot,
    status,
    stream,
)
from pgstream_dagster.capture.stream import current_lsn
from pgstream_dagster.errors import NotInLog, NotSetUp
from tests.support.plugins.cluster import psql
from tests.support.plugins.wait import until

pytestmark = [pytest.mark.slow, pytest.mark.one_major("newest")]


@pytest.fixture
def pipeline(dsn, tmp_path, spark) -> Pipeline:
    psql(
        dsn,
        "create table orders (id bigint primary key, note text)",
        "insert into orders values (1, 'one'), (2, 'two'), (3, null)",
    )
    file = tmp_path / "pgstream.yaml"
    file.write_text("pipeline: shop\nsource: {slot: public_api, tables: [orders]}\n")
    return Pipeline.from_file(file, environment(dsn, tmp_path))


def environment(dsn: str, folder: Path) -> dict[str, str]:
    return {
        "PGSTREAM_DSN": dsn,
        "PGSTREAM_LAKE": str(folder / "lake"),
        "PGSTREAM_STATE": str(folder / "state"),
    }


def rows(pipeline: Pipeline) -> list[tuple[str | None, ...]]:
    return sorted(tuple(row) for row in read_table(pipeline, "orders").rows.collect())


def test_a_table_is_read_as_it_is_at_the_watermark(pipeline, dsn):
    with pytest.raises(NotSetUp):
        read_table(pipeline, "orders")
    setup(pipeline)
    assert rows(pipeline) == [("1", "one"), ("2", "two"), ("3", None)]
    psql(
        dsn,
        "update orders set note = 'TWO' where id = 2",
        "delete from orders where id = 3",
        "alter table orders add column price numeric default 1.50",
        "insert into orders values (4, 'four', 2)",
    )
    landed = stream(pipeline, stop=threading.Event(), until=current_lsn(pipeline))
    table = read_table(pipeline, "public.orders")
    assert table.watermark >= landed.watermark
    assert table.rows.columns == ["id", "note", "price"]
    assert rows(pipeline) == [
        ("1", "one", "1.50"),
        ("2", "TWO", "1.50"),
        ("4", "four", "2"),
    ]
    changes = read_changes(pipeline, "orders").orderBy("epoch", "commit_lsn", "ordinal")
    ops = [row["op"] for row in changes.select("op").collect()]
    assert ops == ["copy", "read", "read", "read", "update", "delete", "ddl", "insert"]
    assert [copied.table for copied in snapshot(pipeline, ["orders"])] == ["public.orders"]
    assert [table.table for table in status(pipeline).tables] == ["public.orders"]
    copied, altered = schema_history(pipeline, "orders")
    assert copied.since < altered.since
    assert [str(difference) for difference in altered.differences] == [
        "column \"price\" added: numeric default 1.50; older rows show '1.50'"
    ]
    with pytest.raises(NotInLog, match="no complete copy of a table 'customers'"):
        read_table(pipeline, "customers")


PAGE = Path(__file__).parents[2] / "docs" / "guides" / "python.md"


def test_examples_of_the_page_run_one_after_the_other(pipeline, dsn, tmp_path, monkeypatch, capfd):
    setup(pipeline)
    psql(dsn, "delete from orders where id = 3")
    stream(pipeline, stop=threading.Event(), until=current_lsn(pipeline))
    monkeypatch.chdir(tmp_path)
    for name, value in environment(dsn, tmp_path).items():
        monkeypatch.setenv(name, value)
    *examples, end = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    names: dict[str, Any] = {}
    for example in examples:
        exec(compile(example, str(PAGE), "exec"), names)
    try:
        assert sorted(map(tuple, names["typed"].collect())) == [(1, "one"), (2, "two")]
        assert names["changes"].where("op = 'delete'").count() == 1
        psql(dsn, "delete from orders where id = 2")
        until(lambda: rows(pipeline) == [("1", "one")])
    finally:
        exec(compile(end, str(PAGE), "exec"), names)
    assert not names["streaming"].is_alive()
    assert str(names["orders"].watermark) in capfd.readouterr().out


IMPORTS = """
import json, sys
import pgstream_dagster
engines = {"dagster", "pyspark", "pyarrow", "psycopg", "opensearchpy"}
lazy = sorted(engines & set(sys.modules))
missing = [name for name in pgstream_dagster.__all__ if not getattr(pgstream_dagster, name)]
print(json.dumps([lazy, missing]))
"""


@pytest.mark.long
def test_importing_the_package_imports_no_engine_and_every_name_is_there():
    output = subprocess.run(
        [sys.executable, "-c", IMPORTS], capture_output=True, text=True, timeout=120, check=True
    )
    assert json.loads(output.stdout) == [[], []]


def test_a_name_that_is_not_public_is_refused():
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        pgstream_dagster.nothing  # noqa: B018
