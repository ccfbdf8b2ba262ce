"""
Tables that are read whole, without Spark: the ledger, the log of schemas, the dead letters.

Their rows are ordered by the commits that added them: a file's name begins with the version of its
commit. No clock could give that order.
"""

from __future__ import annotations

import threading
import uuid
from typing import Final

import pyarrow as pa
from py4j.java_gateway import JavaGateway

from pgstream_dagster.delta import parquet
from pgstream_dagster.delta.delta_table import DeltaTable
from pgstream_dagster.delta.parquet import DataFile

MERGE_FROM_FILES: Final = 16
"""Fewer files are not worth a merge: reading them takes no noticeable time."""


class SmallTable:
    """A table opened at first use. Threads may share it; each call sees the newest commit."""

    def __init__(self, table: str, columns: pa.Schema, gateway: JavaGateway) -> None:
        self.address, self._columns, self._gateway = table, columns, gateway
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
            while not self._is_added(rows.cast(self._columns)):
                self._table().refresh()

    def _is_added(self, rows: pa.Table) -> bool:
        """Append rows as the next version; false, and nothing is added, if it exists by now."""
        table = self._table()
        version = table.version + 1

        def is_next(_: object) -> None:
            if table.version + 1 != version:
                raise _Overtaken

        file = self._written(rows, version)
        try:
            table.append([file], condition=is_next)
        except _Overtaken:
            return False
        return True

    def _written(self, rows: pa.Table, version: int) -> DataFile:
        name = f"v{version:020d}-{uuid.uuid4()}.parquet"
        file = parquet.write(rows, self.address, bounds=(), name=name)
        parquet.sync(file)
        return file

    def merge(self) -> None:
        """Put the rows of all files into one; nothing is lost when others add at the same time."""
        with self._lock:
            table = self._table()
            table.refresh()
            before = table.files()
            if len(before) > MERGE_FROM_FILES:
                file = self._written(table.read(self._columns), table.version)
                table.rewrite(before, [file])

    def close(self) -> None:
        """Wait for the checksums and checkpoints of its commits."""
        with self._lock:
            if self._opened is not None:
                self._opened.close()

    def _table(self) -> DeltaTable:
        if self._opened is None:
            self._opened = DeltaTable(self.address, self._gateway)
        return self._opened


class _Overtaken(Exception):
    """Another commit has taken the version in the file's name."""
