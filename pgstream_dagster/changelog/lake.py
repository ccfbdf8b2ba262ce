"""How the tables of a lake are made, and with what columns."""

from __future__ import annotations

from typing import Final

import pyarrow as pa
from py4j.java_gateway import JavaGateway

from pgstream_dagster.delta import delta_table
from pgstream_dagster.delta.uri import Lake
from pgstream_dagster.schema import layout

CHECKPOINT_INTERVAL: Final = 100
"""Commits between checkpoints: under a minute of busy landing to replay when a table is opened."""

LOG_RETENTION_DAYS: Final = 30
"""How far back a reader may stand and still follow entry by entry instead of replaying."""

KEEPING: Final = {
    "delta.enableDeletionVectors": "false",
    "delta.checkpointInterval": str(CHECKPOINT_INTERVAL),
    "delta.logRetentionDuration": f"interval {LOG_RETENTION_DAYS} days",
    # How long a file that `optimize` replaced stays for those who read it; not above the former.
    "delta.deletedFileRetentionDuration": "interval 7 days",
    # Delta would remove old entries before the checkpoint that replaces them is on disk; `optimize`
    # does it afterwards.
    "delta.enableExpiredLogCleanup": "false",
}

CHANGE_LOG: Final = delta_table.TableSpec(
    layout.CHANGES, layout.CLUSTER_BY, {**KEEPING, "delta.appendOnly": "true"}
)

SCHEMA_LOG: Final = delta_table.TableSpec(
    pa.schema(
        [
            ("schema_id", pa.int64()),
            ("epoch", pa.int32()),
            ("relation_id", pa.int64()),
            ("namespace", pa.string()),
            ("relation", pa.string()),
            ("schema", pa.string()),
            ("commit_lsn", pa.int64()),
            ("recorded_at", layout.INSTANT),
        ]
    ),
    properties={**KEEPING, "delta.appendOnly": "true"},
)
"""One row per version of a relation; `schema` is `TableSchema.to_json`."""

LEDGER: Final = delta_table.TableSpec(
    pa.schema(
        [
            ("recorded_at", layout.INSTANT),
            ("kind", pa.string()),
            ("epoch", pa.int32()),
            ("facts", pa.string()),
        ]
    ),
    properties={**KEEPING, "delta.appendOnly": "true"},
)
"""One row per fact of the pipeline's life; `facts` is JSON."""


DEAD_LETTERS: Final = delta_table.TableSpec(
    pa.schema(
        [
            ("recorded_at", layout.INSTANT),
            ("index", pa.string()),
            ("id", pa.string()),
            ("key", layout.KEY),
            ("epoch", pa.int32()),
            ("commit_lsn", pa.int64()),
            ("state", pa.string()),
            ("type", pa.string()),
            ("reason", pa.string()),
            ("document", pa.string()),
        ]
    ),
    properties={**KEEPING, "delta.appendOnly": "true"},
)
"""One row per document that a search cluster refused for good, or took after all."""


def create(lake: Lake, gateway: JavaGateway) -> None:
    """Make the lake's tables, those that are not there; idempotent, any number of processes."""
    delta_table.create(lake.change_log, CHANGE_LOG, gateway)
    delta_table.create(lake.schema_log, SCHEMA_LOG, gateway)
    delta_table.create(lake.ledger, LEDGER, gateway)
    delta_table.create(lake.dead_letters, DEAD_LETTERS, gateway)
