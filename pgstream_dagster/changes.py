"""
The domain's records: positions, operations and row images.

Plain values, no I/O. The pipeline itself moves changes as Arrow tables with the columns of
`changelog.layout`; a `Change` is one such row for people, tests and readers that take one at a
time.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final, NamedTuple, TypeAlias

from pgstream_dagster.lsn import Lsn

RowImage: TypeAlias = Mapping[str, str | None]
"""Column name to Postgres text. A missing name was not sent; `None` is NULL."""


class Op(StrEnum):
    """What one row of the change log says."""

    INSERT = "insert"
    UPDATE = "update"
    DELETE = "delete"
    TRUNCATE = "truncate"
    COPY = "copy"  # marker: the relation starts again here
    READ = "read"  # a copied row
    GAP = "gap"  # marker: changes of the relation are missing before here
    DDL = "ddl"
    MESSAGE = "message"


ROW_OPS: Final = frozenset({Op.INSERT, Op.UPDATE, Op.DELETE, Op.READ})
"""The operations that carry a row image."""


class Position(NamedTuple):
    """
    The total order of changes: never a clock, an arrival or a Delta version.

    A copy's rows have the snapshot's consistent point as `commit_lsn` and negative ordinals, so
    they sort before a transaction that commits exactly there (which Postgres does stream).
    """

    epoch: int
    commit_lsn: Lsn
    ordinal: int

    def __str__(self) -> str:
        return f"{self.epoch}:{Lsn(self.commit_lsn)}:{self.ordinal}"


GAP_ORDINAL: Final = -(1 << 63)
"""Of a `gap` row: the lowest BIGINT, before a copy at the same point."""

COPY_ORDINAL: Final = -(1 << 62)
"""Of a `copy` marker: before every row of its copy, after a gap at the same point."""

RANGE_ROWS: Final = 1 << 40
"""Ordinals one copied ctid range may use: a range of more rows would exceed a relation's 32 TiB."""


def first_read_ordinal(range_number: int) -> int:
    """Ordinal of the first row of copied range `range_number` (from 0); unique in its copy."""
    return COPY_ORDINAL + 1 + range_number * RANGE_ROWS


@dataclass(frozen=True, slots=True)
class Change:
    """One row of the change log; `before` and `after` as in `RowImage`, `None` when absent."""

    position: Position
    end_lsn: Lsn
    op: Op
    namespace: str | None
    relation: str | None
    relation_id: int | None
    schema_id: int | None = None
    key: tuple[str | None, ...] | None = None
    old_key: tuple[str | None, ...] | None = None
    before: RowImage | None = None
    after: RowImage | None = None
    payload: str | None = None
    xid: int | None = None
    committed_at_us: int | None = field(default=None)
