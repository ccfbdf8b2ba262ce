"""
The session of a sink with its target: the settings, the right to write, errors with names.

It has the settings of the source's sessions, so that a text is read as it was printed, and turns
triggers and foreign keys off where the role may: what they did on the source is in the log.
"""

from __future__ import annotations

import logging
from collections.abc import Generator
from contextlib import contextmanager
from typing import Final

import psycopg

from pgstream_dagster.errors import (
    AccessRefused,
    InvalidDsn,
    SinkError,
    SinkRefused,
    SinkUnreachable,
    SourceError,
)
from pgstream_dagster.sinks.postgres.failures import Failure, failure_of, reason_of
from pgstream_dagster.sinks.postgres.target import Target
from pgstream_dagster.source.connect import Session, connect, quoted
from pgstream_dagster.sql import statement

logger = logging.getLogger(__name__)

HANDOVER_SECONDS: Final = 3.0
"""Within which the server ends the session of a process that is gone, on a busy machine."""


def open_session(target: Target) -> Session:
    """
    A session that may write for the sink and that no other process has; the caller closes it.

    Raises:
        SinkUnreachable: no connection, or another process delivers for this sink.
        SinkRefused: the connection string, the role or its password.
    """
    session = connected(target, f"pgstream sink {target.sink}"[:63])
    try:
        with named(target, session):
            _prepare(target, session)
    except BaseException:
        session.close()
        raise
    return session


def connected(target: Target, application_name: str) -> Session:
    """
    An ordinary session with the target; the caller closes it.

    Raises:
        SinkUnreachable: no connection.
        SinkRefused: the connection string, the role or its password.
    """
    try:
        return connect(target.dsn, application_name=application_name)
    except InvalidDsn:
        reason = f"{target.dsn_variable} is no connection string"
        remedy = "correct it; percent-encode special characters of a URL"
        raise SinkRefused(target.sink, reason, remedy) from None
    except AccessRefused as error:
        remedy = f"check user, password and database in {target.dsn_variable}"
        raise SinkRefused(target.sink, error.reason, remedy) from error
    except SourceError as error:
        reason = getattr(error, "reason", str(error))
        raise SinkUnreachable(target.sink, f"{target.dsn_variable}: {reason}") from error


def turn_triggers_off(target: Target, session: Session) -> bool:
    """Whether triggers and foreign keys are off; the role may not where they stay on."""
    try:
        session.execute(statement("sink/replica_role"))
    except psycopg.errors.InsufficientPrivilege:
        role = quoted(session.role)
        logger.warning(
            "sink %r writes with triggers and foreign keys on, table after table in the order of"
            " the source, which is slower and fires triggers twice; on a target from 15 on run:"
            " grant set on parameter session_replication_role to %s",
            target.sink,
            role,
        )
        return False
    return True


def _prepare(target: Target, session: Session) -> None:
    _limit_waits(session, HANDOVER_SECONDS)
    try:
        session.execute(statement("sink/lock"), {"name": target.lock_name})
    except psycopg.errors.LockNotAvailable as error:
        raise SinkUnreachable(target.sink, _holder(target, session)) from error
    _limit_waits(session, target.lock_seconds)
    [(schemas,)] = session.execute(statement("sink/operator_schemas")).fetchall()
    session.execute(statement("sink/session"), {"search_path": schemas or ""})


def _limit_waits(session: Session, seconds: float) -> None:
    session.execute(statement("sink/lock_timeout"), {"lock_timeout": f"{int(seconds * 1000)}ms"})


def _holder(target: Target, session: Session) -> str:
    rows = session.execute(statement("sink/lock_holder"), {"name": target.lock_name}).fetchall()
    if not rows:
        return "another process delivered for it a moment ago"
    pid, client, application = rows[0]
    return (
        f"session {pid} of the target ({application!r} from {client}) delivers for it; where that"
        f" process is gone, run there: select pg_terminate_backend({pid})"
    )


@contextmanager
def named(target: Target, session: Session) -> Generator[None]:
    """Name what the target refuses, except for errors of rows, which the caller isolates."""
    try:
        yield
    except psycopg.Error as error:
        raise sink_error(target, session, error) from error


def sink_error(
    target: Target, session: Session, error: psycopg.Error, table: str = ""
) -> SinkError:
    """
    What an error of the target means for the sink as a whole.

    `table`: what was written, as SQL; servers report its bare name.
    """
    reason = reason_of(error)
    match failure_of(error):
        case Failure.LATER:
            return SinkUnreachable(target.sink, reason)
        case Failure.RIGHTS:
            return SinkRefused(target.sink, reason, _grant(session, error, table))
        case _:
            return SinkRefused(target.sink, reason, "see the log of the target for the statement")


def _grant(session: Session, error: psycopg.Error, table: str) -> str:
    """The statements that grant what a role needs."""
    role = quoted(session.role)
    text = (error.diag.message_primary or "").rpartition(" ")[2]
    kind = (error.diag.message_primary or "").removeprefix("permission denied for ").split(" ")[0]
    grants = {
        "table": f"grant select, insert, update, delete, truncate on {table or text} to {role}",
        "schema": f"grant usage, create on schema {text} to {role}",
        "sequence": f"grant usage, select, update on sequence {text} to {role}",
        "database": f"grant create, temporary on database {text} to {role}",
    }
    default = f"grant {role} the right, or make it the owner of the table"
    return f"run in the target: {grants[kind]}" if kind in grants else default
