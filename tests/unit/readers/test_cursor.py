"""Which changes a reader will not give again."""

from __future__ import annotations

from pgstream_dagster.lsn import Lsn
from pgstream_dagster.readers.change import Place
from pgstream_dagster.readers.cursor import Cursor, Intake, Pending
from pgstream_dagster.schema.changes import COPY_ORDINAL, DIFFERENCE_ORDINAL

CURSOR = Cursor(1, 2, watermark=1_000, copies={5: 400})


def test_changes_below_the_watermark_are_passed() -> None:
    assert CURSOR.has_passed(2, 999, 0, 5)
    assert not CURSOR.has_passed(2, 1_000, 0, 5)
    assert CURSOR.has_passed(1, 5_000, 0, 5)


def test_rows_of_a_copy_that_was_taken_in_are_passed() -> None:
    assert CURSOR.has_passed(2, 400, COPY_ORDINAL + 1, 5)
    assert not CURSOR.has_passed(2, 500, COPY_ORDINAL + 1, 5)
    assert not CURSOR.has_passed(2, 400, COPY_ORDINAL + 1, 6)


def test_rows_of_a_table_that_was_left_are_passed() -> None:
    assert Cursor(1, 2, 1_000, left=(6,)).has_passed(2, 400, COPY_ORDINAL + 1, 6)


def test_differences_at_the_watermark_are_passed_once_they_are_delivered() -> None:
    difference = (2, 1_000, DIFFERENCE_ORDINAL + 1, 5)
    assert not CURSOR.has_passed(*difference)
    assert Cursor(1, 2, 1_000, copies={5: 900}, compared={5: 1_000}).has_passed(*difference)
    assert not Cursor(1, 2, 1_000, compared={5: 800}).has_passed(*difference)
    assert not Cursor(1, 2, 1_000, compared={5: 1_000}).has_passed(2, 1_000, 0, 5)


def test_in_the_middle_of_a_transaction_what_was_delivered_is_passed() -> None:
    inside = Cursor(1, 2, 1_000, place=(1_100, 4))
    assert inside.has_passed(2, 1_050, 9, 5)
    assert inside.has_passed(2, 1_100, 4, 5)
    assert not inside.has_passed(2, 1_100, 5, 5)


def test_in_the_middle_of_copies_their_delivered_rows_are_passed() -> None:
    pending = Pending(Intake.ROWS, {5: 400, 6: 400}, (6, 400, COPY_ORDINAL + 3))
    inside = Cursor(1, 2, 1_000, pending=pending)
    assert inside.has_passed(2, 400, COPY_ORDINAL + 9, 5)
    assert inside.has_passed(2, 400, COPY_ORDINAL + 3, 6)
    assert not inside.has_passed(2, 400, COPY_ORDINAL + 4, 6)
    assert not inside.has_passed(2, 400, COPY_ORDINAL + 1, 4)


def test_positions_are_stored_as_numbers() -> None:
    pending = Pending(Intake.ROWS, {5: Lsn(400)}, (5, Lsn(400), -3))
    cursor = Cursor(
        *(1, 2, Lsn(1_000), Place(Lsn(1_100), 4), {6: Lsn(300)}, {7: Lsn(600)}, pending),
        redriven=((2, Lsn(900), 0, 5),),
        compared={6: Lsn(800)},
    )
    text = (
        '{"generation":1,"epoch":2,"watermark":1000,"place":[1100,4],"copies":{"6":300},'
        '"gaps":{"7":600},"pending":{"intake":"rows","points":{"5":400},"place":[5,400,-3]},'
        '"is_restarted":false,"redriven":[[2,900,0,5]],"left":[],"compared":{"6":800},"log":""}'
    )
    assert cursor.to_json() == text
    stored = Cursor.from_json(text)
    assert stored == cursor
    assert str(stored.watermark) == "0/3E8"
    assert stored.place is not None
    assert str(stored.place.commit_lsn) == "0/44C"


def test_a_cursor_from_before_a_field_was_added_is_read() -> None:
    text = '{"generation":1,"epoch":1,"watermark":5,"copies":{"5":4}}'
    assert Cursor.from_json(text) == Cursor(1, 1, 5, copies={5: 4})
