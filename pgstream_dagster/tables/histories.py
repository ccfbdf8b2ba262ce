"""
What the log has of the relations whose tables are written again.

Each scan of the log opens all of its files, and a file may have rows of many relations. So the
history of small tables is read once for all of them; a large one is scanned for itself.
"""

from __future__ import annotations

from collections.abc import Collection, Generator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from pgstream_dagster.changelog import replay
from pgstream_dagster.changelog.lake import Lake
from pgstream_dagster.changelog.spans import Span, is_before, spans
from pgstream_dagster.lsn import Lsn

SMALL_ROWS: Final = 50_000
"""Fewer rows, copied and changed, are for one task: small tables have few files."""


@dataclass(frozen=True)
class Histories:
    """The changes of relations before a position, markers and copied rows too."""

    lake: Lake
    epoch: int
    position: Lsn
    spans: dict[int, Span]
    kept: DataFrame | None
    small: frozenset[int]

    def span(self, relation_id: int) -> Span:
        """Which part of its history the rows of a relation come from."""
        return self.spans.get(relation_id, Span())

    def changes(self, spark: SparkSession, relation_id: int) -> DataFrame:
        """The history of one of the relations, as `fold` takes it."""
        if self.kept is not None and relation_id in self.small:
            return self.kept.where(F.col("relation_id") == relation_id).coalesce(1)
        changes = replay.relation_changes(spark, self.lake, self.epoch, relation_id)
        return changes.where(is_before(self.epoch, self.position))


@contextmanager
def histories(
    spark: SparkSession,
    lake: Lake,
    epoch: int,
    relation_ids: Collection[int],
    position: Lsn,
    *,
    alone: Collection[int] = (),
) -> Generator[Histories]:
    """
    The histories of relations; one job, and one more if several are small.

    Shape:
        alone: those that are scanned for themselves, however small they are.
    """
    if not relation_ids:
        yield Histories(lake, epoch, position, {}, None, frozenset())
        return
    changes = replay.history(spark, lake, epoch, relation_ids)
    by_relation = spans(changes.where(is_before(epoch, position)))
    sizes = {oid: span.copied_rows + span.changed_rows for oid, span in by_relation.items()}
    small = frozenset(oid for oid, rows in sizes.items() if rows < SMALL_ROWS) - set(alone)
    if len(small) < 2:
        yield Histories(lake, epoch, position, by_relation, None, frozenset())
        return
    with replay.kept(spark, lake, epoch, small, before=position) as kept:
        yield Histories(lake, epoch, position, by_relation, kept, small)
