"""What becomes of changes that a target refuses; dead letters are kept in memory here."""

from __future__ import annotations

import threading
import tracemalloc
from collections.abc import Collection, Iterable
from dataclasses import replace
from typing import Any, cast

import msgspec
import pytest

from pgstream_dagster.changelog.sink_letters import SinkLetter, SinkLetters, SinkLetterState
from pgstream_dagster.config.sinks import SinkConfig
from pgstream_dagster.errors import SinkUnreachable, TooManyLetters, TooManyRefused
from pgstream_dagster.lsn import Lsn
from pgstream_dagster.readers.change import Change, ChangeBatch
from pgstream_dagster.readers.cursor import Cursor, Intake, Pending
from pgstream_dagster.schema.changes import COPY_ORDINAL, Op
from pgstream_dagster.sinks import base
from pgstream_dagster.sinks import delivery as delivery_module
from pgstream_dagster.sinks.base import NotNow, Refused, Verdicts, deliver_each
from pgstream_dagster.sinks.delivery import HELD, NOT_RECEIVED, OTHER_RULES, Delivery, Guard
from pgstream_dagster.stop import Cancelled
from tests.support.webhooks import insert


class Letters:
    """As `SinkLetters`, of one sink."""

    def __init__(self) -> None:
        self.rows = list[SinkLetter]()
        self.read = list[list[int]]()  # bytes of the contents that were read, by calls

    def add(self, letters: Iterable[SinkLetter]) -> None:
        self.rows += letters

    def open(self, sink: str) -> list[SinkLetter]:
        return [replace(letter, change=None) for letter in self._pending(sink)]

    def with_content(self, letters: Collection[SinkLetter]) -> list[SinkLetter]:
        places = {letter.position for letter in letters}
        pending = [letter for letter in self._pending("out") if letter.position in places]
        self.read.append([letter.change_bytes for letter in pending])
        return pending

    def _pending(self, sink: str) -> list[SinkLetter]:
        newest = {letter.position: letter for letter in self.rows if letter.sink == sink}
        pending = (le for le in newest.values() if le.state is not SinkLetterState.DELIVERED)
        return sorted(pending, key=lambda letter: letter.position)

    def shown(self) -> list[tuple[int, str, str]]:
        """Commit, state and reason of those that are open."""
        return [(le.commit_lsn, le.state.value, le.reason) for le in self._pending("out")]


class Target:
    """
    Takes changes, unless they are refused.

    With `keeps_cursor` it commits nothing of a batch of which it refuses some.
    """

    def __init__(self, *, keeps_cursor: bool = True) -> None:
        self.keeps_cursor = keeps_cursor
        self.refused, self.committed = set[str](), list[str]()
        self.is_away = self.refuses_all = False
        self.attempts = 0

    def deliver(self, batch: ChangeBatch) -> Verdicts:
        verdicts = deliver_each(batch, self._send)
        if not verdicts and self.is_away:
            raise SinkUnreachable("out", "away")
        if not (verdicts and self.keeps_cursor):
            sent = (c for index, c in enumerate(batch.changes) if index not in verdicts)
            self.committed += [change.event_id for change in sent]
        return verdicts

    def _send(self, change: Change) -> Refused | None:
        self.attempts += 1
        return Refused("no") if self.refuses_all or change.event_id in self.refused else None


class Slow:
    """Delivers a few changes of a batch at a time, and puts off the rest."""

    keeps_cursor = False

    def __init__(self, at_once: int) -> None:
        self._at_once, self.refused = at_once, set[str]()
        self.delivered = list[str]()

    def deliver(self, batch: ChangeBatch) -> Verdicts:
        attempted, rest = batch.changes[: self._at_once], batch.changes[self._at_once :]
        names = [change.event_id for change in attempted]
        refused = [index for index, name in enumerate(names) if name in self.refused]
        self.delivered += [name for name in names if name not in self.refused]
        put_off = range(len(attempted), len(attempted) + len(rest))
        waiting = dict.fromkeys(put_off, NotNow("is not sent yet", is_behind=True))
        return waiting | dict.fromkeys(refused, Refused("no"))


@pytest.fixture
def letters() -> Letters:
    return Letters()


@pytest.fixture
def target() -> Target:
    return Target()


def delivery(
    target: Target | Slow,
    letters: Letters,
    rules: str = "",
    *,
    stop: threading.Event | None = None,
    **config: Any,
) -> Delivery:
    """As one opening of the sink has it."""
    guard = Guard(stop or threading.Event(), lambda _seconds: None, lambda _verdict: None)
    return Delivery(
        *("out", SinkConfig.model_validate({"stdout": {}} | config), cast("Any", target)),
        *(cast("SinkLetters", letters), guard),
        rules=rules,
    )


def at(change: Change, lsn: int, **fields: Any) -> Change:
    return msgspec.structs.replace(change, commit_lsn=Lsn(lsn), end_lsn=Lsn(lsn + 1), **fields)


def test_a_letter_ahead_of_the_cursor_is_redriven_with_its_batch(target, letters):
    first, second = at(insert(1), 100), at(insert(2), 101)
    target.refused, target.is_away = {second.event_id}, True
    with pytest.raises(SinkUnreachable):  # after the letter, before the others are committed
        delivery(target, letters).deliver(ChangeBatch([first, second]))
    target.refused, target.is_away = set(), False

    opened = delivery(target, letters)
    assert opened.redrive(Cursor(0, 1, watermark=100)) == 0
    assert opened.deliver(ChangeBatch([first, second])) == 2
    assert target.committed == [first.event_id, second.event_id]
    assert (opened.refused, letters.shown()) == (0, [])


def test_a_letter_that_may_be_passed_stays_while_a_copy_is_taken_in(target, letters):
    change = at(insert(1), 100)
    target.refused = {change.event_id}
    opened = delivery(target, letters)
    opened.deliver(ChangeBatch([change]))
    target.refused = set()
    pending = Pending(Intake.ROWS, {7: 50}, (7, 50, -3))
    assert opened.redrive(Cursor(0, 1, watermark=100, pending=pending)) == 0
    assert opened.refused == 1
    assert opened.redrive(Cursor(0, 1, watermark=102)) == 1


def test_of_a_transaction_that_is_passed_in_part_the_letters_of_that_part_are_delivered(
    target, letters
):
    first, second = at(insert(1), 100), at(insert(1), 110)
    target.refused = {first.event_id, second.event_id}
    opened = delivery(target, letters, on_failure="skip")
    opened.deliver(ChangeBatch([first, second]))
    target.refused = set()
    assert opened.redrive(Cursor(0, 1, watermark=100, place=first.place)) == 1
    assert target.committed == [first.event_id]
    assert letters.shown() == []  # the second one comes again with its batch
    assert opened.deliver(ChangeBatch([second])) == 1


def test_a_stop_of_a_redrive_leaves_no_letter_open_that_was_delivered(letters):
    changes = [at(insert(number), 100 + number) for number in range(9)]
    target, slow, stop = Target(keeps_cursor=False), Slow(2), threading.Event()
    target.refuses_all = True
    delivery(target, letters).deliver(ChangeBatch(changes))
    opened = delivery(slow, letters, stop=stop)
    stop.set()
    with pytest.raises(Cancelled):
        opened.redrive(Cursor(0, 1, watermark=200))
    assert len(slow.delivered) == 2
    assert [lsn for lsn, _, _ in letters.shown()] == list(range(102, 109))


def test_a_stop_of_a_redrive_counts_what_workers_delivered_ahead_of_others(letters):
    class Workers(Slow):
        """Every second change is delivered, as by one of two workers."""

        def deliver(self, batch: ChangeBatch) -> Verdicts:
            self.delivered += [change.event_id for change in batch.changes[1::2]]
            return {at: NotNow("x", is_behind=True) for at in range(0, len(batch.changes), 2)}

    changes = [at(insert(number), 100 + number) for number in range(8)]
    target, workers, stop = Target(keeps_cursor=False), Workers(2), threading.Event()
    target.refuses_all = True
    delivery(target, letters).deliver(ChangeBatch(changes))
    stop.set()
    with pytest.raises(Cancelled):
        delivery(workers, letters, stop=stop).redrive(Cursor(0, 1, watermark=200))
    assert [lsn for lsn, _, _ in letters.shown()] == [100, 102, 104, 106]


def test_a_stop_of_a_redrive_begins_no_other_part(target, letters, monkeypatch):
    monkeypatch.setattr(delivery_module, "REDRIVEN_AT_ONCE", 3)
    changes = [at(insert(number), 100 + number) for number in range(9)]
    target.refuses_all = True
    delivery(target, letters).deliver(ChangeBatch(changes))
    target.refuses_all, stop = False, threading.Event()
    opened = delivery(target, letters, stop=stop)
    stop.set()
    with pytest.raises(Cancelled):
        opened.redrive(Cursor(0, 1, watermark=200))
    assert target.committed == [change.event_id for change in changes[:3]]
    assert [lsn for lsn, _, _ in letters.shown()] == list(range(103, 109))


@pytest.mark.usefixtures("few")
def test_refusals_are_counted_over_the_parts_of_a_batch(letters):
    changes = [at(insert(number), 100 + number) for number in range(30)]
    slow, done = Slow(4), list[int]()
    slow.refused = {change.event_id for change in changes[3:]}
    with pytest.raises(TooManyRefused, match="refused 10 changes in a row"):
        delivery(slow, letters).deliver(
            ChangeBatch(changes), passed=lambda changes, _count: done.append(len(changes))
        )
    assert len(letters.rows) == 10
    assert max(done) <= 13  # what follows is neither delivered nor a dead letter


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
    letters.add([replace(letter, state=SinkLetterState.DELIVERED)])
    assert delivery(target, letters).refused == 0


KEYLESS: dict[str, Any] = {"key": None}


def keyless(count: int, note: str = "") -> list[Change]:
    return [at(insert(n), 100 + n, **KEYLESS, after={"note": note}) for n in range(count)]


def noted(note: str, lsn: int) -> Change:
    """A change of row 1."""
    return at(insert(1), lsn, after={"id": "1", "note": note})


def test_what_waits_behind_a_refused_change_is_not_held_in_memory(target, letters, monkeypatch):
    class Counted(Letters):
        """Keeps no letter."""

        def add(self, letters: Iterable[SinkLetter]) -> None:
            self.count = getattr(self, "count", 0) + len(list(letters))

    letters, first = Counted(), keyless(1)[0]
    target.refused = {first.event_id}
    opened = delivery(target, letters)
    opened.deliver(ChangeBatch([first]))
    tracemalloc.start()
    for number in range(1, 101):  # 20 MB, in batches of 200 kB
        note = f"{number:02d}" * 5_000
        rows = [at(change, 1_000 * number + n) for n, change in enumerate(keyless(20, note))]
        opened.deliver(ChangeBatch(rows))
    grown, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert (letters.count, opened.refused) == (2_001, 2_001)
    assert grown < 3 << 20


def test_a_redrive_reads_as_many_contents_as_may_be_in_memory(target, letters, monkeypatch):
    monkeypatch.setattr(delivery_module, "REDRIVEN_AT_ONCE", 4)
    changes = [*keyless(10), *(at(c, 1_000 + n) for n, c in enumerate(keyless(5, "x" * 400_000)))]
    target.refused = {changes[0].event_id}
    opened = delivery(target, letters, max_queue_bytes=1 << 20)
    opened.deliver(ChangeBatch(changes))
    target.refused = set()
    assert opened.redrive(Cursor(0, 1, watermark=9_000)) == 15
    assert target.committed == [change.event_id for change in changes]
    assert [len(sizes) for sizes in letters.read] == [4, 4, 4, 2, 1]
    assert all(sum(sizes) < 1 << 20 for sizes in letters.read)


def test_letters_that_are_refused_again_take_no_more_room(target, letters):
    changes = keyless(3)
    target.refuses_all = True
    opened = delivery(target, letters)
    opened.deliver(ChangeBatch(changes))
    for _ in range(3):
        assert opened.redrive(Cursor(0, 1, watermark=200)) == 0
    assert len(letters.rows) == 3
    assert [state for _, state, _ in letters.shown()] == ["refused", "held", "held"]


def test_a_sink_with_as_many_letters_as_it_may_have_stops(target, letters, monkeypatch):
    monkeypatch.setattr(delivery_module, "OPEN_LETTERS", 10)
    changes = keyless(12)
    target.refused = {changes[0].event_id}
    opened = delivery(target, letters)
    opened.deliver(ChangeBatch(changes[:8]))
    with pytest.raises(TooManyLetters, match=r"has 8 open dead letters .*sink redrive out"):
        opened.deliver(ChangeBatch(changes[8:]))
    assert len(letters.rows) == 8
    target.refused = set()
    assert opened.redrive(Cursor(0, 1, watermark=200)) == 8
    opened.deliver(ChangeBatch(changes[8:]))
    assert target.committed == [change.event_id for change in changes]


def test_a_sink_with_as_many_letters_as_it_may_have_goes_on_without_another(
    target, letters, monkeypatch
):
    monkeypatch.setattr(delivery_module, "OPEN_LETTERS", 3)
    target.refused = {change.event_id for change in keyless(1)}
    opened = delivery(target, letters)
    opened.deliver(ChangeBatch(keyless(3)))
    other = at(insert(1), 500, relation_id=8)
    assert delivery(target, letters).deliver(ChangeBatch([other])) == 1


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    """So many refusals in a row end a sink."""
    for module in (delivery_module, base):
        monkeypatch.setattr(module, "REFUSED_IN_A_ROW", 10)


@pytest.mark.usefixtures("few")
@pytest.mark.parametrize("keeps_cursor", [False, True])
def test_a_target_that_refuses_everything_stops_the_sink_within_a_batch(letters, keeps_cursor):
    target = Target(keeps_cursor=keeps_cursor)
    target.refuses_all = True
    changes = [at(insert(n), 100 + n) for n in range(50)]
    opened = delivery(target, letters)
    with pytest.raises(TooManyRefused, match=r"refused 10 changes in a row.*sink redrive out"):
        opened.deliver(ChangeBatch(changes))
    assert (len(letters.rows), target.attempts) == (10, 10)
    target.refuses_all = False
    assert opened.redrive(Cursor(0, 1, watermark=100)) == 0  # of a batch that comes again
    opened.deliver(ChangeBatch(changes))
    assert target.committed == [change.event_id for change in changes]
    assert letters.shown() == []


@pytest.mark.usefixtures("few")
@pytest.mark.parametrize("keeps_cursor", [False, True])
def test_refusals_with_a_delivered_change_in_between_stop_no_sink(letters, keeps_cursor):
    target = Target(keeps_cursor=keeps_cursor)
    changes = [at(insert(n), 100 + n) for n in range(60)]
    target.refused = {change.event_id for n, change in enumerate(changes) if n % 10}
    opened = delivery(target, letters)
    for start in range(0, 60, 20):
        opened.deliver(ChangeBatch(changes[start : start + 20]))
    assert (len(letters.rows), len(target.committed)) == (54, 6)


@pytest.mark.usefixtures("few")
@pytest.mark.parametrize("keeps_cursor", [False, True])
def test_refusals_are_counted_over_batches(letters, keeps_cursor):
    target = Target(keeps_cursor=keeps_cursor)
    target.refuses_all = True
    changes = [at(insert(n), 100 + n) for n in range(12)]
    opened = delivery(target, letters)
    opened.deliver(ChangeBatch(changes[:6]))
    with pytest.raises(TooManyRefused):
        opened.deliver(ChangeBatch(changes[6:]))
    assert len(letters.rows) == 10


def test_with_skip_later_changes_of_a_refused_key_are_delivered(target, letters):
    first, second, third = (noted(note, 100 + n) for n, note in enumerate("abc"))
    target.refused = {first.event_id}
    opened = delivery(target, letters, on_failure="skip")
    assert opened.deliver(ChangeBatch([first, second])) == 1
    assert opened.deliver(ChangeBatch([third])) == 1
    assert target.committed == [second.event_id, third.event_id]
    assert letters.shown() == [(100, "refused", "no")]
    target.refused = set()
    assert delivery(target, letters, on_failure="skip").redrive(Cursor(0, 1, watermark=200)) == 1
    assert (target.committed[-1], letters.shown()) == (first.event_id, [])


@pytest.mark.parametrize("keeps_cursor", [False, True])
def test_with_skip_each_change_that_is_refused_is_a_dead_letter(letters, keeps_cursor):
    target = Target(keeps_cursor=keeps_cursor)
    changes = [noted(note, 100 + n) for n, note in enumerate("abcd")]
    target.refused = {changes[0].event_id, changes[2].event_id}
    opened = delivery(target, letters, on_failure="skip")
    assert opened.deliver(ChangeBatch(changes)) == 2
    assert target.committed == [changes[1].event_id, changes[3].event_id]
    assert letters.shown() == [(100, "refused", "no"), (102, "refused", "no")]


def test_a_letter_of_other_rules_is_not_sent_and_later_changes_of_its_key_wait(target, letters):
    plain, masked, other = at(insert(1), 100), at(insert(1), 101), at(insert(2), 102)
    target.refused = {plain.event_id, other.event_id}
    delivery(target, letters).deliver(ChangeBatch([plain]))
    opened = delivery(target, letters, "masked")
    opened.deliver(ChangeBatch([masked, other]))
    target.refused = set()
    for _ in range(2):
        opened.redrive(Cursor(0, 1, watermark=200))
    assert target.committed == [other.event_id]
    assert letters.shown() == [(100, "refused", OTHER_RULES), (101, "held", HELD)]
    assert len(letters.rows) == 5
    # Set back, it is sent as it is.
    opened = delivery(target, letters)
    assert opened.redrive(Cursor(0, 1, watermark=200)) == 1
    assert target.committed[1:] == [plain.event_id]
    assert letters.shown() == [(101, "refused", OTHER_RULES)]


def test_a_letter_of_a_table_that_is_excluded_now_is_not_sent(target, letters):
    change = at(insert(1), 100)
    target.refused = {change.event_id}
    delivery(target, letters).deliver(ChangeBatch([change]))
    target.refused = set()
    opened = delivery(target, letters, exclude=["public.orders"])
    assert opened.redrive(Cursor(0, 1, watermark=200)) == 0
    assert (target.committed, letters.shown()) == ([], [(100, "refused", NOT_RECEIVED)])


def test_a_replay_delivers_the_letters_in_it_under_the_rules_of_now(target, letters):
    before, plain, behind = (at(insert(key), lsn) for key, lsn in ((2, 90), (1, 100), (1, 110)))
    target.refused = {before.event_id, plain.event_id}
    delivery(target, letters).deliver(ChangeBatch([before, plain, behind]))
    target.refused = set()
    opened, masked = delivery(target, letters, "masked"), noted("***", 100)
    with opened.replaying(Cursor(0, 1, watermark=95)):
        again = [masked, behind, at(insert(2), 120)]
        assert opened.deliver(ChangeBatch(again)) == 2
    assert target.committed == [masked.event_id, behind.event_id]
    assert letters.shown() == [(90, "refused", "no"), (120, "held", HELD)]
    assert opened.deliver(ChangeBatch([at(insert(1), 130), at(insert(2), 140)])) == 1


def test_a_replayed_letter_that_is_refused_again_stays(target, letters):
    change = at(insert(1), 100)
    target.refused = {change.event_id}
    opened = delivery(target, letters)
    opened.deliver(ChangeBatch([change]))
    with opened.replaying(Cursor(0, 1, watermark=95)):
        assert opened.deliver(ChangeBatch([change, at(insert(1), 110)])) == 0
    assert letters.shown() == [(100, "refused", "no"), (110, "held", HELD)]


def test_a_reset_ends_the_letters_whose_changes_come_again(target, letters):
    first, second = at(insert(1), 100), at(insert(1), 200)
    target.refused = {first.event_id, second.event_id}
    delivery(target, letters, on_failure="skip").deliver(ChangeBatch([first, second]))
    target.refused = set()
    opened = delivery(target, letters, on_failure="skip")
    opened.restart(Cursor(2, 1, watermark=150))
    assert letters.shown() == [(100, "refused", "no")]
    assert opened.deliver(ChangeBatch([second])) == 1


def test_what_a_sink_puts_off_follows_at_once_and_each_part_is_reported(letters):
    changes = [at(insert(number), 100 + number) for number in range(9)]
    slow, parts = Slow(2), list[tuple[int, int]]()
    slow.refused = {changes[3].event_id}
    opened = delivery(slow, letters)

    def passed(done: list[Change], count: int) -> None:
        assert [*done, *changes[len(done) :]] == changes
        parts.append((len(done), count))

    assert opened.deliver(ChangeBatch(changes), passed=passed) == 8
    assert slow.delivered == [c.event_id for c in changes if c is not changes[3]]
    assert parts == [(2, 2), (3, 3), (6, 5), (8, 7)]
    assert opened.refused == 1


def test_a_stop_ends_a_batch_after_the_part_that_was_reported(letters):
    changes = [at(insert(number), 100 + number) for number in range(9)]
    slow, stop, parts = Slow(2), threading.Event(), list[int]()

    def passed(done: list[Change], _count: int) -> None:
        parts.append(len(done))
        if len(done) == 4:
            stop.set()

    with pytest.raises(Cancelled):
        delivery(slow, letters, stop=stop).deliver(ChangeBatch(changes), passed=passed)
    assert (parts, len(slow.delivered)) == ([2, 4], 4)
