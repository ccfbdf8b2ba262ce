"""The lines of `pgstream tail`."""

from __future__ import annotations

import json

from pgstream_dagster.sinks.tail import lines_of
from tests.support.harness.sink_changes import History, version

ORDERS = version("orders", {"id": "integer", "note": "text"})
HISTORY = History()
MOVED = HISTORY.update(ORDERS, ("1",), {"id": "1", "note": "a"}, id="2", note="a b")


def test_lines_for_people_show_what_changed() -> None:
    pretty = lines_of("pretty", "shop")
    blank = " " * 24
    assert pretty(HISTORY.read(ORDERS, id="1", note=None)) == [
        f"copy{blank}read     public.orders (1)  id=1  note=NULL"
    ]
    assert pretty(MOVED) == [f"copy{blank}update   public.orders (1 -> 2)  id=2  note='a b'"]
    assert pretty(HISTORY.truncate(ORDERS)) == [f"copy{blank}truncate public.orders"]
    [line] = pretty(HISTORY.insert(ORDERS, id="1", note="x" * 100))
    assert line.endswith("note=" + "x" * 60 + "...")


def test_debezium_has_two_messages_for_a_moved_key() -> None:
    debezium = lines_of("debezium", "shop")
    deleted, created = map(json.loads, debezium(MOVED))
    assert (deleted["op"], deleted["before"]) == ("d", {"id": "1", "note": "a"})
    assert (created["op"], created["after"]) == ("c", {"id": "2", "note": "a b"})
    [inserted] = map(json.loads, debezium(HISTORY.insert(ORDERS, id="1", note=None)))
    assert inserted["op"] == "c"
    assert debezium(HISTORY.copy(ORDERS)) == []
