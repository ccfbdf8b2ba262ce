"""
Delivering batches: what fails is tried again, what is refused becomes a dead letter.

The target itself can be away, which is waited for without a limit by the follower. Here a single
change fails: it is tried as the sink's policy says, and the batch waits for it. After that it is a
dead letter; with `on_failure: hold` later changes of its key become dead letters, too. Positions
and keys of all open ones are in memory, and the contents of a few.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Collection, Container, Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Final, TypeAlias

import msgspec
import tenacity

from pgstream_dagster.changelog.sink_letters import (
    Position,
    SinkLetter,
    SinkLetters,
    SinkLetterState,
)
from pgstream_dagster.config.sinks import RetryConfig, SinkConfig
from pgstream_dagster.errors import TooManyLetters, TooManyRefused
from pgstream_dagster.lsn import lsn_of_number
from pgstream_dagster.readers.change import Change, ChangeBatch
from pgstream_dagster.readers.cursor import Cursor
from pgstream_dagster.schema.changes import Op
from pgstream_dagster.sinks.base import (
    REFUSED_IN_A_ROW,
    NotNow,
    Refused,
    Sink,
    Verdict,
    Verdicts,
)
from pgstream_dagster.sinks.held_keys import HeldKeys
from pgstream_dagster.sinks.table_filter import TableFilter
from pgstream_dagster.stop import Cancelled

logger = logging.getLogger(__name__)

OPEN_LETTERS: Final = 100_000
"""At most, of one sink: some 50 MB of positions and keys. One that needs more stops."""

REDRIVEN_AT_ONCE: Final = 1_000
"""The cursor names each of them, with some 40 bytes; a target may bound it, as Kafka does."""

CursorOf: TypeAlias = Callable[[Sequence[Change]], str]

Passed: TypeAlias = Callable[[Sequence[Change], int], None]
"""
Called while a batch is being delivered, with its first changes, which are done with, and how many
of all were delivered.
"""

NONE_UNFIT: Final[Mapping[Position, SinkLetter]] = {}

WAIT_SECONDS: Final = 1.0

HELD: Final = "it waits behind an earlier change of its key"

OTHER_RULES: Final = (
    "it was kept under other rules of the sink's modifiers, and is not sent under the current ones:"
    " set them back, or let it come again from the log (replay, reset)"
)
NOT_RECEIVED: Final = "the sink does not receive its table any more: select it, or reset the sink"


@dataclass(frozen=True, slots=True)
class Guard:
    """
    What may end a delivery.

    `require` raises if this process may not deliver any more; `waits` is called every second while
    a change is waited for, with its verdict, and raises if that is to end.
    """

    stop: threading.Event
    require: Callable[[float], None]
    waits: Callable[[NotNow], None]


class Delivery:
    """Delivers to one sink; one thread uses it."""

    def __init__(
        self,
        name: str,
        config: SinkConfig,
        sink: Sink,
        letters: SinkLetters,
        guard: Guard,
        *,
        rules: str = "",
    ) -> None:
        """Deliver to an open sink; `rules` is the fingerprint of what modifies its changes."""
        self._name, self._config, self._sink, self._rules = name, config, sink, rules
        self._stop, self._require, self._waits = guard.stop, guard.require, guard.waits
        self._letters = letters
        self._tables = TableFilter(config.tables, config.exclude, config.schema_only)
        self._refused_in_a_row = 0
        self._open = {le.position: le.in_short() for le in letters.open(name)}
        self._again = set[Position]()
        self._stored: dict[Position, SinkLetter] = {}  # those that are delivered again, as they are
        self._held = self._held_keys()

    @property
    def refused(self) -> int:
        """How many dead letters are open."""
        return len(self._open)

    def deliver(self, batch: ChangeBatch, passed: Passed = lambda _changes, _count: None) -> int:
        """
        Deliver a batch; returns how many of its changes were delivered.

        When it returns, every change is durable in the target or among the dead letters. `passed`
        may raise to end it; it is not called for a target that keeps the cursor.

        Raises:
            SinkUnreachable, SinkRefused: as `Sink.deliver`.
            TooManyRefused, TooManyLetters: until a person acts.
            Cancelled: a stop was requested while a change was waited for.
        """
        return self._deliver(batch, lambda _: batch.cursor, passed, counts=True)

    def redrive(self, cursor: Cursor) -> int:
        """
        Deliver the open dead letters again, in order; how many were delivered.

        One that the reader has yet to pass comes again with its batch, after the changes before it:
        it is a letter no more. One of other rules stays, as its values may be what the current
        rules mask. A target that keeps the cursor has, in one transaction with them, which ones
        these are. So `settle` can mark them delivered after a crash, and none comes twice.

        Raises:
            SinkUnreachable, SinkRefused, Cancelled: what was delivered is a letter no more.
        """
        passed = sorted(place for place in self._open if cursor.has_passed(*place))
        sent, self._refused_in_a_row = 0, 0
        if cursor.pending is None:  # else some of these are passed, too
            self.restart(cursor)
        with self._coming_again(self._open):
            for number, part in enumerate(self._parts(passed)):
                if number and self._stop.is_set():
                    raise Cancelled
                letters = self._letters.with_content(part)
                self._stored = {letter.position: letter for letter in letters}
                changes = [_CHANGE.decode(letter.change or "") for letter in letters]
                unfit = {le.position: le for le in map(self._unfit, letters) if le is not None}
                cursor_of = partial(_redriving, cursor)
                sent += self._deliver(ChangeBatch(changes), cursor_of, counts=False, unfit=unfit)
        return sent

    @contextmanager
    def replaying(self, start: Cursor) -> Generator[None]:
        """
        While a part of the log is delivered once more, from a cursor on.

        The dead letters in it are delivered like the other changes, under the current rules. Those
        from before the part still hold back the later changes of their keys.
        """
        with self._coming_again(p for p in self._open if not start.has_passed(*p)):
            yield

    def restart(self, start: Cursor) -> None:
        """End the letters of the changes that come again from a cursor on, as after a reset."""
        self._end([le for le in self._open.values() if not start.has_passed(*le.position)])

    def begin_again(self, relations: Collection[tuple[int, int]]) -> None:
        """End the letters of tables, by epoch and relation, all of whose changes come again."""
        self._end([le for le in self._open.values() if (le.epoch, le.relation_id) in relations])

    def settle(self, redriven: Collection[Position]) -> None:
        """Mark letters as delivered that the target's cursor says it has."""
        self._end([self._open[position] for position in redriven if position in self._open])

    # --- open letters ---------------------------------------------------------------------------

    @contextmanager
    def _coming_again(self, places: Iterable[Position]) -> Generator[None]:
        """Let changes that are dead letters be delivered, and hold back none of their keys."""
        self._again = set(places)
        self._held = self._held_keys()
        try:
            yield
        finally:
            self._again.clear()
            self._stored.clear()
            self._held = self._held_keys()

    def _held_keys(self) -> HeldKeys:
        if self._config.on_failure == "skip":
            return HeldKeys()
        return HeldKeys(le for place, le in self._open.items() if place not in self._again)

    def _parts(self, places: Sequence[Position]) -> Generator[list[SinkLetter]]:
        """Open letters at these places, as many at once as may be in memory."""
        part, size = list[SinkLetter](), 0
        for place in places:
            letter = self._open.get(place)  # a `copy` marker may have ended it meanwhile
            if letter is None:
                continue
            is_full = size + letter.change_bytes > self._config.max_queue_bytes
            if part and (is_full or len(part) >= REDRIVEN_AT_ONCE):
                yield part
                part, size = [], 0
            part.append(letter)
            size += letter.change_bytes
        if part:
            yield part

    def _unfit(self, letter: SinkLetter) -> SinkLetter | None:
        """The letter with the reason why it is not sent again, if there is one."""
        reason = OTHER_RULES if letter.rules != self._rules else None
        if not self._tables.has_rows(letter.namespace, letter.relation):
            reason = NOT_RECEIVED
        return reason and replace(letter, state=SinkLetterState.REFUSED, reason=reason)

    def _end_before(self, marker: Change) -> None:
        """
        End the letters that a `copy` marker makes obsolete, and release their keys.

        All rows of its table come after it. Those of a former epoch are of another source, of which
        all tables are copied again.
        """
        position = _position(marker)
        self._end(
            [
                letter
                for letter in self._open.values()
                if letter.epoch < marker.epoch
                or (letter.relation_id == marker.relation_id and letter.position < position)
            ]
        )

    def _end(self, letters: Collection[SinkLetter]) -> None:
        """Make it durable that letters are open no more, and release their keys."""
        if not letters:
            return
        self._require(0.0)
        self._letters.add(letter.delivered() for letter in letters)
        for letter in letters:
            self._open.pop(letter.position, None)
            self._again.discard(letter.position)
        self._held = self._held_keys()

    # --- one batch ------------------------------------------------------------------------------

    def _deliver(
        self,
        batch: ChangeBatch,
        cursor_of: CursorOf,
        passed: Passed = lambda _changes, _count: None,
        *,
        counts: bool,
        unfit: Mapping[Position, SinkLetter] = NONE_UNFIT,
    ) -> int:
        """
        As `deliver`. The cursor of an attempt depends on the changes that it has.

        Shape:
            counts: whether refusals end the sink if there are too many in a row.
            unfit: dead letters that are not sent; later changes of their keys wait.
        """
        due, waiting = self._sorted_out(batch.changes, unfit)
        self._keep(waiting)
        stoppable = partial(self._pass, passed)
        rounds = _Rounds(due, batch, self._sink, self._require, cursor_of, stoppable)
        letters = self._delivered(rounds, counts=counts)
        self._end_again(due)
        return len(due) - len(letters)

    def _sorted_out(
        self, changes: Sequence[Change], unfit: Mapping[Position, SinkLetter]
    ) -> tuple[Sequence[Change], list[SinkLetter]]:
        """The changes to deliver, and letters of those that wait."""
        if not (self._open or self._held or unfit):
            return changes, []
        due, waiting = list[Change](), list[SinkLetter]()
        for change in changes:
            place = _position(change)
            if change.op == Op.COPY:
                self._end_before(change)
            if place in self._open and place not in self._again:
                continue  # a dead letter already: it comes again after a crash
            if (letter := unfit.get(place)) is not None:
                waiting.append(letter)
                self._hold(change)
            elif self._held.holds(change):
                waiting.append(self._letter(change, HELD, SinkLetterState.HELD))
                self._hold(change)  # it may touch another key, too
            else:
                due.append(change)
        return due, waiting

    def _delivered(self, rounds: _Rounds, *, counts: bool) -> list[SinkLetter]:
        """Deliver changes or store them as dead letters; these."""
        due = rounds.due
        refusals: _Refusals | None = None
        letters: list[SinkLetter] = []
        while verdicts := self._tried(rounds):
            if self._stop.is_set():
                raise Cancelled
            new = self._judged(rounds.due, verdicts)
            if not new:
                raise ValueError(f"{type(self._sink).__name__} gave verdicts on no attempt")
            if counts:
                refusals = refusals or _Refusals(due, self._refused_in_a_row)
                new = refusals.up_to_limit(new)
            self._keep(new)
            letters += new
            if refusals is not None and refusals.in_a_row >= REFUSED_IN_A_ROW:
                raise TooManyRefused(self._name, refusals.in_a_row)
            rounds.leave_out({letter.position for letter in new})
        if counts and due:
            self._refused_in_a_row = 0 if refusals is None else refusals.at_end()
        return letters

    def _pass(
        self, passed: Passed, changes: Sequence[Change], count: int, delivered: list[Change]
    ) -> None:
        """The first changes of a batch are done with; a part has delivered these of all."""
        self._end_again(delivered)
        passed(changes, count)
        if self._stop.is_set():
            raise Cancelled

    def _end_again(self, changes: Iterable[Change]) -> None:
        """End the dead letters among changes that were delivered."""
        if self._again:
            done = self._again.intersection(map(_position, changes))  # `_keep` takes others out
            self._end([self._open[place] for place in done])

    def _tried(self, rounds: _Rounds) -> Verdicts:
        """Verdicts that waiting does not change: refusals, or all attempts are used up."""
        retrying = tenacity.Retrying(
            stop=_Attempts(self._config.retry),
            wait=_Waits(self._config.retry),
            retry=tenacity.retry_if_result(_can_wait),
            before_sleep=self._wait,
            sleep=lambda _: None,
            retry_error_callback=lambda state: state.outcome.result(),  # pyright: ignore[reportOptionalMemberAccess]
        )
        return retrying(rounds.attempt)

    def _judged(self, due: Sequence[Change], verdicts: Verdicts) -> list[SinkLetter]:
        """
        The dead letters that verdicts make.

        Without a refusal all attempts are used up, and each change that was attempted is one. A
        change behind another of its key waits with `hold`, and is tried again with `skip`.
        """
        letters, failed = list[SinkLetter](), HeldKeys()
        has_refusal = not _can_wait(verdicts)
        for index in sorted(verdicts):
            change, verdict = due[index], verdicts[index]
            is_final = isinstance(verdict, Refused) or not (has_refusal or verdict.is_behind)
            if is_final and not failed.holds(change):
                letters.append(self._letter(change, verdict.reason, SinkLetterState.REFUSED))
                failed.hold(change)
            elif failed.holds(change) and self._config.on_failure == "hold":
                letters.append(self._letter(change, HELD, SinkLetterState.HELD))
                failed.hold(change)
        return letters

    def _keep(self, letters: Sequence[SinkLetter]) -> None:
        """Make letters durable, and hold their keys."""
        if not letters:
            return
        new = {letter.position for letter in letters} - self._open.keys()
        if new and len(self._open) + len(new) > OPEN_LETTERS:
            raise TooManyLetters(self._name, len(self._open))
        self._require(0.0)  # those of a process that was replaced would be of delivered changes
        self._letters.add(le for le in letters if self._stored.get(le.position) != le)
        for letter in letters:
            self._open[letter.position] = letter.in_short()
            self._again.discard(letter.position)
            self._hold(letter)
            if letter.state is SinkLetterState.REFUSED:
                table = f"{letter.namespace}.{letter.relation}"
                # Not the reason: a target's answer may have values of the row.
                remedy = f"'pgstream sink letters {self._name}' shows why"
                logger.warning("sink %s refused a change of %s; %s", self._name, table, remedy)

    def _hold(self, change: Change | SinkLetter) -> None:
        if self._config.on_failure == "hold":
            self._held.hold(change)

    def _letter(self, change: Change, reason: str, state: SinkLetterState) -> SinkLetter:
        content = _ENCODER.encode(change)
        return SinkLetter(
            *(self._name, change.epoch, change.commit_lsn, change.ordinal, state),
            *(change.namespace, change.relation, change.relation_id, change.key, change.old_key),
            *(reason, content.decode(), len(content), self._rules),
        )

    def _wait(self, attempt: tenacity.RetryCallState) -> None:
        """Until the next attempt."""
        verdicts: Verdicts = attempt.outcome.result() if attempt.outcome else {}
        verdict = min(
            (v for v in verdicts.values() if isinstance(v, NotNow)), key=lambda v: v.is_behind
        )
        end = time.monotonic() + attempt.upcoming_sleep
        while (left := end - time.monotonic()) > 0:
            self._waits(verdict)
            self._stop.wait(min(left, WAIT_SECONDS))
            if self._stop.is_set():
                raise Cancelled


class _Rounds:
    """The changes of a batch that are not delivered yet, and the attempts to."""

    def __init__(
        self,
        due: Sequence[Change],
        batch: ChangeBatch,
        sink: Sink,
        require: Callable[[float], None],
        cursor_of: CursorOf,
        passed: Callable[[Sequence[Change], int, list[Change]], None],
    ) -> None:
        self.due, self._cursor_of, self._passed = due, cursor_of, passed
        self._batch, self._sink, self._require = batch, sink, require
        self._is_complete = False
        self._delivered = 0

    def attempt(self) -> Verdicts:
        """One attempt, in as many parts as the sink makes of it; indices are those of `due`."""
        while True:
            count = len(self.due)
            verdicts = self._part()
            has_progress = 0 < len(self.due) < count
            if not (has_progress and all(_is_put_off(v) for v in verdicts.values())):
                return verdicts

    def _part(self) -> Verdicts:
        if self._is_complete or not (self.due or self._sink.keeps_cursor):
            return {}
        self._require(0.0)
        cursor = self._cursor_of(self.due)
        due = replace(self._batch, changes=self.due, cursor=cursor, require=self._require)
        verdicts = self._sink.deliver(due)
        self._is_complete = not verdicts
        if not self._sink.keeps_cursor and verdicts:  # the others were delivered
            order = sorted(verdicts)
            delivered = [change for at, change in enumerate(self.due) if at not in verdicts]
            self._delivered += len(delivered)
            self.due = [self.due[index] for index in order]
            verdicts = {number: verdicts[index] for number, index in enumerate(order)}
            changes, first = self._batch.changes, self.due[0]
            at = next(at for at, change in enumerate(changes) if change is first)
            self._passed(changes[:at], self._delivered, delivered)
        return verdicts

    def leave_out(self, positions: Container[Position]) -> None:
        """Deliver these no more."""
        self.due = [c for c in self.due if _position(c) not in positions]


class _Refusals:
    """How many changes the target has refused in a row, over the rounds of a batch and before."""

    def __init__(self, due: Sequence[Change], before: int) -> None:
        self.in_a_row = self._before = before
        self._places = [_position(change) for change in due]
        self._letters: dict[Position, SinkLetter] = {}

    def up_to_limit(self, letters: Sequence[SinkLetter]) -> list[SinkLetter]:
        """Count after another round; its letters up to the one with which there are too many."""
        new = {letter.position: letter for letter in letters}
        self._letters |= new
        self.in_a_row, counted = self._before, list[SinkLetter]()
        for place in self._places:
            letter = self._letters.get(place)
            if letter is None:
                self.in_a_row = 0  # delivered, or that is not known yet
                continue
            if place in new:
                counted.append(letter)
            self.in_a_row += letter.state is SinkLetterState.REFUSED
            if self.in_a_row >= REFUSED_IN_A_ROW:
                break
        return counted

    def at_end(self) -> int:
        """So many after the last round, when everything else was delivered."""
        self.up_to_limit([])
        return self.in_a_row


class _Attempts(tenacity.stop.stop_base):
    """The attempts of the policy; those while the target is away do not count."""

    def __init__(self, retry: RetryConfig) -> None:
        self._left = 1 if retry.policy == "none" else retry.attempts

    def __call__(self, retry_state: tenacity.RetryCallState) -> bool:
        verdicts: Verdicts = retry_state.outcome.result() if retry_state.outcome else {}
        self._left -= not any(isinstance(v, NotNow) and v.is_away for v in verdicts.values())
        return self._left <= 0


class _Waits(tenacity.wait.wait_base):
    """The wait of the policy, or longer where the target has said so."""

    def __init__(self, retry: RetryConfig) -> None:
        first, longest = retry.first_seconds, retry.longest_seconds
        self._policy: tenacity.wait.wait_base = tenacity.wait_fixed(first)
        if retry.policy == "exponential":
            self._policy = tenacity.wait_exponential_jitter(
                multiplier=first, max=longest, jitter=first
            )

    def __call__(self, retry_state: tenacity.RetryCallState) -> float:
        verdicts: Verdicts = retry_state.outcome.result() if retry_state.outcome else {}
        asked = [v.wait_seconds or 0.0 for v in verdicts.values() if isinstance(v, NotNow)]
        return max([self._policy(retry_state), *asked])


def _position(change: Change) -> Position:
    return change.epoch, change.commit_lsn, change.ordinal, change.relation_id


def _redriving(cursor: Cursor, changes: Sequence[Change]) -> str:
    """A cursor that says which dead letters are delivered with it."""
    redriven = tuple(_position(change) for change in changes)
    return msgspec.structs.replace(cursor, redriven=redriven).to_json()


def _is_put_off(verdict: Verdict) -> bool:
    return isinstance(verdict, NotNow) and verdict.is_behind


def _can_wait(verdicts: Verdicts) -> bool:
    """Whether another attempt may help; a refusal is judged first, as others may wait behind it."""
    return bool(verdicts) and all(isinstance(v, NotNow) for v in verdicts.values())


_ENCODER: Final = msgspec.json.Encoder(enc_hook=int)
_CHANGE: Final = msgspec.json.Decoder(Change, dec_hook=lsn_of_number)
