"""
The columns of the change log, once for Arrow and once for Delta.

The layout cannot change later without a rebuild. One row is one change; `before` and `after` map
column names to Postgres text: a missing name was not sent, null is NULL.
"""

from __future__ import annotations

from typing import Final

import pyarrow as pa

IMAGE: Final = pa.map_(pa.string(), pa.string())
KEY: Final = pa.list_(pa.string())
INSTANT: Final = pa.timestamp("us", "UTC")

CHANGES: Final = pa.schema(
    [
        ("epoch", pa.int32()),
        ("commit_lsn", pa.int64()),
        ("ordinal", pa.int64()),
        ("end_lsn", pa.int64()),
        ("xid", pa.int64()),
        ("committed_at", INSTANT),
        ("op", pa.string()),
        ("namespace", pa.string()),
        ("relation", pa.string()),
        ("relation_id", pa.int64()),
        ("schema_id", pa.int64()),
        ("key", KEY),
        ("old_key", KEY),
        ("before", IMAGE),
        ("after", IMAGE),
        ("payload", pa.string()),
        ("landed_at", INSTANT),
    ]
)
"""One row per change; `docs/reference/change-log.md` describes the columns."""

CHANGES_DDL: Final = (
    "epoch INT, commit_lsn BIGINT, ordinal BIGINT, end_lsn BIGINT, xid BIGINT,"
    " committed_at TIMESTAMP, op STRING, namespace STRING, relation STRING,"
    " relation_id BIGINT, schema_id BIGINT, key ARRAY<STRING>, old_key ARRAY<STRING>,"
    " before MAP<STRING,STRING>, after MAP<STRING,STRING>, payload STRING, landed_at TIMESTAMP"
)
"""The same columns in Delta's syntax; a test compares the two."""

CLUSTER_BY: Final = ("namespace", "relation", "commit_lsn")
"""What a reader of one relation filters by; `optimize` sorts the files so."""

BOUNDS: Final = (
    *("epoch", "commit_lsn", "ordinal", "end_lsn", "committed_at"),
    *("op", "namespace", "relation", "relation_id", "schema_id"),
)
"""What conditions on the log compare, so that readers skip files by it."""


def no_changes() -> pa.Table:
    """An empty table of changes."""
    return CHANGES.empty_table()
