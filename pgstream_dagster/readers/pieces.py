"""
Rows of the log in pieces of bounded size, whatever the size of the files.

A landing's file may hold a transaction of any size. So files are read a few rows at a time; how
many follows from the average size of a row in each row group.
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
            row_bytes = max(1, metadata.total_byte_size // max(1, metadata.num_rows))
            rows = max(1, min(PIECE_ROWS, max_bytes // row_bytes))
            for batch in file.iter_batches(rows, row_groups=[group], use_threads=False):
                if batch.num_rows:
                    yield pa.Table.from_batches([batch]).cast(CHANGES)
