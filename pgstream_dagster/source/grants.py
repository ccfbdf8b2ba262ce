"""The least a role needs on the source: a script for a superuser, printed and never run by us."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing

from pgstream_dagster.patterns import TablePattern
from pgstream_dagster.pipeline import Pipeline
from pgstream_dagster.source.connect import connect
from pgstream_dagster.source.preflight import (
    Facts,
    Member,
    old_version,
    publication_statement,
    read_facts,
    read_server,
    require,
)
from pgstream_dagster.source.publication import Tables, limit_lock_waits
from pgstream_dagster.source.query import query


def grants(pipeline: Pipeline, role: str | None = None) -> str:
    """
    The SQL that lets `role` (that of the connection) run this pipeline, with every table by name.

    Raises:
        PreflightFailed: the server is too old, or there is nothing to capture.
        Unreachable, AccessRefused, ConnectionLost
    """
    pipeline.require_postgres("grants")
    with closing(connect(pipeline.dsn)) as session:
        source = pipeline.config.source
        server = read_server(session, source)
        if server.is_too_old:
            require([old_version(server)])
        limit_lock_waits(session)
        facts = read_facts(session, source, server)
        name = server.role_sql
        if role is not None:
            [(name,)] = query(session, "source/quoted", name=role)
    return "\n".join(_script(facts, name, source.tables))


def _script(facts: Facts, role: str, tables: Tables) -> Iterator[str]:
    server, members = facts.server, facts.captured
    yield f"-- What role {role} needs in database {server.database_sql}, and no more. To be run in"
    yield "-- that database by a superuser, who makes the role first:"
    yield f"--   create role {role} login password '<a password>';"
    if server.wal_level != "logical":
        yield "alter system set wal_level = 'logical';  -- then restart the server"
    yield f"alter role {role} replication;"
    yield f"grant connect on database {server.database_sql} to {role};"
    schemas = sorted({member.namespace_sql for member in members})
    if schemas:
        yield f"grant usage on schema {', '.join(schemas)} to {role};"
        yield f"grant select on table {_listed(members)} to {role};"
    if any(member.has_row_security for member in members):
        yield f"alter role {role} bypassrls;  -- row security would hide rows from a copy"
    if tables == "all" or not all(TablePattern.parse(pattern).is_exact for pattern in tables):
        yield from _later_tables(members, role)
    yield from _publication(facts)
    yield "-- 'pgstream teardown' needs no more: it drops the slot. Then, to leave nothing behind:"
    yield f"--   drop publication {server.publication_sql};"
    yield f"--   drop owned by {role}; drop role {role};"


def _listed(members: Sequence[Member]) -> str:
    """Roots and their leaves, which are copied in parallel where they may be read themselves."""
    return ", ".join(member.member_sql for member in members)


def _later_tables(members: Sequence[Member], role: str) -> Iterator[str]:
    """What lets the role read tables that the owners of today's create later."""
    for owner, schema in sorted({(m.owner_sql, m.namespace_sql) for m in members}):
        yield f"alter default privileges for role {owner} in schema {schema}"
        yield f"  grant select on tables to {role};"


def _publication(facts: Facts) -> Iterator[str]:
    """The publication, or what it lacks; and why a table is not in it."""
    missing = facts.missing
    for member in facts.without_identity:
        yield f"-- without replica identity, so left out: {member.member_sql}"
    if missing:
        yield f"{publication_statement(facts, missing)};"
