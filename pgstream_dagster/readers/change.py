"""
Batches of changes, as sinks receive them, and the change that they are made of. No I/O.

A batch has the rows of the log, and makes a `Change` of each when one is asked for: a sink that
renders whole columns needs none.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, overload

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pgstream_dagster.schema.change import Change, Image, Key, Place, changes_of
from pgstream_dagster.schema.table import TableSchema

__all__ = ["Change", "ChangeBatch", "Image", "Key", "LoggedChanges", "Place", "changes_of"]


VERSION: Final = ("schema_id", "namespace", "relation")
"""The columns that name the version of a table."""


class LoggedChanges(Sequence[Change]):
    """
    Changes as rows of the log, until the first of them is asked for: then as objects alone.

    Shape:
        rows, schemas: as for `changes_of`.
    """

    def __init__(self, rows: pa.Table, schemas: Mapping[int, TableSchema]) -> None:
        self.schemas = schemas
        self.rows: pa.Table | None = rows
        self._count = rows.num_rows
        self._made = list[Change]()

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[Change]:
        return iter(self._objects())

    @overload
    def __getitem__(self, index: int) -> Change: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Change]: ...
    def __getitem__(self, index: int | slice) -> Change | Sequence[Change]:
        if self.rows is None or not isinstance(index, slice):
            return self._objects()[index]
        start, stop, step = index.indices(self._count)
        if step != 1:
            return self._objects()[index]
        return LoggedChanges(self.rows.slice(start, max(0, stop - start)), self.schemas)

    def _objects(self) -> list[Change]:
        if self.rows is not None:
            self._made = list(changes_of(self.rows, self.schemas))
            self.rows = None  # both would take more memory than a reader counts
        return self._made


def of_operation(changes: Sequence[Change], op: str) -> Sequence[Change]:
    """Those of one operation."""
    if isinstance(changes, LoggedChanges) and changes.rows is not None:
        rows = changes.rows.filter(pc.equal(changes.rows.column("op"), op))
        return LoggedChanges(rows, changes.schemas)
    return [change for change in changes if change.op == op]


def of_versions(changes: Sequence[Change]) -> Sequence[Change]:
    """At least those whose table has another version or name than the change before them."""
    if not isinstance(changes, LoggedChanges) or changes.rows is None:
        return changes
    _, starts = same_values(changes.rows, VERSION)
    return LoggedChanges(changes.rows.take(pa.array(starts)), changes.schemas)


def same_values(rows: pa.Table, names: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
    """
    Neighbours that have the same values in some columns, as groups that are numbered from 0.

    Shape:
        result: the group of each row; the first row of each group.
    """
    begins = np.zeros(rows.num_rows, np.bool_)
    begins[:1] = True
    for name in names:
        codes = codes_of(rows.column(name))
        begins[1:] |= codes[1:] != codes[:-1]
    return np.cumsum(begins) - 1, np.flatnonzero(begins)


def codes_of(column: pa.ChunkedArray) -> np.ndarray:
    """A number for each value of a column, the same for equal values; NULL is one of them."""
    encoded = column.combine_chunks().dictionary_encode("encode")
    return encoded.indices.to_numpy()


@dataclass(frozen=True, slots=True)
class ChangeBatch:
    """
    Changes in order of their positions, as one call delivers them.

    `cursor` is the reader's progress once the batch is delivered: a sink whose target has
    transactions stores it with the changes. `ends_transaction`: whether the last change is the last
    one of its transaction that this reader receives; a large transaction comes in several batches.
    Copied rows belong to no transaction: the last batch of a copy has it set. `comes_late`: its
    changes may be older than others that were delivered, and of tables that have ended since: those
    of a copy that is taken in, and everything after a reset.

    A sink that delivers a batch by several calls calls `require` before each, with the seconds that
    the call may take: it raises once another process may deliver.
    """

    changes: Sequence[Change] = field(default_factory=list[Change])
    cursor: str = ""
    ends_transaction: bool = True
    comes_late: bool = False
    require: Callable[[float], None] = field(default=lambda _seconds: None, compare=False)
