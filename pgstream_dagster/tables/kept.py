"""
Columns of a typed table that keep what a column was before its type changed.

With `on_type_change: keep` a column whose type becomes one that has not all of its values leaves
its former values behind, in a column of the former type. A row that was there when the type changed
shows in it the last value of that type; a row that came later shows null.

`kept_columns` is pure; `with_kept` has DataFrames in and out.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import reduce
from itertools import groupby, pairwise
from typing import Final, NamedTuple

from pyspark.sql import Column as SparkColumn
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from pgstream_dagster.changelog.fold import rows_by_key
from pgstream_dagster.changelog.schema_log import SchemaEntry, without_repeats
from pgstream_dagster.changelog.spans import ROWS, Span, between
from pgstream_dagster.config.column_types import ColumnTypes
from pgstream_dagster.lsn import Lsn
from pgstream_dagster.schema.change import Place
from pgstream_dagster.schema.changes import Op
from pgstream_dagster.schema.table import Column, TableSchema
from pgstream_dagster.schema.text import retyped
from pgstream_dagster.tables.forms import DEFAULTS
from pgstream_dagster.tables.types import delta_type
from pgstream_dagster.tables.widening import widened

OFFSET: Final = 100_000
"""A kept column has the number `version * OFFSET + attnum`; attnums end at 1,600."""

_NEVER: Final = -1
"""The size of no image: an update that has it is one in part."""

History = Sequence[tuple[Lsn, TableSchema]]
"""Each time that a version of one relation began to hold, and since when, oldest first."""


@dataclass(frozen=True, slots=True)
class KeptColumn:
    """
    A column as it was before a change of its type.

    `column` is its definition then, under its present name. `names` has the name that it had in
    each of the versions, by schema id. They held from `since` until `until`, the commit that ended
    them.
    """

    version: int
    column: Column
    names: Mapping[int, str] = field(compare=False)
    since: Lsn
    until: Lsn

    @property
    def number(self) -> int:
        """What identifies it among the columns of its table."""
        return self.version * OFFSET + self.column.attnum

    @property
    def entry(self) -> str:
        """Under which name a row of the fold has its value; no column of Postgres has it."""
        return f"\0{self.number}"

    @property
    def name(self) -> str:
        """What it is called."""
        return f"{self.column.name}__v{self.version}"


def kept_columns(history: History, options: Mapping[str, ColumnTypes]) -> list[KeptColumn]:
    """
    The columns that the newest version's columns leave behind, in order.

    None of a relation without a key, whose rows cannot be followed, nor from before its key became
    other columns, or columns of a type that writes the same key differently.

    Shape:
        options: of columns, by their present names.
    """
    newest = history[-1][1]
    if not newest.key:
        return []
    # A transaction with several versions may have recorded them again when it was sent again.
    entries = without_repeats([SchemaEntry(since, schema, ddl=None) for since, schema in history])
    same_key = _since_key([(entry.since, entry.schema) for entry in entries])
    return [
        kept
        for column in newest.columns
        for kept in _of_column(same_key, column, options.get(column.name, DEFAULTS))
    ]


def _since_key(history: History) -> History:
    """The versions since the relation has its present key, and its values their present texts."""
    changes = enumerate(pairwise(history), start=1)
    begins = [n for n, ((_, before), (_, after)) in changes if _is_other_key(before, after)]
    return history[max(begins, default=0) :]


def _is_other_key(before: TableSchema, after: TableSchema) -> bool:
    """Whether a row cannot be found by the key that it had: there is a gap between these two."""
    is_same = before.key_attnums == after.key_attnums
    return not is_same or not {*retyped(before, after)}.isdisjoint(after.key)


def _of_column(history: History, present: Column, options: ColumnTypes) -> Iterator[KeptColumn]:
    states = list(_typed(history, present.attnum, options))
    runs = [list(run) for _, run in groupby(states, key=lambda state: state.run)]
    for number, (run, following) in enumerate(pairwise(runs), start=1):
        names = {state.version.schema_id: state.column.name for state in run}
        column = replace(run[-1].column, name=present.name)
        yield KeptColumn(number, column, names, run[0].since, following[0].since)


@dataclass(frozen=True, slots=True)
class _State:
    """A column in a version; of one `run` are versions whose types have each other's values."""

    since: Lsn
    version: TableSchema
    column: Column
    run: int


def _typed(history: History, attnum: int, options: ColumnTypes) -> Iterator[_State]:
    run, before = 0, None
    for since, version in history:
        column = next((c for c in version.columns if c.attnum == attnum), None)
        if column is None:
            continue
        type_ = delta_type(column, options)
        run += before is not None and not widened(before, type_)
        before = type_
        yield _State(since, version, column, run)


def with_kept(
    rows: DataFrame, changes: DataFrame, kept: Sequence[KeptColumn], span: Span
) -> DataFrame:
    """
    The rows of a fold, each with the kept values of its own; runs small jobs.

    Shape:
        rows: as `fold` gives them.
        changes: all that the log has of the relation, up to the position of the rows.
        span: of these changes.
    """
    return reduce(lambda with_, column: _with(with_, changes, column, span), kept, rows)


def _with(rows: DataFrame, changes: DataFrame, kept: KeptColumn, span: Span) -> DataFrame:
    values = _values(changes.where(between(None, span.stop)), kept)
    named = values.select("key", F.col("row").alias("kept"))
    whole = F.when(F.col("kept").isNull(), F.col("row")).otherwise(F.map_concat("row", "kept"))
    return rows.join(named, "key", "left").withColumn("row", whole).select(*rows.columns)


def _values(changes: DataFrame, kept: KeptColumn) -> DataFrame:
    """
    The row of every key that there is, with nothing but its kept value.

    By the fold, of images that have nothing else: what had the former type carries the value, or
    did not send it. What came later carries nothing, so an update leaves the value as it is,
    wherever the row moves, and an insert begins without it. A later copy shows the same rows again,
    and is left out.
    """
    truncated, copied, moved, ended = _places(changes, kept)
    start = max((place for place in (truncated, copied) if place is not None), default=None)
    op, is_kept = F.col("op"), _has_former_type(kept) & between(None, ended)
    is_later = F.col("commit_lsn") >= int(kept.since)
    pairs = [F.lit(part) for pair in kept.names.items() for part in pair]
    name = F.try_element_at(F.create_map(*pairs), F.col("schema_id"))
    carries = is_kept & F.map_contains_key("after", name)
    value = F.create_map(F.lit(kept.entry), F.try_element_at("after", name))
    changes_rows = op.isin(Op.INSERT.value, Op.DELETE.value) | F.col("old_key").isNotNull()
    counting = changes.where(
        between(start, None) & op.isin(list(ROWS)) & F.col("key").isNotNull()
    ).where(is_kept | (is_later & changes_rows))
    named = counting.withColumns(
        {
            "after": F.when(carries, value).otherwise(F.create_map().cast("map<string,string>")),
            "size": F.when(carries, 1).otherwise(_NEVER),
            "names": F.lit(None).cast("map<string,string>"),
            "younger": F.lit(None).cast("map<string,string>"),
        }
    )
    return rows_by_key(named, has_moves=moved is not None)


class _Places(NamedTuple):
    """
    Of the last truncate, of the last copy with the former type, and of the last move.

    `ended`: of the first row with another type in the transaction that ended the former one, whose
    type may be the same once more after that.
    """

    truncated: Place | None
    copied: Place | None
    moved: Place | None
    ended: Place | None


def _places(changes: DataFrame, kept: KeptColumn) -> _Places:
    """They, by a job."""
    op, place = F.col("op"), F.struct("commit_lsn", "ordinal")
    lsn, schema_id = F.col("commit_lsn"), F.col("schema_id")
    is_last = (lsn == int(kept.until)) & F.lit(kept.since < kept.until) & op.isin(list(ROWS))
    is_copy = (op == Op.COPY.value) & (lsn < int(kept.until))
    last = (op == Op.TRUNCATE.value, is_copy, F.col("old_key").isNotNull())
    first = is_last & (F.col("ordinal") >= 0) & ~schema_id.isin(list(kept.names))
    columns = [*(F.max(F.when(is_it, place)) for is_it in last), F.min(F.when(first, place))]
    [places] = changes.select(*columns).collect()
    return _Places(*(row and Place(Lsn(row[0]), row[1]) for row in places))


def _has_former_type(kept: KeptColumn) -> SparkColumn:
    """Whether a change was decoded with one of the versions that had the former type."""
    held = F.col("commit_lsn").between(int(kept.since), int(kept.until))
    return held & F.col("schema_id").isin(list(kept.names))
