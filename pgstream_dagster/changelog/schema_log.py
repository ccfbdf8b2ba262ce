"""
The log of schemas: every version of every relation, with the position from which it holds.

A version may hold twice (a column added and dropped again), so each row has the position from which
its version holds; the id identifies the version. A renamed table has the same version under another
name. Of several versions in one transaction the one added last holds from then on.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime

import pyarrow as pa
from py4j.java_gateway import JavaGateway

from pgstream_dagster.changelog.lake import Lake
from pgstream_dagster.changelog.table_specs import SCHEMA_LOG
from pgstream_dagster.delta.small_table import SmallTable
from pgstream_dagster.lsn import Lsn
from pgstream_dagster.schema.table import TableSchema, by_id


class SchemaLog(SmallTable):
    """The versions of one pipeline's relations. Threads may share it."""

    def __init__(self, lake: Lake, gateway: JavaGateway) -> None:
        super().__init__(lake.schema_log, SCHEMA_LOG.columns, gateway)
        self._versions: list[tuple[Lsn, TableSchema]] = []
        self._parsed: pa.Table | None = None  # the rows that `_versions` was read from

    def append(self, schemas: Sequence[tuple[TableSchema, Lsn]]) -> int:
        """
        Add versions, each with the commit LSN from which it holds; how many were new.

        Durable when it returns. Idempotent: what already holds at that position is left out.
        """
        with self._lock:
            recorded = self._all_rows()
            new: list[tuple[Lsn, TableSchema]] = []
            for schema, lsn in schemas:
                if not _holds(recorded + new, schema, lsn):
                    new.append((lsn, schema))
            if new:
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
            return by_id(schema for _, schema in self._all_rows())

    def named_versions(self, relation: tuple[int, int] | None = None) -> list[TableSchema]:
        """
        Every version each time that it began to hold, with the former names of renamed tables.

        Shape:
            relation: the epoch and the id of one relation; without them, of all.
        """
        with self._lock:
            versions = [schema for _, schema in self._all_rows()]
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
            return [row for row in self._all_rows() if row[1].epoch == epoch]

    def _all_rows(self) -> list[tuple[Lsn, TableSchema]]:
        rows = self.rows()
        if rows is not self._parsed:
            pairs = zip(rows["commit_lsn"].to_pylist(), rows["schema"].to_pylist(), strict=True)
            versions = [(Lsn(since), TableSchema.from_json(schema)) for since, schema in pairs]
            self._versions, self._parsed = sorted(versions, key=_order), rows
        return self._versions


def _order(row: tuple[Lsn, TableSchema]) -> tuple[int, Lsn]:
    return row[1].epoch, row[0]


def _holds(recorded: Sequence[tuple[Lsn, TableSchema]], schema: TableSchema, lsn: Lsn) -> bool:
    """Whether `schema` is the version of its relation that is in force at `lsn`."""
    relation = (schema.epoch, schema.relation_id)
    before = [
        (since, version)
        for since, version in recorded
        if (version.epoch, version.relation_id) == relation and since <= lsn
    ]
    # `max` takes the first of equals, and the one added last holds.
    return bool(before) and max(reversed(before), key=_order)[1].version == schema.version


def _rows(schemas: Sequence[tuple[Lsn, TableSchema]]) -> pa.Table:
    now = datetime.now(UTC)
    return pa.Table.from_pylist(
        [
            {
                "schema_id": schema.schema_id,
                "epoch": schema.epoch,
                "relation_id": schema.relation_id,
                "namespace": schema.namespace,
                "relation": schema.name,
                "schema": schema.to_json(),
                "commit_lsn": int(lsn),
                "recorded_at": now,
            }
            for lsn, schema in schemas
        ],
        SCHEMA_LOG.columns,
    )
