"""
Which changes may be delivered at the same time, and which wait for which. No I/O.

Changes of one row (its key, and its former key where an update moved it) keep their order. A change
without a key (a truncate, a marker, any change of a table without a key) concerns the whole table.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TypeAlias

from pgstream_dagster.readers.change import Change, Key

Lane: TypeAlias = tuple[int, Key | None]
"""A relation, and a key of it; `None`: all of the relation."""


def lanes(change: Change) -> Collection[Lane]:
    """The rows that a change concerns."""
    if change.old_key is None:
        return ((change.relation_id, change.key),)
    return ((change.relation_id, change.key), (change.relation_id, change.old_key))


def queues(changes: Sequence[Change], count: int) -> list[list[int]]:
    """
    Spread indices of `changes` over up to `count` queues, each in order, none empty.

    Changes that must keep their order are in one queue.
    """
    if count == 1:
        return [list(range(len(changes)))] if changes else []
    filled: list[list[int]] = [[] for _ in range(count)]
    for group in sorted(_groups(changes), key=len, reverse=True):
        min(filled, key=len).extend(group)
    return [sorted(queue) for queue in filled if queue]


def _groups(changes: Sequence[Change]) -> list[list[int]]:
    whole = {change.relation_id for change in changes if change.key is None}
    group_of: dict[Lane, list[int]] = {}
    for index, change in enumerate(changes):
        is_whole = change.relation_id in whole
        rows = [(change.relation_id, None)] if is_whole else lanes(change)
        joined = {id(group_of[row]): group_of[row] for row in rows if row in group_of}
        group = next(iter(joined.values()), [])
        group.append(index)
        for other in list(joined.values())[1:]:  # an update moved a row from one key to another
            group.extend(other)
            for row in [row for row, listed in group_of.items() if listed is other]:
                group_of[row] = group
        for row in rows:
            group_of[row] = group
    return list({id(group): group for group in group_of.values()}.values())


class Held:
    """The rows with an undelivered change, for which later changes wait."""

    def __init__(self) -> None:
        self._rows: set[Lane] = set()
        self._relations: set[int] = set()

    def add(self, change: Change) -> None:
        """Later changes of these rows wait."""
        self._rows.update(lanes(change))
        self._relations.add(change.relation_id)

    def __contains__(self, change: Change) -> bool:
        if change.relation_id not in self._relations:
            return False
        whole = (change.relation_id, None)
        return change.key is None or whole in self._rows or not self._rows.isdisjoint(lanes(change))
