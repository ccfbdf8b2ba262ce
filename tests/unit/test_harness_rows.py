"""The comparisons that tests make of rows and of a second slot: what they must not let pass."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pgstream_dagster.lsn import Lsn
from pgstream_dagster.schema.changes import Op
from tests.support.harness import rows, second_slot
from tests.support.harness.second_slot import Names, Seen
from tests.support.reference.change import Change, Position
from tests.support.reference.history import RELATION_ID, change

INSERT = change(Op.INSERT, 100, key=("1",), after={"id": "1"})
UPDATE = change(Op.UPDATE, 110, key=("1",), after={"id": "1", "x": "a"})
COPY = change(Op.COPY, 120, ordinal=-(1 << 40))
BOTH = [Seen({100: [INSERT], 110: [UPDATE]})] * 2
LEAF_INSERT = change(Op.INSERT, 100, relation="leaf", relation_id=7, after={"id": "1"})
LEAF_UPDATE = change(
    Op.UPDATE, 110, key=("1",), relation="leaf", relation_id=7, after={"id": "1", "x": "a"}
)
TREE = [BOTH[0], Seen({100: [LEAF_INSERT], 110: [LEAF_UPDATE]})]


def differences(log, seen=BOTH, names=None) -> list[str]:
    images = [
        Seen({at: [*map(second_slot._image_only, cs)] for at, cs in changes.by_commit.items()})
        for changes in seen
    ]
    return second_slot.differences(images, log, [RELATION_ID], since=0, names=names or Names())


def test_insert_of_a_keyed_table_that_is_there_twice_is_found() -> None:
    with pytest.raises(AssertionError, match="more than once"):
        rows.assert_each_position_once([INSERT, UPDATE, INSERT])
    assert differences([INSERT, UPDATE, INSERT])


def test_log_with_every_change_is_the_slot() -> None:
    assert differences([UPDATE, INSERT]) == []


def test_change_that_is_missing_is_found_unless_a_copy_follows() -> None:
    assert differences([INSERT])
    assert differences([INSERT, COPY]) == []


def test_change_with_another_image_or_that_the_slot_never_saw_is_found() -> None:
    other = change(Op.UPDATE, 110, key=("1",), after={"id": "1", "x": "b"})
    unseen = change(Op.DELETE, 115, key=("1",), before={"id": "1"})
    assert differences([INSERT, other, COPY])
    assert differences([INSERT, UPDATE, unseen, COPY])


def test_change_under_the_name_of_a_leaf_is_missing_of_the_root_unless_a_copy_follows() -> None:
    readings = [Seen({100: [INSERT]}), Seen({100: [LEAF_INSERT]})]
    assert differences([LEAF_INSERT], readings)
    assert differences([LEAF_INSERT, COPY], readings) == []


def at(commit_lsn: int, ordinal: int, moved: Change) -> Change:
    """The same change in another transaction."""
    position = Position(moved.position.epoch, Lsn(commit_lsn), ordinal)
    return replace(moved, position=position, end_lsn=Lsn(commit_lsn + 5))


def test_transaction_may_go_over_to_the_names_of_leaves_but_not_leave_its_order() -> None:
    root, leaf = (
        [at(100, 0, insert), at(100, 1, update)]
        for insert, update in ((INSERT, UPDATE), (LEAF_INSERT, LEAF_UPDATE))
    )
    readings = [Seen({100: root}), Seen({100: leaf})]
    assert differences([root[0], leaf[1], COPY], readings) == []
    assert differences([root[0], leaf[1]], readings)
    turned = [at(100, 0, LEAF_UPDATE), at(100, 1, INSERT), COPY]
    assert differences(turned, readings)
    twice = [root[0], at(100, 1, LEAF_INSERT), at(100, 2, UPDATE), COPY]
    assert differences(twice, readings)


def test_truncate_of_a_tree_is_one_change_or_one_for_each_leaf() -> None:
    truncate = change(Op.TRUNCATE, 100)
    leaves = [change(Op.TRUNCATE, 100, place, relation_id=place + 7) for place in range(3)]
    other = change(Op.TRUNCATE, 100, 5, relation_id=20, relation="other")
    rows = at(100, 6, INSERT), at(100, 6, LEAF_INSERT)
    readings = [Seen({100: [truncate, other, rows[0]]}), Seen({100: [*leaves, other, rows[1]]})]
    assert differences([truncate, other, rows[0]], readings) == []
    assert differences([*leaves, other, rows[1], COPY], readings) == []
    assert differences([*leaves, at(100, 4, leaves[0]), other, rows[1], COPY], readings)


def test_root_may_have_a_name_that_it_had_before_but_no_table_of_its_own_may() -> None:
    renamed = [replace(INSERT, relation="renamed"), UPDATE]
    had = Names({(RELATION_ID, "public", "renamed"): Lsn(90)})
    assert differences(renamed, TREE, had) == []
    assert differences(renamed, BOTH, had)
    assert differences(renamed, TREE)
    assert differences(renamed, TREE, Names({(RELATION_ID, "public", "renamed"): Lsn(105)}))
    assert differences(renamed, TREE, Names({(RELATION_ID + 1, "public", "renamed"): Lsn(90)}))


def test_table_may_be_in_its_schema_under_a_name_that_the_schema_had_but_in_no_other() -> None:
    moved = [replace(INSERT, namespace="other"), UPDATE]
    since = {(RELATION_ID, "other", "t"): Lsn(90), (RELATION_ID, "other", "u"): Lsn(90)}
    assert differences(moved, BOTH, Names(since, {"public": 1, "other": 1})) == []
    assert differences(moved, BOTH, Names(since, {"public": 1, "other": 2}))
    assert differences(moved, BOTH, Names(since))
    renamed = [replace(moved[0], relation="u"), UPDATE]
    assert differences(renamed, BOTH, Names(since, {"public": 1, "other": 1}))
