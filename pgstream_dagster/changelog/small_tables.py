"""
Several small tables folded by one plan for all.

Planning the fold of a table takes a second or more, whatever its size.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import reduce
from typing import Final

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from pgstream_dagster.changelog.by_relation import RELATION, of_relation
from pgstream_dagster.changelog.fold import copied_together, fold, fold_together
from pgstream_dagster.changelog.replay import read_once
from pgstream_dagster.changelog.spans import ROWS, Span
from pgstream_dagster.schema.table import TableSchema

SMALL_ROWS: Final = 50_000
"""Rows and changes of a table, at most: planning its fold takes longer than folding so many."""


@dataclass(frozen=True, slots=True)
class History:
    """What the log has of a relation, and the versions under the newest of which it is folded."""

    versions: Sequence[TableSchema]
    span: Span

    @property
    def relation_id(self) -> int:
        """The relation."""
        return self.versions[-1].relation_id

    @property
    def is_small(self) -> bool:
        """
        Whether it is folded with others: few rows, all with the key of the newest, none moved.

        Rows that move are followed by the places where they began, and two tables that were copied
        at one point have rows at the same places.
        """
        span, newest = self.span, self.versions[-1]
        by_id = {version.schema_id: version for version in self.versions}
        if not newest.key or not span.is_known or span.start is None or span.has_moves:
            return False
        if span.schema_ids - by_id.keys():
            return False
        keys = {by_id[schema_id].key_attnums for schema_id in span.schema_ids}
        is_one_key = keys <= {newest.key_attnums}
        return is_one_key and span.copied_rows + span.changed_rows <= SMALL_ROWS


def shared(histories: Sequence[History]) -> list[History]:
    """Those that are folded by one plan; a single one has nothing to share."""
    small = [history for history in histories if history.is_small]
    return small if len(small) > 1 else []


def folded(log: DataFrame, histories: Sequence[History]) -> DataFrame:
    """
    The rows of several small relations, as `fold` gives those of each; may run Spark jobs.

    Shape:
        log: their changes, as `sorted_by_relation` gives them.
        histories: at least one.
        result: `relation_id`, and the columns that a fold has.
    """
    is_row = F.col("op").isin(list(ROWS)) & F.col("key").isNotNull()
    rows = _after_start(log.where(is_row), histories).drop(RELATION)
    changed = [history for history in histories if history.span.changed_rows]
    copied = [history for history in histories if not history.span.changed_rows]
    parts = list[DataFrame]()
    if changed:
        versions = [history.versions for history in changed]
        left = fold_together(rows, versions, has_moves=False)
        parts.append(left.where(F.col("row").isNotNull()))
    if copied:
        parts.append(copied_together(rows, [history.versions for history in copied]))
    return reduce(DataFrame.unionByName, parts)


def _after_start(log: DataFrame, histories: Sequence[History]) -> DataFrame:
    """The changes of these relations, each after the last marker of its own."""
    starts = [
        (h.relation_id, int(start.commit_lsn), start.ordinal)
        for h in histories
        if (start := h.span.start) is not None
    ]
    listed = log.sparkSession.createDataFrame(
        starts, "relation_id BIGINT, start_lsn BIGINT, start_ordinal BIGINT"
    )
    lsn, ordinal = F.col("commit_lsn"), F.col("ordinal")
    is_same = (lsn == F.col("start_lsn")) & (ordinal > F.col("start_ordinal"))
    after = log.join(F.broadcast(listed), "relation_id").where((lsn > F.col("start_lsn")) | is_same)
    return after.select(*log.columns)


@contextmanager
def folds(
    log: DataFrame, histories: Sequence[History]
) -> Generator[Callable[[History], DataFrame]]:
    """
    What gives the rows of each of these relations, until the block ends; runs Spark jobs.

    Shape:
        log: as `folded` takes it.
    """

    def alone(history: History) -> DataFrame:
        changes = of_relation(log, history.relation_id)
        return fold(changes, history.versions, span=history.span)

    small = shared(histories)
    if not small:
        yield alone
        return
    shared_ids = {history.relation_id for history in small}
    with read_once(folded(log, small)) as rows:

        def rows_of(history: History) -> DataFrame:
            is_shared = history.relation_id in shared_ids
            return of_relation(rows, history.relation_id) if is_shared else alone(history)

        yield rows_of
