"""
The publication: make or check it, read exactly what it publishes, drop it.

A publication made by hand is used as it is and never altered or dropped; ours have a comment.
Reads no table.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, LiteralString, TypeAlias

import psycopg
from psycopg import sql

from pgstream_dagster.config.outbox_sink import EVENTS_TABLE
from pgstream_dagster.errors import (
    LocksHeld,
    NoTables,
    PublicationIncomplete,
    PublicationMissing,
    TableLocked,
)
from pgstream_dagster.patterns import TablePattern, full_name
from pgstream_dagster.schema.versions import Versions
from pgstream_dagster.source.connect import Session, named_errors
from pgstream_dagster.source.query import query, query_all, query_one

MARK: Final = "made by 'pgstream setup', dropped by 'pgstream teardown'"
"""Comment on a publication of ours; one without it was made by hand."""

PUBLISH: Final = "publish = 'insert, update, delete, truncate'"
VIA_ROOT: Final = "publish_via_partition_root = true"

OPTIONS: Final = f"{PUBLISH}, {VIA_ROOT}"
"""All operations that change rows, under the name of the partition tree's root."""

GENERATED: Final = ", publish_generated_columns = stored"
"""From 18 on, where leaving them out makes UPDATEs fail under replica identity FULL."""

HAS_GENERATED: Final = 180000

Tables: TypeAlias = Literal["all"] | Sequence[str]
"""`all`, or patterns for `TablePattern`."""

LOCK_SECONDS: Final = 10.0
"""How long to wait for a table that another session locks exclusively."""


@dataclass(frozen=True, slots=True)
class PublicationState:
    """One publication as the catalog has it."""

    is_all_tables: bool
    is_via_root: bool
    is_complete: bool  # publishes inserts, updates, deletes and truncates
    needs_identity: bool  # updates or deletes are published
    has_generated_columns: bool
    is_ours: bool


@dataclass(frozen=True, slots=True)
class PublishedTable:
    """
    One table as pgoutput sends it.

    `columns` are exactly the columns sent, in attnum order; `newest_attnum` counts those that are
    not sent or dropped, too. `members` are the leaves that hold the rows (the table itself unless
    it is partitioned), each with its file. Other `versions` mean that the publication, its column
    list or row filter, or the tree of partitions was changed meanwhile. An ordinary table's
    inheritance children are tables of their own: read it with ONLY.
    """

    relation_id: int
    namespace: str
    name: str
    kind: str  # 'r' ordinary, 'p' partitioned
    columns: tuple[str, ...]
    attnums: tuple[int, ...]  # of `columns`
    newest_attnum: int
    row_filter: str | None
    members: Mapping[int, int]
    estimated_rows: int
    pages: int
    versions: Versions

    @property
    def full_name(self) -> str:
        """`namespace.name`, quoted where it would be ambiguous."""
        return full_name(self.namespace, self.name)

    @property
    def sheds_rows(self) -> bool:
        """
        Whether its partitions come empty and go with rows that the log keeps.

        So it is with the events of the outbox: a day is dropped once it is delivered.
        """
        return self.kind == "p" and self.full_name == EVENTS_TABLE


@dataclass(frozen=True, slots=True)
class Candidate:
    """A relation that a pattern may match."""

    relation_id: int
    namespace: str
    name: str
    kind: str
    persistence: str
    root_id: int
    sql_name: str  # quoted where it must be
    is_owned: bool

    @property
    def full_name(self) -> str:
        """`namespace.name`, quoted where it would be ambiguous."""
        return full_name(self.namespace, self.name)

    @property
    def is_publishable(self) -> bool:
        """Logical decoding can see its rows: an ordinary or partitioned, WAL-logged table."""
        return self.kind in ("r", "p") and self.persistence == "p"


def inspect(connection: Session, publication: str) -> PublicationState | None:
    """The publication as the catalog has it; `None` when there is none."""
    values = {"publication": publication, "mark": MARK}
    return query_one(connection, PublicationState, "source/publication_state", **values)


def ensure(
    connection: Session,
    publication: str,
    tables: Tables,
    *,
    exclude: Sequence[str] = (),
    left_out: Collection[int] = (),
) -> None:
    """
    Make the publication if there is none; bring one of ours up to date; leave any other alone.

    `all` becomes FOR ALL TABLES where the role may (a superuser) and no table stays out, else a
    list of today's tables, which stays a list. Patterns become a list; tables already listed keep
    their column lists and row filters. Relations `left_out` are not added. Run before the slot is
    created: decoding looks the publication up as of each change. Atomic and idempotent.

    Raises:
        NoTables: nothing matches.
        AccessRefused: the role may not create it, or does not own one of the tables.
    """
    state = inspect(connection, publication)
    if state is not None and not state.is_ours:
        return
    if tables == "all" and not exclude:
        if state is not None and state.is_all_tables:
            return
        if state is None and not left_out and _try_all_tables(connection, publication):
            return
    candidates = relations(connection)
    with named_errors(connection), connection.transaction():
        rows = query(connection, "source/publication_listed", publication=publication)
        listed = {oid for (oid,) in rows}
        members = [
            table
            for table in chosen(candidates, tables, exclude)
            if table.relation_id in listed or table.relation_id not in left_out
        ]
        if not members:
            raise NoTables(publication, ["all"] if tables == "all" else list(tables))
        if state is None or state.is_all_tables:
            scope = sql.SQL("for table {}").format(_listed(members))
            _recreate(connection, publication, scope, replacing=state is not None)
        else:
            _update_list(connection, publication, members, listed)


def drop(connection: Session, publication: str) -> bool:
    """Drop the publication if it is ours; whether it was there and ours. Idempotent."""
    state = inspect(connection, publication)
    if state is None or not state.is_ours:
        return False
    drop_it = sql.SQL("drop publication if exists {}").format(sql.Identifier(publication))
    with named_errors(connection):
        connection.execute(drop_it)
    return True


def published(connection: Session, publication: str) -> list[PublishedTable]:
    """
    The tables of the publication, by name; with its root for a partition tree.

    Raises:
        PublicationMissing
        TableLocked: a transaction holds one of them exclusively, longer than this session waits for
            locks (`limit_lock_waits`); the catalog does not answer for any of them then.
    """
    rows = _described(connection, publication)
    if not rows and inspect(connection, publication) is None:
        raise PublicationMissing(publication)
    seen = versions(connection, publication, [row["relation_id"] for row in rows])
    for row in rows:
        row["members"] = _by_oid(row["members"])
        row["versions"] = seen.get(row["relation_id"], Versions())
        for name in ("columns", "attnums"):
            row[name] = tuple(row[name])
    return [PublishedTable(**row) for row in rows]


def _described(connection: Session, publication: str) -> list[dict[str, Any]]:
    name = "source/published_tables"
    try:
        return query_all(connection, dict[str, Any], name, publication=publication)
    except LocksHeld as error:
        rows = query(connection, "source/exclusive_locks")
        if not rows:  # released by now
            raise
        tables, held_by = {name for name, _ in rows}, {pid for _, pid in rows}
        raise TableLocked(", ".join(sorted(tables)), LOCK_SECONDS, sorted(held_by)) from error


def versions(
    connection: Session, publication: str, relation_ids: Collection[int]
) -> dict[int, Versions]:
    """
    What decides which changes of these tables reach us, as the session's snapshot has it.

    Names of a kind of object are read only when a column has references to such objects.
    """
    oids = list(relation_ids)
    rows = query(connection, "source/versions", publication=publication, relation_ids=oids)
    return {
        oid: Versions(tuple(listing), _by_oid(edges), types, tuple(late_columns))
        for oid, listing, edges, types, late_columns in rows
    }


def limit_lock_waits(connection: Session, seconds: float = LOCK_SECONDS) -> None:
    """
    From now on statements of this session raise `LocksHeld` after waiting for a lock.

    The catalog's functions that describe a publication wait for tables that are locked exclusively.
    """
    query(connection, "source/wait_for_locks", milliseconds=round(seconds * 1000))


def require_complete(connection: Session, publication: str, copied: Collection[int]) -> None:
    """
    Raise while changes are lost because the publication does not publish them.

    `copied` are the relations that the log has: partition trees among them need their root's name.

    Raises:
        PublicationMissing
        PublicationIncomplete
    """
    state = inspect(connection, publication)
    if state is None:
        raise PublicationMissing(publication)
    if not state.is_complete:
        raise PublicationIncomplete(publication, "every operation", _altered(publication, PUBLISH))
    if not state.is_via_root:
        oids = list(copied)
        roots = query(connection, "source/split_roots", publication=publication, relation_ids=oids)
        if roots:
            what = f"the changes of {', '.join(repr(name) for (name,) in roots)} under that name"
            raise PublicationIncomplete(publication, what, _altered(publication, VIA_ROOT))


def relations(connection: Session) -> list[Candidate]:
    """Every relation of the database that a pattern may match, tables or not."""
    return query_all(connection, Candidate, "source/relations")


def chosen(
    candidates: Sequence[Candidate], tables: Tables, exclude: Sequence[str] = ()
) -> list[Candidate]:
    """
    The tables to list: those that can be published, match, and are not excluded.

    A partition is left out when its root is chosen, whose publication is that of all its leaves,
    and when its root is excluded.
    """
    excluded = {c.relation_id for c in candidates if _matches(c, exclude)}
    fitting = [
        c
        for c in candidates
        if c.is_publishable
        and excluded.isdisjoint((c.relation_id, c.root_id))
        and _matches(c, tables)
    ]
    ids = {c.relation_id for c in fitting}
    return [c for c in fitting if c.root_id == c.relation_id or c.root_id not in ids]


def is_named(candidate: Candidate, tables: Tables, exclude: Sequence[str]) -> bool:
    """Whether the pipeline file names the table."""
    return _matches(candidate, tables) and not _matches(candidate, exclude)


def _altered(publication: str, options: LiteralString) -> str:
    """The statement that sets options of a publication; for a person to run."""
    set_options = sql.SQL("alter publication {} set ({})")
    return set_options.format(sql.Identifier(publication), sql.SQL(options)).as_string()


def _by_oid(values: Mapping[str, int]) -> dict[int, int]:
    """The result of `jsonb_object_agg`, whose keys are text."""
    return {int(oid): value for oid, value in sorted(values.items())}


def options(version: int) -> LiteralString:
    """The options of a publication of ours, on a server of this version."""
    return OPTIONS + GENERATED if version >= HAS_GENERATED else OPTIONS


def _matches(candidate: Candidate, tables: Tables) -> bool:
    if tables == "all":
        return True
    patterns = map(TablePattern.parse, tables)
    return any(pattern.matches(candidate.namespace, candidate.name) for pattern in patterns)


def _try_all_tables(connection: Session, publication: str) -> bool:
    """Whether the server let us create it FOR ALL TABLES: some allow it to other roles, too."""
    with named_errors(connection):
        try:
            with connection.transaction():
                _recreate(connection, publication, sql.SQL("for all tables"), replacing=False)
        except psycopg.errors.InsufficientPrivilege:
            return False
    return True


def _recreate(
    connection: Session,
    publication: str,
    scope: sql.Composable,
    *,
    replacing: bool,
) -> None:
    """In one transaction of the caller, so that decoding sees a publication at every moment."""
    name = sql.Identifier(publication)
    if replacing:
        connection.execute(sql.SQL("drop publication {}").format(name))
    with_options = sql.SQL(options(connection.info.server_version))
    connection.execute(
        sql.SQL("create publication {} {} with ({})").format(name, scope, with_options)
    )
    connection.execute(sql.SQL("comment on publication {} is {}").format(name, sql.Literal(MARK)))


def _update_list(
    connection: Session,
    publication: str,
    tables: Sequence[Candidate],
    listed: Collection[int],
) -> None:
    """Add the tables that are missing, remove those that are no longer named."""
    ids = {table.relation_id for table in tables}
    added = [table for table in tables if table.relation_id not in listed]
    surplus = set(listed) - ids
    removed = [table for table in relations(connection) if table.relation_id in surplus]
    for verb, changed in ((sql.SQL("add"), added), (sql.SQL("drop"), removed)):
        if changed:
            connection.execute(
                sql.SQL("alter publication {} {} table {}").format(
                    sql.Identifier(publication), verb, _listed(changed)
                )
            )


def _listed(tables: Sequence[Candidate]) -> sql.Composed:
    """With ONLY: an inheritance child is listed when it matches a pattern itself."""
    return sql.SQL(", ").join(
        sql.SQL("only {}").format(sql.Identifier(table.namespace, table.name)) for table in tables
    )
