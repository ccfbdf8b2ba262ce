"""The facts that findings and grants are derived from: the server, the publication, the tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from pgstream_dagster.config import SourceConfig
from pgstream_dagster.patterns import TablePattern
from pgstream_dagster.source import publication as publications
from pgstream_dagster.source.connect import Session
from pgstream_dagster.source.publication import Candidate, PublicationState, PublishedTable
from pgstream_dagster.source.query import query_all

OLDEST: Final = 150000
"""15: row filters and column lists, and `pg_publication_tables` shows both."""


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

    @property
    def is_too_old(self) -> bool:
        """Whether the other facts cannot be read."""
        return self.version < OLDEST


@dataclass(frozen=True, slots=True)
class Scope:
    """The tables of the publication: those it has, and those that the pipeline file names."""

    publication: str
    state: PublicationState | None
    existing: Mapping[int, PublishedTable]
    chosen: tuple[Candidate, ...]
    refused: tuple[tuple[str, Candidate], ...]  # an exact pattern, and what it cannot have
    unmatched: tuple[TablePattern, ...]
    relation_names: frozenset[tuple[str, str]]  # of every relation, with its namespace

    @property
    def published(self) -> frozenset[int]:
        """The relations that the publication has."""
        return frozenset(self.existing)

    @property
    def is_by_hand(self) -> bool:
        """Not made by `pgstream setup`: used as it is."""
        return self.state is not None and not self.state.is_ours

    @property
    def needs_identity(self) -> bool:
        """Whether updates or deletes are published, or will be."""
        return self.state is None or self.state.needs_identity

    @property
    def relation_ids(self) -> list[int]:
        """What is published, or is to be."""
        return sorted(self.published.union(table.relation_id for table in self.chosen))


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
    generated_key: list[str]  # columns of the identity
    unvalidated_key: list[str]  # NOT NULL constraints of the identity, as SQL
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
    detached_from_sql: str | None  # DETACH PARTITION CONCURRENTLY began, and is not done

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

    @property
    def is_without_identity(self) -> bool:
        """
        Whether its UPDATEs and DELETEs fail once they are published.

        FULL does not help where virtual generated columns, which cannot be published, exist: 18
        refuses UPDATEs then.
        """
        hides_full = self.identity == "f" and self.has_virtual_columns
        return self.kind != "f" and (self.key is None or hides_full)


@dataclass(frozen=True, slots=True)
class Facts:
    """The facts about a source."""

    server: Server
    scope: Scope
    members: Sequence[Member]

    @property
    def without_identity(self) -> list[Member]:
        """Those whose UPDATEs and DELETEs fail, or would once published."""
        is_needed = self.scope.needs_identity
        return [member for member in self.members if is_needed and member.is_without_identity]

    @property
    def left_out(self) -> set[int]:
        """Relations that are not published and should not be."""
        return {member.relation_id for member in self.without_identity} - self.scope.published

    @property
    def missing(self) -> list[Candidate]:
        """Tables that are to be published, and are not yet."""
        present = self.scope.published | self.left_out
        return [table for table in self.scope.chosen if table.relation_id not in present]

    @property
    def captured_names(self) -> set[tuple[str, str]]:
        """Namespace and name of each table that `setup` captures."""
        tables = self.scope.existing.values() if self.scope.is_by_hand else self.scope.chosen
        left_out = self.left_out
        return {(t.namespace, t.name) for t in tables if t.relation_id not in left_out}

    @property
    def captured(self) -> list[Member]:
        """All others: what is captured, or may be."""
        left_out = self.left_out
        return [member for member in self.members if member.relation_id not in left_out]


def read_server(connection: Session, source: SourceConfig) -> Server:
    """The facts that every server has; the others need a server from `OLDEST` on."""
    names = {"slot": source.slot, "publication": source.publication}
    [server] = query_all(connection, Server, "preflight/server", **names)
    return server


def read_facts(connection: Session, source: SourceConfig, server: Server) -> Facts:
    """All facts, for a server that is not too old."""
    scope = _scope(connection, source)
    oids = scope.relation_ids
    members = query_all(connection, Member, "preflight/tables", relation_ids=oids)
    return Facts(server, scope, members)


def _scope(connection: Session, source: SourceConfig) -> Scope:
    state = publications.inspect(connection, source.publication)
    candidates = publications.relations(connection)
    existing = publications.published(connection, source.publication) if state else []
    refused: list[tuple[str, Candidate]] = []
    unmatched: list[TablePattern] = []
    if (state is None or state.is_ours) and source.tables != "all":
        refused, unmatched = _in_vain(source.tables, candidates)
    return Scope(
        publication=source.publication,
        state=state,
        existing={table.relation_id: table for table in existing},
        chosen=tuple(publications.chosen(candidates, source.tables, source.exclude)),
        refused=tuple(refused),
        unmatched=tuple(unmatched),
        relation_names=frozenset((c.namespace, c.name) for c in candidates),
    )


def _in_vain(
    patterns: Sequence[str], candidates: Sequence[Candidate]
) -> tuple[list[tuple[str, Candidate]], list[TablePattern]]:
    """What exact patterns name and cannot have, and patterns that match nothing."""
    refused: list[tuple[str, Candidate]] = []
    unmatched: list[TablePattern] = []
    for pattern in map(TablePattern.parse, patterns):
        matches = [c for c in candidates if pattern.matches(c.namespace, c.name)]
        if not matches:
            unmatched.append(pattern)
        elif pattern.is_exact:
            refused += [(str(pattern), c) for c in matches if not c.is_publishable]
    return refused, unmatched
