"""What a reader has not read yet: commits near the end of the log, rows by position far behind."""

from __future__ import annotations

from collections.abc import Collection

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from pgstream_dagster.changelog import replay
from pgstream_dagster.changelog.tail import LogCommit, Tail
from pgstream_dagster.delta import jvm
from pgstream_dagster.lsn import Lsn
from pgstream_dagster.pipeline import OpenPipeline


class Unread:
    """
    The log of one epoch after a reader's watermark; one thread uses it.

    `version` is that of the last commit that was read to its end. It is not known before the first
    read, and after one by position.
    """

    def __init__(self, opened: OpenPipeline) -> None:
        self.tail = Tail(opened.pipeline.lake, opened.pipeline.name, opened.epoch)
        self.version: int | None = None
        self._opened = opened

    def commits(self, watermark: Lsn, timeout: float) -> list[LogCommit]:
        """
        The commits that are there; empty if none arrives within `timeout` seconds.

        Raises:
            LogGone: their entries were cleaned up.
        """
        if self.version is None:
            self.version = self.tail.version_of(watermark)
        commits = self.tail.poll(self.version)
        if not commits and self.tail.wait(timeout):
            commits = self.tail.poll(self.version)
        return commits

    def rows(self, after: Lsn, relation_ids: Collection[int]) -> tuple[DataFrame, Lsn] | None:
        """
        What landed of some relations, in no order, and the watermark it reaches; `None`: nothing.

        For a reader whose next entries were cleaned up.
        """
        self.version, upto = None, self._opened.watermark() or Lsn(0)
        if upto <= after:
            return None
        spark, lake = jvm.spark(self._opened.pipeline.jvm), self._opened.pipeline.lake
        changes = replay.changes(spark, lake, self._opened.epoch, after, upto)
        return changes.where(F.col("relation_id").isin(list(relation_ids))), upto
