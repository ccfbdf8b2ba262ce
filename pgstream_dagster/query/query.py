"""One query of a lake: its columns, and its rows as texts."""

from __future__ import annotations

import json
from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from pgstream_dagster.errors import PgstreamError, SqlInvalid, SqlNotAllowed, SqlUnknownName
from pgstream_dagster.patterns import DEFAULT_NAMESPACE
from pgstream_dagster.pipeline import Pipeline
from pgstream_dagster.query.catalog import OWN, Catalog, Readable, read_catalog
from pgstream_dagster.query.engine import DATABASE, LOCKED, engine, folder_of, quoted
from pgstream_dagster.query.rendering import Rendering
from pgstream_dagster.query.statement import parsed

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

FETCHED_ROWS: Final = 2_000
"""At a time: a result of any size is printed in little memory."""


@dataclass(frozen=True, slots=True)
class Result:
    """
    What a query gives; valid while its connection is open.

    Shape:
        columns: the names; several may be the same.
        rows: the texts of each row's values, null as `None`.
    """

    columns: Sequence[str]
    rows: Iterator[Sequence[str | None]]


def readable_names(pipeline: Pipeline) -> list[str]:
    """
    The names that a query may use.

    Raises:
        NotSetUp, LakeAway, SqlNeedsFolder, ExtraMissing
    """
    with _lake(pipeline) as (_, catalog):
        return catalog.names()


@contextmanager
def query(pipeline: Pipeline, text: str, rendering: Rendering) -> Generator[Result]:
    """
    Run one SELECT on the newest version of each table that it names; it starts no JVM.

    Each table is read as it is when the query starts. Only the columns and files that the query
    needs are read.

    Raises:
        NotSetUp, LakeAway: there is no lake, or it is not there.
        SqlNeedsFolder: the lake is on an object store.
        ExtraMissing: the packages of the extra `sql` are not installed.
        SqlInvalid: the engine refuses the statement, or it fails.
        SqlNotAllowed: it is not one SELECT, or would read other files.
        SqlUnknownName: a table that it names is not there.
    """
    with _lake(pipeline) as (connection, catalog), _named(catalog):
        statement = parsed(connection, text)
        with _named(catalog, sorted(name for name in statement.names if not catalog.find(*name))):
            prepare(connection, [catalog.find(*name) for name in statement.names])
            yield _run(connection, statement.text, rendering)


@contextmanager
def _lake(pipeline: Pipeline) -> Generator[tuple[DuckDBPyConnection, Catalog]]:
    folder = folder_of(pipeline.lake.uri)
    pipeline.require_set_up()
    with engine(folder) as connection:
        yield connection, read_catalog(connection, pipeline.name, folder)


def prepare(connection: DuckDBPyConnection, named: Iterable[Readable | None]) -> None:
    """A view of each name; to look one up opens its table, so there are no others."""
    connection.execute(f"create schema {quoted(DEFAULT_NAMESPACE)}")
    for readable in dict.fromkeys(named):
        if readable is not None:
            # With the database's name: `temp` and `system` are databases of DuckDB, too.
            namespace = f"{DATABASE}.{quoted(readable.namespace)}"
            connection.execute(f"create schema if not exists {namespace}")
            name = f"{namespace}.{quoted(readable.name)}"
            connection.execute(f"create view {name} as {readable.query}")
    connection.execute(f"set search_path = '{OWN},{DEFAULT_NAMESPACE}'")
    connection.execute(LOCKED)


def _run(connection: DuckDBPyConnection, statement: str, rendering: Rendering) -> Result:
    """The statement with its values made texts; the order of its rows is kept."""
    result = f"from (\n{statement}\n) as result"
    described = connection.execute(f"{result} limit 0").description
    names = [f"c{number}" for number in range(len(described))]
    types = [column[1] for column in described]
    texts = (rendering(name, type_) for name, type_ in zip(names, types, strict=True))
    connection.execute(f"select {', '.join(texts)} {result}({', '.join(names)})")
    return Result([column[0] for column in described], _fetched(connection))


def _fetched(connection: DuckDBPyConnection) -> Iterator[Sequence[str | None]]:
    while rows := connection.fetchmany(FETCHED_ROWS):
        yield from rows


@contextmanager
def _named(catalog: Catalog, unknown: Sequence[tuple[str, str]] = ()) -> Generator[None]:
    """Raise DuckDB's errors as ours; `unknown` are names that only the statement may define."""
    import duckdb

    try:
        yield
    except duckdb.Error as error:
        raise _error(_facts(error), catalog, unknown) from error


def _facts(error: Exception) -> dict[str, Any]:
    """What DuckDB says of an error: JSON, after its class."""
    _, brace, rest = str(error).partition("{")
    try:
        return json.loads(brace + rest)
    except ValueError:  # some errors of fetching are plain text
        return {"exception_message": str(error)}


def _error(
    facts: dict[str, Any], catalog: Catalog, unknown: Sequence[tuple[str, str]]
) -> PgstreamError:
    message, kind = str(facts["exception_message"]), facts.get("exception_type")
    if kind == "Permission":
        return SqlNotAllowed(message)
    if kind == "Catalog" and facts.get("type", "Table") == "Table" and unknown:
        names = [".".join(filter(None, name)) for name in unknown]
        return SqlUnknownName(", ".join(names), catalog.names())
    return SqlInvalid(message)
