"""A row of the change log as a plain value, for tests that take one at a time."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple, TypeAlias

from pgstream_dagster.lsn import Lsn
from pgstream_dagster.schema.changes import Op

RowImage: TypeAlias = Mapping[str, str | None]
"""Column name to Postgres text. A missing name was not sent; `None` is NULL."""


class Position(NamedTuple):
    """The total order of changes."""

    epoch: int
    commit_lsn: Lsn
    ordinal: int

    def __str__(self) -> str:
        return f"{self.epoch}:{Lsn(self.commit_lsn)}:{self.ordinal}"


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
