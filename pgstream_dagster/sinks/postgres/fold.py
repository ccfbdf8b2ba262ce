"""
The net effect of changes of one table: rows to delete, to update and to insert. Pure, no I/O.

Only the state at the end of the target's transaction counts, so a row that is written ten times is
written once. Deletes come first, then updates, then inserts. What cannot be folded (an insert of a
key that is there already) ends the fold: the rest is another one, applied after it, and the
target's constraints decide.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from typing import TypeAlias

from pgstream_dagster.readers.change import Change, Image, Key
from pgstream_dagster.schema.changes import Op

Values: TypeAlias = dict[str, "str | None"]

WRITES: frozenset[str] = frozenset({Op.INSERT, Op.READ})
"""The operations that bring a whole row."""


@dataclass(slots=True)
class UpdatedRow:
    """The columns that a row gets; `origin` is its key in the target."""

    origin: Key
    values: Values


@dataclass(slots=True)
class Net:
    """
    What changes come to.

    `deleted` are keys in the target; `removed` are whole rows of a table without a key, each as
    often as it is there. `left_out` counts changes of such a table that came without their old row:
    they identify none, and the fold of the log leaves them out, too. `columns` are those of the
    source's table: an update that lacks one makes no row.
    """

    deleted: list[Key] = field(default_factory=list[Key])
    updated: list[tuple[Key, UpdatedRow]] = field(default_factory=list[tuple[Key, UpdatedRow]])
    inserted: list[Values] = field(default_factory=list[Values])
    removed: list[Values] = field(default_factory=list[Values])
    left_out: int = 0
    columns: AbstractSet[str] = frozenset()


class NoKey(Exception):
    """A change of a table with a key came without one."""


def fold(changes: Sequence[Change]) -> list[Net]:
    """
    The net effect of changes of one version of one table, in their order.

    Raises:
        NoKey: a change does not say which row it is about.
    """
    if all(change.op in WRITES for change in changes):
        return [Net(inserted=[dict(change.after or {}) for change in changes])]
    schema = changes[0].schema
    if schema is None or not schema.key:
        return [_of_rows(changes)]
    nets: list[Net] = []
    columns = {column.name for column in schema.columns}
    rows = _Rows()
    for change in changes:
        if not rows.take(change):
            nets.append(rows.net(columns))
            rows = _Rows()
            rows.take(change)
    return [*nets, rows.net(columns)]


@dataclass(slots=True)
class _Rows:
    """Rows by the key they have now; `origins` are the keys of those that the target has."""

    live: dict[Key, tuple[Key | None, Values]] = field(
        default_factory=dict[Key, "tuple[Key | None, Values]"]
    )
    deleted: dict[Key, None] = field(default_factory=dict[Key, None])
    moved: set[Key] = field(default_factory=set[Key])

    def take(self, change: Change) -> bool:
        """Add a change; false, and nothing is added, if only the target can say what it does."""
        key = change.key
        if key is None:
            raise NoKey
        match change.op:
            case Op.INSERT | Op.READ:
                return self._insert(key, change.after or {})
            case Op.UPDATE:
                return self._update(change.old_key or key, key, change.after or {})
            case _:
                return self._delete(key)

    def _insert(self, key: Key, after: Image) -> bool:
        if key in self.live:
            return False
        self.live[key] = None, dict(after)
        return True

    def _update(self, origin: Key, key: Key, after: Image) -> bool:
        is_gone = origin not in self.live and (origin in self.deleted or origin in self.moved)
        if is_gone or (key != origin and key in self.live):
            return False
        in_target, values = self.live.pop(origin, (origin, {}))
        values.update(after)
        self.live[key] = in_target, values
        if key != origin:
            self.moved.add(origin)
        return True

    def _delete(self, key: Key) -> bool:
        if key not in self.live and (key in self.deleted or key in self.moved):
            return False
        in_target, _ = self.live.pop(key, (key, {}))
        if in_target is not None:
            self.deleted[in_target] = None
        return True

    def net(self, columns: AbstractSet[str]) -> Net:
        net = Net(deleted=list(self.deleted), columns=columns)
        for key, (origin, values) in self.live.items():
            if origin is None:
                net.inserted.append(values)
            else:
                net.updated.append((key, UpdatedRow(origin, values)))
        return net


def _of_rows(changes: Sequence[Change]) -> Net:
    """The net effect on a multiset of whole rows."""
    counts: Counter[tuple[tuple[str, str | None], ...]] = Counter()
    left_out = 0
    for change in changes:
        before, after = change.before, change.after or {}
        if change.op not in WRITES:
            if before is None or not _is_whole(before, change):
                left_out += 1
                continue
            counts[_entries(before)] -= 1
            after = {**before, **after}
        if change.op != Op.DELETE:
            counts[_entries(after)] += 1
    return Net(
        inserted=[dict(row) for row, count in counts.items() for _ in range(count)],
        removed=[dict(row) for row, count in counts.items() for _ in range(-count)],
        left_out=left_out,
    )


def _is_whole(before: Image, change: Change) -> bool:
    """Whether the old row was sent; that of a table without columns has no values."""
    return bool(before) or (change.schema is not None and not change.schema.columns)


def _entries(image: Image) -> tuple[tuple[str, str | None], ...]:
    return tuple(sorted(image.items()))
