"""The id by which receivers recognise a change that comes twice."""

from __future__ import annotations

import msgspec

from pgstream_dagster.sinks.envelope import Envelope
from pgstream_dagster.sinks.kafka.messages import EVENT_ID, headers_of
from tests.support.webhooks import copied, insert


def test_rows_of_two_tables_that_one_snapshot_copied_have_different_ids():
    rows = [*copied(10, relation_id=7), *copied(10, relation_id=8)]
    assert len({row.event_id for row in rows}) == len(rows)


def test_the_id_of_a_change_of_the_stream_is_its_position():
    assert insert(1).event_id == "1-16/64-0"


def test_the_header_of_a_record_has_the_id_that_its_message_has():
    for given in (*copied(2, relation_id=7), insert(1)):
        message = msgspec.json.decode(Envelope("shop")(given))
        assert dict(headers_of(given))[EVENT_ID] == message["event_id"].encode()
