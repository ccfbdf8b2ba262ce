"""
What the source committed, as a second slot shows it, under histories that change everything.

The slot's publication is of all tables and never changes, so the slot sees every change. It is read
twice, once under the names of partition roots and once under those of leaves; the log must be one
of the two. Where the pipeline's own publication showed less for a while, changes of the slot are
missing in the log: each must lie before a copy of its table. Whatever the log has must be the
slot's: each position once, in order, the same image.

Shares no code with the way of a change into the log: protocol 1 without streaming, through SQL,
decoded by the slow reference. Which columns an old image carries is what each Relation message
says, so the catalog, which knows only the end of a history, is not asked.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import psycopg

from pgstream_dagster.lsn import Lsn
from pgstream_dagster.schema.changes import Op
from pgstream_dagster.schema.table import TableSchema
from tests.support.harness import oracle, rows
from tests.support.reference import pgoutput as reference
from tests.support.reference.change import Change, Position

SHOWN: Final = 8


@dataclass(frozen=True)
class Seen:
    """The changes of one reading, by the position of their commit, in their order."""

    by_commit: Mapping[Lsn, Sequence[Change]]


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
    return [data for (data,) in rows]


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
    readings: Sequence[Seen], log: Sequence[Change], relations: Collection[int], since: Lsn
) -> list[str]:
    """
    How the log is not what the slot saw after `since`; empty: it is.

    Shape:
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
    for commit in sorted({*landed, *(c for seen in readings for c in seen.by_commit)}):
        if commit <= since:
            continue
        landed_changes = landed.get(commit, [])
        committed = readings[0].by_commit.get(commit, ())
        missing = _missing(committed, landed_changes)
        if missing is None:
            if all(
                _missing(seen.by_commit.get(commit, ()), landed_changes) is None
                for seen in readings
            ):
                report.append(_unlike(commit, committed, landed_changes))
                continue
            # Landed under the names of leaves: of the roots it is missing.
            missing = [
                change for change in committed if not any(_alike(change, f) for f in landed_changes)
            ]
        report += [
            f"missing, and no copy after it: {oracle.brief(change)}"
            for change in missing
            if change.relation_id in relations and copied.get(change.relation_id, Lsn(0)) < commit
        ]
    return report


def _newest_copies(log: Iterable[Change]) -> dict[int | None, Lsn]:
    copied: dict[int | None, Lsn] = {}
    for change in log:
        if change.op is Op.COPY:
            at = change.position.commit_lsn
            copied[change.relation_id] = max(at, copied.get(change.relation_id, Lsn(0)))
    return copied


def _missing(seen: Sequence[Change], landed_changes: Sequence[Change]) -> list[Change] | None:
    """What of `seen` is not in the log; `None` if the log has something else, or another order."""
    missing, left = list[Change](), list(landed_changes)
    for change in seen:
        if left and _alike(change, left[0]):
            left.pop(0)
        else:
            missing.append(change)
    return None if left else missing


def _alike(seen: Change, landed: Change) -> bool:
    """But for the ordinal, which counts what is published."""
    at = seen.position
    place = Position(at.epoch, at.commit_lsn, landed.position.ordinal)
    return replace(seen, position=place, xid=landed.xid) == landed


def _unlike(commit: Lsn, seen: Sequence[Change], landed_changes: Sequence[Change]) -> str:
    """The first change of the log that the slot does not have at its place."""
    left = list(landed_changes)
    for change in seen:
        if left and _alike(change, left[0]):
            left.pop(0)
    head = (
        f"transaction {commit}: {len(landed_changes)} changes in the log, {len(seen)} in the slot;"
    )
    near = (
        [c for c in seen if c.relation_id == left[0].relation_id and c.op is left[0].op]
        if left
        else []
    )
    return f"{head} not the slot's: {left[:1]}; nearest there: {near[:2]}"
