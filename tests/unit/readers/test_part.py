"""The cursor inside a batch: nothing after it is left out, and nothing before it comes again."""

from __future__ import annotations

import msgspec

from pgstream_dagster.readers.cursor import Cursor, Intake, Pending
from pgstream_dagster.readers.part import cursor_within
from tests.support.webhooks import copied, insert

FIRST, SECOND = insert(1), insert(2)

BEFORE = Cursor(3, 1, watermark=FIRST.commit_lsn - 10, copies={7: 5}, gaps={8: 20})
AFTER = msgspec.structs.replace(BEFORE, watermark=SECOND.end_lsn)


def test_the_watermark_waits_for_the_end_of_the_batch():
    within = cursor_within(BEFORE, AFTER, FIRST)
    assert within == msgspec.structs.replace(BEFORE, place=FIRST.place)
    assert Cursor.from_json(within.to_json()) == within


def test_a_batch_that_ends_in_a_transaction_has_cursors_too():
    inside = msgspec.structs.replace(BEFORE, place=FIRST.place)
    after = msgspec.structs.replace(BEFORE, place=(SECOND.commit_lsn, 9))
    assert cursor_within(inside, after, SECOND) == msgspec.structs.replace(
        BEFORE, place=SECOND.place
    )


def test_a_batch_with_a_gap_has_no_cursor_inside():
    after = msgspec.structs.replace(AFTER, gaps={8: 20, 7: FIRST.commit_lsn})
    assert cursor_within(BEFORE, after, FIRST) is None


def test_a_batch_in_which_a_table_is_left_has_no_cursor_inside():
    after = msgspec.structs.replace(AFTER, copies={}, left=(7,))
    assert cursor_within(BEFORE, after, FIRST) is None


def test_differences_close_no_gap_after_their_copy():
    before = msgspec.structs.replace(BEFORE, gaps={7: 9, 8: 20})
    pending = Pending(Intake.DIFFERENCES, {7: 8}, (7, SECOND.commit_lsn, SECOND.ordinal))
    after = msgspec.structs.replace(before, pending=pending)
    within = cursor_within(before, after, FIRST)
    assert within is not None and within.gaps == {7: 9, 8: 20}


def test_copied_rows_are_counted_by_relation():
    _, row, last = copied(3)
    pending = Pending(Intake.ROWS, {7: 5, 8: 5}, (7, last.commit_lsn, last.ordinal))
    after = msgspec.structs.replace(BEFORE, pending=pending, gaps={})
    for before in (BEFORE, msgspec.structs.replace(BEFORE, gaps={})):
        within = cursor_within(before, after, row)
        assert within is not None and within.pending is not None
        assert within.pending.place == (7, row.commit_lsn, row.ordinal)
        assert (within.watermark, within.gaps) == (BEFORE.watermark, {})
    later = msgspec.structs.replace(after, gaps={7: 9})
    assert cursor_within(after, later, last) is None
