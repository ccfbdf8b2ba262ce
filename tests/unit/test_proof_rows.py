"""The proof itself: what it must not let pass."""

from __future__ import annotations

import pytest

from pgstream_dagster.schema.changes import Op
from tests.support.harness import rows, second_slot
from tests.support.harness.second_slot import Seen
from tests.support.reference.history import RELATION_ID, change

INSERT = change(Op.INSERT, 100, key=("1",), after={"id": "1"})
UPDATE = change(Op.UPDATE, 110, key=("1",), after={"id": "1", "x": "a"})
COPY = change(Op.COPY, 120, ordinal=-(1 << 40))
BOTH = [Seen({100: [INSERT], 110: [UPDATE]})]


def differences(log, seen=BOTH) -> list[str]:
    images = [
        Seen({at: [*map(second_slot._image_only, cs)] for at, cs in changes.by_commit.items()})
        for changes in seen
    ]
    return second_slot.differences(images, log, [RELATION_ID], since=0)


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
    leaf = change(Op.INSERT, 100, relation="leaf", relation_id=7, after={"id": "1"})
    readings = [Seen({100: [INSERT]}), Seen({100: [leaf]})]
    assert differences([leaf], readings)
    assert differences([leaf, COPY], readings) == []
