"""What becomes of changes that a target refuses; dead letters are kept in memory here."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from dataclasses import replace
from typing import Any, cast

import msgspec
import pytest

from pgstream_dagster.changelog.sink_letters import LetterState, SinkLetter, SinkLetters
from pgstream_dagster.config.sinks import SinkConfig
from pgstream_dagster.errors import SinkUnreachable
from pgstream_dagster.readers.change import Change, ChangeBatch
from pgstream_dagster.readers.cursor import Cursor
from pgstream_dagster.schema.changes import COPY_ORDINAL, Op
from pgstream_dagster.sinks import delivery as delivery_module
from pgstream_dagster.sinks.base import Refused, Verdicts, deliver_each
from pgstream_dagster.sinks.delivery import Delivery
from tests.support.webhooks import insert


class Letters:
    """As `SinkLetters`, of one sink."""

    def __init__(self) -> None:
        self.rows = list[SinkLetter]()

    def add(self, letters: Iterable[SinkLetter]) -> None:
        self.rows += letters

    def open(self, sink: str) -> list[SinkLetter]:
        newest = {letter.position: letter for letter in self.rows if letter.sink == sink}
        return [le for le in newest.values() if le.state is not LetterState.DELIVERED]


class Target:
    """Commits a batch, with its cursor, unless it has a change that is refused."""

    keeps_cursor = True

    def __init__(self) -> None:
        self.refused, self.committed = set[str](), list[str]()
        self.is_away = False

    def deliver(self, batch: ChangeBatch) -> Verdicts:
        names = [change.event_id for change in batch.changes]
        verdicts = deliver_each(
            batch, lambda change: Refused("no") if change.event_id in self.refused else None
        )
        if not verdicts and self.is_away:
            raise SinkUnreachable("out", "away")
        self.committed += [] if verdicts else names
        return verdicts


@pytest.fixture
def letters() -> Letters:
    return Letters()


@pytest.fixture
def target() -> Target:
    return Target()


def delivery(target: Target, letters: Letters) -> Delivery:
    """As one opening of the sink has it."""
    config = SinkConfig.model_validate({"stdout": {}})
    return Delivery(
        *("out", config, cast("Any", target), cast("SinkLetters", letters), threading.Event()),
        require=lambda _seconds: None,
        waits=lambda _verdict: None,
    )


def at(change: Change, lsn: int, **fields: Any) -> Change:
    return msgspec.structs.replace(change, commit_lsn=lsn, end_lsn=lsn + 1, **fields)


def test_a_letter_ahead_of_the_cursor_is_not_redriven_before_its_batch(target, letters):
    first, second = at(insert(1), 100), at(insert(2), 101)
    target.refused, target.is_away = {second.event_id}, True
    with pytest.raises(SinkUnreachable):  # after the letter, before the others are committed
        delivery(target, letters).deliver(ChangeBatch([first, second]))
    target.refused, target.is_away = set(), False

    opened = delivery(target, letters)
    assert opened.redrive(Cursor(0, 1, watermark=100)) == 0
    opened.deliver(ChangeBatch([first, second]))
    assert target.committed == [first.event_id]
    assert opened.redrive(Cursor(0, 1, watermark=102)) == 1
    assert target.committed == [first.event_id, second.event_id]
    assert opened.refused == 0


def test_a_redrive_of_many_letters_behind_one_that_is_still_refused_ends(
    target, letters, monkeypatch
):
    monkeypatch.setattr(delivery_module, "REFUSED_IN_A_ROW", 10)
    changes = [at(insert(1), 100 + number) for number in range(30)]
    target.refused = {changes[0].event_id}
    opened = delivery(target, letters)
    opened.deliver(ChangeBatch(changes))  # 29 wait: one was refused
    assert opened.redrive(Cursor(0, 1, watermark=200)) == 0
    assert opened.refused == 30
    target.refused = set()
    assert opened.redrive(Cursor(0, 1, watermark=200)) == 30
    assert target.committed == [change.event_id for change in changes]


@pytest.mark.parametrize("epoch", [1, 2])
def test_a_copy_marker_ends_the_letters_that_it_makes_obsolete(target, letters, epoch):
    refused, other = at(insert(1), 100), at(insert(1), 101, relation_id=8)
    target.refused = {refused.event_id, other.event_id}
    opened = delivery(target, letters)
    opened.deliver(ChangeBatch([refused, other]))
    marker = at(insert(1), 200, epoch=epoch, op=Op.COPY, key=None, after=None, ordinal=COPY_ORDINAL)
    row = msgspec.structs.replace(marker, op=Op.READ, key=("1",), ordinal=COPY_ORDINAL + 1)
    opened.deliver(ChangeBatch([marker, row]))
    assert target.committed == [marker.event_id, row.event_id]
    left = [letter.relation_id for letter in letters.open("out")]
    assert left == ([8] if epoch == 1 else [])


def test_a_letter_that_is_delivered_stays_so_for_another_opening(target, letters):
    change = at(insert(1), 100)
    target.refused = {change.event_id}
    delivery(target, letters).deliver(ChangeBatch([change]))
    [letter] = letters.open("out")
    letters.add([replace(letter, state=LetterState.DELIVERED)])
    assert delivery(target, letters).refused == 0
