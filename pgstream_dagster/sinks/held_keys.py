"""
The keys behind a change that was refused: their later changes wait, so that order per key holds.

A change touches its key and the one before it; a change of a table without a key, or a truncate,
touches the whole table.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeAlias

from pgstream_dagster.changelog.sink_letters import SinkLetter
from pgstream_dagster.readers.change import Change, Key

_Touched: TypeAlias = "tuple[Key, ...]"


class HeldKeys:
    """The keys of the open dead letters of one sink."""

    def __init__(self, letters: Iterable[SinkLetter] = ()) -> None:
        self._keys: dict[int, set[Key]] = {}
        self._tables: set[int] = set()
        for letter in letters:
            self.hold(letter)

    def hold(self, change: Change | SinkLetter) -> None:
        """Hold back what comes after a change."""
        touched = _touched(change)
        if touched:
            self._keys.setdefault(change.relation_id, set()).update(touched)
        else:
            self._tables.add(change.relation_id)

    def holds(self, change: Change) -> bool:
        """Whether a change must wait."""
        table = change.relation_id
        if table in self._tables:
            return True
        held = self._keys.get(table)
        if not held:
            return False
        touched = _touched(change)
        return not touched or any(key in held for key in touched)

    def __bool__(self) -> bool:
        return bool(self._keys or self._tables)


def _touched(change: Change | SinkLetter) -> _Touched:
    """The keys that a change touches; none: all of its table."""
    return tuple(key for key in (change.key, change.old_key) if key is not None)
