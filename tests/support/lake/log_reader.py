"""What a log holds, read without Spark: fast enough to be asked often."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from pgstream_dagster.changelog.lake import Lake


def log_rows(lake: Lake, relation: str | None = None) -> list[dict[str, Any]]:
    """The rows of a log that was never optimized, in position order; all or one relation's."""
    folder = Path(lake.root) / "change_log"
    entries = sorted((folder / "_delta_log").glob("*.json"))
    actions = [json.loads(line) for entry in entries for line in entry.read_text().splitlines()]
    names = [str(folder / action["add"]["path"]) for action in actions if "add" in action]
    rows = [row for name in names for row in pq.read_table(name).to_pylist()]
    chosen = [row for row in rows if relation in (None, row["relation"])]
    return sorted(chosen, key=lambda row: (row["epoch"], row["commit_lsn"], row["ordinal"]))
