"""
What the source committed, as a second slot shows it, under histories that change everything.

The slot's publication is of all tables and never changes, so the slot sees every change. It is read
twice, once under the names of partition roots and once under those of leaves; each change of the
log must be one of the two, since the pipeline's publication may be altered inside a transaction.
Where it showed less for a while, changes of the slot are missing in the log: each must lie before a
copy of its table. Whatever the log has must be the slot's: each position once, in order, the same
image.

A row that is sent under its root's name has the name that the root had when Postgres last described
it: beside the first row of a leaf on a connection or in a streamed transaction, not again when only
the root is renamed. The slot is read on other connections than the log's and is never streamed. So
of such a row the relation must be the same, and its name one that the relation had until then.
Before Postgres 16 the same holds of every table's schema: its rename describes no table again.

Source:
    maybe_send_schema and rel_sync_cache_relation_cb in
    src/backend/replication/pgoutput/pgoutput.c

Shares no code with the way of a change into the log: protocol 1 without streaming, through SQL,
decoded by the slow reference. Which columns an old image carries is what each Relation message
says, so the catalog, which knows only the end of a history, is not asked.
"""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import takewhile
from pathlib import Path
from typing import Any, Final, TypeAlias

import psycopg

from pgstream_dagster.lsn import Lsn
from pgstream_dagster.schema.changes import Op
from pgstream_dagster.schema.table import TableSchema
from tests.support.harness import oracle, rows
from tests.support.reference import pgoutput as reference
from tests.support.reference.change import Change, Position

SHOWN: Final = 8

Name: TypeAlias = tuple[int | None, str | None, str | None]
"""Relation, namespace and name."""


@dataclass(frozen=True)
class Names:
    """
    What relations were called, and until when Postgres may call them so.

    Shape:
        since: a position not after the first transaction that may know the name.
        schemas: name to oid, every name that schemas had, on servers before 16; else empty.
    """

    since: Mapping[Name, Lsn] = field(default_factory=dict)
    schemas: Mapping[str | None, int] = field(default_factory=dict)

    def may_be(self, seen: Change, landed: Change, is_of_tree: bool) -> bool:
        """Whether the name of a landed change may be another than the slot's."""
        name = landed.relation_id, landed.namespace, landed.relation
        if name not in self.since or self.since[name] > seen.position.commit_lsn:
            return False
        schema = self.schemas.get(seen.namespace)
        is_same_schema = schema is not None and schema == self.schemas.get(landed.namespace)
        return is_of_tree or (is_same_schema and landed.relation == seen.relation)


@dataclass(frozen=True)
class Seen:
    """The changes of one reading, by the position of their commit, in their order."""

    by_commit: Mapping[Lsn, Sequence[Change]]


@dataclass(frozen=True)
class Sent:
    """
    One change under the name of the root and under that of the leaf; an ordinary table's is alike.

    A TRUNCATE is one change for a tree and one for each of its leaves, so either may be missing.
    """

    as_root: Change | None
    as_leaf: Change | None

    @property
    def is_of_tree(self) -> bool:
        """Whether the change is a leaf's."""
        root, leaf = self.as_root, self.as_leaf
        return root is not None and leaf is not None and root.relation_id != leaf.relation_id


class SecondSlot:
    """Make it before anything is written."""

    def __init__(self, dsn: str, name: str = "second") -> None:
        self._dsn, self.slot = dsn, ""
        self._publications = [f"{name}_roots", f"{name}_leaves"]
        self._read: dict[str, dict[Lsn, list[Change]]] = {p: {} for p in self._publications}
        with psycopg.connect(dsn, autocommit=True) as connection:
            for publication, is_root in zip(self._publications, (True, False), strict=True):
                connection.execute(
                    f"create publication {publication} for all tables"  # type: ignore[arg-type]
                    f" with (publish_via_partition_root = {is_root})"
                )
            self.slot = f"{name}_{connection.info.backend_pid}"
            connection.execute(
                "select pg_create_logical_replication_slot(%s, 'pgoutput')", [self.slot]
            )

    def read(self) -> list[Seen]:
        """Everything committed since the slot was made, under either kind of name."""
        roots, leaves = self._publications
        # The same bytes twice: peeked at first, consumed by the second reading.
        with psycopg.connect(self._dsn, autocommit=True) as connection:
            for statement in rows.PINNED:
                connection.execute(statement)
            [(upto,)] = connection.execute("select pg_current_wal_flush_lsn()::text").fetchall()
            for function, publication in (("peek", roots), ("get", leaves)):
                messages = _messages(connection, function, self.slot, publication, upto)
                for change in _decoded(messages):
                    commit = change.position.commit_lsn
                    self._read[publication].setdefault(commit, []).append(change)
        return [Seen(self._read[publication]) for publication in self._publications]


def _messages(
    connection: psycopg.Connection[Any], function: str, slot: str, publication: str, upto: str
) -> list[bytes]:
    rows = connection.cursor(binary=True).execute(
        f"select data from pg_logical_slot_{function}_binary_changes(%s, %s::pg_lsn, null,"  # type: ignore[arg-type]
        " 'proto_version', '1', 'publication_names', %s)",
        [slot, upto, publication],
    )
    # 18 sends the abort of a large transaction that it never streamed.
    return [data for (data,) in rows if data[:1] != b"A"]


def _decoded(messages: Sequence[bytes]) -> Iterable[Change]:
    schemas: dict[int, list[tuple[int, TableSchema]]] = {}
    for index, data in enumerate(messages):
        if data[:1] == b"R":
            schema = oracle._schema(data, {})
            schemas.setdefault(schema.relation_id, []).append(
                (index, replace(schema, key=_flagged(data, schema)))
            )
    return map(_image_only, reference.changes(messages, schemas))


def _flagged(data: bytes, schema: TableSchema) -> tuple[str, ...]:
    """The columns that the message marks as carried by an old image."""
    at = data.index(b"\0", data.index(b"\0", 5) + 1) + 4  # behind two names, identity and count
    names = []
    for column in schema.columns:
        if data[at]:
            names.append(column.name)
        at += 1 + len(column.name.encode()) + 1 + 8
    return tuple(names)


def _image_only(change: Change) -> Change:
    """Without what only the catalog knows."""
    return replace(change, schema_id=None, key=None, old_key=None)


# --- comparison -------------------------------------------------------------------------------


def of_log(table: Path, read: rows.Read = oracle.rows) -> list[Change]:
    """Every row of the log, in no order."""
    return [change for file in rows.active_files(table) for change in read(table, file)]


def differences(
    readings: Sequence[Seen],
    log: Sequence[Change],
    relations: Collection[int],
    since: Lsn,
    names: Names,
) -> list[str]:
    """
    How the log is not what the slot saw after `since`; empty: it is.

    Shape:
        readings: under the names of roots, under those of leaves.
        relations: published to the end; others may be missing.
    """
    report = [
        f"x{count} {position} of relation {oid}"
        for (position, oid), count in Counter((c.position, c.relation_id) for c in log).items()
        if count > 1
    ]
    copied = _newest_copies(log)
    landed: dict[Lsn, list[Change]] = defaultdict(list)
    for change in sorted(log, key=lambda change: change.position):
        if change.op in oracle.STREAMED and change.op is not Op.MESSAGE:
            landed[change.position.commit_lsn].append(_image_only(change))
    roots, leaves = (seen.by_commit for seen in readings)
    for commit in sorted({*landed, *roots, *leaves}):
        if commit <= since:
            continue
        transaction = in_step(roots.get(commit, ()), leaves.get(commit, ()))
        missing, other = _compared(transaction, landed.get(commit, []), names)
        if other:
            report.append(_unlike(commit, transaction, other))
            continue
        report += [
            f"missing, and no copy after it: {oracle.brief(change)}"
            for change in missing
            if change.relation_id in relations and copied.get(change.relation_id, Lsn(0)) < commit
        ]
    return report


def in_step(roots: Sequence[Change], leaves: Sequence[Change]) -> list[Sent]:
    """The two readings of a transaction as one: both have the same rows in the same order."""
    sent, rest = list[Sent](), deque(leaves)
    for change in roots:
        truncated = [*takewhile(lambda c: c.op is Op.TRUNCATE, rest)]
        if change.op is Op.TRUNCATE:
            if change.relation_id not in {c.relation_id for c in truncated}:
                sent.append(Sent(change, None))
                continue
            while rest[0].relation_id != change.relation_id:
                sent.append(Sent(None, rest.popleft()))
        else:
            sent += [Sent(None, rest.popleft()) for _ in truncated]
        assert rest and rest[0].op is change.op, f"only the roots' reading has {change}"
        sent.append(Sent(change, rest.popleft()))
    assert all(change.op is Op.TRUNCATE for change in rest), f"only the leaves' has {rest}"
    return [*sent, *(Sent(None, change) for change in rest)]


def _newest_copies(log: Iterable[Change]) -> dict[int | None, Lsn]:
    copied: dict[int | None, Lsn] = {}
    for change in log:
        if change.op is Op.COPY:
            at = change.position.commit_lsn
            copied[change.relation_id] = max(at, copied.get(change.relation_id, Lsn(0)))
    return copied


def _compared(
    transaction: Sequence[Sent], landed_changes: Sequence[Change], names: Names
) -> tuple[list[Change], list[Change]]:
    """
    What the log does not have of a transaction, and what it has otherwise, or in another order.

    What landed under the name of a leaf is missing of the root.
    """
    missing, left = list[Change](), deque(landed_changes)
    for sent in transaction:
        if left and _is(sent.as_root, left[0], names, is_of_tree=sent.is_of_tree):
            left.popleft()
            continue
        if left and _is(sent.as_leaf, left[0], names):
            left.popleft()
        if sent.as_root is not None:
            missing.append(sent.as_root)
    return missing, [*left]


def _is(seen: Change | None, landed: Change, names: Names, *, is_of_tree: bool = False) -> bool:
    if seen is not None and names.may_be(seen, landed, is_of_tree):
        seen = replace(seen, namespace=landed.namespace, relation=landed.relation)
    return seen is not None and _alike(seen, landed)


def _alike(seen: Change, landed: Change) -> bool:
    """But for the ordinal, which counts what is published."""
    at = seen.position
    place = Position(at.epoch, at.commit_lsn, landed.position.ordinal)
    return replace(seen, position=place, xid=landed.xid) == landed


def _unlike(commit: Lsn, transaction: Sequence[Sent], other: Sequence[Change]) -> str:
    """The first change of the log that the slot does not have at its place."""
    first = other[0]
    near = [
        change
        for sent in transaction
        for change in (sent.as_root, sent.as_leaf)
        if change is not None and change.relation_id == first.relation_id and change.op is first.op
    ]
    return (
        f"transaction {commit}: {len(other)} changes of the log are not the slot's, the first is"
        f" {first}; nearest in the slot: {near[:2]}"
    )
