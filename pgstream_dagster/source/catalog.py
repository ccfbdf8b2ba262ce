"""
Relations as the catalog has them: published columns with their attnums, and the key.

Only reads `pg_catalog`, and waits for no ALTER TABLE that locks a relation. The catalog shows the
present; a Relation message describes a moment of the past. `resolve` brings the two together
(`schema.align`) and reports when it cannot.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from pgstream_dagster.errors import RelationGone
from pgstream_dagster.schema.align import ColumnShape, align, shapes
from pgstream_dagster.schema.ddl import only_element
from pgstream_dagster.schema.table import Column, ReplicaIdentity, TableSchema
from pgstream_dagster.source.connect import Session
from pgstream_dagster.source.query import query, query_all
from pgstream_dagster.stop import Cancelled
from pgstream_dagster.wire.pgoutput import Relation, RelationColumn

VISIBLE_SECONDS: Final = 10.0
"""How long to wait until a transaction that was streamed shows in the catalog. It is sent once its
commit record is on disk, a moment before others see it; a synchronous standby that does not answer
makes that moment long."""

VISIBLE_AFTER_STOP_SECONDS: Final = 1.0
"""The same after a stop."""

POLL_SECONDS: Final = 0.002

_WRAP: Final = 1 << 32


@dataclass(frozen=True, slots=True)
class Resolved:
    """
    A described relation with attnums.

    `certain` is false when the catalog does not determine them: what follows cannot be matched with
    what the log has of the relation, which then needs a gap and a copy.
    """

    schema: TableSchema
    certain: bool


@dataclass(frozen=True, slots=True)
class _Type:
    """One row of `source/types`; nulls for a type that is gone."""

    type_name: str | None
    value_type: str | None


@dataclass(frozen=True, slots=True)
class _Row:
    """One row of `source/relation`; a relation without columns has one, with no attnum."""

    namespace: str
    name: str
    identity: str
    key_attnums: list[int] | None
    attnum: int | None
    column_name: str
    type_oid: int
    typmod: int | None
    not_null: bool | None
    may_be_null: bool
    is_dropped: bool | None
    is_generated: bool | None
    is_late: bool
    default_expression: str | None
    missing: str | None

    @property
    def shape(self) -> ColumnShape:
        """As a Relation message would describe it."""
        return ColumnShape(
            self.column_name, self.type_oid, -1 if self.typmod is None else self.typmod
        )

    def column(self, column_type: _Type) -> Column:
        """The live attribute as a column."""
        return Column(
            name=self.column_name,
            attnum=self.attnum or 0,
            type_oid=self.type_oid,
            type_name=column_type.type_name or "",
            typmod=self.shape.typmod,
            not_null=bool(self.not_null),
            default=self.default_expression,
            missing=None if self.missing is None else only_element(self.missing),
            value_type=column_type.value_type or "",
        )


def describe(
    connection: Session,
    epoch: int,
    relation_id: int,
    columns: Sequence[str] | None = None,
) -> TableSchema:
    """
    The relation as it is now, with the columns that are published.

    Without `columns`: all that are not generated, as a publication without a column list has them.

    Raises:
        RelationGone: there is none with this oid.
    """
    rows = _rows(connection, relation_id)
    if not rows:
        raise RelationGone(relation_id)
    live = [row for row in rows if row.attnum is not None and not row.is_dropped]
    names = {r.column_name for r in live if not r.is_generated} if columns is None else {*columns}
    chosen = [row for row in live if row.column_name in names]
    types = _types(connection, [row.shape for row in chosen])
    published = tuple(
        row.column(column_type) for row, column_type in zip(chosen, types, strict=True)
    )
    key = _named(rows[0].key_attnums, published) or ()
    return TableSchema(
        epoch=epoch,
        relation_id=relation_id,
        namespace=rows[0].namespace,
        name=rows[0].name,
        identity=ReplicaIdentity(rows[0].identity),
        columns=published,
        key=key if _identifies(rows, published, key) else (),
    )


def resolve(
    connection: Session,
    epoch: int,
    relation: Relation,
    previous: TableSchema | None,
    *,
    xid: int | None = None,
    stop: threading.Event | None = None,
) -> Resolved:
    """
    The version that a Relation message describes, with attnums.

    `previous` is the newest version from before the message; `xid` the transaction whose rows
    follow: it may have made the columns itself, so the catalog is read only when it shows there.
    The values that old rows have in a column are those of `previous` where that has the column: the
    catalog forgets them at the next rewrite.
    """
    is_shown_now = xid is None or _wait_until_shown(connection, xid, stop)
    rows = _rows(connection, relation.relation_id, xid)
    by_attnum = {row.attnum: row for row in rows if row.attnum is not None}
    aligned = align(
        shapes(relation.columns),
        {n: None if row.is_dropped else row.shape for n, row in by_attnum.items()},
        None if previous is None else _shapes(previous),
        {n for n, row in by_attnum.items() if row.is_late},
    )
    columns = _columns(connection, relation, aligned.attnums, by_attnum, previous)
    key_attnums = rows[0].key_attnums if rows else None
    key = _key(relation, columns, key_attnums, previous, bool(rows))
    schema = TableSchema(
        epoch=epoch,
        relation_id=relation.relation_id,
        namespace=relation.namespace or "pg_catalog",
        name=relation.name,
        identity=relation.identity,
        columns=columns,
        key=key if _identifies(rows, columns, key) else (),
    )
    return Resolved(schema, aligned.certain and is_shown_now)


def contradicts(connection: Session, schema: TableSchema, xid: int) -> bool:
    """
    Whether a relation had other columns than a version has when a transaction began.

    True if the catalog has a later column, or has dropped one of these, and neither was done after
    that began. `False` proves nothing: the catalog shows the present.
    """
    newest = max(schema.attnums.values(), default=0)
    attnums = {*schema.attnums.values()}
    return any(
        not row.is_late and (row.attnum > newest or (row.is_dropped and row.attnum in attnums))
        for row in _rows(connection, schema.relation_id, xid)
        if row.attnum is not None and not row.is_generated
    )


def leaves(
    connection: Session,
    relation_id: int,
    candidates: Collection[int],
    beside: Collection[int] = (),
) -> set[int]:
    """
    The relations among `candidates` that are leaves of a partitioned table, or may have been.

    Those `beside` a row of the table, described right before it, may have been also when they are
    another tree's by now.
    """
    oids, near = sorted(candidates), sorted(beside)
    rows = query(connection, "source/leaves", relation_id=relation_id, candidates=oids, beside=near)
    return {oid for (oid,) in rows}


def truncated_file(
    connection: Session,
    relation_id: int,
    xid: int,
    *,
    top_xid: int,
    stop: threading.Event | None = None,
) -> int | None:
    """
    The file that an ordinary table has by a TRUNCATE of (sub-)transaction `xid`, or `None`.

    All that was ever in that file came after the TRUNCATE and is in the stream. For the very first
    command of that transaction was the last to touch the table's entry in the catalog: it was the
    TRUNCATE, or made the file that the TRUNCATE then emptied. A rewrite, or a time as an unlogged
    table, would have left a later command's number there; a TRUNCATE that is not the first command
    cannot be distinguished from those. Call before the transaction is confirmed: as long as it is
    not, the slot keeps VACUUM from freezing the entry, which removes what rolled-back commands left
    on it. A partition tree has no such file: the TRUNCATE of one leaf is not in the stream.
    """
    if not _wait_until_shown(connection, top_xid, stop):
        return None
    rows = query(connection, "source/truncated_file", relation_id=relation_id, xid=xid)
    return rows[0][0] if rows else None


def is_shown(snapshot: str, xid: int) -> bool:
    """
    Whether a transaction that has committed shows in a snapshot, given as `xmin:xmax:running`.

    `xid` has 32 bits, as pgoutput sends it; the snapshot's ids have 64.
    """
    _, xmax, running = snapshot.split(":")
    ahead = (xid - int(xmax)) % _WRAP  # ids wrap around: take the nearer one
    full = int(xmax) + (ahead if ahead < _WRAP // 2 else ahead - _WRAP)
    return full < int(xmax) and str(full) not in running.split(",")


def _rows(connection: Session, relation_id: int, xid: int | None = None) -> list[_Row]:
    return query_all(connection, _Row, "source/relation", relation_id=relation_id, xid=xid)


def _wait_until_shown(connection: Session, xid: int, stop: threading.Event | None) -> bool:
    """Whether it shows in time; `Cancelled` after a stop: the transaction is sent again."""
    began = time.monotonic()
    while True:
        [(snapshot,)] = query(connection, "source/current_snapshot")
        if is_shown(snapshot, xid):
            return True
        waited = time.monotonic() - began
        if waited > VISIBLE_SECONDS:
            return False
        if stop is not None and stop.is_set() and waited > VISIBLE_AFTER_STOP_SECONDS:
            raise Cancelled
        time.sleep(POLL_SECONDS)


def _shapes(schema: TableSchema) -> dict[int, ColumnShape]:
    return dict(zip(schema.attnums.values(), shapes(schema.columns), strict=True))


def _columns(
    connection: Session,
    relation: Relation,
    attnums: Sequence[int],
    by_attnum: Mapping[int, _Row],
    previous: TableSchema | None,
) -> tuple[Column, ...]:
    """The message's names and types; the rest from the catalog, or from the version before."""
    before = {column.attnum: column for column in previous.columns} if previous else {}
    types = _types(connection, relation.columns)
    columns: list[Column] = []
    for described, attnum, column_type in zip(relation.columns, attnums, types, strict=True):
        row, older = by_attnum.get(attnum), before.get(attnum)
        now = row.column(column_type) if row is not None and not row.is_dropped else older
        columns.append(
            Column(
                name=described.name,
                attnum=attnum,
                type_oid=described.type_oid,
                type_name=column_type.type_name or (older.type_name if older else ""),
                typmod=described.typmod,
                not_null=bool(now and now.not_null),
                default=now.default if now else None,
                missing=older.missing if older else (now.missing if now else None),
                value_type=column_type.value_type or (older.value_type if older else ""),
                modified=older.modified if older else "",  # which `missing` was, too
            )
        )
    return tuple(columns)


def _types(
    connection: Session, columns: Sequence[ColumnShape] | Sequence[RelationColumn]
) -> list[_Type]:
    oids, typmods = [c.type_oid for c in columns], [c.typmod for c in columns]
    return query_all(connection, _Type, "source/types", type_oids=oids, typmods=typmods)


def _identifies(rows: Sequence[_Row], columns: Sequence[Column], key: Collection[str]) -> bool:
    """
    Whether no column of the key is missing in `key`, or may be NULL, as far as the catalog says.

    Postgres requires neither: until 18 it takes a key with a generated column, which it does not
    send, and from 18 on a replica identity index over a NOT NULL that is not validated.
    """
    whole = rows[0].key_attnums or () if rows else ()
    sent = {column.attnum for column in columns}
    chosen = {column.attnum for column in columns if column.name in key}
    is_cut = any(r.is_generated and r.attnum in whole and r.attnum not in sent for r in rows)
    return not is_cut and not any(row.may_be_null and row.attnum in chosen for row in rows)


def _key(
    relation: Relation,
    columns: Sequence[Column],
    now: Sequence[int] | None,
    previous: TableSchema | None,
    exists: bool,
) -> tuple[str, ...]:
    """
    The key's columns, in key order.

    DEFAULT and INDEX: the message flags them, without their order. The catalog's order counts,
    which copies have, too; the previous version has one where the catalog's columns have changed.
    FULL flags every column: there only the catalog has the key.
    """
    before = previous.key_attnums if previous else None
    if relation.identity is ReplicaIdentity.NOTHING:
        return ()
    if relation.identity is ReplicaIdentity.FULL:
        return _named(now if exists else before, columns) or ()
    flagged = [c.name for c in relation.columns if c.in_key]
    for attnums in (now, before):
        names = _named(attnums, columns)
        if names is not None and set(names) == set(flagged):
            return names
    return tuple(flagged)


def _named(attnums: Sequence[int] | None, columns: Sequence[Column]) -> tuple[str, ...] | None:
    """The names of these columns; `None` unless all of them exist."""
    names = {column.attnum: column.name for column in columns}
    if attnums is None or not all(attnum in names for attnum in attnums):
        return None
    return tuple(names[attnum] for attnum in attnums)
