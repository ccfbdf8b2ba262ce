"""
Merging a part of a history into the rows before it gives what the fold of all of it gives.

Random histories, several at once as in a pass: moved keys, unsent values, changes of columns.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from pgstream_dagster.lsn import Lsn
from pgstream_dagster.schema.changes import Op
from pgstream_dagster.schema.table import TableSchema
from pgstream_dagster.tables.columns import OWN, Layout, layout
from pgstream_dagster.tables.increment import IS_THERE, REFERRED, outcome, summaries
from pgstream_dagster.tables.rows import keyed_rows, resolved
from tests.support.reference import fold as reference
from tests.support.reference.change import Change
from tests.support.reference.history import EPOCH, History, table

SEEDS: Final = (27, 44, 66, 88, 103, 116)
"""Of histories in which rows keep values from before: updates that leave columns out are rare."""

MARKERS: Final = {Op.COPY, Op.GAP, Op.TRUNCATE, Op.READ}

Row = dict[str, Any]


@dataclass(frozen=True)
class Part:
    """A history, and how much of it a typed table has."""

    changes: Sequence[Change]
    versions: Sequence[TableSchema]
    merged: int

    @property
    def layout(self) -> Layout:
        return layout(self.versions[-1], {})

    def before(self) -> list[Row]:
        return rows_of(reference.fold(self.changes[: self.merged], self.versions))

    def after(self) -> list[Row]:
        return rows_of(reference.fold(self.changes, self.versions))


def part(seed: int, relation_id: int) -> Part:
    """One under an oid of its own."""
    rng = random.Random(seed)
    history = History(rng).play(120)
    versions = [replace(version, relation_id=relation_id) for version in history.versions]
    ids = {
        old.schema_id: new.schema_id for old, new in zip(history.versions, versions, strict=True)
    }
    changes = [
        replace(
            moved(c, relation_id * 1_000_000),
            relation_id=relation_id,
            schema_id=c.schema_id and ids[c.schema_id],
        )
        for c in history.changes
    ]
    changes.sort(key=lambda c: c.position)
    markers = [n for n, c in enumerate(changes) if c.op in MARKERS]
    assert not markers or changes[markers[-1]].op is not Op.GAP, "nothing is merged after a gap"
    first = markers[-1] + 1 if markers else 0
    return Part(changes, versions, rng.randint(first, max(first, len(changes) - 20)))


def moved(change: Change, by: int) -> Change:
    """A change later in the log, where each has a position of its own."""
    at = change.position._replace(commit_lsn=Lsn(change.position.commit_lsn + by))
    return replace(change, position=at, end_lsn=Lsn(change.end_lsn + by))


def rows_of(folded: Sequence[reference.Row]) -> list[Row]:
    return [
        {**row.image, "_commit_lsn": int(row.position.commit_lsn), "_ordinal": row.position.ordinal}
        for row in folded
    ]


def typed(spark: SparkSession, history: Part) -> DataFrame:
    """The typed table as it was left, with the columns of the newest version."""
    names = [column.name for column in history.layout.columns.values()]
    types = [(n, pa.string()) for n in names]
    own = [("_commit_lsn", pa.int64()), ("_ordinal", pa.int64())]
    rows = spark.createDataFrame(pa.Table.from_pylist(history.before(), pa.schema([*types, *own])))
    return rows.select(
        *names,
        F.lit(EPOCH).alias("_epoch"),
        "_commit_lsn",
        "_ordinal",
        F.lit(None).cast("timestamp").alias("_committed_at"),
        F.lit(None).cast("map<string,string>").alias("_rescued"),
    )


def merged(before: Sequence[Row], rows: Sequence[Row], key: Sequence[str]) -> list[Row]:
    """What MERGE makes of the table."""
    result = {tuple(row[name] for name in key): row for row in before}
    for row in rows:
        identity = tuple(row[name] for name in key)
        result.pop(identity, None)
        if row.pop(IS_THERE):
            result[identity] = row
    return list(result.values())


@pytest.mark.long
def test_a_part_merged_gives_what_the_whole_folds_to(spark: SparkSession) -> None:
    parts = [part(seed, 20_000 + seed) for seed in SEEDS]
    new = [change for history in parts for change in history.changes[history.merged :]]
    changes = spark.createDataFrame(table(new)).localCheckpoint()
    assert any(summary.has_moves for summary in summaries(changes).values())
    outcomes = outcome(
        changes, [history.versions for history in parts], has_moves=True, has_parts=True, unsent={}
    ).localCheckpoint()
    assert not outcomes.where(F.col(REFERRED).isNotNull()).isEmpty()
    for history in parts:
        of_part = outcomes.where(F.col("relation_id") == history.versions[-1].relation_id)
        names = of_part.select(F.explode(REFERRED)).distinct().collect()
        rows = keyed_rows(of_part, history.layout, EPOCH)
        if names:
            rows = resolved(
                rows, typed(spark, history), history.layout, [name for (name,) in names]
            )
        hidden = {*OWN} - {"_commit_lsn", "_ordinal"}
        shown = [name for name in history.layout.names if name not in hidden]
        made = [row.asDict() for row in rows.select(IS_THERE, *shown).collect()]
        assert in_order(merged(history.before(), made, history.layout.key)) == in_order(
            history.after()
        )


def in_order(rows: Sequence[Row]) -> list[str]:
    return sorted(str(sorted(row.items())) for row in rows)
