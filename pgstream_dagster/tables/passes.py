"""
What passes over typed tables and over histories share: their results, sessions and new changes.

Each pass reads the log's new rows once for all of its tables, and changes several tables at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from itertools import accumulate
from typing import Final

from pyspark import StorageLevel
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql import types as T

from pgstream_dagster.changelog import replay
from pgstream_dagster.changelog.by_relation import sorted_by_relation
from pgstream_dagster.changelog.lake import Lake
from pgstream_dagster.changelog.spans import ROWS
from pgstream_dagster.delta import uri
from pgstream_dagster.delta.entries import LOG_FOLDER, entry_name
from pgstream_dagster.errors import PgstreamError, UnknownSchema
from pgstream_dagster.lsn import Lsn
from pgstream_dagster.pipeline import OpenPipeline
from pgstream_dagster.schema.table import TableSchema
from pgstream_dagster.tables.approval import HeldTable
from pgstream_dagster.tables.increment import MARKERS, Summary
from pgstream_dagster.tables.progress import Entry

CONF: Final = {
    # The rest of the engine reads wide rows; here it is mostly keys.
    "spark.sql.parquet.columnarReaderBatchSize": "4096",
    "spark.sql.autoBroadcastJoinThreshold": str(64 << 20),
    # A merge joins all keys of a table with few changes: hash those, sort neither.
    "spark.sql.join.preferSortMergeJoin": "false",
}

USED: Final = (
    *("epoch", "relation_id", "schema_id", "op", "key", "old_key", "after"),
    *("commit_lsn", "ordinal", "end_lsn", "committed_at"),
)
"""The columns of the log that a pass needs; also `before`, of rows without a key."""

TASKS_PER_CORE: Final = 4
"""Of a read of the whole log: with one each, a core waits for another that has more rows."""

OPEN_BYTES: Final = 64 << 10
"""What opening a file counts as, where files are shared out to tasks. With Spark's 4 MB, which most
files of the log do not have, one task may get all that are large."""

FEW_CHANGES: Final = 20_000
"""Planning a merge of so few takes more time than the merge; a plan that changes underway, most."""

TABLES_AT_ONCE: Final = 3
"""A merge of few changes is planning, most of all, which is done by one thread."""

BROADCAST_CHANGES: Final = 500_000
"""With more of them in one table, their rows may be too large to hold in every task."""


class Step(StrEnum):
    """What a pass did to a table."""

    MERGED = "merged"
    APPENDED = "appended"
    REBUILT = "rebuilt"
    EVOLVED = "evolved"  # only its columns have changed


@dataclass(frozen=True, slots=True)
class MergedTable:
    """A typed table that a pass has changed; `changes`: of the log, none where it was rebuilt."""

    name: str
    table: str
    step: Step
    rows: int
    changes: int
    seconds: float

    @property
    def line(self) -> str:
        """For people."""
        changes = f"{self.changes:,} changes, " if self.changes else ""
        return f"{self.name}: {self.step}, {changes}{self.rows:,} rows, {self.seconds:.1f} s"


@dataclass(frozen=True, slots=True)
class Merged:
    """
    One pass; `tables` are those that it has changed. `is_stopped`: some may be left to do.

    The tables in `held` are at positions of their own: changes of columns wait for an approval.
    `errors` are for a person: a table that cannot have its name in the metastore, or no history.
    All other tables are merged.
    """

    position: Lsn
    tables: Sequence[MergedTable]
    is_stopped: bool = False
    held: Sequence[HeldTable] = ()
    errors: Sequence[PgstreamError] = ()

    def require_all(self) -> None:
        """
        Raise if something that is asked for could not be done.

        Raises:
            HistoryNeedsKey, HistoryNameTaken, MetastoreNameTaken: the first of `errors`.
        """
        for error in self.errors:
            raise error


Report = Callable[[MergedTable], None]


def session(spark: SparkSession) -> SparkSession:
    """A session with settings of its own."""
    own = spark.newSession()
    for name, value in CONF.items():
        own.conf.set(name, value)
    return own


def rebuilding(spark: SparkSession) -> SparkSession:
    """A session for tables that are written again from the log."""
    own = session(spark)
    tasks = TASKS_PER_CORE * spark.sparkContext.defaultParallelism
    own.conf.set("spark.sql.files.minPartitionNum", str(tasks))
    own.conf.set("spark.sql.files.openCostInBytes", str(OPEN_BYTES))
    return own


def merging(spark: SparkSession, changes: int) -> SparkSession:
    """A session for the merge of so many changes."""
    own = session(spark)
    expect(own, changes)
    return own


def without_shared_expressions(spark: SparkSession, types: Iterable[T.DataType]) -> None:
    """
    Set a session up to write rows of columns of these types.

    Spark computes an expression once that is used twice. Delta's statistics of what it writes share
    so many that this makes them slower, and new code for each table, which Java compiles again: a
    rebuild takes a quarter more. But casts of ranges take three times as long without it.
    """
    if not any("struct" in type_.simpleString() for type_ in types):
        spark.conf.set("spark.sql.subexpressionElimination.enabled", "false")


def expect(spark: SparkSession, changes: int) -> None:
    """Set a session up to merge so many changes: few are for one task, and planned as a whole."""
    if changes <= FEW_CHANGES:
        spark.conf.set("spark.sql.adaptive.enabled", "false")
        spark.conf.set("spark.sql.shuffle.partitions", "1")


def smallest(sizes: Mapping[int, int], limit: int) -> list[int]:
    """The relations with the smallest sizes, as far as these are within a limit together."""
    ordered = sorted(sizes, key=lambda relation_id: sizes[relation_id])
    totals = accumulate(sizes[relation_id] for relation_id in ordered)
    return [r for r, total in zip(ordered, totals, strict=True) if total <= limit]


@contextmanager
def new_changes(
    spark: SparkSession, opened: OpenPipeline, oids: Sequence[int], after: int, until: Lsn
) -> Generator[DataFrame | None]:
    """
    The log's rows of these relations between two positions, read once; `None`: of none.

    Shape:
        result: `sorted_by_relation`.
    """
    if not oids:
        yield None
        return
    new = replay.changes(spark, opened.pipeline.lake, opened.epoch, Lsn(after), until)
    is_theirs = F.col("relation_id").isin(list(oids)) & F.col("op").isin([*ROWS, *MARKERS])
    before = F.when(F.col("key").isNull(), F.col("before")).alias("before")
    kept = sorted_by_relation(new.where(is_theirs).select(*USED, before))
    kept.persist(StorageLevel.MEMORY_AND_DISK)
    try:
        yield kept
    finally:
        kept.unpersist()


def is_there(lake: Lake, name: str, entry: Entry) -> bool:
    """Whether the lake has the Delta table, with the version that was recorded."""
    return _exists(lake, name, [entry_name(entry.version)] if entry.version >= 0 else [])


def has_gone_on(lake: Lake, name: str, entry: Entry | None) -> bool:
    """Whether a table was changed after the last pass: by one that was not recorded, or others."""
    if entry is None or entry.version < 0:
        return False
    return _exists(lake, name, [entry_name(entry.version + 1)])


def _exists(lake: Lake, name: str, entry: Sequence[str]) -> bool:
    """Whether a table's log is there, or an entry of it."""
    log = uri.child(lake.typed_table(name), LOG_FOLDER)
    filesystem, path = uri.filesystem("/".join([log, *entry]))
    return filesystem.get_file_info(path).type.name != "NotFound"


def must_build(lake: Lake, name: str, entry: Entry | None, relation_id: int, copy: Lsn) -> bool:
    """
    Whether a table is not there, is not of this copy of the relation, or was held.

    One that is older than what was recorded is not there: it lacks changes that were merged.
    """
    if entry is None or entry.held is not None:
        return True
    is_of_copy = (entry.relation_id, entry.copy) == (relation_id, copy)
    return not is_of_copy or not is_there(lake, name, entry)


def waits(entry: Entry | None) -> bool:
    """Whether changes are missing, until the next copy."""
    return entry is not None and entry.has_gap


def has_other_columns(entry: Entry | None, digest: str) -> bool:
    """Whether a table has other columns than it shall have, whose digest is given."""
    return entry is None or entry.columns != digest


def must_open(lake: Lake, name: str, entry: Entry | None, digest: str) -> bool:
    """Whether a table has other columns than it shall have, or has what was not recorded."""
    return has_other_columns(entry, digest) or has_gone_on(lake, name, entry)


def require_schemas(summary: Summary, versions: Sequence[TableSchema]) -> None:
    """
    Raise if changes were decoded with a version that is not one of these, of their relation.

    Raises:
        UnknownSchema
    """
    for unknown in summary.schema_ids - {version.schema_id for version in versions}:
        raise UnknownSchema(unknown, versions[-1].full_name)
