"""
Tables that are read whole, without Spark: the ledger, the log of schemas, the dead letters.

Their rows are ordered by the commits that added them: a file's name begins with the version of its
commit. No clock could give that order.
"""

from __future__ import annotations

import threading
import uuid
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Any, Final

import pyarrow as pa
from py4j.java_gateway import JavaGateway

from pgstream_dagster.delta import parquet, uri
from pgstream_dagster.delta.delta_table import DeltaTable
from pgstream_dagster.delta.parquet import DataFile

MERGE_FROM_FILES: Final = 16
"""Fewer files are not worth a merge: reading them takes no noticeable time."""


class SmallTable:
    """A table opened at first use. Threads may share it; each call sees the newest commit."""

    def __init__(self, table: str, columns: pa.Schema, gateway: JavaGateway) -> None:
        self.uri, self._columns, self._gateway = table, columns, gateway
        self._opened: DeltaTable | None = None
        self._lock = threading.RLock()
        self._read: tuple[int, pa.Table] | None = None  # version, and its rows

    def rows(self) -> pa.Table:
        """
        Every row, in the order in which they were added; the same object while nothing is added.

        Raises:
            TableMissing: `setup` has not made it.
        """
        with self._lock:
            table = self._table()
            table.refresh()
            if self._read is None or self._read[0] != table.version:
                self._read = table.version, table.read(self._columns)
            return self._read[1]

    def add_rows(self, rows: pa.Table) -> None:
        """Append rows in one commit, durable when this returns."""
        with self._lock:
            while not append_next(self._table(), rows.cast(self._columns)):
                self._table().refresh()

    def add_records(self, records: Iterable[Mapping[str, Any]]) -> None:
        """Append records with the time of now in `recorded_at`; no commit when there are none."""
        now = datetime.now(UTC)
        rows = [{**record, "recorded_at": now} for record in records]
        if rows:
            self.add_rows(pa.Table.from_pylist(rows, self._columns))

    def merge(self) -> None:
        """Put the rows of all files into one; nothing is lost when others add at the same time."""
        with self._lock:
            table = self._table()
            table.refresh()
            before = table.files()
            if len(before) > MERGE_FROM_FILES:
                file = merged(table, [file.name for file in before], self._columns)
                table.rewrite(before, [file])

    def close(self) -> None:
        """Wait for the checksums and checkpoints of its commits."""
        with self._lock:
            if self._opened is not None:
                self._opened.close()

    def _table(self) -> DeltaTable:
        if self._opened is None:
            self._opened = DeltaTable(self.uri, self._gateway)
        return self._opened


def append_next(table: DeltaTable, rows: pa.Table) -> bool:
    """Append rows as the next version; false, and nothing is added, if it exists by now."""
    version = table.version + 1

    def is_next(_: object) -> None:
        if table.version + 1 != version:
            raise _Overtaken

    file = written(table.uri, rows, version)
    try:
        table.append([file], condition=is_next)
    except _Overtaken:
        parquet.discard(file.path)
        return False
    return True


def written(table_uri: str, rows: pa.Table, version: int) -> DataFile:
    """A synced file of rows, named by the version of the commit that adds it."""
    file = parquet.write(rows, table_uri, bounds=(), name=_file_name(version))
    parquet.sync(file)
    return file


def merged(table: DeltaTable, names: Iterable[str], columns: pa.Schema) -> DataFile:
    """A synced file of the rows of others; a bounded part of them is in memory at once."""
    name = _file_name(table.version)
    with parquet.FileWriter(table.uri, columns, bounds=(), name=name) as file:
        waiting, size = list[pa.Table](), 0
        for path in (uri.child(table.uri, name) for name in sorted(names)):
            for piece in parquet.pieces(path, columns):
                waiting.append(piece)
                size += piece.nbytes
                if size >= parquet.PIECE_BYTES:
                    file.write(pa.concat_tables(waiting))
                    waiting, size = [], 0
        if waiting:
            file.write(pa.concat_tables(waiting))
    parquet.sync(done := file.written())
    return done


def _file_name(version: int) -> str:
    return f"v{version:020d}-{uuid.uuid4()}.parquet"


class _Overtaken(Exception):
    """Another commit has taken the version in the file's name."""
