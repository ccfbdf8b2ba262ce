"""
What must hold before a source is captured: every fact that is wrong, with the statement that helps.

Only reads. `preflight` returns findings, `require` refuses those that are errors. Read `finding`,
then `facts` (all queries are there); `server`, `scope`, `tables`, `identity` and `ddl` derive
findings from facts, one subject each.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Final

from pgstream_dagster.config import SourceConfig
from pgstream_dagster.source import publication as publications
from pgstream_dagster.source import schema_triggers
from pgstream_dagster.source.connect import Session
from pgstream_dagster.source.preflight.ddl import ddl_finding
from pgstream_dagster.source.preflight.facts import Facts, Member, read_facts, read_server
from pgstream_dagster.source.preflight.finding import (
    Finding,
    Severity,
    by_severity,
    error,
    require,
)
from pgstream_dagster.source.preflight.identity import identity_findings
from pgstream_dagster.source.preflight.scope import (
    new_table_findings,
    publication_statement,
    publishing_findings,
    scope_findings,
    setting_findings,
)
from pgstream_dagster.source.preflight.server import old_version, server_findings
from pgstream_dagster.source.preflight.tables import (
    access_findings,
    table_findings,
    unlogged_finding,
)

__all__ = [
    "Facts",
    "Finding",
    "Member",
    "Severity",
    "by_severity",
    "error",
    "old_version",
    "preflight",
    "publication_statement",
    "read_facts",
    "read_server",
    "require",
    "unfit_findings",
]

TABLE_CHECKS: Final = frozenset(
    {
        "column_list",
        "generated_columns",
        "half_detached",
        "not_replicable",
        "partition_identity",
        "replica_identity",
        "row_filter",
        "row_security",
        "select_right",
    }
)
"""Checks whose outcome may change with a table or the publication while a stream runs."""


def preflight(
    connection: Session, source: SourceConfig, settings: Iterable[tuple[str, str]] = ()
) -> list[Finding]:
    """
    Everything about the source that `setup` should know of, errors first.

    Covers the tables that the publication has, or would have. From here on the session waits for
    no lock for long.

    Shape:
        settings: other settings that name tables, each with a pattern that it has.

    Raises:
        ConnectionLost
        TableLocked: a transaction holds one of the tables exclusively.
    """
    server = read_server(connection, source)
    if server.is_too_old:
        return [old_version(server)]
    publications.limit_lock_waits(connection)
    facts = read_facts(connection, source, server)
    scope, captured = facts.scope, facts.captured
    if scope.is_by_hand:
        captured = [member for member in captured if member.relation_id in scope.published]
    findings = [
        *server_findings(server),
        *scope_findings(facts),
        *setting_findings(facts, settings),
        *publishing_findings(facts),
        *identity_findings(facts),
        *table_findings(captured, facts),
        *access_findings([member for member in captured if member.is_root], server),
        ddl_finding(schema_triggers.state(connection), server, source),
        *new_table_findings(facts, source),
    ]
    return by_severity(findings)


def unfit_findings(
    connection: Session, source: SourceConfig, captured: Collection[int]
) -> list[Finding]:
    """
    What keeps tables from being captured whole now, or fails in the application.

    A table of FOR ALL TABLES leaves the publication when it is set unlogged; so the tables that the
    log has (`captured`) are checked, too.

    Raises:
        ConnectionLost
    """
    findings = preflight(connection, source)
    risks = [f for f in findings if f.check in TABLE_CHECKS and f.severity is not Severity.NOTE]
    unlogged = [
        unlogged_finding(table)
        for table in publications.relations(connection)
        if table.relation_id in captured
        and not table.is_publishable
        and publications.is_named(table, source.tables, source.exclude)
    ]
    return [*unlogged, *risks]
