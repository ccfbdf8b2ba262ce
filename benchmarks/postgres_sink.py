"""Changes to the tables of an embedded Postgres, against one COPY of the same rows."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import closing
from functools import partial

import psycopg

from benchmarks.measure import Measured
from pgstream_dagster.embedded.postgres import Postgres
from pgstream_dagster.lsn import Lsn
from pgstream_dagster.readers.change import Change, ChangeBatch
from pgstream_dagster.readers.pieces import PIECE_ROWS
from pgstream_dagster.schema.table import Column, ReplicaIdentity, TableSchema
from pgstream_dagster.sinks.postgres import PostgresSink, Target

MOST = 400_000
"""Changes of a round; they are in memory before it begins."""

TYPES = {
    "id": "bigint",
    "customer": "text",
    "amount": "numeric",
    "paid": "boolean",
    "note": "text",
    "at": "timestamp with time zone",
}
TABLE = ", ".join(f"{name} {kind}" for name, kind in TYPES.items())
SCHEMA = TableSchema(
    *(1, 16_400, "public", "orders", ReplicaIdentity.DEFAULT),
    tuple(Column(name, number, 0, kind) for number, (name, kind) in enumerate(TYPES.items(), 1)),
    ("id",),
)
MIX = ("insert", "insert", "update", "update", "delete")


def row(number: int) -> dict[str, str | None]:
    """A row of six columns, some 80 bytes."""
    return {
        "id": str(number),
        "customer": f"customer {number}",
        "amount": f"{number}.50",
        "paid": "t",
        "note": "some text of a usual length",
        "at": "2026-01-01 12:00:00+00",
    }


def change(place: int, op: str, number: int) -> Change:
    """A change of row `number`, ten to a transaction."""
    return Change(
        *(1, Lsn(7_000_000 + place // 10 * 100), place % 10, Lsn(7_000_100), op),
        *("public", "orders", 16_400, SCHEMA),
        key=(str(number),),
        before={"id": str(number)} if op == "delete" else None,
        after=None if op == "delete" else row(number),
    )


def mixed(count: int) -> Iterator[Change]:
    """Two inserts, then updates of an older row and of the newest, then a delete of the oldest."""
    newest = oldest = -1
    for place in range(count):
        op = MIX[place % len(MIX)]
        if op == "insert":
            newest += 1
        oldest += op == "delete"
        numbers = {"insert": newest, "delete": oldest}
        number = numbers.get(op, newest - (place % 2 and (newest - oldest) // 2))
        yield change(place, op, number)


def measured(kind: str, major: int, rows: int, rounds: int) -> Iterator[tuple[Measured, Measured]]:
    """Rounds of one kind of work: (ours, COPY alone)."""
    count = min(rows, MOST)
    changes = list(mixed(count)) if kind == "mixed" else [change(n, kind, n) for n in range(count)]
    with Postgres(major) as server:
        for _ in range(rounds):
            yield ours(server.dsn, changes), floor(server.dsn, count)


inserts = partial(measured, "insert")
mixes = partial(measured, "mixed")
copies = partial(measured, "read")


def ours(dsn: str, changes: Sequence[Change]) -> Measured:
    """The sink, in batches as its reader makes them."""
    renew(dsn)
    with closing(PostgresSink(Target("shop", "replica", dsn))) as sink:
        sink.open()
        began, cpu = time.perf_counter(), time.process_time()
        for start in range(0, len(changes), PIECE_ROWS):
            batch = ChangeBatch(list(changes[start : start + PIECE_ROWS]), str(start))
            assert not sink.deliver(batch)
        return Measured(len(changes), time.perf_counter() - began, time.process_time() - cpu)


def floor(dsn: str, count: int) -> Measured:
    """COPY by psycopg."""
    renew(dsn)
    lists = [list(row(number).values()) for number in range(count)]
    with psycopg.connect(dsn) as connection, connection.cursor() as cursor:
        began, cpu = time.perf_counter(), time.process_time()
        with cursor.copy("copy orders from stdin") as copy:
            for values in lists:
                copy.write_row(values)
        connection.commit()
        return Measured(count, time.perf_counter() - began, time.process_time() - cpu)


def renew(dsn: str) -> None:
    """An empty table, and no cursor."""
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute("drop schema if exists pgstream cascade")
        connection.execute("drop table if exists orders")
        connection.execute(f"create table orders ({TABLE}, primary key (id))")
