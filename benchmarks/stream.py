"""
A backlog into committed Delta, against `pg_recvlogical` to nowhere on the same server.

Both read the same backlog through a slot of their own, one after the other, in turn which is first.
Ours ends when everything is durable in the log and Postgres was told; its JVM is warm (capture is a
long-lived process). pg_recvlogical uses protocol 1, as it comes.
"""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable, Iterator

from benchmarks.measure import Measured, other, own
from benchmarks.sources import MIXED_TABLES, Bench, bench, insert, mix
from pgstream_dagster.capture.stream import stream
from pgstream_dagster.lsn import Lsn
from pgstream_dagster.upkeep.setup import setup

FLOOR_SLOT = "bench_floor"

Fill = Callable[[Bench, int, int], int]
"""Bench, number of the round, rows wanted -> changes made."""


def inserts(major: int, rows: int, rounds: int) -> Iterator[tuple[Measured, Measured]]:
    """(ours, floor) a round, of inserts of 8 columns, about 365 bytes on the wire."""

    def fill(on: Bench, number: int, row_count: int) -> int:
        insert(on.connection, 1 + number * row_count, row_count)
        return row_count

    with bench(major) as on:
        yield from _rounds(on, fill, rows, rounds)


def mixed(major: int, rows: int, rounds: int) -> Iterator[tuple[Measured, Measured]]:
    """(ours, floor) a round, of mixed changes over five tables."""
    with bench(major, MIXED_TABLES) as on:
        yield from _rounds(on, _mix, rows, rounds)


def _mix(on: Bench, number: int, row_count: int) -> int:
    before = _changes(on)
    transactions = row_count // 890
    mix(on.connection, 1 + number * transactions, transactions)
    return _changes(on) - before


def _changes(on: Bench) -> int:
    """Rows changed so far, as the server counts them."""
    on.connection.execute("select pg_stat_force_next_flush()")
    [(changed,)] = on.connection.execute(
        "select coalesce(sum(n_tup_ins + n_tup_upd + n_tup_del), 0)::bigint"
        " from pg_stat_user_tables"
    ).fetchall()
    return int(changed)


def _rounds(on: Bench, fill: Fill, rows: int, rounds: int) -> Iterator[tuple[Measured, Measured]]:
    setup(on.pipeline)
    _warm(on, fill, rows)
    for number in range(rounds):
        on.connection.execute(
            "select pg_create_logical_replication_slot(%s, 'pgoutput')", [FLOOR_SLOT]
        )
        changes = fill(on, number + 1, rows)
        end = on.wal_lsn()
        if number % 2:
            floor, ours = _floor(on, end, changes), _ours(on, end, changes)
        else:
            ours, floor = _ours(on, end, changes), _floor(on, end, changes)
        on.connection.execute("select pg_drop_replication_slot(%s)", [FLOOR_SLOT])
        yield ours, floor


def _warm(on: Bench, fill: Fill, rows: int) -> None:
    """A round of its own, so that the JVM has compiled what it runs."""
    fill(on, 0, rows)
    _ours(on, on.wal_lsn(), 1)


def _ours(on: Bench, end: str, changes: int) -> Measured:
    until = Lsn.parse(end)
    return own(
        lambda: stream(on.pipeline, stop=threading.Event(), until=until), changes, on.jvm_pid()
    )


def _floor(on: Bench, end: str, changes: int) -> Measured:
    command = shutil.which("pg_recvlogical")
    if command is None:
        raise SystemExit("pg_recvlogical is not on PATH; install the Postgres client programs")
    return other(
        [
            command, "--dbname", on.server.dsn, "--slot", FLOOR_SLOT, "--start",
            "--endpos", end, "--no-loop", "--file", "/dev/null",
            "--option", "proto_version=1", "--option", "publication_names=pgstream_bench",
        ],
        changes,
    )  # fmt: skip
