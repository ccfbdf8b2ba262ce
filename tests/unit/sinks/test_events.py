"""Rows of the table of events as events, and events as messages."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from pgstream_dagster.config.pipeline import PipelineConfig
from pgstream_dagster.config.sinks import SinkConfig
from pgstream_dagster.sinks.base import Refused
from pgstream_dagster.sinks.events import Events
from pgstream_dagster.sinks.held_keys import HeldKeys
from pgstream_dagster.sinks.kafka.messages import POSITION, headers_of
from pgstream_dagster.sinks.message import Message, Messages, lines, of_event, position_of
from tests.support.changes import change
from tests.support.events import XID, event, event_id, row


def message(**metadata: Any) -> Message:
    made = of_event(event(**metadata))
    assert isinstance(made, Message)
    return made


def test_only_the_events_of_the_stream_are_delivered():
    assert Events(1).of_change(row(stream=1)) is not None
    assert Events(1).of_change(row(stream=2)) is None
    assert Events(1).of_change(change("truncate")) is None


def test_row_that_maintenance_moved_is_no_second_event():
    assert Events(1).of_change(row(written_in=(7 << 32) + XID - 1)) is None
    assert Events(1).of_change(row(written_in=XID)) is not None  # of another epoch of the counter
    copied = row(op="read", xid=None, written_in=5)
    assert Events(1).of_change(copied) is not None


def test_copied_event_of_a_transaction_that_a_former_log_delivered_is_left_out():
    events = Events(1, delivered_before="90:100:92,95")
    xids = (89, 92, 93, 95, 99, 100)
    copied = {xid: row(op="read", xid=None, written_in=xid) for xid in xids}
    assert [xid for xid, c in copied.items() if events.of_change(c)] == [92, 95, 100]
    assert Events(1, delivered_before="90:90:").of_change(copied[89]) is None
    assert events.of_change(row(written_in=XID)) is not None  # not copied
    restored = msgspec.structs.replace(copied[89], epoch=2)
    assert events.of_change(restored) is not None


def test_target_with_tables_receives_the_rows():
    given = row()
    assert Events(1, as_rows=True).of_change(given) is given


def test_body_is_the_payload_with_every_digit():
    text = '{"n": 12345678901234567890.123456789, "s": "\\u00e4"}'
    made = of_event(event(payload=text))
    assert isinstance(made, Message)
    assert made.body.decode() == text
    assert made.id == event_id(1)


def test_order_holds_within_a_group_only():
    held = HeldKeys()
    held.hold(event(1, group_id="a"))
    held.hold(event(2))
    assert held.holds(event(3, group_id="a"))
    assert not held.holds(event(4, group_id="b"))
    assert not held.holds(event(5))
    assert not held.holds(event(6, group_id=event_id(2)))


@pytest.mark.parametrize(
    ("payload", "metadata", "group"),
    [
        ('{"group_id": "a"}', {}, "a"),
        ('{"group_id": 7}', {}, "7"),
        ('{"group_id": "a"}', {"group_id": "b"}, "b"),
        ('{"group_id": null}', {}, None),
        ('{"x": {"group_id": 1}}', {}, None),
        ('["group_id"]', {}, None),
        ('"group_id"', {}, None),
    ],
)
def test_group_is_that_of_the_metadata_or_else_of_the_payload(payload, metadata, group):
    made = of_event(event(payload=payload, **metadata))
    assert isinstance(made, Message)
    assert made.group == group


def test_metadata_goes_before_the_configuration():
    assert message(topic="mine").place("topic", "default", "x") == "mine"
    assert message().place("topic", "default", "x") == "default"


@pytest.mark.parametrize(
    ("metadata", "reason"),
    [
        ({}, "the event's metadata has no 'topic', and sinks.x.kafka.topic gives none"),
        ({"topic": 5}, "the event's metadata has a 'topic' that is no text: 5"),
    ],
)
def test_event_without_a_place_is_refused_with_both_remedies(metadata, reason):
    assert message(**metadata).place("topic", None, "sinks.x.kafka.topic") == Refused(reason)


def test_event_of_a_failed_subscription_is_refused_with_its_error():
    made = of_event(event(pgstream_error={"message": "division by zero"}))
    assert made == Refused("its subscription failed: {'message': 'division by zero'}")


def test_metadata_that_is_no_object_is_refused():
    given = Events(1).of_change(row(metadata="[1]"))
    assert given is not None
    reason = "the event's metadata is no JSON object that can be read"
    assert of_event(given) == Refused(reason)


DEEP = "[" * 1_500 + "]" * 1_500


@pytest.mark.parametrize("metadata", [f'{{"x": {DEEP}}}', '{"x": 1' + "0" * 400 + ".5}"])
def test_metadata_that_python_cannot_read_is_that_event_s_matter(metadata):
    given = Events(1).of_change(row(metadata=metadata))
    assert given is not None
    assert isinstance(of_event(given), Refused)


def test_group_of_a_payload_that_python_cannot_read_is_its_text_or_none():
    number = "1" + "0" * 400 + ".5"
    made = of_event(event(payload=f'{{"group_id": {number}}}'))
    assert isinstance(made, Message)
    assert made.group == number
    deep = of_event(event(payload=f'{{"group_id": 1, "x": {DEEP}}}'))
    assert isinstance(deep, Message)


def test_null_in_the_metadata_is_the_default():
    assert message(topic=None).place("topic", "default", "x") == "default"


def test_line_has_what_consumers_need_to_order_and_to_drop_repetitions():
    [line] = lines([event(payload='{"n": 1.50}', topic="t")])
    assert isinstance(line, bytes)
    assert b'"payload":{"n": 1.50}' in line
    assert json.loads(line) == {
        "id": event_id(1),
        "position": "00000001.00000000001a2b3c.8000000000000001",
        "committed_at": "2026-01-01T00:00:00.000001Z",
        "metadata": {"topic": "t"},
        "payload": {"n": 1.5},
    }


def test_change_of_a_table_is_its_envelope_in_the_group_of_its_row():
    given = change(after={"id": "7", "amount": "1.0", "note": None})
    made = Messages("shop").of_change(given)
    assert isinstance(made, Message)
    assert (made.id, made.group) == (given.event_id, "public.orders:7")
    assert json.loads(made.body)["after"]["id"] == 7


@pytest.mark.parametrize("ordinal", [0, 7, -(1 << 62) + 3])
def test_position_is_that_of_a_record_of_kafka(ordinal):
    given = msgspec.structs.replace(change(ordinal=ordinal), epoch=17)
    assert dict(headers_of(given))[POSITION] == position_of(given).encode()


def test_dead_letter_keeps_an_event_as_it_is():
    given = event(group_id="a")
    content = msgspec.json.encode(given, enc_hook=int)
    assert msgspec.json.decode(content)["payload"] == given.payload


def sink(**keys: Any) -> SinkConfig:
    return SinkConfig.model_validate({"stdout": {}, "outbox": {"stream": 1}, **keys})


@pytest.mark.parametrize("key", ["tables", "exclude", "operations", "modifiers"])
def test_keys_of_tables_do_not_go_with_an_outbox(key):
    value = ["insert"] if key == "operations" else ["x"]
    with pytest.raises(ValueError, match=f"`{key}` does not go with `outbox`"):
        sink(**{key: value})


def pipeline(**source: Any) -> PipelineConfig:
    sinks = {"out": {"stdout": {}, "outbox": {"stream": 1}}}
    return PipelineConfig.model_validate({"pipeline": "shop", "source": source, "sinks": sinks})


def test_list_of_tables_has_that_of_the_events():
    assert pipeline(tables=["public.*"]).source.tables == ("public.*", "pgstream.events")
    assert pipeline(tables=["pgstream.*"]).source.tables == ("pgstream.*",)
    assert pipeline().source.tables == "all"


def test_events_that_a_sink_delivers_cannot_be_excluded():
    with pytest.raises(ValueError, match=r"source.exclude leaves out pgstream.events"):
        pipeline(exclude=["pgstream.*"])
