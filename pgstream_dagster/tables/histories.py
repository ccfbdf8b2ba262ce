"""
What the log has of the relations whose tables are written again.

Each scan of the log opens all of its files, and a file may have rows of many relations. So the
histories of small tables are read once for all of them; a large one is scanned for itself.
"""

from __future__ import annotations

from collections.abc import Collection, Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from pgstream_dagster.changelog import replay
from pgstream_dagster.changelog.by_relation import of_relation
from pgstream_dagster.changelog.lake import Lake
from pgstream_dagster.changelog.spans import Span
from pgstream_dagster.lsn import Lsn
from pgstream_dagster.tables.passes import smallest

SMALL_ROWS: Final = 50_000
"""A history of fewer rows is for one task: small tables have few files."""

ROWS_READ_ONCE: Final = 1_000_000
"""At most, as each table looks through all of them."""


@dataclass(frozen=True)
class Histories:
    """
    The changes of relations before a position, markers and copied rows too.

    All of one version of the log, as the spans are: a relation may be copied again meanwhile.
    """

    log: DataFrame
    spans: Mapping[int, Span]
    small: frozenset[int]
    of_small: DataFrame

    def span(self, relation_id: int) -> Span:
        """Which part of its history the rows of a relation come from."""
        return self.spans.get(relation_id, Span())

    def changes(self, relation_id: int) -> DataFrame:
        """The history of one of the relations, as `fold` takes it."""
        if relation_id in self.small:
            return of_relation(self.of_small, relation_id).coalesce(1)
        return self.log.where(F.col("relation_id") == relation_id)


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
    The histories of relations; at most one job, and two more if several are small.

    Shape:
        alone: those that are scanned for themselves, however small they are.
    """
    log, by_relation = replay.history_and_spans(spark, lake, epoch, relation_ids, before=position)
    small = _small({r: s for r, s in by_relation.items() if r not in set(alone)})
    if len(small) < 2:
        yield Histories(log, by_relation, frozenset(), log)
        return
    with replay.read_once(log.where(F.col("relation_id").isin(list(small)))) as rows:
        rows.count()  # by all cores; a table alone would read it with one
        yield Histories(log, by_relation, small, rows)


def _small(by_relation: Mapping[int, Span]) -> frozenset[int]:
    """The relations with the smallest histories, as far as these are few rows together."""
    sizes = {r: s.history_rows for r, s in by_relation.items() if s.history_rows < SMALL_ROWS}
    return frozenset(smallest(sizes, ROWS_READ_ONCE))
