"""Whether the publication is, or can become, what the pipeline file asks for. No I/O."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from pgstream_dagster.config import SourceConfig
from pgstream_dagster.patterns import exact, full_name
from pgstream_dagster.source import publication as publications
from pgstream_dagster.source.preflight.facts import Facts, Scope, Server
from pgstream_dagster.source.preflight.finding import (
    Finding,
    Severity,
    counted,
    error,
    named,
    note,
    warning,
)
from pgstream_dagster.source.preflight.tables import TEMPORARY, UNLOGGED, WHY_REFUSED
from pgstream_dagster.source.publication import PUBLISH, Candidate

LEAVES_OUT: Final = (".exclude", ".schema_only")
"""Ends of settings that may name what is not captured anyhow."""


def scope_findings(facts: Facts) -> Iterator[Finding]:
    """What is wrong with the patterns, or with a publication made by hand."""
    scope = facts.scope
    yield from _pattern_findings(scope, facts.server)
    if not (scope.published if scope.is_by_hand else scope.relation_ids):
        yield error(
            "no_tables",
            f"publication {scope.publication!r} has no tables",
            "correct source.tables in pgstream.yaml, or add tables to the publication",
        )
    if scope.state is not None and scope.is_by_hand and not scope.state.is_complete:
        yield error(
            "publish",
            f"publication {scope.publication!r} does not publish every operation: the log would"
            " differ from the source",
            f"run alter publication {facts.server.publication_sql} set ({PUBLISH})",
        )


def _pattern_findings(scope: Scope, server: Server) -> Iterator[Finding]:
    for pattern, table in scope.refused:
        reason = WHY_REFUSED.get(table.kind)
        remedy = "leave it out of source.tables"
        if reason is None and table.persistence == "u":
            reason, remedy = UNLOGGED, f"run alter table {table.full_name} set logged"
        yield error(
            "not_replicable",
            f"pattern {pattern!r} names {table.full_name!r}, which cannot be captured:"
            f" {reason or TEMPORARY}",
            remedy,
        )
    for pattern in scope.unmatched:
        yield Finding(
            "unmatched",
            Severity.ERROR if pattern.is_exact else Severity.WARNING,
            f"pattern {str(pattern)!r} matches no table of database {server.database!r}",
            "correct source.tables in pgstream.yaml",
        )


def setting_findings(facts: Facts, settings: Iterable[tuple[str, str]]) -> Iterator[Finding]:
    """
    Settings that name a table which is not there or not captured; wildcards may match nothing yet.

    Shape:
        settings: the setting, and a pattern that it has.
    """
    captured = facts.captured_names
    for setting, pattern in settings:
        place = exact(pattern)
        if place is None or place in captured:
            continue
        names = f"{setting} names {full_name(*place)!r}, which"
        if place not in facts.scope.relation_names:
            remedy = "write the table's present name, or create it"
            yield warning("unmatched", f"{names} does not exist", remedy)
        elif not setting.endswith(LEAVES_OUT):
            remedy = f"capture it (source.tables, the publication), or take it out of {setting}"
            yield warning("unmatched", f"{names} is not captured", remedy)


def publishing_findings(facts: Facts) -> Iterator[Finding]:
    """Whether our role may publish what is missing, and what a publication by hand lacks."""
    scope, server, missing = facts.scope, facts.server, facts.missing
    foreign = [table for table in missing if not table.is_owned]
    if scope.is_by_hand and missing:
        yield warning(
            "not_published",
            f"publication {scope.publication!r}, which 'pgstream setup' did not make, lacks"
            f" {counted(missing, 'table')} that source.tables names:"
            f" {named([c.full_name for c in missing])}",
            f"run {publication_statement(facts, missing)}, or name them in source.exclude",
        )
    elif foreign:
        yield error(
            "owner",
            f"role {server.role!r} does not own {len(foreign)} of {counted(missing, 'table')} to"
            f" publish, so it cannot publish them: {named([c.full_name for c in foreign])}",
            "let a superuser, or an owner of all of them, run"
            f" {publication_statement(facts, missing)}",
        )
    elif scope.state is None and not server.may_create:
        yield error(
            "create_right",
            f"role {server.role!r} may not create a publication in database {server.database!r}",
            f"run grant create on database {server.database_sql} to {server.role_sql}",
        )


def new_table_findings(facts: Facts, source: SourceConfig) -> Iterator[Finding]:
    """What becomes of tables that are created later, where every table is to be captured."""
    scope, state = facts.scope, facts.scope.state
    if source.tables != "all" and (state is None or not state.is_all_tables):
        return
    is_all = facts.server.is_superuser if state is None else state.is_all_tables
    is_list = source.tables != "all" or source.exclude or (state is None and facts.left_out)
    if is_all and (scope.is_by_hand or not is_list):
        yield warning(
            "all_tables",
            f"publication {scope.publication!r} is FOR ALL TABLES: UPDATEs and DELETEs of a table"
            " that is created later without a primary key will fail in your application",
            "give every new table a primary key or replica identity full; or name tables in"
            " source.tables or source.exclude: new tables do not join a list by themselves",
        )
    elif not scope.is_by_hand:
        yield note(
            "new_tables",
            "tables that are created later join at the next 'pgstream setup', not by themselves",
        )


def publication_statement(facts: Facts, tables: Iterable[Candidate]) -> str:
    """The statement that publishes these tables, for a role that may run it."""
    server = facts.server
    listed = ", ".join(f"only {table.sql_name}" for table in tables)
    if facts.scope.state is not None:
        return f"alter publication {server.publication_sql} add table {listed}"
    options = publications.options(server.version)
    return f"create publication {server.publication_sql} for table {listed} with ({options})"
