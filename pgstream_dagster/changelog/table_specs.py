"""The columns and properties of the tables of a lake, and how they are created."""

from __future__ import annotations

from typing import Final

import pyarrow as pa
from py4j.java_gateway import JavaGateway

from pgstream_dagster.changelog.lake import Lake
from pgstream_dagster.delta import delta_table
from pgstream_dagster.delta.delta_table import TableSpec
from pgstream_dagster.schema import layout

CHECKPOINT_INTERVAL: Final = 100
"""Commits between checkpoints: under a minute of busy landing to replay when a table is opened."""

LOG_RETENTION_DAYS: Final = 30
"""A reader whose position is older than this replays; others follow the log entry by entry."""

PROPERTIES: Final = {
    "delta.appendOnly": "true",
    "delta.enableDeletionVectors": "false",
    "delta.checkpointInterval": str(CHECKPOINT_INTERVAL),
    "delta.logRetentionDuration": f"interval {LOG_RETENTION_DAYS} days",
    # How long readers can still read a file that `optimize` replaced; at most the log retention.
    "delta.deletedFileRetentionDuration": "interval 7 days",
    # Delta would remove old entries before the checkpoint that replaces them is on disk; `optimize`
    # removes them afterwards.
    "delta.enableExpiredLogCleanup": "false",
}

CHANGE_LOG: Final = TableSpec(layout.CHANGES, layout.CLUSTER_BY, PROPERTIES)

SCHEMA_LOG: Final = TableSpec(
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
    properties=PROPERTIES,
)
"""
One row per version of a relation, and per command of DDL that was reported; `schema` is
`TableSchema.to_json`, of a command `DdlEntry.to_json`.
"""

LEDGER: Final = TableSpec(
    pa.schema(
        [
            ("recorded_at", layout.INSTANT),
            ("kind", pa.string()),
            ("epoch", pa.int32()),
            ("facts", pa.string()),
        ]
    ),
    properties=PROPERTIES,
)
"""One row per fact of the pipeline's life; `facts` is JSON."""

DEAD_LETTERS: Final = TableSpec(
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
    properties=PROPERTIES,
)
"""One row per document that a search cluster refused permanently, or accepted later."""


SINKS_DAYS: Final = 1
"""For which the log of the sinks' states is kept: each of them is saved every few seconds."""

SINKS: Final = TableSpec(
    pa.schema(
        [
            ("recorded_at", layout.INSTANT),
            ("sink", pa.string()),
            ("kind", pa.string()),
            ("revision", pa.int64()),
            ("state", pa.string()),
        ]
    ),
    properties={
        **PROPERTIES,
        "delta.appendOnly": "false",  # only the newest row of a sink and kind counts
        "delta.logRetentionDuration": f"interval {SINKS_DAYS} days",
        "delta.deletedFileRetentionDuration": f"interval {SINKS_DAYS} days",
    },
)
"""The progress of sinks, and what people ask of them; `state` is JSON."""

SINK_LETTERS: Final = TableSpec(
    pa.schema(
        [
            ("recorded_at", layout.INSTANT),
            ("sink", pa.string()),
            ("epoch", pa.int32()),
            ("commit_lsn", pa.int64()),
            ("ordinal", pa.int64()),
            ("state", pa.string()),
            ("namespace", pa.string()),
            ("relation", pa.string()),
            ("relation_id", pa.int64()),
            ("key", layout.KEY),
            ("old_key", layout.KEY),
            ("reason", pa.string()),
            ("change", pa.string()),
            ("change_bytes", pa.int64()),
            ("rules", pa.string()),
        ]
    ),
    properties=PROPERTIES,
)
"""
One row per change that a sink refused or holds back, or delivered later; `change` is JSON. `rules`
is the fingerprint of the sink's modifiers when it was stored; empty: it had none.
"""


def create_sinks(lake: Lake, gateway: JavaGateway) -> None:
    """Create the tables of sinks where they are missing; as `create`."""
    delta_table.create(lake.sinks, SINKS, gateway)
    delta_table.create(lake.sink_letters, SINK_LETTERS, gateway)


def create_typed_tables(lake: Lake, gateway: JavaGateway) -> None:
    """Create the table of the progress of typed tables where it is missing; as `create`."""
    delta_table.create(lake.typed_tables, SINKS, gateway)


def create(lake: Lake, gateway: JavaGateway) -> None:
    """Create the missing tables of the lake; idempotent, also when several processes do it."""
    for table, spec in (
        (lake.change_log, CHANGE_LOG),
        (lake.schema_log, SCHEMA_LOG),
        (lake.ledger, LEDGER),
        (lake.dead_letters, DEAD_LETTERS),
    ):
        delta_table.create(table, spec, gateway)
