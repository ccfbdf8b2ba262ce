"""
Rows of the log in pieces of bounded size, whatever the size of the files.

A landing's file may hold a transaction of any size. So files are read a few rows at a time; how
many follows from the average size of a row in each row group, or from that of its first rows where
those are larger: a value that many rows share is stored once.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable
from typing import Final

import pyarrow as pa
import pyarrow.parquet as pq

from pgstream_dagster.delta import uri
from pgstream_dagster.errors import LogGone
from pgstream_dagster.schema.layout import CHANGES

PIECE_ROWS: Final = 20_000
"""Larger pieces are not faster; a reader stores its progress after each."""

BUFFER_BYTES: Final = 1 << 20
"""Read ahead per column, instead of a whole row group."""

PROBED_ROWS: Final = 64
"""Of a row group with more rows: their size in memory is measured before it is read."""

MEMORY_FACTOR: Final = 8
"""Bytes in Python per byte of the same rows in Arrow, at most: short values cost most."""


def pieces(paths: Iterable[str], max_bytes: int, table: str) -> Generator[pa.Table]:
    """
    The rows of these files of `table`, in the order given.

    Shape:
        max_bytes: what one piece may take in memory as Python objects; one row may take more.
        result: the columns of the log; no empty tables.

    Raises:
        LogGone: a file was removed by VACUUM.
    """
    for path in paths:
        try:
            yield from _pieces(path, max_bytes // MEMORY_FACTOR)
        except FileNotFoundError as error:
            raise LogGone(table, -1) from error


def _pieces(path: str, max_bytes: int) -> Generator[pa.Table]:
    filesystem, there = uri.filesystem(path)
    with pq.ParquetFile(
        there, filesystem=filesystem, buffer_size=BUFFER_BYTES, pre_buffer=False
    ) as file:
        for group in range(file.metadata.num_row_groups):
            metadata = file.metadata.row_group(group)
            row_bytes = metadata.total_byte_size // max(1, metadata.num_rows)
            if metadata.num_rows > PROBED_ROWS:
                row_bytes = max(row_bytes, _row_bytes(file, group))
            rows = max(1, min(PIECE_ROWS, max_bytes // max(1, row_bytes)))
            for batch in file.iter_batches(rows, row_groups=[group], use_threads=False):
                if batch.num_rows:
                    yield pa.Table.from_batches([batch]).cast(CHANGES)


def _row_bytes(file: pq.ParquetFile, group: int) -> int:
    """Of the first rows of a row group, in memory."""
    first = next(file.iter_batches(PROBED_ROWS, row_groups=[group], use_threads=False))
    return first.nbytes // max(1, first.num_rows)
