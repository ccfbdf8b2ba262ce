"""What a fold gives for histories written by hand, by Spark and by the reference implementation."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import pytest
from pyspark.sql import SparkSession

from pgstream_dagster.changelog import fold as engine
from pgstream_dagster.errors import UnknownSchema
from pgstream_dagster.lsn import Lsn
from pgstream_dagster.schema.changes import COPY_ORDINAL, GAP_ORDINAL, Op
from pgstream_dagster.schema.table import TableSchema
from tests.support.reference import fold as reference
from tests.support.reference.change import Change
from tests.support.reference.history import EPOCH, change, schema, table, text

V1 = schema(text("id", 1), text("a", 2), text("big", 3))
V2 = schema(text("id", 1), text("alpha", 2), text("big", 3), text("n", 4, missing="0"))
V3 = schema(text("id", 1), text("alpha", 2), text("n", 4, missing="0"), text("big", 5, missing=""))
BAG = schema(text("a", 1), text("b", 2), key=())
BAG_NARROWER = schema(text("a", 1), key=())
BAG_WIDER = schema(text("a", 1), text("b", 2), text("c", 3, missing="new"), key=())

Image: TypeAlias = frozenset[tuple[str, str | None]]
Images: TypeAlias = Counter[Image]
Rows: TypeAlias = Callable[..., list[tuple[Image, int]]]
Fold: TypeAlias = Callable[..., Images]
Places: TypeAlias = Callable[[Sequence[Change], TableSchema], list[int]]


@pytest.fixture(params=["spark", "reference"])
def fold_rows(request: pytest.FixtureRequest) -> Rows:
    """Folds changes into rows, each with the position of its last change."""

    def with_spark(changes: Sequence[Change], *schemas: TableSchema, **options: Any) -> Any:
        spark: SparkSession = request.getfixturevalue("spark")
        # Backwards: the order of rows means nothing.
        changed = spark.createDataFrame(table(list(reversed(changes))))
        rows = engine.fold(changed, schemas or (V1,), **options).collect()
        return [(frozenset(row.row.items()), row.commit_lsn) for row in rows]

    def with_reference(changes: Sequence[Change], *schemas: TableSchema, **options: Any) -> Any:
        rows = reference.fold(changes, schemas or (V1,), **options)
        return [(frozenset(row.image.items()), int(row.position[1])) for row in rows]

    return with_spark if request.param == "spark" else with_reference


@pytest.fixture
def folded(fold_rows: Rows) -> Fold:
    """Folds changes into how often each row is there."""
    return lambda *changes, **options: Counter(image for image, _ in fold_rows(*changes, **options))


@pytest.fixture
def places(fold_rows: Rows) -> Places:
    """Folds changes of a relation without a key into the positions of its rows."""
    return lambda changes, newest: sorted(at for _, at in fold_rows(changes, BAG, newest))


def rows(*images: dict[str, str | None]) -> Images:
    return Counter(frozenset(image.items()) for image in images)


def image(identity: str, a: str | None = "a", big: str | None = "B") -> dict[str, str | None]:
    return {"id": identity, "a": a, "big": big}


def insert(lsn: int, ordinal: int = 0, schema: TableSchema = V1, **after: str | None) -> Change:
    key = tuple(after[name] for name in schema.key) or None
    return change(Op.INSERT, lsn, ordinal, key=key, after=after, schema_id=schema.schema_id)


def read(lsn: int, number: int, **after: str | None) -> Change:
    ordinal = COPY_ORDINAL + 1 + number
    schema_id = V1.schema_id
    return change(Op.READ, lsn, ordinal, key=(after["id"],), after=after, schema_id=schema_id)


def update(
    lsn: int,
    ordinal: int = 0,
    schema: TableSchema = V1,
    old: str | None = None,
    **after: str | None,
) -> Change:
    old_key = None if old is None else (old,)
    key = (after["id"],)
    schema_id = schema.schema_id
    return change(
        Op.UPDATE, lsn, ordinal, key=key, old_key=old_key, after=after, schema_id=schema_id
    )


def delete(lsn: int, ordinal: int = 0, *, key: str) -> Change:
    before = {"id": key}
    return change(Op.DELETE, lsn, ordinal, key=(key,), before=before, schema_id=V1.schema_id)


def removal(lsn: int, ordinal: int = 0, schema: TableSchema = BAG, **before: str | None) -> Change:
    return change(Op.DELETE, lsn, ordinal, before=before, schema_id=schema.schema_id)


def test_column_that_was_not_sent_keeps_its_value_and_null_is_a_value(folded: Fold) -> None:
    history = [
        insert(10, **image("1")),
        update(20, id="1", a="b"),
        update(30, id="1", big=None),
        update(40, id="1", a="c"),
        insert(10, 1, **image("2")),
        update(50, id="2", a="b"),
        update(60, id="2", a=None),
    ]
    assert folded(history) == rows(image("1", "c", None), image("2", None, "B"))


@pytest.mark.long
def test_moved_row_takes_unsent_columns_along_from_key_to_key(folded: Fold) -> None:
    history = [
        insert(10, **image("1", big="first")),
        update(20, id="1", a="b"),
        update(30, id="2", a="c", old="1"),
        insert(40, **image("1", big="second")),
        update(50, id="3", old="2"),
        update(50, 1, id="3", a="d"),
    ]
    assert folded(history) == rows(image("3", "d", "first"), image("1", "a", "second"))


def test_swapped_keys_lose_no_row(folded: Fold) -> None:
    whole = [
        insert(10, 0, **image("1", "one")),
        insert(10, 1, **image("2", "two")),
        update(20, 0, **image("0", "one"), old="1"),
        update(20, 1, **image("1", "two"), old="2"),
        update(20, 2, **image("2", "one"), old="0"),
    ]
    parts = [
        insert(10, 3, **image("5", "five", "V")),
        insert(10, 4, **image("6", "six", "VI")),
        update(20, 3, id="7", old="5"),
        update(20, 4, id="5", old="6"),
        update(20, 5, id="6", old="7"),
    ]
    assert folded([*whole, *parts]) == rows(
        image("1", "two"), image("2", "one"), image("5", "six", "VI"), image("6", "five", "V")
    )


def test_deleted_row_does_not_come_back_and_a_reinserted_one_has_nothing_of_it(
    folded: Fold,
) -> None:
    history = [
        insert(10, 0, **image("1")),
        insert(10, 1, **image("2")),
        delete(20, 0, key="1"),
        delete(20, 1, key="2"),
        insert(20, 2, **image("2", "new", None)),
        update(30, id="2", a="newer"),
        update(40, id="3", old="2"),
        delete(50, key="3"),
        insert(60, **image("3", None, None)),
    ]
    assert folded(history) == rows(image("3", None, None))


@pytest.mark.long
def test_update_of_a_row_that_is_not_there_makes_no_half_row(folded: Fold) -> None:
    history = [
        update(10, id="1", a="half"),
        update(20, id="2", a="half", old="9"),
        update(30, id="2", a="still half"),
        update(40, **image("3", "whole")),
    ]
    assert folded(history) == rows(image("3", "whole"))


def test_same_changes_twice_give_the_same_rows(folded: Fold) -> None:
    history = [
        insert(10, **image("1")),
        update(20, id="2", old="1"),
        update(30, id="2", a="b"),
        insert(10, 1, **image("8")),
        update(40, **image("9"), old="8"),
    ]
    assert folded(history * 2) == rows(image("2", "b"), image("9"))


def test_copy_replaces_what_was_and_precedes_what_commits_at_its_point(folded: Fold) -> None:
    history = [
        insert(10, **image("1")),
        insert(10, 1, **image("2")),
        change(Op.COPY, 30, COPY_ORDINAL, payload="again"),
        read(30, 0, **image("1", "copied")),
        read(30, 1, **image("3", "copied")),
        update(30, 0, id="3", a="committed there"),
        insert(25, **image("4", "before the copy")),
    ]
    assert folded(history) == rows(image("1", "copied"), image("3", "committed there"))


def test_truncate_ends_every_row_before_it(folded: Fold) -> None:
    history = [
        insert(10, **image("1")),
        insert(20, 0, **image("2")),
        change(Op.TRUNCATE, 20, 1),
        insert(20, 2, **image("3")),
    ]
    assert folded(history) == rows(image("3"))


def test_changes_between_gap_and_copy_are_left_out(folded: Fold) -> None:
    history = [
        insert(10, **image("1")),
        change(Op.GAP, 20, GAP_ORDINAL),
        insert(20, 0, **image("2")),
        change(Op.TRUNCATE, 30, 0),
        insert(40, **image("3")),
    ]
    copied = [
        change(Op.GAP, 50, GAP_ORDINAL),
        change(Op.COPY, 50, COPY_ORDINAL),
        read(50, 0, **image("4")),
        insert(60, **image("5")),
    ]
    assert folded(history) == rows(image("1"))
    assert folded([*history, *copied]) == rows(image("4"), image("5"))


def test_columns_follow_their_attnum_through_rename_drop_and_add(folded: Fold) -> None:
    history = [
        insert(10, **image("1", "old", "dropped")),
        insert(20, schema=V2, id="2", alpha="x", big="dropped", n="7"),
        update(30, schema=V2, id="1", n=None),
        insert(10, 1, **image("3", "kept", "dropped")),
        update(40, schema=V3, id="2", alpha="y"),
    ]
    assert folded(history, V1, V2, V3) == rows(
        {"id": "1", "alpha": "old", "n": None, "big": ""},
        {"id": "2", "alpha": "y", "n": "7", "big": ""},
        {"id": "3", "alpha": "kept", "n": "0", "big": ""},
    )


def test_delete_of_one_of_two_equal_rows_leaves_the_other(folded: Fold) -> None:
    history = [
        *(insert(10, number, schema=BAG, a="x", b=None) for number in range(3)),
        insert(10, 3, schema=BAG, a="x", b=""),
        removal(20, a="x", b=None),
        change(
            Op.UPDATE,
            30,
            before={"a": "x", "b": None},
            after={"a": "y", "b": None},
            schema_id=BAG.schema_id,
        ),
    ]
    assert folded(history, BAG) == rows(
        {"a": "x", "b": None}, {"a": "x", "b": ""}, {"a": "y", "b": None}
    )


def test_equal_rows_keep_the_places_where_they_were_added(places: Places) -> None:
    """So a table that another one is appended to has the rows that it has when it is rebuilt."""
    x = {"a": "x", "b": None}
    added = [insert(lsn, 0, BAG, **x) for lsn in (10, 20, 30)]
    same = change(Op.UPDATE, 60, before=x, after=x, schema_id=BAG.schema_id)
    changes = [*added, removal(40, **x), insert(50, 0, BAG, **x), same]
    assert places(changes[:3], BAG) == [10, 20, 30]
    assert places(changes[:4], BAG) == [20, 30]
    assert places(changes[:5], BAG) == [20, 30, 50]
    assert places(changes, BAG) == [30, 50, 60]
    assert places([removal(5, **x), *added], BAG) == [20, 30]


def test_of_rows_that_are_equal_without_a_dropped_column_the_first_is_removed(
    places: Places,
) -> None:
    """So a table without a key is rebuilt when a column is dropped: it may have the others."""
    added = [insert(lsn, 0, BAG, a="x", b=str(lsn)) for lsn in (10, 20)]
    removed = [*added, removal(30, a="x", b="20")]
    assert places(removed, BAG) == [10]
    assert places(removed, BAG_NARROWER) == [20]


def test_row_without_key_is_found_again_under_a_wider_schema(folded: Fold) -> None:
    history = [
        insert(10, 0, schema=BAG, a="x", b="1"),
        insert(10, 1, schema=BAG, a="y", b="1"),
        removal(20, schema=BAG_WIDER, a="x", b="1", c="new"),
    ]
    assert folded(history, BAG, BAG_WIDER) == rows({"a": "y", "b": "1", "c": "new"})


def test_upto_shows_what_a_snapshot_with_that_point_shows(folded: Fold) -> None:
    history = [
        change(Op.COPY, 20, COPY_ORDINAL),
        read(20, 0, **image("1")),
        insert(20, 0, **image("2")),
        insert(30, **image("3")),
    ]
    assert folded(history, upto=(EPOCH, Lsn(20))) == rows(image("1"))
    assert folded(history, upto=(EPOCH, Lsn(30))) == rows(image("1"), image("2"))
    assert folded(history, upto=(EPOCH + 1, Lsn(1))) == rows(*(image(n) for n in "123"))


def test_relation_without_changes_has_no_rows(folded: Fold) -> None:
    assert folded([]) == rows()


def test_change_of_an_unknown_schema_is_an_error(spark: SparkSession) -> None:
    changed = spark.createDataFrame(table([insert(10, schema=V2, id="1", alpha="", big="", n="")]))
    with pytest.raises(UnknownSchema):
        engine.fold(changed, [V1])
