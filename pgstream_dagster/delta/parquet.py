"""
Data files: one Arrow table, one Parquet file, one description for the log.

Needs no JVM and no log, so Spark's tasks use it as well as capture. A file that no commit names
belongs to no table: a later VACUUM removes it.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Generator, Iterable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from typing import Final, Self

import pyarrow as pa
import pyarrow.parquet as pq

from pgstream_dagster.delta import fsync, uri
from pgstream_dagster.delta.statistics import ALL_ROWS, Statistics, Within, overlap
from pgstream_dagster.schema import layout

ROW_GROUP_ROWS: Final = 1 << 17
"""Rows that are skipped or read together; also bounds what a reader holds in memory."""

PIECE_ROWS: Final = 1_000
PIECE_BYTES: Final = 8 << 20
"""What `pieces` reads at once; one row may be larger."""

BUFFER_BYTES: Final = 1 << 20
"""Read at once of a column; without a bound a whole row group of it would be."""

PAGE_VALUES: Final = 64
"""Written between two looks at the size of a page, unless they are large: a page that has reached
its size (1 MB) ends there, and a reader decompresses each as a whole. With 1,024, Arrow's default,
a page of values of 100 kB takes 100 MB."""

PAGE_BYTES: Final = 1 << 20
"""Of values of one column at most between two looks, as far as the average says."""

DICTIONARY: Final = [
    *("sink", "epoch", "op", "namespace", "relation", "relation_id", "schema_id"),
    *("before.key_value.key", "after.key_value.key"),
]
"""Columns of few values; for others a dictionary costs time and is thrown away."""

STATISTICS: Final = [
    *("sink", "epoch", "commit_lsn", "ordinal", "namespace", "relation", "relation_id"),
]
"""Columns that readers filter row groups by; statistics of the maps would only cost."""


@dataclass(frozen=True, slots=True)
class DataFile:
    """A written file: its URI, what is in it, and Delta's statistics of it."""

    path: str
    rows: int
    size: int  # bytes
    stats_json: str


def write(
    table: pa.Table,
    folder: str,
    *,
    bounds: Sequence[str] = layout.BOUNDS,
    name: str | None = None,
) -> DataFile:
    """
    Write `table` as one new file into the table's `folder` (a URI); not synced.

    Shape:
        bounds: columns whose least and greatest values go to the log, as `Statistics` takes them.
        name: of the file; it must be new.
    """
    with FileWriter(folder, table.schema, bounds=bounds, name=name) as file:
        file.write(table)
    return file.written()


def discard(path: str) -> None:
    """Remove a file that no commit names, if the disk allows it."""
    filesystem, there = uri.filesystem(path)
    with suppress(OSError):
        filesystem.delete_file(there)


class FileWriter:
    """
    One file written piece by piece; `written` describes it once it is closed.

    As a context manager it removes the file after an error: on a full disk, every further attempt
    would leave another.
    """

    def __init__(
        self,
        folder: str,
        schema: pa.Schema,
        *,
        bounds: Sequence[str] = layout.BOUNDS,
        name: str | None = None,
    ) -> None:
        self.path = uri.child(folder, name or f"{uuid.uuid4()}.parquet")
        self.rows = 0
        self._statistics = Statistics(bounds)
        filesystem, there = uri.filesystem(self.path)
        self._file = filesystem.open_output_stream(there)
        self._schema = schema
        self._writer: pq.ParquetWriter | None = None  # until the size of rows is known

    def write(self, table: pa.Table) -> None:
        """Append rows; they are compressed and written out one row group at a time."""
        self._statistics.add(table)
        self.rows += table.num_rows
        if self._writer is None:
            row_bytes = table.nbytes // max(1, table.num_rows)
            self._writer = self._made(min(PAGE_VALUES, PAGE_BYTES // max(1, row_bytes)))
        self._writer.write_table(table, row_group_size=ROW_GROUP_ROWS)

    @property
    def size(self) -> int:
        """Bytes written out so far."""
        return self._file.tell()

    def close(self) -> None:
        """Write the footer. Idempotent."""
        if not self._file.closed:
            (self._writer or self._made(PAGE_VALUES)).close()
            self._size = self._file.tell()
            self._file.close()

    def _made(self, values_at_once: int) -> pq.ParquetWriter:
        names = self._schema.names
        return pq.ParquetWriter(
            self._file,
            self._schema,
            compression="zstd",
            compression_level=1,
            use_dictionary=[name for name in DICTIONARY if name.split(".")[0] in names],  # pyright: ignore[reportArgumentType]
            write_statistics=[name for name in STATISTICS if name in names],  # pyright: ignore[reportArgumentType]
            store_schema=False,
            write_batch_size=max(1, values_at_once),
        )

    def written(self) -> DataFile:
        """The closed file."""
        statistics = json.dumps(self._statistics.to_dict())
        return DataFile(self.path, self.rows, self._size, statistics)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *details: object) -> None:
        with ExitStack() as undo:
            undo.callback(discard, self.path)
            self.close()
            if kind is None:
                undo.pop_all()


def sync(*files: DataFile) -> None:
    """The files and their names are on disk when this returns; no-op on object stores."""
    paths = [uri.local(file.path) for file in files]
    fsync.sync_files(path for path in paths if path is not None)


def read(paths: Iterable[str], schema: pa.Schema) -> pa.Table:
    """
    The rows of these files, in the order given, with the columns of `schema`.

    Raises:
        FileNotFoundError: a file was removed by VACUUM.
    """
    tables = [columns(path).cast(schema) for path in paths]
    return pa.concat_tables(tables) if tables else schema.empty_table()


def columns(path: str, names: Sequence[str] | None = None) -> pa.Table:
    """The rows of one file, with the named columns or all."""
    filesystem, there = uri.filesystem(path)
    file = pq.ParquetFile(there, filesystem=filesystem)
    return file.read(names and list(names), use_threads=False)


def pieces(path: str, schema: pa.Schema, *, within: Within = ALL_ROWS) -> Generator[pa.Table]:
    """
    The rows of one file, a bounded number at once; NULL where the file lacks a column.

    `within`: parts of the file without a row that has all of these are left out; other rows may
    come.
    """
    filesystem, there = uri.filesystem(path)
    with pq.ParquetFile(
        there, filesystem=filesystem, buffer_size=BUFFER_BYTES, pre_buffer=False
    ) as file:
        names = [name for name in schema.names if name in file.schema_arrow.names]
        for group in range(file.metadata.num_row_groups):
            metadata = file.metadata.row_group(group)
            if not metadata.num_rows or not may_have(metadata, within):
                continue
            row_bytes = max(1, metadata.total_byte_size // metadata.num_rows)
            rows = max(1, min(PIECE_ROWS, PIECE_BYTES // row_bytes))
            for batch in file.iter_batches(rows, [group], names, use_threads=False):
                yield fitted(pa.Table.from_batches([batch]), schema)


def fitted(rows: pa.Table, schema: pa.Schema) -> pa.Table:
    """Rows with the columns of `schema`; NULL for those that they lack."""
    have = set(rows.column_names)
    columns = [
        rows.column(field.name).cast(field.type)
        if field.name in have
        else pa.nulls(rows.num_rows, field.type)
        for field in schema
    ]
    return pa.Table.from_arrays(columns, schema=schema)


def may_have(group: pq.RowGroupMetaData, within: Within) -> bool:
    """Whether a part of a file may have a row with all values within bounds."""
    for chunk in map(group.column, range(group.num_columns) if within else ()):
        bounds, statistics = within.get(chunk.path_in_schema), chunk.statistics
        if bounds is None or statistics is None or not statistics.has_min_max:
            continue
        if not overlap(statistics.min, statistics.max, bounds):
            return False
    return True
