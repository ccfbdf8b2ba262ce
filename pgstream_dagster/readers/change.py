"""
One change of the log, and batches of changes, as sinks receive them. No I/O.

`changes_of` reads an Arrow table of the log's columns; it avoids Arrow's own conversion of maps,
which takes as long as everything else that a sink does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from pgstream_dagster.lsn import Lsn
from pgstream_dagster.schema.changes import COPY_ORDINAL
from pgstream_dagster.schema.table import TableSchema

Key: TypeAlias = tuple["str | None", ...]
"""The values of a row's key, as text, in the order of the key."""

Image: TypeAlias = Mapping[str, "str | None"]
"""Column name to Postgres text: `None` is NULL, a missing name was not sent."""


class Change(msgspec.Struct, frozen=True, gc=False):
    """
    One change of a row, a truncate or a marker, with the schema that its row was written with.

    `op` is an `Op`. (`epoch`, `commit_lsn`, `ordinal`) is its position, the order of the changes of
    a table; rows of copies of several tables may share one. `namespace` and `relation` are the
    table's name at that position. `key` is the row's key after the change, `old_key` the one before
    if it differs; both are `None` for a table without a key. `xid` and `committed_at_us`
    (microseconds since 1970, UTC) are `None` for copied rows and markers.
    """

    epoch: int
    commit_lsn: int
    ordinal: int
    end_lsn: int
    op: str
    namespace: str
    relation: str
    relation_id: int
    schema: TableSchema | None  # none for a message
    key: Key | None = None
    old_key: Key | None = None
    before: Image | None = None
    after: Image | None = None
    xid: int | None = None
    committed_at_us: int | None = None
    payload: str | None = None

    @property
    def event_id(self) -> str:
        """
        The same change always has the same id, and no two share one.

        `epoch-commit_lsn-ordinal`; of rows that are in no transaction, which are numbered per
        table: `epoch-commit_lsn-relation_id.number`.
        """
        return f"{self.epoch}-{Lsn(self.commit_lsn)}-{self.number}"

    @property
    def number(self) -> str:
        """The last part of the event id, unique among the changes at one commit LSN."""
        if self.ordinal >= 0:
            return str(self.ordinal)
        return f"{self.relation_id}.{self.ordinal - COPY_ORDINAL}"

    @property
    def place(self) -> Place:
        """Its place in the epoch."""
        return self.commit_lsn, self.ordinal


Place: TypeAlias = tuple[int, int]
"""Commit LSN and ordinal: the order of changes within an epoch."""


@dataclass(frozen=True, slots=True)
class ChangeBatch:
    """
    Changes in order of their positions, as one call delivers them.

    `cursor` is the reader's progress once the batch is delivered: a sink whose target has
    transactions stores it with the changes. `ends_transaction`: whether the last change is the last
    one of its transaction that this reader receives; a large transaction comes in several batches.
    Copied rows belong to no transaction: the last batch of a copy has it set.

    A sink that delivers a batch by several calls calls `require` before each, with the seconds that
    the call may take: it raises once another process may deliver.
    """

    changes: list[Change] = field(default_factory=list[Change])
    cursor: str = ""
    ends_transaction: bool = True
    require: Callable[[float], None] = field(default=lambda _seconds: None, compare=False)


def changes_of(rows: pa.Table, schemas: Mapping[int, TableSchema]) -> Iterator[Change]:
    """
    The changes in an Arrow table, in its order.

    Shape:
        rows: the columns of the change log (`schema.layout.CHANGES`).
        schemas: every version that the rows name, by schema id.
    """
    instants = rows.column("committed_at").cast(pa.int64())
    columns = [
        rows.column(name).to_pylist()
        for name in ("epoch", "commit_lsn", "ordinal", "end_lsn", "op", "namespace", "relation")
    ]
    ids = rows.column("relation_id").to_pylist()
    versions = [schemas.get(i) for i in rows.column("schema_id").to_pylist()]  # pyright: ignore[reportArgumentType]
    keys, old_keys = _lists(rows.column("key")), _lists(rows.column("old_key"))
    before, after = _maps(rows.column("before")), _maps(rows.column("after"))
    xids, payloads = rows.column("xid").to_pylist(), rows.column("payload").to_pylist()
    rest = (xids, instants.to_pylist(), payloads)
    for values in zip(*columns, ids, versions, keys, old_keys, before, after, *rest, strict=True):
        yield Change(*values)


def _lists(column: pa.ChunkedArray) -> Iterator[Key | None]:
    for chunk in column.chunks:
        offsets, values = chunk.offsets.to_pylist(), chunk.values.to_pylist()
        for index, is_valid in enumerate(pc.is_valid(chunk).to_pylist()):
            yield tuple(values[offsets[index] : offsets[index + 1]]) if is_valid else None


def _maps(column: pa.ChunkedArray) -> Iterator[Image | None]:
    for chunk in column.chunks:
        offsets, names = chunk.offsets.to_pylist(), chunk.keys.to_pylist()
        values = chunk.items.to_pylist()
        for index, is_valid in enumerate(pc.is_valid(chunk).to_pylist()):
            if is_valid:
                start, end = offsets[index], offsets[index + 1]
                yield dict(zip(names[start:end], values[start:end], strict=True))
            else:
                yield None
