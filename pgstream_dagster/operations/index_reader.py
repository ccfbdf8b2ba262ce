"""Stretches of the log for indexers: entry by entry near its end, by position when far behind."""

from __future__ import annotations

import logging
from collections.abc import Collection
from dataclasses import dataclass
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from pgstream_dagster.changelog import jvm, replay
from pgstream_dagster.changelog.layout import CHANGES
from pgstream_dagster.changelog.tail import Kind, LogCommit, Tail
from pgstream_dagster.errors import LogGone
from pgstream_dagster.lsn import Lsn
from pgstream_dagster.operations.searching import Searching

logger = logging.getLogger(__name__)

STRETCH_ROWS: Final = 20_000
"""Changes of one stretch, more or less: progress is stored after each, and all are in memory."""

REPLAYED_ROWS: Final = 200_000
"""The same for a stretch that a Spark job reads: each costs a look at all of the log."""


@dataclass(frozen=True, slots=True)
class Stretch:
    """All landed changes after the last one up to `watermark`, in order, of any relation asked."""

    changes: pa.Table
    watermark: Lsn
    has_copy: bool  # a copy was landed meanwhile


class Reader:
    """Reads on from a watermark; one thread uses it."""

    def __init__(self, searching: Searching, watermark: Lsn) -> None:
        pipeline = searching.pipeline
        self.watermark = watermark
        self._searching = searching
        self._tail = Tail(pipeline.lake, pipeline.name, searching.epoch)
        self._version: int | None = None  # unknown: it was replayed, or nothing was read yet

    def read(self, relation_ids: Collection[int], timeout: float) -> Stretch | None:
        """The next stretch; `None` when there was nothing new for `timeout` seconds."""
        try:
            if self._version is None:
                self._version = self._tail.version_of(self.watermark)
            commits = self._tail.poll(self._version)
            if not commits and self._tail.wait(timeout):
                commits = self._tail.poll(self._version)
            return self._stretch(commits, relation_ids)
        except LogGone as gone:
            logger.info("%s; reading by position", gone)
            return self._replayed(relation_ids)

    def _stretch(self, commits: list[LogCommit], relation_ids: Collection[int]) -> Stretch | None:
        tables: list[pa.Table] = []
        rows, watermark, version, has_copy = 0, self.watermark, self._version, False
        for commit in commits:
            version = commit.version
            has_copy |= commit.kind is Kind.COPY
            if commit.watermark is not None and commit.watermark > self.watermark:
                found = _of(self._tail.read(commit), relation_ids)
                tables.append(found)
                rows, watermark = rows + found.num_rows, commit.watermark
            if rows >= STRETCH_ROWS:
                break
        moved = version != self._version
        self.watermark, self._version = watermark, version
        changes = pa.concat_tables(tables) if tables else CHANGES.empty_table()
        return Stretch(changes, watermark, has_copy) if moved else None

    def _replayed(self, relation_ids: Collection[int]) -> Stretch | None:
        """The next transactions, whole, up to the watermark of now or as many as fit in memory."""
        searching = self._searching
        upto = searching.watermark()
        self._version = None
        if upto <= self.watermark:
            return None
        pipeline = searching.pipeline
        changes = replay.changes(
            jvm.spark(pipeline.jvm), pipeline.lake, searching.epoch, self.watermark, upto
        )
        wanted = changes.where(changes["relation_id"].isin(list(relation_ids)))
        ends = wanted.select("end_lsn").orderBy("end_lsn").offset(REPLAYED_ROWS).limit(1).collect()
        if ends:
            upto = Lsn(ends[0]["end_lsn"])
            wanted = wanted.where(wanted["end_lsn"] <= int(upto))
        found = wanted.orderBy("commit_lsn", "ordinal").toArrow().cast(CHANGES)
        self.watermark = upto
        return Stretch(found, upto, has_copy=True)


def of_relation(changes: pa.Table, relation_id: int) -> pa.Table:
    """The changes of one relation."""
    return _of(changes, [relation_id])


def _of(changes: pa.Table, relation_ids: Collection[int]) -> pa.Table:
    wanted = pa.array(list(relation_ids), pa.int64())
    return changes.filter(pc.is_in(changes.column("relation_id"), value_set=wanted))
