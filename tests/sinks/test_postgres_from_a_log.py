"""A source, its log and a target: the target holds what the source holds, value by value."""

from __future__ import annotations

from collections import Counter
from contextlib import closing
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from pgstream_dagster.config.postgres_sink import PostgresSinkConfig
from pgstream_dagster.config.sinks import SinkConfig
from pgstream_dagster.sinks.postgres import PostgresSink, target_of
from pgstream_dagster.upkeep.setup import setup
from tests.support.harness import rows
from tests.support.harness.runner import catch_up, new_pipeline
from tests.support.harness.sink_log import all_changes, batches
from tests.support.plugins.cluster import psql

SCHEMA = (
    "create extension citext",
    "create type mood as enum ('low', 'high')",
    "create domain code as varchar(5) check (value <> 'no')",
    "create type pair as (a int, b text)",
    (
        "create table types (id bigint generated always as identity primary key, n numeric,"
        " big numeric(38,10), f float8, a int[], m mood, ms mood[], c code, p pair, b bytea,"
        " j jsonb, js json, i interval, t timestamptz, d date, r tstzrange, bits bit(3),"
        ' ch "char", bp char(4), text text, cash money, ip inet, v tsvector, x xml, ci citext,'
        " doubled numeric generated always as (n * 2) stored)"
    ),
    "create table slots (id int primary key, place int unique deferrable initially deferred)",
    "create table log (a text, b jsonb)",
    "alter table log replica identity full",
    "create table parents (id int primary key, name text, big text)",
    "alter table parents alter column big set storage external",
    (
        "create table children (mood mood, code code, parent int references parents"
        " on update cascade on delete cascade, note text, primary key (mood, code))"
    ),
    "create table parted (id int primary key, t text) partition by range (id)",
    "create table parted_1 partition of parted for values from (0) to (100)",
    "create table parted_2 partition of parted for values from (100) to (200)",
    'create table "Odd.Name" ("Key" int primary key, "user age" int)',
)

VALUES = (
    (
        "insert into types (n, big, f, a, m, ms, c, p, b, j, js, i, t, d, r, bits, ch, bp, text,"
        " cash, ip, v, x, ci) values ('NaN', 12345678901234567890.1234567891, '-Infinity',"
        " '[0:1]={1,NULL}', 'high', '{low,NULL}', 'abc', '(1,\"x \"\"y\"\"\")', '\\x00ff5c',"
        " 'null', '{\"a\":1234567890123456789,  \"a\":2}', '1 year -2 days 03:04:05.678',"
        " 'infinity', '0044-03-15 BC', '[2024-01-01,)', '101', 'x', 'ab',"
        " E'tab\\tnew\\nline \\\\N',"
        " 1234.5, '10.0.0.1/8', 'a:1 b:2A', '<a>&lt;</a>', 'MiXed')"
    ),
    "insert into types (n, f) values ('Infinity', 'NaN'), (null, '-0'), (1e100, 5e-324)",
)

BEFORE = (
    *VALUES,
    "insert into slots select n, n from generate_series(1, 10) n",
    "insert into log select 'same', '{}' from generate_series(1, 5)",
    "insert into parents select n, n, repeat(md5(n::text), 200) from generate_series(1, 9) n",
    "insert into children values ('low', 'a', 1, 'x'), ('high', 'a', 2, '')",
    "insert into parted select n, 'x' from generate_series(90, 110) n",
)

WORK = (
    *VALUES,
    "update types set n = n + 1, text = '' where n > 0",
    "delete from types where f = 'NaN'",
    "update slots set place = 11 - place",
    "update slots set id = id + 1000; update slots set id = 1011 - id",
    "delete from log where ctid = (select min(ctid) from log)",
    "update log set a = null where ctid = (select min(ctid) from log)",
    "insert into log values (null, null), (null, null), ('same', '{}')",
    "update parents set name = upper(name)",
    "update parents set id = 100 where id = 1",
    "delete from children where parent = 2; insert into children values ('high', 'a', 3, 'y')",
    "update parted set id = id + 50 where id < 100",
    "delete from parted where id % 3 = 0",
    (
        "begin; savepoint a; insert into parents values (50, 'gone', ''); rollback to a;"
        " insert into parents values (51, 'kept', ''); insert into children values"
        " ('low', 'z', 51, ''); update children set code = 'zz' where code = 'z'; commit"
    ),
    'insert into "Odd.Name" select n, n from generate_series(1, 1500) n',
    'update "Odd.Name" set "user age" = "user age" + 1 where "Key" % 2 = 0',
    'delete from "Odd.Name" where "Key" <= 700',
    "alter table parents add column age int default 18",
    "insert into parents values (60, 'new', '', 20)",
    "alter table parents rename column age to years",
    "update parents set years = years + 1 where id < 5",
    "alter table parents alter column years type bigint, drop column name",
    "update parents set years = 9007199254740993 where id = 100",
    "alter table log rename to journal",
    "insert into journal values ('after', '1')",
)

TRUNCATE = (
    "truncate parents, children",
    "insert into parents (id, big) values (1, 'after')",
    "insert into children values ('low', 'b', 1, '')",
)

TABLES = ("types", "slots", "journal", "parents", "children", "parted", '"Odd.Name"')


def rows_of(dsn: str) -> dict[str, Counter[tuple[tuple[str, str | None], ...]]]:
    return dict(rows.of_source(dsn, TABLES).values())


@pytest.mark.parametrize("truncates", [False, True], ids=["rows", "truncated"])
def test_the_target_equals_the_source(
    dsn: str, replica: str, tmp_path: Path, spark: SparkSession, truncates: bool
) -> None:
    psql(dsn, *SCHEMA, *BEFORE)
    pipeline = new_pipeline(dsn, tmp_path)
    setup(pipeline)
    psql(dsn, *WORK, *(TRUNCATE if truncates else ()))
    catch_up(pipeline)
    changes = all_changes(pipeline)
    config = SinkConfig(postgres=PostgresSinkConfig(dsn_variable="REPLICA_DSN"))
    target = target_of(pipeline, "replica", config, replica)
    refused = {}
    with closing(PostgresSink(target)) as sink:
        assert sink.open() is None
        for batch in batches(changes, seed=int(truncates)):
            for index, verdict in sink.deliver(batch).items():
                refused[batch.changes[index].event_id] = (verdict, batch.changes[index])
        assert sink.open() == str(len(changes))
    assert not refused
    assert rows_of(replica) == rows_of(dsn)
    [(doubled,)] = psql(replica, "select count(*) from types where doubled = n * 2")
    assert doubled == psql(dsn, "select count(*) from types where doubled = n * 2")[0][0]
    assert psql(replica, "insert into types (n) values (0) returning id") == psql(
        dsn, "insert into types (n) values (0) returning id"
    )
