"""
The marker rows of the log: what its changes do not say about a relation. Pure.

A `copy` starts the relation again, a `gap` says that changes are missing before it, and a `ddl` row
ends the relation.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Mapping
from typing import Any, Final, TypeAlias

import pyarrow as pa

from pgstream_dagster.lsn import Lsn
from pgstream_dagster.schema.changes import COPY_ORDINAL, GAP_ORDINAL, Op
from pgstream_dagster.schema.layout import CHANGES
from pgstream_dagster.schema.table import TableSchema
from pgstream_dagster.wire.messages import TransactionFields

Row: TypeAlias = dict[str, Any]
"""One row of `layout.CHANGES`; columns that it does not have are null."""

GAP_COLUMNS: Final = (
    *("epoch", "commit_lsn", "end_lsn", "xid", "committed_at"),
    *("namespace", "relation", "relation_id"),
)
"""What a gap has from the change that it replaces."""


def rows_table(rows: Iterable[Row]) -> pa.Table:
    """The rows as a table of `layout.CHANGES`."""
    return pa.Table.from_pylist(list(rows), CHANGES)


def copy(schema: TableSchema, point: Lsn, taken_at_us: int, payload: str) -> Row:
    """The relation starts again at a snapshot, before every row of its copy."""
    row = _at_snapshot(Op.COPY, COPY_ORDINAL, schema, point, taken_at_us)
    return row | {"schema_id": schema.schema_id, "payload": payload}


def gap(schema: TableSchema, point: Lsn, taken_at_us: int) -> Row:
    """Changes of the relation are missing before a snapshot."""
    return _at_snapshot(Op.GAP, GAP_ORDINAL, schema, point, taken_at_us)


def drop(schema: TableSchema, epoch: int, point: Lsn, taken_at_us: int) -> Row:
    """The relation ends here: it is no longer published, or belongs to an earlier epoch."""
    row = _at_snapshot(Op.DDL, GAP_ORDINAL, schema, point, taken_at_us)
    payload = json.dumps({"drop": True, "epoch": schema.epoch})
    return row | {"epoch": epoch, "payload": payload}


def gap_before(schema: TableSchema, transaction: TransactionFields) -> Row:
    """Changes of the relation are missing before a transaction: readers wait for its copy."""
    return _marker(Op.GAP, GAP_ORDINAL, schema) | {
        "commit_lsn": transaction.commit_lsn,
        "end_lsn": transaction.end_lsn,
        "xid": transaction.xid,
        "committed_at": transaction.committed_at_us,
    }


def gap_instead_of(change: Mapping[str, Any]) -> Row:
    """The same where one change is left out; of it the `GAP_COLUMNS` are needed."""
    row = {name: change[name] for name in GAP_COLUMNS}
    return row | {"ordinal": GAP_ORDINAL, "op": Op.GAP.value}


def _at_snapshot(op: Op, ordinal: int, schema: TableSchema, point: Lsn, taken_at_us: int) -> Row:
    return _marker(op, ordinal, schema) | {
        "commit_lsn": int(point),
        "end_lsn": int(point),
        "committed_at": taken_at_us,
        "landed_at": time.time_ns() // 1000,
    }


def _marker(op: Op, ordinal: int, schema: TableSchema) -> Row:
    return {
        "epoch": schema.epoch,
        "ordinal": ordinal,
        "op": op.value,
        "namespace": schema.namespace,
        "relation": schema.name,
        "relation_id": schema.relation_id,
    }
