"""
Batches of the log for its readers: commit by commit near the end, by position far behind it.

A reader starts at any watermark and never sees half a transaction. The caller keeps track of the
progress: it stores `watermark` after it has delivered a batch.
"""

from __future__ import annotations

import logging
from collections.abc import Collection
from dataclasses import dataclass
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import functions as F

from pgstream_dagster.changelog.tail import Kind, LogCommit
from pgstream_dagster.errors import LogGone
from pgstream_dagster.lsn import Lsn
from pgstream_dagster.pipeline import OpenPipeline
from pgstream_dagster.readers.unread import Unread
from pgstream_dagster.schema.layout import CHANGES

logger = logging.getLogger(__name__)

BATCH_ROWS: Final = 20_000
"""Changes of one batch, more or less: progress is stored after each, and all are in memory."""

REPLAYED_ROWS: Final = 200_000
"""The same for a batch that a Spark job reads: each such job scans all of the log."""


@dataclass(frozen=True, slots=True)
class LogBatch:
    """All changes of the requested relations since the last batch, up to `watermark`, in order."""

    changes: pa.Table
    watermark: Lsn
    has_copy: bool  # a copy landed in between


class LogReader:
    """Reads on from a watermark; one thread uses it."""

    def __init__(self, opened: OpenPipeline, watermark: Lsn) -> None:
        self.watermark = watermark
        self._unread = Unread(opened)

    def read(self, relation_ids: Collection[int], timeout: float) -> LogBatch | None:
        """The next batch; `None` if nothing new arrives within `timeout` seconds."""
        try:
            commits = self._unread.commits(self.watermark, timeout)
            return self._batch(commits, relation_ids)
        except LogGone as gone:
            logger.info("%s; reading by position", gone)
            return self._replayed(relation_ids)

    def _batch(self, commits: list[LogCommit], relation_ids: Collection[int]) -> LogBatch | None:
        tables: list[pa.Table] = []
        rows, watermark, version, has_copy = 0, self.watermark, self._unread.version, False
        for commit in commits:
            version = commit.version
            has_copy |= commit.kind is Kind.COPY
            if commit.watermark is not None and commit.watermark > self.watermark:
                table = of_relations(self._unread.tail.read(commit), relation_ids)
                tables.append(table)
                rows, watermark = rows + table.num_rows, commit.watermark
            if rows >= BATCH_ROWS:
                break
        has_moved = version != self._unread.version
        self.watermark, self._unread.version = watermark, version
        changes = pa.concat_tables(tables) if tables else CHANGES.empty_table()
        return LogBatch(changes, watermark, has_copy) if has_moved else None

    def _replayed(self, relation_ids: Collection[int]) -> LogBatch | None:
        """The next whole transactions, up to the current watermark or as many as fit in memory."""
        unread = self._unread.rows(self.watermark, relation_ids)
        if unread is None:
            return None
        changes, upto = unread
        ends = changes.select("end_lsn").orderBy("end_lsn").offset(REPLAYED_ROWS).limit(1).collect()
        if ends:
            upto = Lsn(ends[0]["end_lsn"])
            changes = changes.where(F.col("end_lsn") <= int(upto))
        rows = changes.orderBy("commit_lsn", "ordinal").toArrow().cast(CHANGES)
        self.watermark = upto
        return LogBatch(rows, upto, has_copy=True)


def of_relations(changes: pa.Table, relation_ids: Collection[int]) -> pa.Table:
    """The changes of these relations."""
    oids = pa.array(list(relation_ids), pa.int64())
    return changes.filter(pc.is_in(changes.column("relation_id"), value_set=oids))
