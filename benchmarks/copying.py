"""The copy of one table into committed Delta, against binary COPY on two connections to nowhere."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import psycopg

from benchmarks.measure import Measured, own
from benchmarks.sources import Bench, bench, insert
from pgstream_dagster.copy.snapshot import snapshot
from pgstream_dagster.upkeep.setup import setup


def copies(major: int, rows: int, rounds: int) -> Iterator[tuple[Measured, Measured]]:
    """(ours, two connections) a round; Spark is warm."""
    with bench(major) as on:
        insert(on.connection, 1, rows)
        on.connection.execute("vacuum analyze bench")
        setup(on.pipeline)
        for _ in range(rounds):
            ours = own(lambda: snapshot(on.pipeline, ["public.bench"]), rows, on.jvm_pid())
            yield ours, own(lambda: _two_connections(on), rows, on.jvm_pid())


def _two_connections(on: Bench) -> None:
    [(pages,)] = on.connection.execute("select pg_relation_size('bench') / 8192").fetchall()
    half = pages // 2
    ranges = [f"ctid < '({half},0)'::tid", f"ctid >= '({half},0)'::tid"]
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(lambda where: _copy(on.server.dsn, where), ranges))


def _copy(dsn: str, where: str) -> None:
    query = f"copy (select * from bench where {where}) to stdout (format binary)".encode()
    with (
        psycopg.connect(dsn) as connection,
        connection.cursor() as cursor,
        cursor.copy(query) as copy,
    ):
        for _ in copy:
            pass
