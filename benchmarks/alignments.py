"""
How often a change of columns costs a copy: by `schema.align`, and by a reduced form of it.

The reduced form knows equal versions, renames and columns added at the end; whatever else happened,
a dropped column among it, is uncertain. Every uncertain version costs a copy of its table.

    python -m benchmarks.alignments
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from random import Random

from pgstream_dagster.schema.align import ColumnShape, align

HISTORIES = 20_000
OPERATIONS = {"add": 5, "drop": 3, "rename": 2, "retype": 1}
"""How often each is drawn."""


class Table:
    """Columns by attnum; a dropped one is None."""

    def __init__(self, random: Random) -> None:
        self._random, self._names = random, iter(range(1_000_000))
        self.attributes: dict[int, ColumnShape | None] = {}
        for _ in range(8):
            self.change("add")

    def change(self, operation: str | None = None) -> None:
        drawn = self._random.choices(list(OPERATIONS), list(OPERATIONS.values()))[0]
        operation = operation or drawn
        alive = [attnum for attnum, shape in self.attributes.items() if shape is not None]
        if operation == "add" or len(alive) < 2:
            self.attributes[len(self.attributes) + 1] = self._new()
            return
        attnum = self._random.choice(alive)
        shape = self.attributes[attnum]
        assert shape is not None
        changed = {
            "drop": None,
            "rename": shape._replace(name=self._new().name),
            "retype": shape._replace(type_oid=self._new().type_oid),
        }
        self.attributes[attnum] = changed[operation]

    def shapes(self) -> dict[int, ColumnShape]:
        return {a: shape for a, shape in self.attributes.items() if shape is not None}

    def _new(self) -> ColumnShape:
        return ColumnShape(f"c{next(self._names)}", self._random.choice((20, 23, 25, 1184)), -1)


def is_certain_reduced(
    described: Sequence[ColumnShape],
    attributes: Mapping[int, ColumnShape | None],
    previous: Mapping[int, ColumnShape],
) -> bool:
    if any(attributes.get(attnum) is None for attnum in previous) or len(described) < len(previous):
        return False
    kept = zip(described, previous.values(), strict=False)
    later = [shape for attnum, shape in attributes.items() if attnum > max(previous)]
    added = described[len(previous) :]
    return all(now[1:] == then[1:] for now, then in kept) and added == later[: len(added)]


def history(random: Random, before: int, after: int) -> tuple[bool, bool]:
    """Certainty of both for a description that comes after and before so many changes."""
    table = Table(random)
    previous = table.shapes()
    for _ in range(before):
        table.change()
    shapes = table.shapes()
    described = list(shapes.values())
    for _ in range(after):
        table.change()
    alignment = align(described, table.attributes, previous)
    assert not alignment.certain or alignment.attnums == tuple(shapes)
    return alignment.certain, is_certain_reduced(described, table.attributes, previous)


def main() -> None:
    random = Random(1)
    print("changes before, after   certain   reduced")
    for before, after in ((1, 0), (2, 0), (3, 0), (1, 1), (2, 2)):
        outcomes = [history(random, before, after) for _ in range(HISTORIES)]
        full, reduced = (100 * sum(column) / HISTORIES for column in zip(*outcomes, strict=True))
        print(f"{before:>14}, {after:<5}   {full:6.1f} %  {reduced:6.1f} %")


if __name__ == "__main__":
    main()
