"""
The changes of the demo's tables while they are captured: a writer without pause, and events.

Each event makes some system of this kind lose or duplicate data; all of them are ordinary SQL.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from functools import partial
from itertools import count
from typing import Final

import psycopg

from pgstream_dagster.demo.data import Connection
from pgstream_dagster.demo.running import Running

WRITER_PAUSE_SECONDS: Final = 0.05
"""Almost 20 transactions a second: enough to interfere with every step, but no load test."""

GENTLE_PAUSE_SECONDS: Final = 0.25
"""Frequent enough to see changes in the UI; the log stays small when the pipeline runs all day."""

SEED: Final = 2013

Transaction = Callable[[Connection, random.Random], None]


def busy(connection: Connection, generator: random.Random, *, flights: int) -> None:
    """A transaction on one of the flights: delayed, added, cancelled; or a release."""
    chance, flight = generator.random(), generator.randrange(1, flights)
    if chance < 0.5:
        connection.execute(
            "update flights set dep_delay = coalesce(dep_delay, 0) + 1 where id = %s", [flight]
        )
    elif chance < 0.7:
        connection.execute(
            "insert into flights (year, month, day, carrier, flight, origin, dest)"
            " values (2014, 1, 1, 'UA', %s, 'EWR', 'SFO')",
            [flight],
        )
    elif chance < 0.9:
        connection.execute("delete from flights where id = %s", [flight])
    else:
        _release(connection, flight)


def gentle(connection: Connection, generator: random.Random) -> None:
    """A transaction on planes, a few hundred of which are added and removed; or a release."""
    chance, number = generator.random(), generator.randrange(300)
    if chance < 0.5:
        connection.execute(
            "insert into planes (tailnum, year, manufacturer, seats) values (%s, 2013, 'NEW', 100)"
            " on conflict (tailnum) do update set seats = planes.seats + 1",
            [f"NEW{number:03}"],
        )
    elif chance < 0.8:
        connection.execute("delete from planes where tailnum = %s", [f"NEW{number:03}"])
    else:
        _release(connection, number)


def _release(connection: Connection, number: int) -> None:
    """Change the version of a distribution; its large description is not touched."""
    connection.execute(
        "update distributions set version = version || '+'"
        " where name = (select name from distributions order by name"
        " offset %s limit 1)",
        [number % 50],
    )


def writer(
    dsn: str, transaction: Transaction, *, pause_seconds: float = WRITER_PAUSE_SECONDS
) -> Running[int]:
    """Small transactions, one after the other; reports their number."""

    def operation(stop: threading.Event, report: Callable[[int], None]) -> None:
        generator = random.Random(SEED)  # noqa: S311 - a workload, not a secret
        with psycopg.connect(dsn, autocommit=True) as connection:
            for number in count(1):
                if stop.wait(pause_seconds):
                    return
                transaction(connection, generator)
                report(number)

    return Running("writer", operation)


def events(large_rows: int) -> dict[str, Callable[[Connection], None]]:
    """The events by their description, in order; `large_rows`: of the largest transaction."""
    return {
        "rows are updated without touching their large texts": _untouched_text,
        "keys change, and one is reused": _moved_keys,
        "rows are deleted": _deleted,
        "a table is truncated and filled again": _truncated,
        "a transaction is rolled back": _rolled_back,
        "part of a transaction is rolled back": _savepoint,
        "one of two equal rows of a table without a key is deleted": _keyless,
        f"one transaction inserts {large_rows:,} rows": partial(_large, rows=large_rows),
        "a column is added": _added_column,
        "a column is renamed": _renamed_column,
    }


def _untouched_text(connection: Connection) -> None:
    connection.execute(
        "update distributions set summary = upper(summary) where length(description) > 8000"
    )
    connection.execute(
        "update distributions set description = null"
        " where name in (select name from distributions order by name desc limit 3)"
    )


def _moved_keys(connection: Connection) -> None:
    with connection.transaction():
        connection.execute("update distributions set name = 'moved-' || name where name < 'd'")
    with connection.transaction():
        connection.execute("update airports set faa = 'X-' || faa where faa in ('JFK', 'LGA')")
        connection.execute("update airports set faa = 'JFK' where faa = 'EWR'")


def _deleted(connection: Connection) -> None:
    connection.execute("delete from flights where id % 97 = 0")
    connection.execute("delete from planes where year is null")


def _truncated(connection: Connection) -> None:
    """As in a nightly load: truncate and fill in one transaction, so that no copy is needed."""
    rows = connection.execute("select carrier, lower(name) from airlines").fetchall()
    with connection.transaction(), connection.cursor() as cursor:
        cursor.execute("truncate airlines")
        cursor.executemany("insert into airlines values (%s, %s)", rows)


def _rolled_back(connection: Connection) -> None:
    with connection.transaction(force_rollback=True):
        connection.execute("delete from flights where id % 2 = 0")


def _savepoint(connection: Connection) -> None:
    with connection.transaction():
        connection.execute("update planes set seats = seats + 1 where engines = 4")
        with connection.transaction(force_rollback=True):
            connection.execute("delete from planes")
        connection.execute("update planes set seats = seats + 1 where engines = 3")


def _keyless(connection: Connection) -> None:
    connection.execute(
        "delete from weather where ctid in (select max(ctid) from weather"
        " group by origin, year, month, day, hour having count(*) > 1)"
    )
    connection.execute("insert into weather select * from weather limit 10")


def _large(connection: Connection, rows: int) -> None:
    connection.execute(
        "insert into flights (year, month, day, carrier, flight, tailnum, origin, dest, time_hour)"
        " select 2014, month, day, carrier, flight, tailnum, origin, dest, time_hour"
        " from flights order by id limit %s",
        [rows],
    )


def _added_column(connection: Connection) -> None:
    connection.execute("alter table planes add column retired boolean default false")
    connection.execute("update planes set retired = true where year < 1990")


def _renamed_column(connection: Connection) -> None:
    connection.execute("alter table airports rename column alt to altitude_feet")
    connection.execute("update airports set altitude_feet = altitude_feet + 1 where tz = -5")
