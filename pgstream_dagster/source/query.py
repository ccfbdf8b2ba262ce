"""
Runs the statements of `sql/`: named parameters go in; rows or records come out, errors have names.

Statements that name an object (`lock table`) cannot be files; they run inside `named_errors`.
"""

from __future__ import annotations

from typing import Any, TypeVar

from psycopg.rows import class_row

from pgstream_dagster.errors import ProtocolError
from pgstream_dagster.lsn import Lsn
from pgstream_dagster.source.connect import Session, named_errors
from pgstream_dagster.sql import statement

T = TypeVar("T")


def query(connection: Session, name: str, /, **values: object) -> list[tuple[Any, ...]]:
    """The rows of the statement `sql/<name>.sql` with these parameters."""
    with named_errors(connection):
        # None: without parameters, a `%` in the statement is not a placeholder.
        return connection.execute(statement(name), values or None).fetchall()


def run(connection: Session, name: str, /) -> None:
    """Run the statements of `sql/<name>.sql`, which has no parameters; what they give is left."""
    with named_errors(connection):
        connection.execute(statement(name))


def run_text(connection: Session, text: str) -> None:
    """Run a statement that names an object, so it cannot be a file."""
    with named_errors(connection):
        connection.execute(text.encode())


def query_all(connection: Session, record: type[T], name: str, /, **values: object) -> list[T]:
    """The same, a `record` for each row: columns are its fields."""
    with named_errors(connection), connection.cursor(row_factory=class_row(record)) as cursor:
        return cursor.execute(statement(name), values or None).fetchall()


def query_one(connection: Session, record: type[T], name: str, /, **values: object) -> T | None:
    """The first row as a `record`; `None` when there is none."""
    return next(iter(query_all(connection, record, name, **values)), None)


def lsn(text: str) -> Lsn:
    """A position that a server answered. Raises `ProtocolError` for anything else."""
    try:
        return Lsn.parse(text)
    except ValueError as error:
        raise ProtocolError(str(error)) from None


def current_lsn(connection: Session) -> Lsn:
    """The end of the source's WAL: everything that has committed is before it."""
    [(text,)] = query(connection, "source/current_lsn")
    return lsn(text)
