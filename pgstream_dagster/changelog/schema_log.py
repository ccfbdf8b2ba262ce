"""
The log of schemas: every version of every relation, with the position from which it holds.

A version may hold twice (a column added and dropped again), so each row has the position from which
its version holds; the id identifies the version. A renamed table has the same version under another
name. Of several versions in one transaction the one added last holds from then on.

Where the source reports DDL, each command of a table is a row, too, with the version after it. What
reads versions (`history`, `by_id`, `in_force` and others) passes over a command that changed
nothing of the version, and over a DROP: the last version of a dropped relation remains in force,
as its changes are still in the log. `entries` has all of them.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import chain, groupby
from typing import Any

import msgspec
import pyarrow as pa
from py4j.java_gateway import JavaGateway

from pgstream_dagster.changelog.lake import Lake
from pgstream_dagster.changelog.table_specs import SCHEMA_LOG
from pgstream_dagster.delta.small_table import SmallTable
from pgstream_dagster.lsn import Lsn
from pgstream_dagster.schema.ddl import DdlEntry, DdlTable
from pgstream_dagster.schema.table import TableSchema, by_id


@dataclass(frozen=True, slots=True)
class SchemaEntry:
    """
    A version of a relation that begins to hold at a commit LSN.

    `ddl` is the command that made it; `None` for a version that a copy or a Relation message
    brought, which begins at the first row that was seen with it.
    """

    since: Lsn
    schema: TableSchema
    ddl: DdlEntry | None

    @property
    def is_exact(self) -> bool:
        """Whether the command that made the version was reported."""
        return self.ddl is not None

    @property
    def is_drop(self) -> bool:
        """Whether the relation ends here."""
        return self.ddl is not None and self.ddl.is_drop


class SchemaLog(SmallTable):
    """The versions of one pipeline's relations. Threads may share it."""

    def __init__(self, lake: Lake, gateway: JavaGateway) -> None:
        super().__init__(lake.schema_log, SCHEMA_LOG.columns, gateway)
        self._added: list[SchemaEntry] = []  # in the order of the rows
        self._entries: list[SchemaEntry] = []
        self._versions: list[tuple[Lsn, TableSchema]] = []
        self._parsed: pa.Table | None = None  # the rows that these two were read from

    def append(self, schemas: Sequence[tuple[TableSchema, Lsn] | DdlEntry]) -> int:
        """
        Add versions, each with the commit LSN from which it holds, and DDL; how many were new.

        Durable when it returns. Idempotent: what already holds at that position is left out, and so
        is DDL that is recorded. In the order of the stream: of what has one commit LSN, the last
        version holds afterwards.
        """
        with self._lock:
            recorded = self._all_entries()
            if new := _new(recorded, [_entry(schema) for schema in schemas]):
                self.add_rows(_rows(new))
            return len(new)

    def all(self) -> list[TableSchema]:
        """Every version once, where it last began to hold: each relation's newest comes last."""
        return list(self.by_id().values())

    def versions(self, epoch: int, relation_id: int) -> list[TableSchema]:
        """Every version of one relation, in the order of `all`."""
        relation = (epoch, relation_id)
        return [v for v in self.all() if (v.epoch, v.relation_id) == relation]

    def by_id(self) -> dict[int, TableSchema]:
        """Schema id -> version, in the order of `all`."""
        with self._lock:
            return by_id(schema for _, schema in self._all_versions())

    def named_versions(self, relation: tuple[int, int] | None = None) -> list[TableSchema]:
        """
        Every version each time that it began to hold, with the former names of renamed tables.

        Shape:
            relation: the epoch and the id of one relation; without them, of all.
        """
        with self._lock:
            versions = [schema for _, schema in self._all_versions()]
        return [v for v in versions if relation in (None, (v.epoch, v.relation_id))]

    def in_force(self, epoch: int, watermark: Lsn) -> dict[int, tuple[Lsn, TableSchema]]:
        """
        Relation -> the version that its last landed change may have, and since when it holds.

        Versions that begin at or after the watermark are left out: their first change was not
        landed and will be sent again, and what the new version requires must be determined again.
        """
        return {
            schema.relation_id: (since, schema)
            for since, schema in self.history(epoch)
            if since < watermark
        }

    def history(self, epoch: int) -> list[tuple[Lsn, TableSchema]]:
        """Each version of an epoch's relations and since when it holds, in that order."""
        with self._lock:
            return [row for row in self._all_versions() if row[1].epoch == epoch]

    def dropped(self, epoch: int, position: Lsn) -> set[int]:
        """The relations of an epoch whose DROP was reported before a position."""
        with self._lock:
            drops = [entry for entry in self._all_entries() if entry.is_drop]
        of_epoch = (entry for entry in drops if entry.schema.epoch == epoch)
        return {entry.schema.relation_id for entry in of_epoch if entry.since < position}

    def entries(self, epoch: int, relation_id: int | None = None) -> list[SchemaEntry]:
        """Every version and every command of a relation, or of all, in order; for people."""
        with self._lock:
            chosen = [e for e in self._all_entries() if e.schema.epoch == epoch]
        by_relation: dict[int, list[SchemaEntry]] = {}
        for entry in chosen:
            if relation_id in (None, entry.schema.relation_id):
                by_relation.setdefault(entry.schema.relation_id, []).append(entry)
        shown = chain.from_iterable(map(without_repeats, by_relation.values()))
        return sorted(shown, key=_order)

    def _all_versions(self) -> list[tuple[Lsn, TableSchema]]:
        self._all_entries()
        return self._versions

    def _all_entries(self) -> list[SchemaEntry]:
        """The rows by epoch and position; of those at one position, in the order of adding."""
        rows = self.rows()
        if rows is not self._parsed:
            if len(rows) < len(self._added):  # another table is there, from a backup
                self._added = []
            new = rows.slice(len(self._added))  # rows are only added, and keep their order
            pairs = zip(new["commit_lsn"].to_pylist(), new["schema"].to_pylist(), strict=True)
            self._added += [_parsed(Lsn(since), text) for since, text in pairs]
            self._entries = sorted(self._added, key=_order)
            self._versions, self._parsed = list(_versions(self._entries)), rows
        return self._entries


def _order(entry: SchemaEntry) -> tuple[int, Lsn]:
    return entry.schema.epoch, entry.since


def _relation(entry: SchemaEntry) -> tuple[int, int]:
    return entry.schema.epoch, entry.schema.relation_id


def _entry(schema: tuple[TableSchema, Lsn] | DdlEntry) -> SchemaEntry:
    if isinstance(schema, DdlEntry):
        return SchemaEntry(schema.commit_lsn, schema.schema, schema)
    return SchemaEntry(schema[1], schema[0], ddl=None)


def _new(recorded: Sequence[SchemaEntry], entries: Sequence[SchemaEntry]) -> list[SchemaEntry]:
    """What of `entries` has to be added."""
    all_entries, places = list(recorded), {e.ddl.place for e in recorded if e.ddl}
    last: dict[tuple[tuple[int, int], Lsn], SchemaEntry] = {}
    for entry in entries:
        if entry.ddl is None:
            is_new = not _holds(all_entries, entry)
        else:
            is_new = entry.ddl.place not in places
            places.add(entry.ddl.place)
        if is_new:
            all_entries.append(entry)
        if not entry.is_drop:
            last[_relation(entry), entry.since] = SchemaEntry(entry.since, entry.schema, ddl=None)
    # Versions that precede recorded DDL in its transaction may have been added again after it.
    all_entries += [entry for entry in last.values() if not _holds(all_entries, entry)]
    return all_entries[len(recorded) :]


def _holds(entries: Sequence[SchemaEntry], entry: SchemaEntry) -> bool:
    """Whether the version of `entry` is in force where it begins."""
    before = [
        earlier
        for earlier in entries
        if _relation(earlier) == _relation(entry)
        and earlier.since <= entry.since
        and not earlier.is_drop
    ]
    # `max` takes the first of equals, and the one added last holds.
    return bool(before) and (
        max(reversed(before), key=_order).schema.version == entry.schema.version
    )


def _versions(entries: Sequence[SchemaEntry]) -> Iterator[tuple[Lsn, TableSchema]]:
    """The entries at which a version begins."""
    in_force: dict[tuple[int, int], tuple[int, str, str]] = {}
    for entry in entries:
        relation, version = _relation(entry), entry.schema.version
        is_unchanged = entry.is_exact and in_force.get(relation) == version
        if not entry.is_drop and not is_unchanged:
            in_force[relation] = version
            yield entry.since, entry.schema


def without_repeats(entries: Sequence[SchemaEntry]) -> Iterator[SchemaEntry]:
    """
    The entries of a relation without those that only repeat another one.

    A version is there again when its rows came after its DDL, and when a transaction with several
    versions was sent again.
    """
    in_force: TableSchema | None = None
    for _, group in groupby(entries, lambda entry: entry.since):
        together = list(group)
        repeated = {entry.schema.version for entry in together if entry.is_exact}
        if in_force is not None:
            repeated.add(in_force.version)
        for entry in together:
            if entry.is_exact or entry.schema.version not in repeated:
                repeated.add(entry.schema.version)
                in_force = entry.schema
                yield entry
        if in_force is None or in_force.version != together[-1].schema.version:
            in_force = together[-1].schema
            yield together[-1]


def versions_of(rows: Iterable[tuple[int, str]]) -> list[tuple[Lsn, TableSchema]]:
    """
    Each version of every relation and since when it holds, from rows that were read elsewhere.

    Shape:
        rows: commit_lsn and schema, in the order in which they were added.
    """
    entries = sorted((_parsed(Lsn(since), text) for since, text in rows), key=_order)
    return list(_versions(entries))


def _parsed(since: Lsn, text: str) -> SchemaEntry:
    fields = json.loads(text)
    schema = TableSchema.from_fields(fields)
    return SchemaEntry(since, schema, _ddl(since, schema, fields) if "tag" in fields else None)


def _ddl(since: Lsn, schema: TableSchema, fields: dict[str, Any]) -> DdlEntry:
    return DdlEntry(
        schema=schema,
        commit_lsn=since,
        ordinal=fields["ordinal"],
        committed_at_us=fields["committed_at_us"],
        tag=fields["tag"],
        text=fields["text"],
        is_drop=fields["is_drop"],
        description=msgspec.convert(fields["description"], DdlTable | None),
    )


def _rows(entries: Sequence[SchemaEntry]) -> pa.Table:
    now = datetime.now(UTC)
    return pa.Table.from_pylist(
        [
            {
                "schema_id": schema.schema_id,
                "epoch": schema.epoch,
                "relation_id": schema.relation_id,
                "namespace": schema.namespace,
                "relation": schema.name,
                "schema": schema.to_json() if entry.ddl is None else entry.ddl.to_json(),
                "commit_lsn": int(entry.since),
                "recorded_at": now,
            }
            for entry in entries
            for schema in (entry.schema,)
        ],
        SCHEMA_LOG.columns,
    )
