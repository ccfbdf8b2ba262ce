"""
Delivering batches: what fails is tried again, what is refused becomes a dead letter.

The target itself can be away, which is waited for without a limit by the follower. Here a single
change fails: it is tried as the sink's policy says, and the batch waits for it. After that it is a
dead letter; with `on_failure: hold` later changes of its key become dead letters, too.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Collection, Container, Sequence
from dataclasses import replace
from functools import partial
from typing import Final, TypeAlias

import msgspec
import tenacity

from pgstream_dagster.changelog.sink_letters import (
    LetterState,
    Position,
    SinkLetter,
    SinkLetters,
)
from pgstream_dagster.config.sinks import RetryConfig, SinkConfig
from pgstream_dagster.errors import TooManyRefused
from pgstream_dagster.readers.change import Change, ChangeBatch
from pgstream_dagster.readers.cursor import Cursor
from pgstream_dagster.schema.changes import Op
from pgstream_dagster.sinks.base import NotNow, Refused, Sink, Verdicts
from pgstream_dagster.sinks.held_keys import HeldKeys
from pgstream_dagster.stop import Cancelled

logger = logging.getLogger(__name__)

REFUSED_IN_A_ROW: Final = 1_000
"""Without one delivered change in between: then it is the target or the configuration."""

REDRIVEN_AT_ONCE: Final = 1_000
"""The cursor names each of them, with some 40 bytes; a target may bound it, as Kafka does."""

CursorOf: TypeAlias = Callable[[Sequence[Change]], str]

WAIT_SECONDS: Final = 1.0

HELD: Final = "it waits behind an earlier change of its key"


class Delivery:
    """Delivers to one sink; one thread uses it."""

    def __init__(
        self,
        name: str,
        config: SinkConfig,
        sink: Sink,
        letters: SinkLetters,
        stop: threading.Event,
        require: Callable[[float], None],
        waits: Callable[[NotNow], None],
    ) -> None:
        """
        Deliver to an open sink.

        `require` raises if this process may not deliver any more; `waits` is called every second
        while a change is waited for, with its verdict, and raises if that is to end.
        """
        self._name, self._config, self._sink, self._require = name, config, sink, require
        self._waits = waits
        self._letters, self._stop = letters, stop
        self._refused_in_a_row = 0
        self._open: dict[Position, SinkLetter] = {}
        self._held = HeldKeys()
        self._read_letters()

    @property
    def refused(self) -> int:
        """How many dead letters are open."""
        return len(self._open)

    def deliver(self, batch: ChangeBatch, cursor_of: CursorOf | None = None) -> int:
        """
        Deliver a batch; returns how many of its changes were delivered.

        When it returns, every change is durable in the target or among the dead letters. With
        `cursor_of`, the cursor of an attempt depends on the changes that it has.

        Raises:
            SinkUnreachable, SinkRefused: as `Sink.deliver`.
            TooManyRefused
            Cancelled: a stop was requested while a change was waited for.
        """
        due, waiting = list[Change](), list[SinkLetter]()
        for change in batch.changes:
            if change.op == Op.COPY:
                self._end_before(change)
            if _position(change) in self._open:
                pass  # a dead letter already: it comes again after a crash
            elif self._held.holds(change):
                waiting.append(self._letter(change, HELD, LetterState.HELD))
                self._held.hold(change)  # it may touch another key, too
            else:
                due.append(change)
        self._keep(waiting)
        letters = self._deliver(due, batch, cursor_of)
        if cursor_of is None:
            self._count(len(due) - len(letters), letters)
        return len(due) - len(letters)

    def redrive(self, cursor: Cursor) -> int:
        """
        Deliver the open dead letters again, in order; how many were delivered.

        One that the reader has yet to pass comes again with its batch, after the changes before it:
        it stays open. A target that keeps the cursor has, in one transaction with them, which ones
        these are. So `settle` can mark them delivered after a crash, and none comes twice.
        """
        passed = {place for place in self._open if cursor.has_passed(*place)}
        letters = [self._open[place] for place in sorted(passed)]
        self._open = {place: le for place, le in self._open.items() if place not in passed}
        self._held, self._refused_in_a_row, sent = HeldKeys(), 0, 0
        try:
            for start in range(0, len(letters), REDRIVEN_AT_ONCE):
                part = letters[start : start + REDRIVEN_AT_ONCE]
                changes = [_CHANGE.decode(letter.change) for letter in part if letter.change]
                sent += self.deliver(ChangeBatch(changes), partial(_redriving, cursor))
                self._letters.add(le.delivered() for le in part if le.position not in self._open)
        finally:  # also what was not sent after an error
            self._read_letters()
        return sent

    def settle(self, redriven: Collection[Position]) -> None:
        """Mark letters as delivered that the target's cursor says it has."""
        due = [self._open[position] for position in redriven if position in self._open]
        if due:
            self._letters.add(letter.delivered() for letter in due)
            self._read_letters()

    def _end_before(self, marker: Change) -> None:
        """
        End the letters that a `copy` marker makes obsolete, and release their keys.

        All rows of its table come after it. Those of a former epoch are of another source, of which
        all tables are copied again.
        """
        position = _position(marker)
        ended = [
            letter
            for letter in self._open.values()
            if letter.epoch < marker.epoch
            or (letter.relation_id == marker.relation_id and letter.position < position)
        ]
        if ended:
            self._require(0.0)
            self._letters.add(letter.delivered() for letter in ended)
            self._read_letters()

    def _read_letters(self) -> None:
        self._open = {letter.position: letter for letter in self._letters.open(self._name)}
        self._held = HeldKeys(self._open.values() if self._config.on_failure == "hold" else ())

    # --- one batch ------------------------------------------------------------------------------

    def _deliver(
        self, due: list[Change], batch: ChangeBatch, cursor_of: CursorOf | None
    ) -> list[SinkLetter]:
        """Deliver changes or store them as dead letters; these."""
        cursor_of = cursor_of or (lambda _: batch.cursor)
        rounds = _Rounds(due, batch, self._sink, self._require, cursor_of)
        letters: list[SinkLetter] = []
        while verdicts := self._tried(rounds):
            if self._stop.is_set():
                raise Cancelled
            new = self._judged(rounds.due, verdicts)
            if not new:
                raise ValueError(f"{type(self._sink).__name__} gave verdicts on no attempt")
            self._keep(new)
            letters += new
            rounds.leave_out({letter.position for letter in new})
        return letters

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
                letters.append(self._letter(change, verdict.reason, LetterState.REFUSED))
                failed.hold(change)
            elif failed.holds(change) and self._config.on_failure == "hold":
                letters.append(self._letter(change, HELD, LetterState.HELD))
                failed.hold(change)
        return letters

    def _keep(self, letters: Sequence[SinkLetter]) -> None:
        """Make letters durable, and hold their keys."""
        if letters:
            self._require(0.0)  # those of a process that was replaced would be of delivered changes
        self._letters.add(letters)
        for letter in letters:
            self._open[letter.position] = letter
            if self._config.on_failure == "hold":
                self._held.hold(letter)
            if letter.state is LetterState.REFUSED:
                table = f"{letter.namespace}.{letter.relation}"
                # Not the reason: a target's answer may have values of the row.
                remedy = f"'pgstream sink letters {self._name}' shows why"
                logger.warning("sink %s refused a change of %s; %s", self._name, table, remedy)

    def _count(self, delivered: int, letters: Sequence[SinkLetter]) -> None:
        refused = sum(letter.state is LetterState.REFUSED for letter in letters)
        self._refused_in_a_row = 0 if delivered else self._refused_in_a_row + refused
        if self._refused_in_a_row >= REFUSED_IN_A_ROW:
            raise TooManyRefused(self._name, self._refused_in_a_row)

    def _letter(self, change: Change, reason: str, state: LetterState) -> SinkLetter:
        return SinkLetter(
            *(self._name, change.epoch, change.commit_lsn, change.ordinal, state),
            *(change.namespace, change.relation, change.relation_id, change.key, change.old_key),
            *(reason, _ENCODER.encode(change).decode()),
        )

    def _wait(self, attempt: tenacity.RetryCallState) -> None:
        """Until the next attempt."""
        verdicts: Verdicts = attempt.outcome.result() if attempt.outcome else {}
        verdict = next(v for v in verdicts.values() if isinstance(v, NotNow))
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
        due: list[Change],
        batch: ChangeBatch,
        sink: Sink,
        require: Callable[[float], None],
        cursor_of: CursorOf,
    ) -> None:
        self.due, self._cursor_of = due, cursor_of
        self._batch, self._sink, self._require = batch, sink, require
        self._is_complete = False

    def attempt(self) -> Verdicts:
        """One attempt; indices are those of `due`."""
        if self._is_complete or not (self.due or self._sink.keeps_cursor):
            return {}
        self._require(0.0)
        cursor = self._cursor_of(self.due)
        due = replace(self._batch, changes=self.due, cursor=cursor, require=self._require)
        verdicts = self._sink.deliver(due)
        self._is_complete = not verdicts
        if not self._sink.keeps_cursor and verdicts:  # the others were delivered
            order = sorted(verdicts)
            self.due = [self.due[index] for index in order]
            verdicts = {number: verdicts[index] for number, index in enumerate(order)}
        return verdicts

    def leave_out(self, positions: Container[Position]) -> None:
        """Deliver these no more."""
        self.due = [c for c in self.due if _position(c) not in positions]


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


def _can_wait(verdicts: Verdicts) -> bool:
    """Whether another attempt may help; a refusal is judged first, as others may wait behind it."""
    return bool(verdicts) and all(isinstance(v, NotNow) for v in verdicts.values())


_ENCODER: Final = msgspec.json.Encoder()
_CHANGE: Final = msgspec.json.Decoder(Change)
