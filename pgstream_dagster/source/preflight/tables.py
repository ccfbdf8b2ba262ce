"""Whether the tables can be captured: their storage, and our role's rights. No I/O."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from pgstream_dagster.source.preflight.facts import Facts, Member, Server
from pgstream_dagster.source.preflight.finding import Finding, counted, error, named, note, warning
from pgstream_dagster.source.preflight.identity import member_findings
from pgstream_dagster.source.publication import Candidate

WHY_REFUSED: Final[Mapping[str, str]] = {
    "v": "a view has no rows of its own; name the tables it reads",
    "m": "a materialized view is rewritten at every refresh; name the tables it reads",
    "f": "a foreign table's changes are not in this server's WAL; capture it where it lives",
}
UNLOGGED: Final = "an unlogged table's changes are not in the WAL"
TEMPORARY: Final = "a temporary table's changes are not in the WAL"


def table_findings(members: Sequence[Member], facts: Facts) -> Iterator[Finding]:
    """Storage and replica identity of each table; `members` has leaves after their root."""
    roots = {member.relation_id: member for member in members if member.is_root}
    for member in members:
        yield from _storage(member)
        yield from _half_detached(member, facts)
        yield from member_findings(member, roots[member.relation_id], facts)
    if parents := [member.table_name for member in members if member.has_children]:
        yield note(
            "children",
            f"{counted(parents, 'table')} with inheritance children ({named(parents)}): each child"
            " is a table of its own in the log",
        )


def unlogged_finding(table: Candidate) -> Finding:
    """A table that the log has, and that was set unlogged since."""
    return error(
        "not_replicable",
        f"table {table.full_name!r} is not captured any more: {UNLOGGED}",
        f"run alter table {table.sql_name} set logged",
    )


def access_findings(roots: Sequence[Member], server: Server) -> Iterator[Finding]:
    """Whether our role may copy the tables, and sees all of their rows."""
    refused = [m for m in roots if not (m.may_select and m.may_use_namespace)]
    if refused:
        yield error(
            "select_right",
            f"role {server.role!r} may not read {counted(refused, 'table')}, so they cannot be"
            f" copied: {named([member.table_name for member in refused])}",
            f"run {'; '.join(_read_statements(refused, server.role_sql))}",
        )
    if hidden := [member.table_name for member in roots if member.hides_rows]:
        yield error(
            "row_security",
            f"row security hides rows of {named(hidden)} from role {server.role!r}: a copy would"
            " miss them",
            f"run alter role {server.role_sql} bypassrls",
        )


def _storage(member: Member) -> Iterator[Finding]:
    """Leaves whose rows a copy would show and the stream never."""
    if member.is_root or (member.kind == "r" and member.persistence == "p"):
        return
    reason = WHY_REFUSED.get(member.kind, UNLOGGED)
    yield error(
        "not_replicable",
        f"partition {member.member_name!r} of {member.table_name!r} cannot be captured: {reason}",
        f"run alter table {member.member_sql} set logged, or detach it"
        if member.kind == "r"
        else f"run alter table {member.table_sql} detach partition {member.member_sql}",
    )


def _half_detached(member: Member, facts: Facts) -> Iterator[Finding]:
    """Postgres 15 and 18 crash when a publication of all tables via their roots sends its rows."""
    state = facts.scope.state
    is_affected = state is not None and state.is_all_tables and state.is_via_root
    if member.detached_from_sql is None or not is_affected:
        return
    yield warning(
        "half_detached",
        f"partition {member.member_name!r} of {member.table_name!r} is half detached: DETACH"
        " PARTITION CONCURRENTLY waits, or was cancelled; once a row is written to it, Postgres"
        f" itself crashes whenever publication {facts.scope.publication!r} is read from a slot",
        f"run alter table {member.detached_from_sql} detach partition {member.member_sql} finalize"
        " before a row is written to it",
    )


def _read_statements(roots: Sequence[Member], role: str) -> Iterator[str]:
    """What lets `role` read those of the tables that it may not read yet."""
    schemas = sorted({m.namespace_sql for m in roots if not m.may_use_namespace})
    tables = [m.table_sql for m in roots if not m.may_select]
    if schemas:
        yield f"grant usage on schema {', '.join(schemas)} to {role}"
    if tables:
        yield f"grant select on table {', '.join(tables)} to {role}"
