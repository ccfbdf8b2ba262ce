"""Empties tables of the target: TRUNCATE where its foreign keys and rights allow, else DELETE."""

from __future__ import annotations

from collections.abc import Sequence

import psycopg
from psycopg import sql

from pgstream_dagster.errors import SinkRefused
from pgstream_dagster.sinks.postgres.failures import Failure, failure_of, reason_of
from pgstream_dagster.sinks.postgres.target import Target, TargetTable
from pgstream_dagster.source.connect import Session, quoted


def empty(target: Target, session: Session, tables: Sequence[TargetTable]) -> None:
    """
    Empty tables together, as one TRUNCATE of the source did; sequences stay where they are.

    Raises:
        SinkRefused: rows of other tables refer to theirs, and foreign keys are on.
    """
    session.execute("savepoint pgstream_empty")
    try:
        session.execute(
            sql.SQL("truncate {}").format(sql.SQL(", ").join(t.reference for t in tables)),
            prepare=False,
        )
    except (psycopg.errors.FeatureNotSupported, psycopg.errors.InsufficientPrivilege):
        session.execute("rollback to savepoint pgstream_empty")
        for table in tables:
            _delete_all(target, session, table)
    session.execute("release savepoint pgstream_empty")


def _delete_all(target: Target, session: Session, table: TargetTable) -> None:
    try:
        session.execute(sql.SQL("delete from {}").format(table.reference), prepare=False)
    except psycopg.Error as error:
        if failure_of(error) is not Failure.ROW:
            raise
        role = quoted(session.role)
        remedy = f"run in the target: grant set on parameter session_replication_role to {role}"
        raise SinkRefused(target.sink, reason_of(error), remedy) from error
