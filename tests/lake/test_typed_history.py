"""
The versions of rows: of a whole log, and of a log in two parts, as a plain implementation has them.

Random histories: copies, gaps, truncates, moved keys, unsent values, changes of columns.
"""

from __future__ import annotations

import os
import secrets
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from random import Random
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from pgstream_dagster.lsn import Lsn
from pgstream_dagster.schema.changes import COPY_ORDINAL, Op
from pgstream_dagster.schema.table import TableSchema
from pgstream_dagster.tables.history.build import has_parts, history_rows
from pgstream_dagster.tables.history.columns import HistoryLayout, history_layout
from pgstream_dagster.tables.history.increment import IS_FORMER, added
from pgstream_dagster.tables.history.lineage import Relation
from tests.support.reference import versions as reference
from tests.support.reference.change import Change
from tests.support.reference.history import (
    EPOCH,
    RELATION_ID,
    History,
    change,
    schema,
    table,
    text,
)

MARKERS = {Op.COPY, Op.GAP, Op.TRUNCATE, Op.READ}


@pytest.fixture
def seed() -> int:
    """Another one every run, shown when the test fails."""
    seed = int(os.environ.get("PGSTREAM_TEST_SEED") or secrets.randbits(32))
    print(f"PGSTREAM_TEST_SEED={seed}")  # noqa: T201 - the way to run it again
    return seed


def played(random: Random, steps: int) -> History:
    """A history with several copies, gaps and truncates."""
    history = History(random, key_space=25)
    history.insert()
    history.begin()
    history.copy()
    for marker in (history.truncate, history.copy, history.gap, history.copy, history.truncate):
        history.play(steps)
        if random.random() < 0.5:
            history.begin()
        marker()
    if not history.is_open:
        history.copy()
    history.begin()
    return history.play(steps)


def relation_of(history: History) -> Relation:
    return Relation(EPOCH, RELATION_ID, Lsn(100), "public.t", history.versions)


def spark_rows(rows: DataFrame, layout: HistoryLayout) -> Counter[Any]:
    return Counter(
        (
            tuple(row["_key"]),
            tuple(sorted((n, row[c.name]) for n, c in layout.columns.items())),
            (row["_valid_from_lsn"], row["_valid_from_ordinal"]),
            (row["_valid_to_lsn"], row["_valid_to_ordinal"]),
            row["_ended_by"],
            row["_is_current"],
        )
        for row in rows.collect()
    )


def reference_rows(changes: Sequence[Change], history: History) -> Counter[Any]:
    return Counter(
        (
            version.key,
            tuple(sorted(version.values.items())),
            tuple(version.start[1:]),
            (None, None) if version.end is None else tuple(version.end[1:]),
            version.ended_by,
            version.end is None,
        )
        for version in reference.versions(changes, history.versions)
    )


def difference(actual: Counter[Any], expected: Counter[Any]) -> str:
    missing, extra = expected - actual, actual - expected
    return f"missing {sorted(map(str, missing))[:4]}, too many {sorted(map(str, extra))[:4]}"


def test_versions_are_those_of_the_plain_implementation(spark: SparkSession, seed: int) -> None:
    random = Random(seed)
    history = played(random, 150)
    layout = history_layout([history.versions], {})
    shuffled = random.sample(history.changes, len(history.changes))
    rows, has_gap = history_rows(
        [relation_of(history)], [spark.createDataFrame(table(shuffled))], layout
    )
    assert has_gap is not history.is_open
    actual, expected = spark_rows(rows, layout), reference_rows(history.changes, history)
    assert actual == expected, difference(actual, expected)


@pytest.mark.long
def test_a_history_in_two_parts_is_the_whole(spark: SparkSession, seed: int) -> None:
    random = Random(seed)
    history = played(random, 60)
    while not history.is_open:  # it ends in a gap, in which no history is extended
        history.copy()
        history.begin()
        history.play(20)
    layout = history_layout([history.versions], {})
    changes = sorted(history.changes, key=lambda change: change.position)
    last = max(n for n, change in enumerate(changes) if change.op in MARKERS)
    cut = changes[random.randrange(last + 1, len(changes))].position.commit_lsn
    before = [c for c in changes if c.position.commit_lsn < cut or c.op in MARKERS]
    after = [c for c in changes if c not in before]
    relation = relation_of(history)
    first, _ = history_rows([relation], [spark.createDataFrame(table(before))], layout)
    first = first.localCheckpoint()
    new = spark.createDataFrame(table(after)).where(F.col("op") != "ddl")
    rows = added(
        new, relation, layout, first, is_small=True, has_parts=has_parts(new, relation)
    ).localCheckpoint()
    ended = rows.where(IS_FORMER)
    place = ["_key", "_valid_from_lsn", "_valid_from_ordinal"]
    whole = first.join(ended, place, "left_anti").unionByName(rows.drop(IS_FORMER))
    assert ended.join(first.where("_is_current"), place, "left_semi").count() == ended.count()
    actual, expected = spark_rows(whole, layout), reference_rows(history.changes, history)
    assert actual == expected, difference(actual, expected)


def test_a_history_goes_on_in_the_next_epoch(spark: SparkSession) -> None:
    """Another oid and other attnums: found by the names; only what differs ends."""
    old = schema(text("id", 1), text("a", 2), text("gone", 3))
    new = replace(
        schema(text("a", 1), text("id", 2), text("b", 3, missing="x")), epoch=4, relation_id=99
    )
    before = [
        change(Op.COPY, 10, COPY_ORDINAL),
        *(read(10, n, old, id=str(n), a="a", gone="g") for n in range(3)),
        read(10, 3, old, id="3", a="ends", gone="g"),
    ]
    after = [
        change(Op.COPY, 5, COPY_ORDINAL),
        read(5, 0, new, id="0", a="a", b="x"),
        read(5, 1, new, id="1", a="other", b="x"),
        read(5, 2, new, id="2", a="a", b="y"),
        read(5, 4, new, id="4", a="new", b=None),
    ]
    chain = [
        Relation(EPOCH, RELATION_ID, Lsn(10), "public.t", [old]),
        Relation(4, 99, Lsn(5), "public.t", [new]),
    ]
    layout = history_layout([[old], [new]], {})
    later = spark.createDataFrame(table(after)).withColumn("epoch", F.lit(4))
    rows, _ = history_rows(chain, [spark.createDataFrame(table(before)), later], layout)
    shown = {
        (row["id"], row["_valid_from_epoch"]): (row["a"], row["b"], row["gone"], row["_ended_by"])
        for row in rows.collect()
    }
    assert shown == {
        ("0", EPOCH): ("a", "x", "g", None),
        ("1", EPOCH): ("a", "x", "g", "copy"),
        ("1", 4): ("other", "x", None, None),
        ("2", EPOCH): ("a", "x", "g", "copy"),
        ("2", 4): ("a", "y", None, None),
        ("3", EPOCH): ("ends", "x", "g", "copy"),
        ("4", 4): ("new", None, None, None),
    }


def read(lsn: int, number: int, version: TableSchema, **after: str | None) -> Change:
    ordinal = COPY_ORDINAL + 1 + number
    return change(
        Op.READ, lsn, ordinal, key=(after["id"],), after=after, schema_id=version.schema_id
    )
