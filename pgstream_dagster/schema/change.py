"""
One change of the log. No I/O.

`changes_of` reads an Arrow table of the log's columns; it avoids Arrow's own conversion of maps,
which takes as long as everything else that a sink does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from itertools import repeat
from typing import NamedTuple, TypeAlias

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


class Place(NamedTuple):
    """A position within one epoch: the order of its changes."""

    commit_lsn: Lsn
    ordinal: int


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
    commit_lsn: Lsn
    ordinal: int
    end_lsn: Lsn
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
        return f"{self.epoch}-{self.commit_lsn}-{self.number}"

    @property
    def number(self) -> str:
        """The last part of the event id, unique among the changes at one commit LSN."""
        if self.ordinal >= 0:
            return str(self.ordinal)
        return f"{self.relation_id}.{self.ordinal - COPY_ORDINAL}"

    @property
    def place(self) -> Place:
        """Its place in the epoch."""
        return Place(self.commit_lsn, self.ordinal)


def changes_of(rows: pa.Table, schemas: Mapping[int, TableSchema]) -> Iterator[Change]:
    """
    The changes in an Arrow table, in its order.

    Shape:
        rows: the columns of the change log (`schema.layout.CHANGES`).
        schemas: every version that the rows name, by schema id.
    """
    instants = rows.column("committed_at").cast(pa.int64())
    epochs, ordinals, ops, namespaces, relations = (
        rows.column(name).to_pylist()
        for name in ("epoch", "ordinal", "op", "namespace", "relation")
    )
    commit_lsns, end_lsns = _lsns(rows.column("commit_lsn")), _lsns(rows.column("end_lsn"))
    place = (epochs, commit_lsns, ordinals, end_lsns)
    ids = rows.column("relation_id").to_pylist()
    versions = [schemas.get(i) for i in rows.column("schema_id").to_pylist()]  # pyright: ignore[reportArgumentType]
    keys, old_keys = _lists(rows.column("key")), _lists(rows.column("old_key"))
    before, after = _maps(rows.column("before")), _maps(rows.column("after"))
    xids, payloads = rows.column("xid").to_pylist(), rows.column("payload").to_pylist()
    rest = (xids, instants.to_pylist(), payloads)
    names = (ops, namespaces, relations, ids, versions)
    for values in zip(*place, *names, keys, old_keys, before, after, *rest, strict=True):
        yield Change(*values)


def _lsns(column: pa.ChunkedArray) -> Iterator[Lsn]:
    """The changes of a transaction share one object."""
    last = Lsn(0)
    for number in column.to_pylist():
        if number != last:
            last = Lsn(number)
        yield last


def _lists(column: pa.ChunkedArray) -> Iterator[Key | None]:
    for chunk in column.chunks:
        if chunk.null_count == len(chunk):
            yield from repeat(None, len(chunk))
            continue
        offsets, (texts,) = _children(chunk, chunk.values)
        values = _texts(texts)
        for index, is_valid in enumerate(pc.is_valid(chunk).to_pylist()):
            yield tuple(values[offsets[index] : offsets[index + 1]]) if is_valid else None


def _maps(column: pa.ChunkedArray) -> Iterator[Image | None]:
    for chunk in column.chunks:
        if chunk.null_count == len(chunk):
            yield from repeat(None, len(chunk))
            continue
        offsets, (names, texts) = _children(chunk, chunk.keys, chunk.items)
        names_between, values = _names(names), _texts(texts)
        for index, is_valid in enumerate(pc.is_valid(chunk).to_pylist()):
            if is_valid:
                start, end = offsets[index], offsets[index + 1]
                yield dict(zip(names_between(start, end), values[start:end], strict=True))
            else:
                yield None


def _children(
    chunk: pa.ListArray | pa.MapArray, *children: pa.Array
) -> tuple[list[int], list[pa.Array]]:
    """Where each entry begins in these children, of which a slice has those of all rows."""
    offsets = chunk.offsets.to_numpy()
    first, count = offsets[0], offsets[-1] - offsets[0]
    return (offsets - first).tolist(), [child.slice(first, count) for child in children]


def _texts(values: pa.Array) -> list[str | None]:
    """As `to_pylist`, in less time."""
    return values.to_numpy(zero_copy_only=False).tolist()


def _names(keys: pa.Array) -> Callable[[int, int], tuple[str, ...]]:
    """
    The names between two places of the keys of a map column.

    Most rows have the same names in the same order, so their texts are made once.
    """
    encoded = pc.dictionary_encode(keys)
    names, indices = encoded.dictionary.to_pylist(), encoded.indices.to_numpy()
    width, places = indices.itemsize, indices.tobytes()
    by_shape: dict[bytes, tuple[str, ...]] = {}

    def between(start: int, end: int) -> tuple[str, ...]:
        shape = places[start * width : end * width]
        row_names = by_shape.get(shape)
        if row_names is None:
            row_names = by_shape[shape] = tuple(names[i] for i in indices[start:end].tolist())
        return row_names

    return between
