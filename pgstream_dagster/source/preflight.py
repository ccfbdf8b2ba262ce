"""
What must hold before we touch a source: every fact that is wrong, with the statement that helps.

Only reads. `preflight` finds, `require` refuses: an error stands for lost changes, wrong rows or
a source that cannot be captured; a warning for a risk that a person may take, such as a table
that is left out; a note for a limit to know of.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

import psycopg
from psycopg.rows import class_row

from pgstream_dagster.errors import PreflightFailed
from pgstream_dagster.patterns import TablePattern
from pgstream_dagster.source import publication as publications
from pgstream_dagster.source.connect import named_errors
from pgstream_dagster.source.publication import Candidate, PublicationState, Tables
from pgstream_dagster.sql import statement

OLDEST: Final = 150000
"""15: row filters, column lists and `pg_publication_tables` that says them."""

SLOTS_WANTED: Final = 2
"""The stream's, and a temporary one while a later copy takes its snapshot."""

SENDERS_WANTED: Final = 3
"""The stream, the export of a snapshot, and the look at the system's identity."""

NAMED: Final = 5
"""Tables that a sentence names."""

OF_TABLES: Final = frozenset(
    {
        "column_list",
        "generated_columns",
        "not_replicable",
        "partition_identity",
        "replica_identity",
        "row_filter",
        "row_security",
        "select_right",
    }
)
"""Checks whose outcome a change of a table or of the publication may turn while a stream runs."""

DDL_NOTE: Final = (
    "a change of a table is seen when its next row changes, not before: DDL without later rows is"
    " missing in the log, and a column dropped and added again with the same name and type costs a"
    " copy of the table; a primary key dropped and made again between two looks is not seen under"
    " REPLICA IDENTITY FULL; sequences and large objects are not part of the stream"
)


class Severity(StrEnum):
    """What a finding asks for."""

    ERROR = "error"
    WARNING = "warning"
    NOTE = "note"


@dataclass(frozen=True, slots=True)
class Finding:
    """
    One fact about the source. `check` is its short, stable name; `remedy` what helps.

    `leaves_out`: the relation that is not added to the publication because of it.
    """

    check: str
    severity: Severity
    fact: str
    remedy: str = ""
    leaves_out: int | None = None

    def __str__(self) -> str:
        return f"{self.fact}; {self.remedy}" if self.remedy else self.fact


def preflight(
    connection: psycopg.Connection[Any],
    *,
    slot: str,
    publication: str,
    tables: Tables,
    exclude: Sequence[str] = (),
) -> list[Finding]:
    """
    Everything about the source that `setup` should know of, errors first.

    Looks at the tables that the publication has, or would have.

    Raises:
        ConnectionLost
    """
    facts = look(connection, slot=slot, publication=publication, tables=tables, exclude=exclude)
    server, scope = facts.server, facts.scope
    if scope is None:
        return [old_version(server)]
    captured = facts.captured
    if scope.is_by_hand:
        captured = [member for member in captured if member.relation_id in scope.published]
    findings = [
        *server_findings(server),
        *scope_findings(scope, server),
        *publishing_findings(scope, server, facts.left_out),
        *identity_findings(facts.without_identity, facts.members, scope.published),
        *table_findings(captured, scope, server),
        *access_findings([m for m in captured if m.is_root], server),
        Finding("ddl", Severity.NOTE, DDL_NOTE),
    ]
    if tables == "all" or (scope.state is not None and scope.state.is_all_tables):
        is_list = tables != "all" or bool(exclude) or (scope.state is None and bool(facts.left_out))
        findings += new_table_findings(scope, server, is_list=is_list)
    order = list(Severity)
    return sorted(findings, key=lambda finding: order.index(finding.severity))


def unfit_findings(
    connection: psycopg.Connection[Any],
    *,
    slot: str,
    publication: str,
    tables: Tables,
    exclude: Sequence[str] = (),
    captured: Collection[int],
) -> list[Finding]:
    """
    What keeps tables from being captured whole now, or fails in the application.

    A table of FOR ALL TABLES leaves the publication when it is set unlogged; so the tables that the
    log has (`captured`) are looked at, too.

    Raises:
        ConnectionLost
    """
    findings = preflight(
        connection, slot=slot, publication=publication, tables=tables, exclude=exclude
    )
    risks = [f for f in findings if f.check in OF_TABLES and f.severity is not Severity.NOTE]
    unlogged = [
        Finding(
            "not_replicable",
            Severity.ERROR,
            f"table {table.full_name!r} is not captured any more: {UNLOGGED}",
            f"run alter table {table.sql_name} set logged",
        )
        for table in publications.relations(connection)
        if table.relation_id in captured
        and not table.is_publishable
        and publications.is_asked_for(table, tables, exclude)
    ]
    return [*unlogged, *risks]


def require(findings: Iterable[Finding]) -> None:
    """Raise `PreflightFailed` with all errors among the findings, if there are any."""
    if wrong := [str(finding) for finding in findings if finding.severity is Severity.ERROR]:
        raise PreflightFailed(wrong)


@dataclass(frozen=True, slots=True)
class Facts:
    """What was found of a source. `scope` is `None` where the server is too old to be asked."""

    server: Server
    scope: Scope | None
    members: Sequence[Member] = ()

    @property
    def without_identity(self) -> list[Member]:
        """Those whose UPDATEs and DELETEs fail, or would, because they are published."""
        if self.scope is None or not self.scope.needs_identity:
            return []
        return [m for m in self.members if m.kind != "f" and (m.key is None or _hides_full(m))]

    @property
    def left_out(self) -> set[int]:
        """Relations that are not published and had better not be."""
        published = frozenset[int]() if self.scope is None else self.scope.published
        return {m.relation_id for m in self.without_identity} - published

    @property
    def captured(self) -> list[Member]:
        """All others: what is captured, or may be."""
        left_out = self.left_out
        return [member for member in self.members if member.relation_id not in left_out]


def look(
    connection: psycopg.Connection[Any],
    *,
    slot: str,
    publication: str,
    tables: Tables,
    exclude: Sequence[str] = (),
) -> Facts:
    """
    The facts that findings and grants are made from.

    Raises:
        ConnectionLost
    """
    server = _server(connection, slot, publication)
    if server.version < OLDEST:
        return Facts(server, None)
    scope = _scope(connection, publication, tables, exclude)
    return Facts(server, scope, _tables(connection, scope.relation_ids))


# --- the server and the role ------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Server:
    """One row of `preflight/server`."""

    version: int
    version_text: str
    is_standby: bool
    wal_level: str
    slots: int
    slots_taken: int
    has_slot: bool
    senders: int
    senders_taken: int
    role: str
    role_sql: str
    database: str
    database_sql: str
    publication_sql: str
    is_superuser: bool
    may_replicate: bool
    may_create: bool
    encoding: str
    wal_keep_size: str
    synchronous_names: str
    idle_slot_timeout: str | None
    output_plugins: str | None


def _server(connection: psycopg.Connection[Any], slot: str, publication: str) -> Server:
    values = {"slot": slot, "publication": publication}
    with named_errors(connection), connection.cursor(row_factory=class_row(Server)) as cursor:
        (row,) = cursor.execute(statement("preflight/server"), values).fetchall()
    return row


def server_findings(server: Server) -> Iterator[Finding]:
    """What the server's settings and the role's rights say."""
    if server.is_standby:
        yield Finding(
            "standby",
            Severity.ERROR,
            "the server is a standby: no publication can be made on it",
            "let PGSTREAM_DSN name the primary",
        )
    if server.wal_level != "logical":
        yield Finding(
            "wal_level",
            Severity.ERROR,
            f"wal_level is {server.wal_level!r}: the WAL does not say which rows changed",
            "run alter system set wal_level = 'logical' and restart the server",
        )
    if server.output_plugins is not None and "pgoutput" not in server.output_plugins:
        yield Finding(
            "output_plugin",
            Severity.ERROR,
            "output_plugin_libraries does not allow pgoutput",
            "run alter system set output_plugin_libraries = 'pgoutput, test_decoding' and"
            " select pg_reload_conf()",
        )
    if not server.may_replicate:
        yield Finding(
            "replication_right",
            Severity.ERROR,
            f"role {server.role!r} may not replicate",
            f"run alter role {server.role_sql} replication",
        )
    yield from _room(server)
    yield from _encoding(server)
    yield from _patience(server)
    if re.search(r'(?:^|[\s,("])\*', server.synchronous_names):
        yield Finding(
            "synchronous",
            Severity.WARNING,
            f"synchronous_standby_names is {server.synchronous_names!r}: the stream may count as a"
            " synchronous standby, and commits on the source would then wait for the lake",
            "name the standbys: run alter system set synchronous_standby_names = '<their names>'"
            " and select pg_reload_conf()",
        )


def _room(server: Server) -> Iterator[Finding]:
    """Free slots and walsenders; a slot that exists already needs no other."""
    for check, setting, limit, taken, wanted in (
        (
            "slots",
            "max_replication_slots",
            server.slots,
            server.slots_taken,
            SLOTS_WANTED - server.has_slot,
        ),
        ("senders", "max_wal_senders", server.senders, server.senders_taken, SENDERS_WANTED),
    ):
        free = max(limit - taken, 0)
        if free < wanted:
            yield Finding(
                check,
                Severity.WARNING if free >= wanted - 1 else Severity.ERROR,
                f"{free} of {limit} are free under {setting}, {wanted} are wanted",
                f"run alter system set {setting} = {limit + wanted - free} and restart the server",
            )


def _encoding(server: Server) -> Iterator[Finding]:
    if server.encoding == "SQL_ASCII":
        yield Finding(
            "encoding",
            Severity.ERROR,
            "the database's encoding is SQL_ASCII: its bytes have no meaning as text",
            "create a database with encoding 'UTF8' and restore a dump of this one into it",
        )
    elif server.encoding != "UTF8":
        yield Finding(
            "encoding",
            Severity.NOTE,
            f"the database's encoding is {server.encoding}: text is converted to UTF-8, and a"
            " character without a counterpart would stop the stream",
        )


def _patience(server: Server) -> Iterator[Finding]:
    """How long the stream may stand still."""
    if server.wal_keep_size == "-1":
        yield Finding(
            "wal_keep_size",
            Severity.NOTE,
            "max_slot_wal_keep_size is unlimited: while the stream stands still, WAL fills the"
            " source's disk",
            "watch 'pgstream status', or run alter system set max_slot_wal_keep_size = '<size>'"
            " and select pg_reload_conf() to lose the slot rather than the server",
        )
    else:
        yield Finding(
            "wal_keep_size",
            Severity.WARNING,
            f"max_slot_wal_keep_size is {server.wal_keep_size}: when the stream stands still for"
            " more WAL than that, the slot is lost and every table has to be copied again",
            "size it for the longest stop you plan",
        )
    if server.idle_slot_timeout not in (None, "0"):
        yield Finding(
            "idle_slot_timeout",
            Severity.WARNING,
            f"idle_replication_slot_timeout is {server.idle_slot_timeout}: when no stream runs for"
            " so long, the slot is lost and every table has to be copied again",
            "run alter system set idle_replication_slot_timeout = 0 and select pg_reload_conf(),"
            " or stop the stream for less",
        )


def old_version(server: Server) -> Finding:
    """A server that cannot be asked for more."""
    return Finding(
        "version",
        Severity.ERROR,
        f"the server is Postgres {server.version_text}; 15 is the oldest that works",
        "upgrade it",
    )


# --- which tables -----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Scope:
    """What the publication has, or would have."""

    publication: str
    state: PublicationState | None
    published: frozenset[int]
    wanted: tuple[Candidate, ...]  # what the pipeline file asks for
    columns: Mapping[int, tuple[str, ...]]  # of those published already
    row_filters: Mapping[int, str]
    refused: tuple[tuple[str, Candidate], ...]  # a pattern and what it names in vain
    unmatched: tuple[TablePattern, ...]

    @property
    def is_by_hand(self) -> bool:
        """Somebody else's publication: used as it is."""
        return self.state is not None and not self.state.is_ours

    @property
    def needs_identity(self) -> bool:
        """Whether updates or deletes are published, or will be."""
        return self.state is None or self.state.needs_identity

    @property
    def relation_ids(self) -> list[int]:
        """What is published, or is to be."""
        return sorted({*self.published, *(c.relation_id for c in self.wanted)})


def _scope(
    connection: psycopg.Connection[Any], publication: str, tables: Tables, exclude: Sequence[str]
) -> Scope:
    state = publications.inspect(connection, publication)
    candidates = publications.relations(connection)
    existing = publications.published(connection, publication) if state else []
    refused: list[tuple[str, Candidate]] = []
    unmatched: list[TablePattern] = []
    if (state is None or state.is_ours) and tables != "all":
        refused, unmatched = _in_vain([TablePattern.parse(p) for p in tables], candidates)
    return Scope(
        publication=publication,
        state=state,
        published=frozenset(table.relation_id for table in existing),
        wanted=tuple(publications.chosen(candidates, tables, exclude)),
        columns={table.relation_id: table.columns for table in existing},
        row_filters={t.relation_id: t.row_filter for t in existing if t.row_filter is not None},
        refused=tuple(refused),
        unmatched=tuple(unmatched),
    )


def _in_vain(
    patterns: Sequence[TablePattern], candidates: Sequence[Candidate]
) -> tuple[list[tuple[str, Candidate]], list[TablePattern]]:
    """What exact patterns name and cannot have, and patterns that find nothing."""
    refused: list[tuple[str, Candidate]] = []
    unmatched: list[TablePattern] = []
    for pattern in patterns:
        found = [c for c in candidates if pattern.matches(c.namespace, c.name)]
        if not found:
            unmatched.append(pattern)
        elif pattern.is_exact:
            refused += [(str(pattern), c) for c in found if not c.is_publishable]
    return refused, unmatched


WHY_REFUSED: Final[Mapping[str, str]] = {
    "v": "a view has no rows of its own; name the tables it reads",
    "m": "a materialized view is rewritten at every refresh; name the tables it reads",
    "f": "a foreign table's changes are not in this server's WAL; capture it where it lives",
}
UNLOGGED: Final = "an unlogged table's changes are not in the WAL"
TEMPORARY: Final = "a temporary table's changes are not in the WAL"


def scope_findings(scope: Scope, server: Server) -> Iterator[Finding]:
    """What the publication and the patterns say."""
    for pattern, candidate in scope.refused:
        reason = WHY_REFUSED.get(candidate.kind)
        remedy = "leave it out of source.tables"
        if reason is None and candidate.persistence == "u":
            reason, remedy = UNLOGGED, f"run alter table {candidate.full_name} set logged"
        yield Finding(
            "not_replicable",
            Severity.ERROR,
            f"pattern {pattern!r} names {candidate.full_name!r}, which cannot be captured:"
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
    if not (scope.published if scope.is_by_hand else scope.relation_ids):
        yield Finding(
            "no_tables",
            Severity.ERROR,
            f"publication {scope.publication!r} has no tables",
            "correct source.tables in pgstream.yaml, or add tables to the publication",
        )
    if scope.state is not None and scope.is_by_hand and not scope.state.is_complete:
        yield Finding(
            "publish",
            Severity.ERROR,
            f"publication {scope.publication!r} does not publish every operation: the log would"
            " differ from the source",
            f"run alter publication {server.publication_sql} set (publish = 'insert, update,"
            " delete, truncate')",
        )


def new_table_findings(scope: Scope, server: Server, *, is_list: bool) -> Iterator[Finding]:
    """What becomes of tables that are created later, where every table is to be captured."""
    state = scope.state
    is_all = server.is_superuser if state is None else state.is_all_tables
    if is_all and not (is_list and not scope.is_by_hand):
        yield Finding(
            "all_tables",
            Severity.WARNING,
            f"publication {scope.publication!r} is FOR ALL TABLES: UPDATEs and DELETEs of a table"
            " that is created later without a primary key will fail in your application",
            "give every new table a primary key or replica identity full; or name tables in"
            " source.tables or source.exclude: a list of tables breaks no new one",
        )
    elif not scope.is_by_hand:
        yield Finding(
            "new_tables",
            Severity.NOTE,
            "tables that are created later join at the next 'pgstream setup', not by themselves",
        )


def publishing_findings(
    scope: Scope, server: Server, left_out: Collection[int]
) -> Iterator[Finding]:
    """Whether our role may make the publication as it should be, or what its maker left out."""
    missing = [c for c in scope.wanted if c.relation_id not in scope.published]
    missing = [c for c in missing if c.relation_id not in left_out]
    foreign = [c for c in missing if not c.is_owned]
    if scope.is_by_hand and missing:
        yield Finding(
            "not_published",
            Severity.WARNING,
            f"publication {scope.publication!r}, which 'pgstream setup' did not make, lacks"
            f" {_count(missing, 'table')} that source.tables names: {_names(missing)}",
            f"run {publication_statement(scope, server, missing)}, or name them in source.exclude",
        )
    elif foreign:
        yield Finding(
            "owner",
            Severity.ERROR,
            f"role {server.role!r} does not own {len(foreign)} of {_count(missing, 'table')} to"
            f" publish, so it cannot publish them: {_names(foreign)}",
            "let a superuser, or an owner of all of them, run"
            f" {publication_statement(scope, server, missing)}",
        )
    elif scope.state is None and not server.may_create:
        yield Finding(
            "create_right",
            Severity.ERROR,
            f"role {server.role!r} may not create a publication in database {server.database!r}",
            f"run grant create on database {server.database_sql} to {server.role_sql}",
        )


def publication_statement(scope: Scope, server: Server, tables: Iterable[Candidate]) -> str:
    """The statement that publishes these tables, for somebody who may."""
    listed = ", ".join(f"only {table.sql_name}" for table in tables)
    if scope.state is not None:
        return f"alter publication {server.publication_sql} add table {listed}"
    options = publications.options(server.version)
    return f"create publication {server.publication_sql} for table {listed} with ({options})"


def _names(tables: Sequence[Candidate | Member]) -> str:
    """The first few by name; a statement beside it has all of them."""
    names = [t.full_name if isinstance(t, Candidate) else t.table_name for t in tables]
    return ", ".join(names[:NAMED]) + (", ..." if len(names) > NAMED else "")


def _count(of: Sequence[object], what: str) -> str:
    return f"{len(of):,} {what}" + ("" if len(of) == 1 else "s")


# --- each table -------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Member:
    """One row of `preflight/tables`: a table, or one leaf of a partitioned one."""

    relation_id: int
    member_id: int
    table_name: str
    table_sql: str
    member_name: str
    member_sql: str
    kind: str
    persistence: str
    identity: str
    identity_columns: list[str] | None
    is_deferrable: bool
    has_toast: bool
    has_stored_columns: bool  # generated ones
    has_virtual_columns: bool
    hides_rows: bool
    may_select: bool
    may_use_namespace: bool
    namespace_sql: str
    has_row_security: bool
    owner_sql: str
    has_children: bool

    @property
    def is_root(self) -> bool:
        """The published table itself."""
        return self.member_id == self.relation_id

    @property
    def key(self) -> tuple[str, ...] | None:
        """Columns that an old image is sure to have; `None`: no old image at all."""
        if self.identity == "n":
            return None
        if self.identity_columns is None or self.is_deferrable:
            return () if self.identity == "f" else None
        return tuple(self.identity_columns)


def _tables(connection: psycopg.Connection[Any], relation_ids: Sequence[int]) -> list[Member]:
    values = {"relation_ids": list(relation_ids)}
    with named_errors(connection), connection.cursor(row_factory=class_row(Member)) as cursor:
        return cursor.execute(statement("preflight/tables"), values).fetchall()


def identity_findings(
    without: Sequence[Member], members: Sequence[Member], published: Collection[int]
) -> Iterator[Finding]:
    """
    A warning for each table, or leaf of one, that has no replica identity.

    One that is not published yet is left out. They are errors where no other table is left.
    """
    ids = {member.relation_id for member in without}
    is_all = ids == {member.relation_id for member in members}
    for member in without:
        is_published = member.relation_id in published
        fact, remedy = _no_identity(member)
        consequence = (
            "and is published: its UPDATEs and DELETEs fail in your application"
            if is_published
            else "and is left out: its UPDATEs and DELETEs would fail in your application"
        )
        yield Finding(
            "replica_identity",
            Severity.ERROR if is_all else Severity.WARNING,
            f"{fact} {consequence}",
            remedy,
            None if is_published else member.relation_id,
        )


def table_findings(members: Sequence[Member], scope: Scope, server: Server) -> Iterator[Finding]:
    """What each table says, leaves after their root."""
    roots = {member.relation_id: member for member in members if member.is_root}
    for member in members:
        yield from _storage(member)
        if scope.needs_identity:
            yield from _identity(member, roots[member.relation_id], scope, server)
    if parents := [member for member in members if member.has_children]:
        yield Finding(
            "children",
            Severity.NOTE,
            f"{_count(parents, 'table')} with inheritance children ({_names(parents)}): each child"
            " is a table of its own in the log",
        )


def _storage(member: Member) -> Iterator[Finding]:
    """Leaves whose rows a copy would show and the stream never."""
    if member.is_root or (member.kind == "r" and member.persistence == "p"):
        return
    reason = WHY_REFUSED.get(member.kind, UNLOGGED)
    yield Finding(
        "not_replicable",
        Severity.ERROR,
        f"partition {member.member_name!r} of {member.table_name!r} cannot be captured: {reason}",
        f"run alter table {member.member_sql} set logged, or detach it"
        if member.kind == "r"
        else f"run alter table {member.table_sql} detach partition {member.member_sql}",
    )


def _identity(member: Member, root: Member, scope: Scope, server: Server) -> Iterator[Finding]:
    """Whether UPDATE and DELETE work, and carry what identifies the row."""
    if member.kind == "f" or member.key is None:
        return
    columns = scope.columns.get(root.relation_id)
    missing = sorted(set(member.key) - set(columns)) if columns is not None else []
    if missing:
        yield Finding(
            "column_list",
            Severity.ERROR,
            f"table {member.member_name!r}: the publication leaves out {', '.join(missing)} of its"
            " replica identity: its UPDATEs and DELETEs would fail in your application",
            "add them to the publication's column list",
        )
    if member.identity == "f":
        yield from _full_identity(member, scope, server)
    elif not member.is_root and root.key is not None and not _agrees(member, root):
        yield _other_identity(member, root)
    elif root.relation_id in scope.row_filters and member.has_toast:
        yield Finding(
            "row_filter",
            Severity.ERROR,
            f"table {member.member_name!r} has a row filter and columns that may be stored out of"
            " line: a row that an UPDATE moves into the filter would come without them",
            f"run alter table {member.member_sql} replica identity full",
        )


def _no_identity(member: Member) -> tuple[str, str]:
    """What is wrong, and the statement that helps."""
    full = f"run alter table {member.member_sql} replica identity full"
    if member.key is not None:
        return (
            f"table {member.member_name!r} has replica identity FULL and virtual generated columns",
            f"add a primary key and run alter table {member.member_sql} replica identity default",
        )
    if member.identity == "d" and member.is_deferrable:
        fact = f"table {member.member_name!r} has a deferrable primary key, no replica identity"
        return fact, full
    if member.identity in ("n", "i"):
        what = "NOTHING" if member.identity == "n" else "an index that is gone or deferrable"
        fact = f"table {member.member_name!r} has replica identity {what}"
        return fact, f"{full}, or default where it has a primary key"
    fact = f"table {member.member_name!r} has no replica identity"
    return fact, f"add a primary key, or {full}"


def _hides_full(member: Member) -> bool:
    """FULL with columns that cannot be published, without which 18 refuses UPDATEs."""
    return member.identity == "f" and member.has_virtual_columns


def _full_identity(member: Member, scope: Scope, server: Server) -> Iterator[Finding]:
    """Where FULL makes UPDATEs fail in the application: 18 wants every column published."""
    are_published = scope.state is None or scope.state.has_generated_columns
    if server.version < publications.HAS_GENERATED or are_published:
        return
    if member.has_stored_columns and not member.has_virtual_columns:
        yield Finding(
            "generated_columns",
            Severity.ERROR,
            f"table {member.member_name!r} has replica identity FULL and generated columns that"
            " are not published: its UPDATEs and DELETEs would fail in your application",
            f"run alter publication {server.publication_sql} set"
            " (publish_generated_columns = stored)",
        )


def _agrees(leaf: Member, root: Member) -> bool:
    """
    Whether a leaf's old image has what its root's description promises.

    pgoutput describes the root and sends what the leaf logged. CREATE TABLE ... PARTITION OF does
    not pass the identity on.
    """
    return root.identity != "f" and leaf.key == root.key


def _other_identity(member: Member, root: Member) -> Finding:
    if member.key and member.key == root.key:
        return Finding(
            "partition_identity",
            Severity.WARNING,
            f"partition {member.member_name!r} logs the key of {root.table_name!r} only, which has"
            " replica identity FULL: old rows of the whole table come with the key only",
            f"run alter table {member.member_sql} replica identity full",
        )
    return Finding(
        "partition_identity",
        Severity.ERROR,
        f"partition {member.member_name!r} has another replica identity than {root.table_name!r},"
        " under whose name its changes are sent: which rows its UPDATEs and DELETEs mean could not"
        " be told",
        f"run alter table {member.member_sql} replica identity full, or give both the same",
    )


def access_findings(roots: Sequence[Member], server: Server) -> Iterator[Finding]:
    """Whether our role may copy the tables, and sees all of their rows."""
    refused = [m for m in roots if not (m.may_select and m.may_use_namespace)]
    if refused:
        yield Finding(
            "select_right",
            Severity.ERROR,
            f"role {server.role!r} may not read {_count(refused, 'table')}, so they cannot be"
            f" copied: {_names(refused)}",
            f"run {'; '.join(read_statements(refused, server.role_sql))}",
        )
    if hidden := [member for member in roots if member.hides_rows]:
        yield Finding(
            "row_security",
            Severity.ERROR,
            f"row security hides rows of {_names(hidden)} from role {server.role!r}: a copy would"
            " miss them",
            f"run alter role {server.role_sql} bypassrls",
        )


def read_statements(roots: Sequence[Member], role: str) -> Iterator[str]:
    """What lets `role` read those of the tables that it may not read yet."""
    schemas = sorted({m.namespace_sql for m in roots if not m.may_use_namespace})
    tables = [m.table_sql for m in roots if not m.may_select]
    if schemas:
        yield f"grant usage on schema {', '.join(schemas)} to {role}"
    if tables:
        yield f"grant select on table {', '.join(tables)} to {role}"
