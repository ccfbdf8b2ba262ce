"""
What the changes of a table leave at the keys that they touch, as rows of the table.

Tables with the same columns get theirs by one query: to plan one takes longer than to type few
rows, and where each tenant has tables of its own, many have the same columns.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final, cast

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame

from pgstream_dagster.changelog.by_relation import RELATION, of_relation, of_relations
from pgstream_dagster.tables.columns import Layout, quoted
from pgstream_dagster.tables.forms import form_of
from pgstream_dagster.tables.increment import IS_THERE, Size
from pgstream_dagster.tables.passes import BROADCAST_CHANGES, smallest
from pgstream_dagster.tables.rows import has_equal_keys, keyed_rows, resolved

_compute: Final = cast("Any", pc)  # its functions are made when it is imported


TOGETHER_BYTES: Final = 64 << 20
"""Of the rows that are typed together, in Arrow, where they are copied once."""


@dataclass(frozen=True)
class NewRows:
    """
    The new rows of one table.

    Shape:
        outcomes: of several relations, as `outcome` gives them, `sorted_by_relation`.
        former: the rows of the table.
        group: the table and others with its columns; `None`: it is typed alone.
    """

    relation_id: int
    layout: Layout
    outcomes: DataFrame
    size: Size
    former: Callable[[], DataFrame]
    group: Group | None
    epoch: int

    @cached_property
    def rows(self) -> DataFrame:
        """IS_THERE, the columns of the table and others; without a row only those of the key."""
        outcomes, size = of_relation(self.outcomes, self.relation_id), self.size
        rows = keyed_rows(outcomes, self.layout, self.epoch)
        if not size.referred:
            return rows
        is_small = size.referring_rows <= BROADCAST_CHANGES
        return resolved(rows, self.former(), self.layout, size.referred, is_small=is_small)

    def in_arrow(self) -> pa.Table:
        """IS_THERE and the columns of the table; runs a job. Once: a group keeps no rows twice."""
        typed = None if self.group is None else self.group.taken(self.relation_id)
        if typed is None:
            typed = self.rows.select(IS_THERE, *map(quoted, self.layout.names)).toArrow()
        return typed


class Group:
    """Tables with the same columns. Their rows are typed when the first of them needs its own."""

    def __init__(
        self, outcomes: DataFrame, relation_ids: Sequence[int], layout: Layout, epoch: int
    ) -> None:
        self._relation_ids = relation_ids
        self._outcomes, self._layout, self._epoch = outcomes, layout, epoch
        self._lock = threading.Lock()

    def taken(self, relation_id: int) -> pa.Table | None:
        """The rows of one of the tables, as `NewRows.in_arrow`; `None` without any, or again."""
        with self._lock:
            return self._typed.pop(relation_id, None)

    @cached_property
    def _typed(self) -> dict[int, pa.Table]:
        outcomes = of_relations(self._outcomes, self._relation_ids)
        rows = keyed_rows(outcomes, self._layout, self._epoch)
        names = [RELATION, IS_THERE, *map(quoted, self._layout.names)]
        return _split(rows.select(names).toArrow())


def groups(
    outcomes: DataFrame, tables: Mapping[int, tuple[Layout, Size]], epoch: int
) -> dict[int, Group]:
    """
    The group of each table that has one, by relation; of those with few bytes, if not of all.

    Tables whose rows need more than a projection of their columns are in none, nor are those whose
    rows Arrow does not have.

    Shape:
        outcomes: as `outcome` gives them, `sorted_by_relation`.
        tables: by relation.
    """
    fit = {r: layout for r, (layout, size) in tables.items() if _is_fit(layout, size)}
    alike = _alike(fit)
    sizes = {r: _bytes(*tables[r]) for relation_ids in alike for r in relation_ids}
    few = set(smallest(sizes, TOGETHER_BYTES))
    result = dict[int, Group]()
    for relation_ids in alike:
        chosen = [relation_id for relation_id in relation_ids if relation_id in few]
        if len(chosen) > 1:
            result |= dict.fromkeys(chosen, Group(outcomes, chosen, fit[chosen[0]], epoch))
    return result


def _is_fit(layout: Layout, size: Size) -> bool:
    """Whether rows need no other query than the projection of their columns, and Arrow has them."""
    is_arrow = not any("variant" in type_.simpleString() for type_ in layout.types.values())
    return is_arrow and not size.referred and not has_equal_keys(layout)


def _bytes(layout: Layout, size: Size) -> int:
    """Of rows in Arrow: texts at most as they are, and numbers, times and offsets."""
    return size.text_bytes + 8 * size.rows * len(layout.names)


def _alike(layouts: Mapping[int, Layout]) -> list[list[int]]:
    """The relations whose rows become the same columns, where there are several."""
    alike = dict[Hashable, list[int]]()
    for relation_id, layout in layouts.items():
        columns = [
            (c.name, c.source.name, form_of(c.source, c.options)) for c in layout.columns.values()
        ]
        alike.setdefault((tuple(columns), layout.key), []).append(relation_id)
    return [relation_ids for relation_ids in alike.values() if len(relation_ids) > 1]


def _split(rows: pa.Table) -> dict[int, pa.Table]:
    """The rows of each relation."""
    ordered = rows.sort_by(RELATION)
    own, start, parts = ordered.drop_columns([RELATION]), 0, dict[int, pa.Table]()
    for group in _compute.value_counts(ordered.column(RELATION)).to_pylist():
        parts[int(group["values"])] = own.slice(start, group["counts"])
        start += group["counts"]
    return parts
