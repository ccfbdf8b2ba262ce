"""A whole history from the log, over every relation that it is of. Small jobs run at once."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import reduce
from typing import Final

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from pgstream_dagster.changelog import replay
from pgstream_dagster.changelog.lake import Lake
from pgstream_dagster.changelog.spans import ROWS, between
from pgstream_dagster.errors import UnknownSchema
from pgstream_dagster.lsn import Lsn
from pgstream_dagster.schema.change import Place
from pgstream_dagster.schema.changes import Op
from pgstream_dagster.tables.history.columns import HistoryLayout
from pgstream_dagster.tables.history.continued import continued
from pgstream_dagster.tables.history.lineage import Relation
from pgstream_dagster.tables.history.periods import Marker, Period, periods
from pgstream_dagster.tables.history.typed import typed_versions, with_current
from pgstream_dagster.tables.history.versions import (
    VERSION,
    Part,
    ends,
    in_periods,
    row_versions,
)
from pgstream_dagster.tables.increment import MARKERS

_END_OF_EPOCH: Final = Lsn((1 << 63) - 1)


@dataclass(frozen=True, slots=True)
class Log:
    """The change log up to a position of an epoch."""

    spark: SparkSession
    lake: Lake
    epoch: int
    position: Lsn

    def until(self, epoch: int) -> Lsn:
        """Up to where it has an epoch."""
        return self.position if epoch == self.epoch else _END_OF_EPOCH


@dataclass(frozen=True, slots=True)
class Built:
    """The rows of a history, lazy; `has_gap`: changes are missing after them."""

    rows: DataFrame
    has_gap: bool


@contextmanager
def built(log: Log, chain: Sequence[Relation], layout: HistoryLayout) -> Generator[Built]:
    """
    Every version of every row of relations that continue each other.

    The log is read once; the rows last as long as the block.

    Raises:
        UnknownSchema: a change was decoded with a version that is not in `chain`.
    """
    with ExitStack() as stack:
        read = [
            stack.enter_context(
                replay.kept(
                    *(log.spark, log.lake, relation.epoch, [relation.relation_id]),
                    before=log.until(relation.epoch),
                )
            )
            for relation in chain
        ]
        rows, has_gap = history_rows(chain, read, layout)
        yield Built(rows, has_gap)


def history_rows(
    chain: Sequence[Relation], read: Sequence[DataFrame], layout: HistoryLayout
) -> tuple[DataFrame, bool]:
    """The rows of a history, and whether changes are missing after them; `read`: as the log is."""
    parts = [periods(markers(changes)) for changes in read]
    made = list[DataFrame]()
    for n, (relation, changes) in enumerate(zip(chain, read, strict=True)):
        if not parts[n]:
            continue
        following = [
            (r.epoch, p[0].start) for r, p in zip(chain[n + 1 :], parts[n + 1 :], strict=True) if p
        ]
        end = following[0] if following else None
        part = _part(relation, changes, parts[n], end)
        made.append(typed_versions(row_versions(part, layout), layout, relation.epoch))
    rows = reduce(DataFrame.unionByName, made)
    return with_current(continued(rows, layout)).drop(VERSION), not parts[-1][-1].is_open


def markers(changes: DataFrame) -> list[Marker]:
    """The copies, truncates and gaps of a relation; runs a job."""
    at = F.unix_micros("committed_at")
    rows = changes.where(F.col("op").isin(list(MARKERS))).select(
        "commit_lsn", "ordinal", "op", at.alias("at_us")
    )
    return [
        Marker(Place(Lsn(lsn), ordinal), Op(op), at_us)
        for lsn, ordinal, op, at_us in map(tuple, rows.collect())
    ]


def has_parts(changes: DataFrame, relation: Relation) -> bool:
    """
    Whether any update leaves out columns; runs a job.

    Raises:
        UnknownSchema: a change was decoded with a version that the relation has not.
    """
    sizes = {version.schema_id: len(version.columns) for version in relation.versions}
    pairs = [F.lit(n).cast("bigint") for pair in sizes.items() for n in pair]
    size = F.try_element_at(F.create_map(*pairs), F.col("schema_id"))
    is_part = (F.col("op") == Op.UPDATE.value) & (F.size("after") < size)
    [(has_any, used)] = changes.agg(F.bool_or(is_part), F.collect_set("schema_id")).collect()
    for unknown in set(used) - sizes.keys():
        raise UnknownSchema(unknown, relation.versions[-1].full_name)
    return bool(has_any)


def _part(
    relation: Relation,
    changes: DataFrame,
    parts: Sequence[Period],
    end: tuple[int, Marker] | None,
) -> Part:
    is_cut = end is not None and end[0] == relation.epoch
    mine = changes.where(between(None, end[1].place)) if end is not None and is_cut else changes
    rows = mine.where(F.col("op").isin(list(ROWS)) & F.col("key").isNotNull())
    live = in_periods(rows, parts)
    return Part(relation.epoch, live, ends(live, parts), has_parts(live, relation), end)
