"""The id by which receivers recognise a change that comes twice."""

from __future__ import annotations

from tests.support.webhooks import copied, insert


def test_rows_of_two_tables_that_one_snapshot_copied_have_different_ids():
    rows = [*copied(10, relation_id=7), *copied(10, relation_id=8)]
    assert len({row.event_id for row in rows}) == len(rows)


def test_the_id_of_a_change_of_the_stream_is_its_position():
    assert insert(1).event_id == "1-16/64-0"
