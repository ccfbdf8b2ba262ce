"""
The operations of the change log, its first epoch, and ordinals of rows in no transaction. No I/O.

The order of all changes is (epoch, commit_lsn, ordinal): never a clock, an arrival or a Delta
version. A copy's rows have the snapshot's consistent point as commit_lsn and negative ordinals, so
they sort before a transaction that commits exactly there (which Postgres does stream).
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final


class Op(StrEnum):
    """The operation of one row of the change log."""

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


FIRST_EPOCH: Final = 1
"""Of every log; the next one begins when the source is another, or was restored."""

GAP_ORDINAL: Final = -(1 << 63)
"""Of a `gap` row: the lowest BIGINT, before a copy at the same point."""

COPY_ORDINAL: Final = -(1 << 62)
"""Of a `copy` marker: before every row of its copy, after a gap at the same point."""

DIFFERENCE_ORDINAL: Final = -(1 << 61)
"""Before the first difference that a copy made for a reader: after every row of a copy."""

RANGE_ROWS: Final = 1 << 40
"""Ordinals that one copied ctid range may use: more rows would exceed a relation's 32 TiB."""


def first_read_ordinal(range_number: int) -> int:
    """Ordinal of the first row of copied range `range_number` (from 0); unique in its copy."""
    return COPY_ORDINAL + 1 + range_number * RANGE_ROWS
