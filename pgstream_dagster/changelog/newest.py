"""The last transaction that landed, without Spark: bounds of files first, then columns."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from pgstream_dagster.delta import parquet, uri
from pgstream_dagster.delta.entries import AddedFile
from pgstream_dagster.lsn import Lsn
from pgstream_dagster.schema.changes import Op
from pgstream_dagster.wire.messages import TransactionFields

FIELDS: Final = ("commit_lsn", "end_lsn", "committed_at", "xid")
COLUMNS: Final = (*FIELDS, "epoch", "op")


def last_transaction(
    table: str, files: Iterable[AddedFile], *, epoch: int, since: Lsn
) -> TransactionFields | None:
    """
    The epoch's last transaction at or after `since`.

    Copied rows and markers belong to no transaction. Transactions that only wrote messages are left
    out: they are sent only while the stream requests messages.
    """
    return last_of(
        (
            parquet.columns(uri.child(table, file.name), COLUMNS)
            for file in files
            if _greatest_commit(file) >= since
        ),
        epoch=epoch,
        since=since,
    )


def last_of(tables: Iterable[pa.Table], *, epoch: int, since: Lsn) -> TransactionFields | None:
    """As `last_transaction`, of rows in memory."""
    transactions = (_last_of(rows, epoch, since) for rows in tables)
    return max(filter(None, transactions), default=None)


def _greatest_commit(file: AddedFile) -> float:
    stats = json.loads(file.stats_json) if file.stats_json else {}
    return stats.get("maxValues", {}).get("commit_lsn", float("inf"))


def _last_of(rows: pa.Table, epoch: int, since: Lsn) -> TransactionFields | None:
    is_counted = (
        (pc.field("epoch") == epoch)
        & (pc.field("commit_lsn") >= since)
        & pc.field("xid").is_valid()
        & ~pc.field("op").isin([Op.MESSAGE.value, Op.DDL.value])
    )
    last = rows.filter(is_counted).sort_by([("commit_lsn", "descending")]).slice(0, 1)
    if not last.num_rows:
        return None
    commit_lsn, end_lsn, committed_at, xid = (last.column(name)[0] for name in FIELDS)
    lsns = Lsn(commit_lsn.as_py()), Lsn(end_lsn.as_py())
    return TransactionFields(*lsns, committed_at.value, xid.as_py())
