"""
Sending many messages at once without losing the order of a group. Pure.

A wave is a run of neighbours of which no two touch the same key. So a message that is refused has
none of its group behind it under way; waves follow each other, and all groups keep the order of the
commits while nothing fails.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final, TypeVar

from pgstream_dagster.readers.change import Change
from pgstream_dagster.sinks.base import BEHIND, REFUSED_IN_A_ROW, NotNow, Refused, Verdict, Verdicts
from pgstream_dagster.sinks.held_keys import HeldKeys

T = TypeVar("T")

Send = Callable[[Mapping[int, T]], Mapping[int, Verdict]]
"""Sends the items of a wave in order; the verdicts of those that were not delivered."""

WAVE_BYTES: Final = 4 << 20


class Waves:
    """The waves of one batch; `most` is how many messages one may have."""

    def __init__(
        self, changes: Sequence[Change], *, most: int, most_bytes: int = WAVE_BYTES
    ) -> None:
        self._changes, self._most, self._most_bytes = changes, most, most_bytes
        self._verdicts: dict[int, Verdict] = {}
        self._failed = HeldKeys()
        self._refused_in_a_row = 0

    def deliver(
        self, items: Iterable[T | Refused], size: Callable[[T], int], send: Send[T]
    ) -> Verdicts:
        """Send what was made of each change, in their order; what was refused is not sent."""
        wave, touched, wave_bytes = dict[int, T](), HeldKeys(), 0
        for index, item in enumerate(items):
            change = self._changes[index]
            item_bytes = 0 if isinstance(item, Refused) else size(item)
            is_full = len(wave) >= self._most or wave_bytes + item_bytes > self._most_bytes
            if wave and (is_full or touched.holds(change)):
                self._note(wave, send(wave))
                wave, touched, wave_bytes = {}, HeldKeys(), 0
            if (verdict := self._verdict(item, change)) is not None:
                self._fail(index, verdict)
            elif not isinstance(item, Refused):
                wave[index] = item
                wave_bytes += item_bytes
                touched.hold(change)
        if wave:
            self._note(wave, send(wave))
        return dict(sorted(self._verdicts.items()))

    def _verdict(self, item: object, change: Change) -> Verdict | None:
        """Why an item is not sent."""
        is_over = self._refused_in_a_row >= REFUSED_IN_A_ROW
        if self._verdicts and (is_over or self._failed.holds(change)):
            return NotNow(BEHIND, is_behind=True)
        return item if isinstance(item, Refused) else None

    def _note(self, wave: Mapping[int, T], verdicts: Mapping[int, Verdict]) -> None:
        for index in wave:
            if (verdict := verdicts.get(index)) is None:
                self._refused_in_a_row = 0
            else:
                self._fail(index, verdict)

    def _fail(self, index: int, verdict: Verdict) -> None:
        self._verdicts[index] = verdict
        self._failed.hold(self._changes[index])
        self._refused_in_a_row += isinstance(verdict, Refused)
