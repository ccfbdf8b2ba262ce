"""
What a sink keeps in its target: its cursor, and the version that each of its tables has.

Both are written in the transaction of the changes, so they are never apart from them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final, TypeAlias

import psycopg

from pgstream_dagster.errors import SinkRefused
from pgstream_dagster.schema.table import TableSchema
from pgstream_dagster.sinks.postgres.target import Target
from pgstream_dagster.source.connect import Session, quoted
from pgstream_dagster.sql import statement

Position: TypeAlias = tuple[int, int, int]
"""Epoch, commit LSN and ordinal."""

NEVER: Final[Position] = (0, 0, 0)
"""Of a table that was made as the source's catalog has it, and has received nothing."""

Relation: TypeAlias = tuple[int, int]
"""Epoch and OID: another epoch may be of another database, whose OIDs are others."""


@dataclass(frozen=True, slots=True)
class Recorded:
    """
    The version that a table has, and since which change.

    `is_complete`: whether its indexes and constraints are made; `is_made`: whether the sink has
    made the table. `table_oid` is that of the target's table when it was written to last.
    """

    schema: TableSchema
    since: Position
    is_complete: bool
    is_made: bool = False
    table_oid: int | None = None


def create(target: Target, session: Session) -> None:
    """
    Make the tables of `pgstream` in the target unless they are there.

    Raises:
        SinkRefused: the role may not.
    """
    [(exists,)] = session.execute(statement("sink/progress_exists")).fetchall()
    if exists:
        return
    try:
        for name in ("progress_schema", "progress_table", "tables_table"):
            session.execute(statement(f"sink/{name}"))
    except psycopg.errors.InsufficientPrivilege as error:
        role, database = quoted(session.role), quoted(session.info.dbname)
        remedy = (
            f"run in the target: grant create on database {database} to {role}; or, as a role that"
            f" may: create schema pgstream authorization {role}"
        )
        raise SinkRefused(target.sink, "schema 'pgstream' cannot be made", remedy) from error


def cursor(target: Target, session: Session) -> str | None:
    """The cursor of the last committed batch; `None` before the first."""
    rows = session.execute(statement("sink/cursor"), _names(target)).fetchall()
    return rows[0][0] if rows else None


def advance(target: Target, session: Session, to: str) -> None:
    """Store a cursor."""
    session.execute(statement("sink/advance"), {**_names(target), "cursor": to})


def versions(target: Target, session: Session) -> dict[Relation, Recorded]:
    """The version that the table of each relation has."""
    rows = session.execute(statement("sink/tables"), _names(target)).fetchall()
    recorded = (
        Recorded(TableSchema.from_json(text), (since[0], since[1], since[2]), *rest)
        for text, since, *rest in rows
    )
    return {relation_of(version.schema): version for version in recorded}


def record(target: Target, session: Session, version: Recorded) -> None:
    """Store the version that a table has."""
    values = {
        **_relation(version.schema),
        "version": version.schema.to_json(),
        "since": list(version.since),
        "is_complete": version.is_complete,
        "is_made": version.is_made,
        "table_oid": version.table_oid,
    }
    session.execute(statement("sink/record_table"), {**_names(target), **values})


def other_owner(target: Target, session: Session, table_oid: int) -> str | None:
    """Another sink that writes to a table of the target, for messages; `None`: none is known."""
    values = {**_names(target), "table_oid": table_oid}
    rows = session.execute(statement("sink/table_owner"), values).fetchall()
    return f"sink {rows[0][0]!r} of pipeline {rows[0][1]!r}" if rows else None


def forget(target: Target, session: Session, schema: TableSchema) -> None:
    """Remove what is stored of a relation."""
    session.execute(statement("sink/forget_table"), {**_names(target), **_relation(schema)})


def set_aside(target: Target, session: Session) -> None:
    """
    Make all tables those of former epochs, before the first one of any log.

    So they are found by their names: another log may give the same numbers to other tables. And
    every change of it is later than theirs, whatever its LSN.
    """
    stored = versions(target, session)
    newest = max((epoch for epoch, _ in stored), default=0)
    with session.transaction():
        for version in stored.values():
            forget(target, session, version.schema)
        for version in stored.values():
            former = replace(version.schema, epoch=version.schema.epoch - newest)
            epoch, *place = version.since
            since = (epoch - newest if epoch else 0, place[0], place[1])  # 0: none was delivered
            record(target, session, replace(version, schema=former, since=since))


def relation_of(schema: TableSchema) -> Relation:
    """The relation of a version."""
    return schema.epoch, schema.relation_id


def _relation(schema: TableSchema) -> dict[str, int]:
    return {"epoch": schema.epoch, "relation_id": schema.relation_id}


def _names(target: Target) -> dict[str, str]:
    return {"pipeline": target.pipeline, "sink": target.sink}
