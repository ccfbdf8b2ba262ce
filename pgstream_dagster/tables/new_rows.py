"""
What the changes of a table leave at the keys that they touch, as rows of the table.

Tables with the same columns get theirs by one query: to plan one takes longer than to type few
rows, and where each tenant has tables of its own, many have the same columns.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
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
from pgstream_dagster.tables.passes import BROADCAST_CHANGES
from pgstream_dagster.tables.rows import has_equal_keys, keyed_rows, resolved

_compute: Final = cast("Any", pc)  # its functions are made when it is imported


@dataclass(frozen=True)
class NewRows:
    """
    The new rows of one table.

    Shape:
        outcomes: of several relations, as `outcome` gives them, `sorted_by_relation`.
        former: the rows of the table.
        typed: the result of `typed_together`.
    """

    relation_id: int
    layout: Layout
    outcomes: DataFrame
    size: Size
    former: Callable[[], DataFrame]
    typed: pa.Table | None
    epoch: int

    @cached_property
    def rows(self) -> DataFrame:
        """The columns of the table, IS_THERE and others; of a key without a row only its own."""
        outcomes, size = of_relation(self.outcomes, self.relation_id), self.size
        rows = keyed_rows(outcomes, self.layout, self.epoch)
        if not size.referred:
            return rows
        is_small = size.referring_rows <= BROADCAST_CHANGES
        return resolved(rows, self.former(), self.layout, size.referred, is_small=is_small)

    def in_arrow(self) -> pa.Table:
        """IS_THERE and the columns of the table."""
        if self.typed is not None:
            return self.typed
        return self.rows.select(IS_THERE, *map(quoted, self.layout.names)).toArrow()


def typed_together(
    outcomes: DataFrame, tables: Mapping[int, tuple[Layout, Size]], epoch: int, *, limit: int
) -> dict[int, pa.Table]:
    """
    The rows of tables that have the same columns as another, as `keyed_rows` gives them.

    Without those that take values from rows before, and not all if they have too many bytes.

    Shape:
        outcomes: as `outcome` gives them, `sorted_by_relation`.
        tables: by relation.
        limit: bytes of texts.
        result: relation -> IS_THERE and the columns of the table, as Spark gives them to Arrow.
    """
    few = _few({r: size for r, (layout, size) in tables.items() if _is_fit(layout, size)}, limit)
    typed = dict[int, pa.Table]()
    for relation_ids in _alike({r: tables[r][0] for r in few}):
        layout = tables[relation_ids[0]][0]
        rows = keyed_rows(of_relations(outcomes, relation_ids), layout, epoch)
        names = [RELATION, IS_THERE, *map(quoted, layout.names)]
        typed |= _split(rows.select(names).toArrow())
    return typed


def _is_fit(layout: Layout, size: Size) -> bool:
    """Whether rows need no other query than the projection of their columns, and Arrow has them."""
    is_arrow = not any("variant" in type_.simpleString() for type_ in layout.types.values())
    return is_arrow and not size.referred and not has_equal_keys(layout)


def _few(sizes: Mapping[int, Size], limit: int) -> list[int]:
    """The relations with the fewest bytes, as far as these are within a limit together."""
    few, total = list[int](), 0
    for relation_id, size in sorted(sizes.items(), key=lambda item: item[1].text_bytes):
        total += size.text_bytes
        if total > limit:
            break
        few.append(relation_id)
    return few


def _alike(layouts: Mapping[int, Layout]) -> Iterable[Sequence[int]]:
    """The relations whose rows become the same columns, where there are several."""
    groups = dict[Hashable, list[int]]()
    for relation_id, layout in layouts.items():
        columns = [
            (c.name, c.source.name, form_of(c.source, c.options)) for c in layout.columns.values()
        ]
        groups.setdefault((tuple(columns), layout.key), []).append(relation_id)
    return [relation_ids for relation_ids in groups.values() if len(relation_ids) > 1]


def _split(rows: pa.Table) -> dict[int, pa.Table]:
    """The rows of each relation."""
    ordered = rows.sort_by(RELATION)
    own, start, parts = ordered.drop_columns([RELATION]), 0, dict[int, pa.Table]()
    for group in _compute.value_counts(ordered.column(RELATION)).to_pylist():
        parts[int(group["values"])] = own.slice(start, group["counts"])
        start += group["counts"]
    return parts
