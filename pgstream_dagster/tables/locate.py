"""
Find the rows of given keys among the rows of a table's files, in Arrow. Pure, but for reading.

A key is equal as in a MERGE: by value, NULL too; and where a column's value may be in `_rescued`
instead, by its text there. Only the columns of the key are read, and those parts of a file are left
out whose values cannot be among the keys.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from pgstream_dagster.delta import parquet, uri
from pgstream_dagster.delta.deletion_vectors import NONE, RowNumbers
from pgstream_dagster.delta.statistics import ALL_ROWS, Within
from pgstream_dagster.tables.types import RESCUED

_compute: Final = cast("Any", pc)  # its functions are made when it is imported


@dataclass(frozen=True, slots=True)
class Key:
    """The columns of a key, by name; `rescuable`: those whose texts may be in `_rescued`."""

    names: Sequence[str]
    rescuable: Sequence[str]

    @property
    def columns(self) -> list[str]:
        """The columns to read."""
        return [*self.names, *([RESCUED] if self.rescuable else [])]

    def parts(self, rows: pa.Table) -> list[pa.ChunkedArray]:
        """What makes rows of the same key equal."""
        values = [rows.column(name) for name in self.names]
        texts = [
            _compute.map_lookup(rows.column(RESCUED), query_key=name, occurrence="first")
            for name in self.rescuable
        ]
        return values + texts


def can_locate(fields: Mapping[str, pa.Field], key: Sequence[str]) -> bool:
    """Whether Arrow finds keys of these types as Spark compares them: no floats, nothing nested."""
    types = [fields[name].type for name in key]
    return not any(pa.types.is_floating(type_) or pa.types.is_nested(type_) for type_ in types)


class Finder:
    """Finds the keys of some rows."""

    def __init__(self, rows: pa.Table, key: Key) -> None:
        self._key = key
        self._steps: list[tuple[pa.Array, pa.Array | None]] = []
        codes: pa.ChunkedArray | None = None
        for part in key.parts(rows):
            values = _compute.unique(part)
            numbers = _codes(part, values)
            distinct = None
            if codes is not None:
                numbers = _compute.add(_compute.multiply(codes, len(values)), numbers)
                distinct = _compute.unique(numbers)
                numbers = _codes(numbers, distinct)
            self._steps.append((values, distinct))
            codes = numbers
        self.is_unique = codes is None or _compute.count_distinct(codes).as_py() == len(codes)
        self._within = _within(key.names[0], rows)

    def among(self, rows: pa.Table) -> pa.BooleanArray:
        """Which of these rows have one of the keys."""
        codes: Any = None
        parts = self._key.parts(rows)
        for part, (values, distinct) in zip(parts, self._steps, strict=True):
            numbers = _codes(part, values)
            if distinct is not None:
                numbers = _codes(
                    _compute.add(_compute.multiply(codes, len(values)), numbers), distinct
                )
            codes = numbers
        return _compute.is_valid(codes)

    def rows_of(self, path: str, fields: Mapping[str, pa.Field]) -> RowNumbers:
        """
        The rows of a file that have one of the keys, deleted ones too.

        Shape:
            fields: column name -> field in the file; what an older file lacks is NULL.
        """
        begin, places = 0, [NONE]
        chosen = {name: fields[name] for name in self._key.columns}
        within = {fields[name].name: bounds for name, bounds in self._within.items()}
        for rows, piece in _pieces(path, chosen, within):
            if piece is not None:
                mask = self.among(piece)
                places.append(np.flatnonzero(mask.to_numpy(zero_copy_only=False)) + begin)
            begin += rows
        return np.concatenate(places)


def _codes(values: Any, distinct: pa.Array) -> Any:
    """The index of each value; null if it is none of these."""
    return _compute.index_in(values, value_set=distinct)


def _within(name: str, rows: pa.Table) -> Within:
    """The least and greatest key, of types whose statistics compare as Python's values do."""
    column = rows.column(name)
    is_plain = pa.types.is_integer(column.type) or pa.types.is_string(column.type)
    if not is_plain or column.null_count or not len(column):
        return ALL_ROWS
    least, greatest = _compute.min_max(column).as_py().values()
    return {name: (least, greatest)}


def _pieces(
    path: str, fields: Mapping[str, pa.Field], within: Within
) -> Generator[tuple[int, pa.Table | None]]:
    """Row count and rows of each part of a file; `None` for one without any of the keys."""
    with opened(path) as file:
        present = [f.name for f in fields.values() if f.name in file.schema_arrow.names]
        for group in range(file.metadata.num_row_groups):
            metadata = file.metadata.row_group(group)
            if parquet.may_have(metadata, within):
                read = file.read_row_group(group, present, use_threads=False)
                yield metadata.num_rows, named(read, fields)
            else:
                yield metadata.num_rows, None


def opened(path: str) -> pq.ParquetFile:
    """
    A file of the table, to be closed.

    Another Spark that has rewritten it may have written timestamps as INT96, which Arrow would read
    as nanoseconds: the year 9999 would become 1816.
    """
    filesystem, there = uri.filesystem(path)
    return pq.ParquetFile(there, filesystem=filesystem, coerce_int96_timestamp_unit="us")


def named(rows: pa.Table, fields: Mapping[str, pa.Field]) -> pa.Table:
    """Rows of a file under the names of the table; NULL for what an older file lacks."""
    present = set(rows.column_names)
    columns = [
        rows.column(field.name).cast(field.type)
        if field.name in present
        else pa.nulls(rows.num_rows, field.type)
        for field in fields.values()
    ]
    return pa.Table.from_arrays(columns, names=list(fields))
