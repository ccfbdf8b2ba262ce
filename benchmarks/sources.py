"""The servers and tables that are measured."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg

from pgstream_dagster.changelog.lake import Lake
from pgstream_dagster.config import load
from pgstream_dagster.delta import jvm
from pgstream_dagster.delta.jvm import JvmSettings
from pgstream_dagster.embedded.postgres import Postgres
from pgstream_dagster.pipeline import Pipeline

TRANSACTION_ROWS = 1_000

BENCH = """
create table bench (
    id bigint primary key, k integer, ts timestamptz, a text, b text, flag boolean,
    amount numeric(12, 2), doc jsonb
)"""

INSERT = """
insert into bench
select g, g %% 1000, timestamptz '2026-01-01' + g * interval '1 second',
    repeat(md5(g::text), 2), repeat(md5((g + 1)::text), 3), g %% 2 = 0,
    (g %% 100000)::numeric / 100,
    jsonb_build_object('n', g, 'city', 'town ' || g %% 500, 'tags', jsonb_build_array('x', 'y'))
from generate_series(%(first)s::bigint, %(last)s::bigint) g"""

MIXED_TABLES = (
    BENCH,
    (
        "create table orders (id bigint primary key, customer integer, state text,"
        " total numeric(10,2),"
        " note text, placed timestamptz default now())"
    ),
    (
        "create table lines (order_id bigint, line integer, sku text, amount integer,"
        " primary key (line, order_id))"
    ),
    "create table documents (name text primary key, version integer, body text)",
    "create table events (at bigint, kind text, payload text)",
    "alter table documents alter column body set storage external",
    "alter table events replica identity full",
)
"""Three to eight columns; identity DEFAULT with one and two key columns, and FULL without a key."""

MIXED = """
insert into orders (id, customer, state, total, note)
    select g, g %% 997, 'new', g %% 1000, case when g %% 3 = 0 then null else md5(g::text) end
    from generate_series(%(n)s * 100, %(n)s * 100 + 99) g;
insert into lines select o, l, 'sku-' || l, o %% 7
    from generate_series(%(n)s * 100, %(n)s * 100 + 99) o, generate_series(1, 3) l;
update orders set state = 'paid' where id between %(n)s * 100 and %(n)s * 100 + 99;
insert into documents select 'doc ' || %(n)s || ' ' || g, 1, repeat(md5(g::text), 100)
    from generate_series(1, 10) g;
update documents set version = 2 where name like 'doc ' || %(n)s || ' %%';
update documents set name = 'moved ' || name where name like 'doc ' || %(n)s || ' 1%%';
insert into events select g, 'seen', md5(g::text)
    from generate_series(%(n)s * 100, %(n)s * 100 + 99) g;
update events set kind = 'done' where at between %(n)s * 100 and %(n)s * 100 + 49;
delete from events where at between %(n)s * 100 + 50 and %(n)s * 100 + 99;
delete from lines where order_id between %(n)s * 100 and %(n)s * 100 + 99 and line = 3;
"""
"""About 890 changes in one transaction."""


@dataclass(frozen=True, slots=True)
class Bench:
    """One server with one pipeline that is not set up yet."""

    server: Postgres
    connection: psycopg.Connection[Any]
    pipeline: Pipeline

    def jvm_pid(self) -> int:
        gateway: Any = jvm.gateway(self.pipeline.jvm)
        return int(gateway.jvm.java.lang.ProcessHandle.current().pid())

    def wal_lsn(self) -> str:
        rows = self.connection.execute("select pg_current_wal_flush_lsn()::text").fetchall()
        return str(rows[0][0])


@contextmanager
def bench(major: int, tables: tuple[str, ...] = (BENCH,)) -> Iterator[Bench]:
    """A private server with `tables`, and a lake beside it; all of it goes with the block."""
    with tempfile.TemporaryDirectory(prefix="pgstream-bench-") as name, Postgres(major) as server:
        folder = Path(name)
        file = folder / "pgstream.yaml"
        file.write_text("pipeline: bench\n")
        pipeline = Pipeline(
            load(file), server.dsn, Lake(str(folder / "lake")), JvmSettings(), folder / "state"
        )
        with psycopg.connect(server.dsn, autocommit=True) as connection:
            for statement in tables:
                connection.execute(statement.encode())
            connection.execute("vacuum")
            yield Bench(server, connection, pipeline)


def insert(connection: psycopg.Connection[Any], first: int, rows: int) -> None:
    """`rows` rows of `bench`, a thousand a transaction."""
    for start in range(first, first + rows, TRANSACTION_ROWS):
        last = min(start + TRANSACTION_ROWS, first + rows) - 1
        connection.execute(INSERT, {"first": start, "last": last})


def mix(connection: psycopg.Connection[Any], first: int, transactions: int) -> None:
    """Inserts, updates, deletes over five tables; a transaction each."""
    with psycopg.ClientCursor(connection) as cursor:
        for number in range(first, first + transactions):
            cursor.execute(MIXED, {"n": number})
