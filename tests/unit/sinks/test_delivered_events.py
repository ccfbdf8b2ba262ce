"""Before which position a reader has delivered all events: a day must not be dropped too early."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from pgstream_dagster.lsn import Lsn
from pgstream_dagster.readers.cursor import Cursor, Intake, Pending
from pgstream_dagster.sinks import control, state
from pgstream_dagster.sinks.state import Progress
from tests.support.events import EVENTS

OID = EVENTS.relation_id


def delivered(monkeypatch: pytest.MonkeyPatch, cursor: Cursor | None, **copied: Any) -> Lsn:
    monkeypatch.setattr(state, "progress", lambda _log, _reader: Progress(cursor=cursor))
    copies = copied.get("copies", {OID: (Lsn(50), [EVENTS])})
    opened = SimpleNamespace(epoch=1, copied_relations=lambda: copies)
    session: Any = SimpleNamespace(log=None, opened=opened)
    return control._delivered_before(session, "jobs", copied.get("generation", 0))


def cursor(**facts: Any) -> Cursor:
    return Cursor(
        **{"generation": 0, "epoch": 1, "watermark": Lsn(90), "copies": {OID: Lsn(50)}, **facts}
    )


def test_reader_that_has_taken_in_the_copy_is_at_its_watermark(monkeypatch):
    assert delivered(monkeypatch, cursor()) == Lsn(90)


@pytest.mark.parametrize(
    "given",
    [
        None,
        cursor(epoch=0),
        cursor(pending=Pending(Intake.ROWS, {OID: Lsn(50)})),
        cursor(gaps={OID: Lsn(80)}),
        cursor(copies={}),
        cursor(copies={OID: Lsn(40)}),
    ],
    ids=["not begun", "former epoch", "in a copy", "behind a gap", "no copy", "newer copy"],
)
def test_reader_that_lacks_events_has_delivered_nothing(monkeypatch, given):
    assert delivered(monkeypatch, given) == Lsn(0)


def test_log_without_the_table_of_events_has_delivered_nothing(monkeypatch):
    assert delivered(monkeypatch, cursor(), copies={}) == Lsn(0)


def test_reader_that_is_to_begin_again_has_delivered_nothing(monkeypatch):
    assert delivered(monkeypatch, cursor(generation=1), generation=2) == Lsn(0)
