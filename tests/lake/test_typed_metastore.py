"""Typed tables in a real Hive metastore: Spark finds them by name, and no merge depends on it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, Any, cast

import psycopg
import pytest
from pyspark.sql import SparkSession

from pgstream_dagster.config.metastore import MetastoreConfig
from pgstream_dagster.delta import jvm
from pgstream_dagster.delta.metastore import connected
from pgstream_dagster.errors import MetastoreNameTaken
from pgstream_dagster.pipeline import Pipeline
from pgstream_dagster.tables.merge import merge_tables
from pgstream_dagster.upkeep.setup import setup
from tests.readers.conftest import spark_settings
from tests.support.harness import read_by_name
from tests.support.harness.case import execute
from tests.support.harness.metastore import HiveMetastore
from tests.support.harness.tcp_proxy import TcpProxy
from tests.support.harness.typed_tables import assert_equal, caught_up, typed_pipeline

pytestmark = [pytest.mark.one_major("newest"), pytest.mark.slow]

ORDERS = (
    "create table orders (id int primary key, note text)",
    "insert into orders select n, 'note ' || n from generate_series(1, 20) as n",
)


def registering(dsn: str, at: Path, config: MetastoreConfig, **tables: Any) -> Pipeline:
    """A pipeline whose typed tables are registered."""
    pipeline = typed_pipeline(dsn, at, metastore=config, **tables)
    setup(pipeline)
    return pipeline


def with_config(pipeline: Pipeline, **changes: Any) -> Pipeline:
    """The pipeline after a change of `tables.metastore` in its file."""
    tables = pipeline.config.tables
    assert tables is not None
    assert tables.metastore is not None
    metastore = tables.metastore.model_copy(update=changes)
    changed = tables.model_copy(update={"metastore": metastore})
    config = pipeline.config.model_copy(update={"tables": changed})
    return replace(pipeline, config=config)


class Hive:
    """One database, as any client of the metastore sees it."""

    def __init__(self, client: Any, database: str) -> None:
        self.client, self.database = client, database

    def names(self) -> set[str]:
        return set(self.client.getAllTables(self.database))

    def place(self, name: str) -> tuple[str, str, str]:
        """Type, location and the path that Spark reads."""
        table = self.client.getTable(self.database, name)
        storage = table.getSd()
        path = storage.getSerdeInfo().getParameters().get("path")
        return str(table.getTableType()), str(storage.getLocation()), str(path)


@contextmanager
def hive(metastore: HiveMetastore, database: str) -> Generator[Hive]:
    with connected(jvm.gateway(), metastore.uri, database) as opened:
        yield Hive(cast("Any", opened)._client, database)


@dataclass
class ByName:
    """A Spark with Hive support in another process."""

    stdin: IO[str]
    stdout: IO[str]

    def rows(self, query: str) -> Any:
        self.stdin.write(query + "\n")
        self.stdin.flush()
        return json.loads(self.stdout.readline())


@contextmanager
def reading(metastore: HiveMetastore, at: Path) -> Generator[ByName]:
    settings = spark_settings() | {
        "spark.hadoop.hive.metastore.uris": metastore.uri,
        "spark.sql.warehouse.dir": str(at / "warehouse"),
    }
    process = subprocess.Popen(
        [sys.executable, str(read_by_name.__file__)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=at,
        env=os.environ | {"SPARK_SETTINGS": json.dumps(settings)},
    )
    assert process.stdin is not None
    assert process.stdout is not None
    with process:
        yield ByName(process.stdin, process.stdout)
        process.stdin.close()
        process.wait()


def source(dsn: str, query: str) -> list[list[Any]]:
    with psycopg.connect(dsn) as connection:
        return [list(row) for row in connection.execute(query)]


@pytest.mark.long
def test_spark_reads_a_table_by_name_and_follows_its_columns_and_its_source(
    dsn: str, tmp_path: Path, metastore: HiveMetastore, hive_database: str
) -> None:
    execute(dsn, *ORDERS, 'create table "Odd Name" (id int primary key, a text)')
    execute(dsn, """insert into "Odd Name" values (1, 'x'), (2, null)""")
    config = MetastoreConfig(uri=metastore.uri, database=hive_database)
    pipeline = registering(dsn, tmp_path / "a lake", config, history=("public.orders",))
    caught_up(pipeline)
    with reading(metastore, tmp_path) as spark:
        assert sorted(row[1] for row in spark.rows(f"show tables in {hive_database}")) == [
            "public_odd_20name",
            "public_orders",
            "public_orders__history",
        ]
        orders = f"select id, note from {hive_database}.public_orders order by id"
        assert spark.rows(orders) == source(dsn, "select id, note from orders order by id")
        odd = f"select id, a from {hive_database}.public_odd_20name order by id"
        assert spark.rows(odd) == [[1, "x"], [2, None]]
        assert spark.rows(f"select count(*) from {hive_database}.public_orders__history") == [[20]]

        execute(
            dsn,
            "alter table orders add price numeric(8,2)",
            "update orders set price = id * 1.5 where id < 9",
            "alter table orders rename note to remark",
            "alter table orders rename to purchases",
            "delete from purchases where id = 4",
        )
        caught_up(pipeline)
        query = "select id, remark, cast(price * 100 as int) from {} order by id"
        renamed = query.format(f"{hive_database}.public_orders")
        assert spark.rows(renamed) == source(dsn, query.format("purchases"))

        execute(dsn, *ORDERS)  # the typed table of that name begins again with these rows
        caught_up(pipeline)
        assert spark.rows(orders) == source(dsn, "select id, note from orders order by id")
        purchases = query.format(f"{hive_database}.public_purchases")
        assert spark.rows(purchases) == source(dsn, query.format("purchases"))


def test_a_pass_registers_what_it_made_and_one_without_changes_asks_nothing(
    dsn: str, tmp_path: Path, metastore: HiveMetastore, hive_database: str
) -> None:
    execute(dsn, *ORDERS)
    with TcpProxy("127.0.0.1", metastore.port) as network, hive(metastore, hive_database) as seen:
        address = f"thrift://127.0.0.1:{network.port}"
        config = MetastoreConfig(uri_from="METASTORE", database=hive_database)
        pipeline = registering(dsn, tmp_path, config)
        pipeline = replace(pipeline, environment={"METASTORE": address})
        caught_up(pipeline)
        uri = pipeline.lake.typed_table("public.orders")
        assert seen.place("public_orders") == ("EXTERNAL_TABLE", uri, uri)
        asked = network.accepted
        merge_tables(pipeline)
        assert network.accepted == asked

        seen.client.dropTable(hive_database, "public_orders")
        execute(dsn, "insert into orders values (100, 'more')")
        caught_up(pipeline)
        assert seen.place("public_orders") == ("EXTERNAL_TABLE", uri, uri)


@pytest.mark.long
def test_a_metastore_that_is_away_holds_nothing_up_and_gets_the_tables_later(
    dsn: str,
    tmp_path: Path,
    metastore: HiveMetastore,
    hive_database: str,
    spark: SparkSession,
    caplog: pytest.LogCaptureFixture,
) -> None:
    execute(dsn, *ORDERS, "create table t (id int primary key)")
    with TcpProxy("127.0.0.1", metastore.port) as network:
        address = f"thrift://127.0.0.1:{network.port}"
        config = MetastoreConfig(uri=address, database=hive_database)
        pipeline = registering(dsn, tmp_path, config)
        network.refuse()
        assert {table.name for table in caught_up(pipeline).tables} == {"public.orders", "public.t"}
        assert_equal(pipeline, spark, "orders", "t")
        assert f"cannot register typed tables in the metastore {address}" in caplog.text
        network.restore()
        assert merge_tables(pipeline).tables == []  # no change came
    with hive(metastore, hive_database) as seen:
        assert seen.names() == {"public_orders", "public_t"}


@pytest.mark.long
def test_a_name_that_is_taken_is_an_error_and_all_else_is_done(
    dsn: str,
    tmp_path: Path,
    metastore: HiveMetastore,
    hive_database: str,
    spark: SparkSession,
) -> None:
    execute(dsn, *ORDERS, "create table t (id int primary key)", "insert into t values (1)")
    config = MetastoreConfig(uri=metastore.uri, database=hive_database)
    other = f"file:{tmp_path}/other"
    with connected(jvm.gateway(), metastore.uri, hive_database) as opened:
        assert opened.register("public_orders", "other", other)
        assert not opened.register("public_orders", "other", other)
    pipeline = registering(dsn, tmp_path, config)
    done = caught_up(pipeline)
    assert {table.name for table in done.tables} == {"public.orders", "public.t"}
    with pytest.raises(MetastoreNameTaken, match=r"public_orders.*table at file:.*/other"):
        done.require_all()
    assert_equal(pipeline, spark, "orders", "t")
    with hive(metastore, hive_database) as seen:
        assert seen.place("public_orders")[1] == other
        assert seen.names() == {"public_orders", "public_t"}
        fixed = with_config(pipeline, names={"public.orders": "orders"})
        assert merge_tables(fixed).tables == []
        assert seen.place("orders")[1] == pipeline.lake.typed_table("public.orders")


@pytest.mark.long
def test_two_typed_tables_never_get_one_name(
    dsn: str, tmp_path: Path, metastore: HiveMetastore, hive_database: str
) -> None:
    execute(dsn, "create schema public_a", "create table public_a.b (id int primary key)")
    execute(dsn, "create table public.a_b (id int primary key)")
    config = MetastoreConfig(uri=metastore.uri, database=hive_database)
    pipeline = registering(dsn, tmp_path, config)
    with pytest.raises(MetastoreNameTaken, match=r"public_a_b.*typed table 'public"):
        caught_up(pipeline).require_all()
    fixed = with_config(pipeline, names={"public.a_b": "a_b"})
    merge_tables(fixed)
    with hive(metastore, hive_database) as seen:
        assert seen.names() == {"public_a_b", "a_b"}
        assert seen.place("a_b")[1] == pipeline.lake.typed_table("public.a_b")
        assert seen.place("public_a_b")[1] == pipeline.lake.typed_table("public_a.b")
