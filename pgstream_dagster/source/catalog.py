"""
Relations as the catalog has them: published columns with their attnums, and the key.

Only reads `pg_catalog`, and waits for no ALTER TABLE that holds a relation. The catalog shows
the present; a Relation message is of one moment of the past. `resolve` brings the two together
(`schema.align`) and says when it cannot.
"""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import psycopg
from psycopg.rows import class_row

from pgstream_dagster.errors import RelationGone
from pgstream_dagster.schema.align import Attribute, ColumnShape, align
from pgstream_dagster.schema.table import Column, ReplicaIdentity, TableSchema
from pgstream_dagster.source.connect import named_errors
from pgstream_dagster.sql import statement
from pgstream_dagster.stop import Cancelled
from pgstream_dagster.wire.pgoutput import Relation

VISIBLE_SECONDS: Final = 10.0
"""How long to wait until a transaction we were sent shows in the catalog. It is sent once its
commit record is on disk, a moment before others see it; a synchronous standby that is away makes
that moment long."""

VISIBLE_AFTER_STOP_SECONDS: Final = 1.0
"""The same after a stop."""

POLL_SECONDS: Final = 0.002

_WRAP: Final = 1 << 32


@dataclass(frozen=True, slots=True)
class Resolved:
    """
    A described relation with attnums.

    `certain` is false when the catalog cannot tell them: what follows cannot be placed among what
    the log has of the relation, which then needs a gap and a copy.
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
    is_dropped: bool | None
    is_generated: bool | None
    default_expression: str | None
    missing: str | None

    @property
    def shape(self) -> ColumnShape:
        """What a Relation message would say of it."""
        return ColumnShape(
            self.column_name, self.type_oid, -1 if self.typmod is None else self.typmod
        )

    def column(self, its_type: _Type) -> Column:
        """The live attribute as a column."""
        return Column(
            name=self.column_name,
            attnum=self.attnum or 0,
            type_oid=self.type_oid,
            type_name=its_type.type_name or "",
            typmod=self.shape.typmod,
            not_null=bool(self.not_null),
            default=self.default_expression,
            missing=None if self.missing is None else only_element(self.missing),
            value_type=its_type.value_type or "",
        )


def describe(
    connection: psycopg.Connection[Any],
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
    wanted = {r.column_name for r in live if not r.is_generated} if columns is None else {*columns}
    chosen = [row for row in live if row.column_name in wanted]
    types = _types(connection, [row.shape for row in chosen])
    shown = tuple(row.column(its_type) for row, its_type in zip(chosen, types, strict=True))
    return TableSchema(
        epoch=epoch,
        relation_id=relation_id,
        namespace=rows[0].namespace,
        name=rows[0].name,
        identity=ReplicaIdentity(rows[0].identity),
        columns=shown,
        key=_named(rows[0].key_attnums, shown) or (),
    )


def resolve(
    connection: psycopg.Connection[Any],
    epoch: int,
    relation: Relation,
    known: TableSchema | None,
    *,
    xid: int | None = None,
    stop: threading.Event | None = None,
) -> Resolved:
    """
    The version that a Relation message describes, with attnums.

    `known` is the newest version from before the message; `xid` the transaction whose rows follow:
    it may have made the columns itself, so the catalog is read only when it shows there. The
    values that old rows have in a column are those of `known` where that has the column: the
    catalog forgets them at the next rewrite.
    """
    in_catalog = xid is None or _wait_until_shown(connection, xid, stop)
    rows = _rows(connection, relation.relation_id)
    by_attnum = {row.attnum: row for row in rows if row.attnum is not None}
    aligned = align(
        _described(relation),
        [_attribute(attnum, row) for attnum, row in by_attnum.items()],
        None if known is None else _shapes(known),
    )
    columns = _columns(connection, relation, aligned.attnums, by_attnum, known)
    schema = TableSchema(
        epoch=epoch,
        relation_id=relation.relation_id,
        namespace=relation.namespace or "pg_catalog",
        name=relation.name,
        identity=relation.identity,
        columns=columns,
    )
    key_attnums = rows[0].key_attnums if rows else None
    schema = replace(schema, key=_key(relation, schema, key_attnums, known, bool(rows)))
    return Resolved(schema, aligned.certain and in_catalog)


def leaves(
    connection: psycopg.Connection[Any], relation_id: int, candidates: Collection[int]
) -> set[int]:
    """The relations among `candidates` that are leaves of a partitioned table, or may have been."""
    values = {"relation_id": relation_id, "candidates": sorted(candidates)}
    with named_errors(connection):
        return {oid for (oid,) in connection.execute(statement("source/leaves"), values)}


def truncated_file(
    connection: psycopg.Connection[Any],
    relation_id: int,
    xid: int,
    *,
    top_xid: int,
    stop: threading.Event | None = None,
) -> int | None:
    """
    The file that an ordinary table has by a TRUNCATE of (sub-)transaction `xid`; `None`: not known.

    All that was ever in that file came after the TRUNCATE and is in the stream. For the truncating
    transaction's very first command was the last to touch the table's entry in the catalog: it was
    the TRUNCATE, or made the file that the TRUNCATE then emptied. A rewrite, or a time as an
    unlogged table, would have left a later command's number there; a TRUNCATE that is not the first
    command is not told apart from those. Ask before the transaction is confirmed: as long as it is
    not, the slot keeps VACUUM from freezing the entry, which wipes out what rolled-back commands
    left on it. A partition tree has no such file: the TRUNCATE of one leaf is not in the stream.
    """
    if not _wait_until_shown(connection, top_xid, stop):
        return None
    values = {"relation_id": relation_id, "xid": xid}
    with named_errors(connection):
        row = connection.execute(statement("source/truncated_file"), values).fetchone()
    return None if row is None else row[0]


def only_element(array: str) -> str:
    """
    The element of an array of one, as `array_out` prints it.

    Read here and not by a cast to text[]: an element is quoted for the delimiter of its own type,
    so the box `(1,1),(0,0)` stands unquoted and would be read as two.

    Source:
        https://www.postgresql.org/docs/current/arrays.html#ARRAYS-IO
    """
    inner = array[1:-1]
    if inner.startswith('"'):
        return re.sub(r"\\(.)", r"\1", inner[1:-1], flags=re.DOTALL)
    return inner


def is_shown(snapshot: str, xid: int) -> bool:
    """
    Whether a transaction that has committed shows in a snapshot, given as `xmin:xmax:running`.

    `xid` has 32 bits, as pgoutput sends it; the snapshot's ids have 64.
    """
    _, xmax, running = snapshot.split(":")
    ahead = (xid - int(xmax)) % _WRAP  # of two ids, the nearer half of the circle is meant
    full = int(xmax) + (ahead if ahead < _WRAP // 2 else ahead - _WRAP)
    return full < int(xmax) and str(full) not in running.split(",")


def _rows(connection: psycopg.Connection[Any], relation_id: int) -> list[_Row]:
    with named_errors(connection), connection.cursor(row_factory=class_row(_Row)) as cursor:
        return cursor.execute(statement("source/relation"), {"relation_id": relation_id}).fetchall()


def _wait_until_shown(
    connection: psycopg.Connection[Any], xid: int, stop: threading.Event | None
) -> bool:
    """Whether it shows in time; `Cancelled` after a stop: the transaction is sent again."""
    began = time.monotonic()
    while True:
        with named_errors(connection):
            ((snapshot,),) = connection.execute(statement("source/current_snapshot")).fetchall()
        if is_shown(snapshot, xid):
            return True
        waited = time.monotonic() - began
        if waited > VISIBLE_SECONDS:
            return False
        if stop is not None and stop.is_set() and waited > VISIBLE_AFTER_STOP_SECONDS:
            raise Cancelled
        time.sleep(POLL_SECONDS)


def _attribute(attnum: int, row: _Row) -> Attribute:
    if row.is_dropped:
        return Attribute(attnum, None)
    return Attribute(attnum, row.shape)


def _shapes(schema: TableSchema) -> dict[int, ColumnShape]:
    return {c.attnum: ColumnShape(c.name, c.type_oid, c.typmod) for c in schema.columns}


def _columns(
    connection: psycopg.Connection[Any],
    relation: Relation,
    attnums: Sequence[int],
    by_attnum: Mapping[int, _Row],
    known: TableSchema | None,
) -> tuple[Column, ...]:
    """The message's names and types; the rest from the catalog, or from the version before."""
    before = {column.attnum: column for column in known.columns} if known else {}
    types = _types(connection, _described(relation))
    columns: list[Column] = []
    for said, attnum, its_type in zip(relation.columns, attnums, types, strict=True):
        row, older = by_attnum.get(attnum), before.get(attnum)
        now = row.column(its_type) if row is not None and not row.is_dropped else older
        columns.append(
            Column(
                name=said.name,
                attnum=attnum,
                type_oid=said.type_oid,
                type_name=its_type.type_name or (older.type_name if older else ""),
                typmod=said.typmod,
                not_null=bool(now and now.not_null),
                default=now.default if now else None,
                missing=older.missing if older else (now.missing if now else None),
                value_type=its_type.value_type or (older.value_type if older else ""),
            )
        )
    return tuple(columns)


def _described(relation: Relation) -> list[ColumnShape]:
    return [ColumnShape(c.name, c.type_oid, c.typmod) for c in relation.columns]


def _types(connection: psycopg.Connection[Any], shapes: Sequence[ColumnShape]) -> list[_Type]:
    values = {
        "type_oids": [shape.type_oid for shape in shapes],
        "typmods": [shape.typmod for shape in shapes],
    }
    with named_errors(connection), connection.cursor(row_factory=class_row(_Type)) as cursor:
        return cursor.execute(statement("source/types"), values).fetchall()


def _key(
    relation: Relation,
    schema: TableSchema,
    now: Sequence[int] | None,
    known: TableSchema | None,
    exists: bool,
) -> tuple[str, ...]:
    """
    The key's columns, in key order.

    DEFAULT and INDEX: the message flags them; it does not give their order. The catalog's counts,
    which copies have too; the version before has one where the catalog's columns are others by now.
    FULL flags every column: there the catalog has to say what the key is.
    """
    before = known.key_attnums if known else None
    if relation.identity is ReplicaIdentity.NOTHING:
        return ()
    if relation.identity is ReplicaIdentity.FULL:
        return _named(now if exists else before, schema.columns) or ()
    flagged = [c.name for c in relation.columns if c.in_key]
    for attnums in (now, before):
        names = _named(attnums, schema.columns)
        if names is not None and set(names) == set(flagged):
            return names
    return tuple(flagged)


def _named(attnums: Sequence[int] | None, columns: Sequence[Column]) -> tuple[str, ...] | None:
    """The names of these columns; None unless all of them are there."""
    names = {column.attnum: column.name for column in columns}
    if attnums is None or not all(attnum in names for attnum in attnums):
        return None
    return tuple(names[attnum] for attnum in attnums)
