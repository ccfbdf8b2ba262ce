"""The changes of a real log, in batches as a follower gives them to a sink."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pyarrow as pa
import pyarrow.parquet as pq

from pgstream_dagster.pipeline import Pipeline
from pgstream_dagster.readers.change import Change, ChangeBatch, changes_of
from pgstream_dagster.schema.layout import CHANGES
from tests.support.harness.rows import active_files
from tests.support.harness.runner import change_log


def all_changes(pipeline: Pipeline) -> list[Change]:
    """Everything in the log, in the order of positions."""
    folder = change_log(pipeline)
    tables = [
        pq.read_table(folder / name, partitioning=None).select(CHANGES.names).cast(CHANGES)
        for name in active_files(folder)
    ]
    rows = pa.concat_tables(tables).sort_by(
        [(name, "ascending") for name in ("epoch", "commit_lsn", "ordinal")]
    )
    with pipeline.open() as opened:
        return list(changes_of(rows, opened.schema_log.by_id()))


def batches(changes: list[Change], *, seed: int = 7) -> Iterator[ChangeBatch]:
    """Batches of any size; the cursor is the index of the next change."""
    sizes, start = random.Random(seed), 0
    while start < len(changes):
        end = min(len(changes), start + sizes.choice([1, 3, 50, 400]))
        ends = end == len(changes) or changes[end - 1].commit_lsn != changes[end].commit_lsn
        yield ChangeBatch(changes[start:end], str(end), ends)
        start = end
