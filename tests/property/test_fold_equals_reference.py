"""The fold against its reference implementation, and that against the table that was played."""

from __future__ import annotations

import os
import secrets
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import DataFrame, SparkSession

from pgstream_dagster.changelog import fold as engine
from pgstream_dagster.changelog import small_tables
from pgstream_dagster.changelog.by_relation import sorted_by_relation
from pgstream_dagster.changelog.spans import spans
from pgstream_dagster.lsn import Lsn
from pgstream_dagster.schema.table import TableSchema
from tests.support.reference import fold as reference
from tests.support.reference.change import Change
from tests.support.reference.history import EPOCH, RELATION_ID, History, table

SEEDS = st.integers(0, 1 << 32)


@pytest.fixture
def seed() -> int:
    """
    Another one every run, shown when the test fails.

    One history holds those of some hundred rows, and a fold costs seconds: too many for hypothesis.
    """
    seed = int(os.environ.get("PGSTREAM_TEST_SEED") or secrets.randbits(32))
    print(f"PGSTREAM_TEST_SEED={seed}")  # noqa: T201 - the way to run it again
    return seed


def as_rows(rows: Any) -> Counter[Any]:
    return Counter(
        (
            None if row.key is None else tuple(row.key),
            frozenset(row.row.items()),
            row.commit_lsn,
            row.ordinal,
            row.schema_id,
        )
        for row in rows.collect()
    )


def reference_rows(rows: list[reference.Row]) -> Counter[Any]:
    return Counter(
        (row.key, frozenset(row.image.items()), *row.position[1:], row.schema_id) for row in rows
    )


@given(SEEDS, st.booleans(), st.integers(1, 120))
def test_twin_shows_the_table_that_was_played(seed: int, is_keyed: bool, steps: int) -> None:
    history = History(Random(seed), is_keyed, key_space=8).play(steps)
    if not history.is_open:
        history.copy()
    Random(seed).shuffle(history.changes)
    folded = reference.fold(history.changes, history.versions)
    assert Counter(frozenset(row.image.items()) for row in folded) == Counter(
        frozenset(image.items()) for image in history.shown()
    )


@pytest.mark.parametrize(
    ("is_keyed", "is_sound", "is_cut"),
    [
        pytest.param(True, True, False, marks=pytest.mark.long),
        (True, True, True),
        (True, False, False),
        (False, True, True),
        (False, False, False),
    ],
)
@pytest.mark.parametrize("is_large", [False, pytest.param(True, marks=pytest.mark.long)])
def test_fold_equals_its_twin(
    spark: SparkSession,
    seed: int,
    monkeypatch: pytest.MonkeyPatch,
    *,
    is_keyed: bool,
    is_sound: bool,
    is_cut: bool,
    is_large: bool,
) -> None:
    """As the fold of a small copy, where all rows are shuffled, and as that of a large one."""
    monkeypatch.setattr(engine, "COPIED_ROWS", 0 if is_large else 1_000_000)
    random = Random(seed)
    history = History(random, is_keyed, is_sound, key_space=300).play(2500)
    upto = (EPOCH, Lsn(random.randrange(100, history.commit_lsn))) if is_cut else None
    random.shuffle(history.changes)
    folded = engine.fold(spark.createDataFrame(table(history.changes)), history.versions, upto=upto)
    assert as_rows(folded) == reference_rows(
        reference.fold(history.changes, history.versions, upto=upto)
    )


def of_relation(history: History, relation_id: int) -> tuple[list[Change], list[TableSchema]]:
    """What was played, as that of another relation."""
    versions = [replace(version, relation_id=relation_id) for version in history.versions]
    pairs = zip(history.versions, versions, strict=True)
    ids = {old.schema_id: new.schema_id for old, new in pairs}
    changes = [
        replace(change, relation_id=relation_id, schema_id=ids.get(change.schema_id))
        for change in history.changes
    ]
    return changes, versions


def histories_in(
    log: DataFrame, relations: Sequence[Sequence[TableSchema]]
) -> list[small_tables.History]:
    its_span = spans(log)
    return [
        small_tables.History(versions, its_span[versions[-1].relation_id]) for versions in relations
    ]


class Unmoved(History):
    """Its rows keep their keys."""

    def move(self) -> None:
        self.update()

    def swap(self) -> None:
        self.update()


def test_several_relations_are_folded_together_as_each_alone(
    spark: SparkSession, seed: int
) -> None:
    """Keys are the same in all of them."""
    random = Random(seed)
    played: list[tuple[list[Change], list[TableSchema]]] = []
    kinds = [(Unmoved, True), (Unmoved, True), (Unmoved, True), (History, True), (History, False)]
    for n, (kind, is_keyed) in enumerate(kinds):
        history = kind(random, is_keyed, key_space=20).play(30)
        history.copy()
        history.play(150)
        if not history.is_open:
            history.copy()
        played.append(of_relation(history, RELATION_ID + n))
    changes = [change for changes, _ in played for change in changes]
    random.shuffle(changes)
    log = sorted_by_relation(spark.createDataFrame(table(changes)))
    histories = histories_in(log, [versions for _, versions in played])
    assert small_tables.shared(histories)[:3] == histories[:3]
    with small_tables.folds(log, histories) as fold:
        for history, (changes, versions) in zip(histories, played, strict=True):
            assert as_rows(fold(history)) == reference_rows(reference.fold(changes, versions))


def test_a_row_that_a_copy_has_twice_is_shown_twice(spark: SparkSession) -> None:
    """Of several relations, copied at one point, as of each alone: a comparison has to see it."""
    played: list[tuple[list[Change], list[TableSchema]]] = []
    for n in range(2):
        history = History(Random(n))
        for _ in range(3):
            history.insert()
        history.changes.clear()
        history.copy()
        history.changes.append(history.changes[-1])
        played.append(of_relation(history, RELATION_ID + n))
    log = sorted_by_relation(spark.createDataFrame(table([*played[0][0], *played[1][0]])))
    histories = histories_in(log, [versions for _, versions in played])
    assert small_tables.shared(histories) == histories
    with small_tables.folds(log, histories) as fold:
        for history, (changes, versions) in zip(histories, played, strict=True):
            alone = as_rows(engine.fold(spark.createDataFrame(table(changes)), versions))
            assert as_rows(fold(history)) == alone
            assert sorted(alone.values()) == [1, 1, 2]
