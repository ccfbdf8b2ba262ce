"""Kept columns of tables of many kinds: a merge and a rebuild give the same, and that is right."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any, LiteralString, cast

import psycopg
import pytest
from pyspark.sql import SparkSession

from pgstream_dagster.config.tables import OnSchemaChange, OnTypeChange
from pgstream_dagster.pipeline import Pipeline
from pgstream_dagster.tables.approval import approve_tables
from pgstream_dagster.tables.merge import merge_tables
from pgstream_dagster.tables.read_typed import read_typed
from pgstream_dagster.upkeep.reconcile_tables import reconcile_tables
from pgstream_dagster.upkeep.resnapshot import resnapshot
from tests.support.harness import runner
from tests.support.harness.case import execute
from tests.support.harness.merge_ends import EndsAt, ends_at
from tests.support.harness.typed_tables import (
    all_rows,
    caught_up,
    each_way,
    merged_pipeline,
    values_of,
)
from tests.support.plugins.cluster import psql

__all__ = ["each_way", "ends_at"]  # fixtures

pytestmark = [pytest.mark.one_major("newest"), pytest.mark.slow, pytest.mark.long]


def made(dsn: str, at: Path, **tables: Any) -> Pipeline:
    return merged_pipeline(dsn, at, on_type_change=OnTypeChange.KEEP, **tables)


def columns(pipeline: Pipeline, table: str) -> list[str]:
    return [n for n in read_typed(pipeline, table).rows.columns if not n.startswith("_")]


def assert_rebuilt_the_same(pipeline: Pipeline, *tables: str) -> None:
    grown = {table: all_rows(read_typed(pipeline, table).rows) for table in tables}
    merge_tables(pipeline, rebuild=tables)
    for table in tables:
        assert all_rows(read_typed(pipeline, table).rows) == grown[table], table


def assert_reconciled(pipeline: Pipeline) -> None:
    with runner.streaming(pipeline):
        for table in reconcile_tables(pipeline).tables:
            assert table.identical, table


WAYS: list[dict[str, Any]] = [
    {},
    {"column_mapping": False},
    {"deletion_vectors": False},
]


@pytest.mark.parametrize("way", WAYS, ids=["default", "unmapped", "no vectors"])
def test_tables_of_many_kinds(
    dsn: str, tmp_path: Path, spark: SparkSession, way: dict[str, Any]
) -> None:
    del spark
    execute(
        dsn,
        'create table comp ("Id" int, "co de" text, "Price" numeric(10,2), doc jsonb, t timestamp,'
        ' big text, primary key ("co de", "Id"))',
        "alter table comp alter big set storage external",
        "insert into comp select n, 'c' || n % 3, n * 1.25, jsonb_build_object('n', n),"
        " '2026-01-01'::timestamp + n * interval '1 hour', repeat('x', 9000)"
        " from generate_series(1, 20) n",
        "create table part (id int, amount int, primary key (id)) partition by range (id)",
        "create table part_1 partition of part for values from (0) to (10)",
        "create table part_2 partition of part for values from (10) to (1000)",
        "insert into part select n, n * 10 from generate_series(1, 20) n",
        "create table d (id int primary key, a int, b int)",
        "insert into d select n, n, n from generate_series(1, 9) n",
    )
    price = {"numeric": "decimal(20,4)"}
    types = {"public.comp": {"columns": {"Price": price, "doc": {"json": "variant"}}}}
    pipeline = made(dsn, tmp_path, types=types, **way)
    code = "co_de" if way.get("column_mapping") is False else "co de"
    prices = values_of(pipeline, "public.comp", "Id", code, "Price", "t")
    execute(
        dsn,
        'alter table comp alter "Price" type text using \'p\' || "Price",'
        " alter doc type text, alter t type date",
        "alter table part alter amount type text using 'n' || amount",
        "alter table d drop a, alter b type text",
        "alter table d add a text",
    )
    caught_up(pipeline)
    kept = values_of(pipeline, "public.comp", "Id", code, "Price__v1", "t__v1")
    assert kept == prices
    assert values_of(pipeline, "public.part", "id", "amount__v1") == {
        n: n * 10 for n in range(1, 21)
    }
    assert columns(pipeline, "public.d") == ["id", "b", "a", "b__v1"]
    assert_rebuilt_the_same(pipeline, "public.comp", "public.part", "public.d")
    execute(
        dsn,
        'update comp set "Price" = \'x\' where "Id" < 4',
        'update comp set "co de" = \'moved\' where "Id" in (5, 6)',
        'update comp set "Id" = "Id" + 100, doc = \'{}\' where "Id" in (6, 7)',
        'delete from comp where "Id" = 8',
        "insert into comp (\"Id\", \"co de\") values (8, 'c2'), (108, 'c2')",
        "alter table comp add extra int default 7",
        'update comp set t = now() where "Id" < 3',
        'insert into comp ("Id", "co de", extra) values (200, \'c\', null)',
        "update part set id = id + 10 where id = 15",
        "update part set id = 12 where id = 3 and not exists (select from part where id = 12)",
        "delete from part where id = 12",
        "update part set id = 12 where id = 3",
        "insert into part values (3, 'new')",
        "alter table d rename b to c",
        "alter table d rename a to b",
        "update d set b = 'z' where id < 5",
    )
    caught_up(pipeline)
    moved = {6: 106, 7: 107}
    expected = {moved.get(i, i): value for i, value in prices.items()}
    for i in (5, 106):
        expected[i] = ("moved", *expected[i][1:])
    expected |= {8: ("c2", None, None), 108: ("c2", None, None), 200: ("c", None, None)}
    assert values_of(pipeline, "public.comp", "Id", code, "Price__v1", "t__v1") == expected
    extra = values_of(pipeline, "public.comp", "Id", "extra")
    assert extra == {i: None if i == 200 else 7 for i in expected}
    # From one partition to another a row is deleted and inserted.
    parts = {n: n * 10 for n in range(1, 21)} | {25: 150, 12: None, 3: None}
    del parts[15]
    assert values_of(pipeline, "public.part", "id", "amount__v1") == parts
    assert columns(pipeline, "public.d") == ["id", "c", "b", "c__v1"]
    assert values_of(pipeline, "public.d", "id", "c__v1") == {n: n for n in range(1, 10)}
    assert_rebuilt_the_same(pipeline, "public.comp", "public.part", "public.d")
    execute(
        dsn,
        "alter table d alter b type int using length(b), drop c",
        'alter table comp alter "Price" type int using length("Price"), add "price__v1" int',
        'update comp set "price__v1" = 4',
    )
    caught_up(pipeline)
    assert columns(pipeline, "public.d") == ["id", "b", "b__v1"]
    assert_rebuilt_the_same(pipeline, "public.comp", "public.part", "public.d")
    assert_reconciled(pipeline)


def test_a_key_that_is_written_differently_leaves_nothing_to_other_rows(
    dsn: str, tmp_path: Path, spark: SparkSession
) -> None:
    del spark
    execute(
        dsn,
        *(
            f"create table {name} (id {type_} primary key, amount int)"
            for name, type_ in [("a", "int"), ("b", "numeric(9,1)"), ("c", "int")]
        ),
        *(f"insert into {t} select n, n * 10 from generate_series(1, 5) n" for t in "abc"),
    )
    pipeline = made(dsn, tmp_path)
    execute(dsn, *(f"alter table {t} alter amount type text using 'n' || amount" for t in "abc"))
    caught_up(pipeline)
    for table in "abc":
        assert "amount__v1" in columns(pipeline, f"public.{table}")
    execute(
        dsn,
        "alter table a alter id type text using (id + 1)::text",
        "alter table b alter id type numeric(9,2)",
        "alter table c alter id type bigint",
    )
    caught_up(pipeline)
    shown = {t: columns(pipeline, f"public.{t}") for t in "abc"}
    assert shown["a"] == shown["b"] == ["id", "amount"]
    former = values_of(pipeline, "public.c", "id", "amount__v1")
    assert former == {n: n * 10 for n in range(1, 6)}
    execute(dsn, *(f"alter table {t} alter amount type bool using true" for t in "abc"))
    caught_up(pipeline)
    of_a = values_of(pipeline, "public.a", "id", "amount__v1")
    assert of_a == {str(n + 1): f"n{n * 10}" for n in range(1, 6)}
    assert values_of(pipeline, "public.c", "id", "amount__v2") == {
        n: f"n{n * 10}" for n in range(1, 6)
    }
    assert_reconciled(pipeline)


def test_gaps_holds_and_ends_of_passes(
    dsn: str, tmp_path: Path, spark: SparkSession, ends_at: EndsAt
) -> None:
    del spark
    execute(
        dsn,
        "create table t (id int primary key, amount int)",
        "insert into t select n, n * 10 from generate_series(1, 6) n",
        "create table h (id int primary key, amount int)",
        "insert into h select n, n * 10 from generate_series(1, 6) n",
    )
    held = {"public.h": {"on_schema_change": OnSchemaChange.HOLD}}
    pipeline = made(dsn, tmp_path, types=held, history=("public.*",))
    execute(
        dsn,
        *(f"alter table {t} alter amount type text using 'n' || amount" for t in "th"),
        "update h set amount = 'after' where id = 1",
        "update h set id = 12 where id = 2",
    )
    runner.catch_up(pipeline)
    with ends_at("tables.rebuilt"):
        merge_tables(pipeline)
    execute(dsn, "update t set id = 13 where id = 3", "delete from h where id = 3")
    caught_up(pipeline)
    numbers = {n: n * 10 for n in range(1, 7)}
    of_t = {13 if n == 3 else n: v for n, v in numbers.items()}
    assert values_of(pipeline, "public.t", "id", "amount__v1") == of_t
    assert columns(pipeline, "public.h") == ["id", "amount"]
    [waiting] = merge_tables(pipeline).held
    approve_tables(pipeline, ["public.h"], versions=waiting.versions)
    merge_tables(pipeline)
    of_h = {12 if n == 2 else n: v for n, v in numbers.items() if n != 3}
    assert values_of(pipeline, "public.h", "id", "amount__v1") == of_h

    execute(dsn, "update t set amount = 'm', id = 14 where id = 4", "delete from t where id = 5")
    runner.catch_up(pipeline)
    for point in ("tables.merged", "tables.passed"):
        with ends_at(point):
            merge_tables(pipeline)
    of_t = {14 if n == 4 else n: v for n, v in of_t.items() if n != 5}
    caught_up(pipeline)
    assert values_of(pipeline, "public.t", "id", "amount__v1") == of_t

    psql(dsn, f"select pg_drop_replication_slot('{pipeline.config.source.slot}')")
    execute(
        dsn,
        "update t set amount = 'lost' where id = 1",
        "update t set id = 16 where id = 6",
        "delete from t where id = 2",
        "alter table t alter amount type bool using amount = 'lost'",
    )
    resnapshot(pipeline)
    caught_up(pipeline)
    lost = {n: of_t.get(n) for n in (1, 13, 14, 16)}
    assert values_of(pipeline, "public.t", "id", "amount__v1") == lost
    texts = {1: "n10", 13: "n30", 14: "m", 16: None}
    assert values_of(pipeline, "public.t", "id", "amount__v2") == texts
    assert_rebuilt_the_same(pipeline, "public.t", "public.h")
    execute(dsn, "drop table t", "create table t (id int primary key, amount bool)")
    execute(dsn, "insert into t values (1, true)", "alter table h rename to g")
    execute(dsn, "update g set id = 11 where id = 1")
    caught_up(pipeline)
    assert columns(pipeline, "public.t") == ["id", "amount"]


def test_a_type_that_is_there_again_within_a_transaction(
    dsn: str, tmp_path: Path, spark: SparkSession
) -> None:
    del spark
    execute(
        dsn,
        "create table t (id int primary key, amount int)",
        "insert into t select n, n * 10 from generate_series(1, 3) n",
    )
    pipeline = made(dsn, tmp_path)
    execute(
        dsn,
        "begin; update t set amount = 21 where id = 2;"
        " alter table t alter amount type text using 'n' || amount;"
        " update t set amount = 'xx' where id = 1;"
        " alter table t alter amount type int using length(amount);"
        " update t set amount = 99 where id = 3; insert into t values (4, 5); commit",
    )
    caught_up(pipeline)
    assert values_of(pipeline, "public.t", "id", "amount") == {1: 2, 2: 3, 3: 99, 4: 5}
    assert values_of(pipeline, "public.t", "id", "amount__v1") == {1: 10, 2: 21, 3: 30, 4: None}


TYPES = {
    "int": ("text", "'n' || {c}::text"),
    "text": ("bool", "length({c}) > 3"),
    "bool": ("int", "case when {c} then 1000 else 1 end"),
}


class Source:
    """A table that changes at random, and the values that each row should have kept."""

    def __init__(self, connection: psycopg.Connection[Any], random_: random.Random) -> None:
        self.connection, self.random = connection, random_
        self.type, self.name, self.versions, self.next = "int", "amount", 0, 100
        self.kept: dict[int, dict[int, Any]] = {}
        for (id_,) in self.query("select id from t"):
            self.kept[id_] = {}

    def query(self, text: str, *values: Any) -> list[Any]:
        cursor = self.connection.execute(cast("LiteralString", text), values or None)
        return cursor.fetchall() if cursor.description else []

    def value(self) -> Any:
        number = self.random.randint(0, 5_000)
        return {"int": number, "text": f"v{number}", "bool": number % 2 == 0}[self.type]

    def any(self) -> int:
        return self.random.choice(sorted(self.kept))

    def change(self) -> None:
        match self.random.choice("iiduuuummmnx"):
            case "i":
                self.insert(self.fresh())
            case "d":
                self.delete(self.any())
            case "u":
                id_ = self.any()
                self.query(f"update t set {self.name} = %s where id = %s", self.value(), id_)
            case "n":
                self.query("update t set note = repeat(md5(random()::text), 300)")
            case "m":
                self.move(self.any(), self.fresh())
            case _:  # another row under the key of one that moves away, or that is deleted
                id_ = self.any()
                if self.random.random() < 0.5:
                    self.move(id_, self.fresh())
                else:
                    self.delete(id_)
                other = self.any() if self.kept else None
                if other is not None and self.random.random() < 0.5:
                    self.move(other, id_)
                else:
                    self.insert(id_)

    def fresh(self) -> int:
        self.next += 1
        return self.next

    def insert(self, id_: int) -> None:
        self.query(
            f"insert into t (id, {self.name}, note) values (%s, %s, repeat(md5('a'), 300))",
            *(id_, self.value()),
        )
        self.kept[id_] = {}

    def delete(self, id_: int) -> None:
        self.query("delete from t where id = %s", id_)
        del self.kept[id_]
        if not self.kept:
            self.insert(self.fresh())

    def move(self, id_: int, to: int) -> None:
        more = f", {self.name} = {self.name}" if self.random.random() < 0.5 else ""
        self.query(f"update t set id = %s{more} where id = %s", to, id_)
        self.kept[to] = self.kept.pop(id_)

    def retype(self) -> None:
        self.versions += 1
        for id_, value in self.query(f"select id, {self.name} from t"):
            self.kept[id_][self.versions] = value
        type_, using = TYPES[self.type]
        using = using.format(c=self.name)
        self.query(f"alter table t alter {self.name} type {type_} using {using}")
        self.type = type_

    def rename(self) -> None:
        name = self.random.choice([n for n in ("amount", "total", "sum") if n != self.name])
        self.query(f"alter table t rename {self.name} to {name}")
        self.name = name


@pytest.mark.usefixtures("each_way")
def test_random_changes(dsn: str, tmp_path: Path, spark: SparkSession) -> None:
    del spark
    seed = random.randrange(10_000)
    execute(
        dsn,
        "create table t (id int primary key, amount int, note text)",
        "alter table t alter note set storage external",
        "insert into t select n, n * 10, repeat(md5(n::text), 300) from generate_series(1, 12) n",
    )
    pipeline = made(dsn, tmp_path)
    chosen = random.Random(seed)
    with psycopg.connect(dsn, autocommit=True) as connection:
        source = Source(connection, chosen)
        for number in range(10):
            for _ in range(chosen.randint(0, 4)):
                with connection.transaction():
                    for _ in range(chosen.randint(1, 6)):
                        source.change()
            if number in (1, 4, 7):
                with connection.transaction():
                    for _ in range(chosen.randint(0, 3)):
                        source.change()
                    source.retype()
                    for _ in range(chosen.randint(0, 3)):
                        source.change()
            if chosen.random() < 0.3:
                source.rename()
            if chosen.random() < 0.2:
                source.query(f"alter table t add c{number} int default {number}")
            source.change()
            if number not in (1, 4, 7) and chosen.random() < 0.3:
                runner.catch_up(pipeline)
                continue
            caught_up(pipeline)
            names = [f"{source.name}__v{n}" for n in range(1, source.versions + 1)]
            actual = {
                row["id"]: [row[name] for name in names]
                for row in read_typed(pipeline, "public.t").rows.collect()
            }
            expected = {
                id_: [values.get(n) for n in range(1, source.versions + 1)]
                for id_, values in source.kept.items()
            }
            assert actual == expected, (seed, number)
    caught_up(pipeline)
    assert_rebuilt_the_same(pipeline, "public.t")
    assert_reconciled(pipeline)
