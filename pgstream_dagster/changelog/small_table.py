"""Tables of the lake that are read whole, without Spark: the ledger and the log of schemas."""

from __future__ import annotations

import threading
from typing import Final

import pyarrow as pa
from py4j.java_gateway import JavaGateway

from pgstream_dagster.changelog import parquet
from pgstream_dagster.changelog.delta import DeltaTable

MERGE_FROM_FILES: Final = 16
"""Fewer are read in no time."""


class SmallTable:
    """A table opened at first use; threads may share it, and each call sees the newest commit."""

    def __init__(self, table: str, columns: pa.Schema, gateway: JavaGateway) -> None:
        self._address, self._columns, self._gateway = table, columns, gateway
        self._opened: DeltaTable | None = None
        self._lock = threading.RLock()

    def rows(self) -> pa.Table:
        """
        Every row, in no particular order.

        Raises:
            TableMissing: `setup` has not made it.
        """
        with self._lock:
            table = self._table()
            table.refresh()
            return table.read(self._columns)

    def add(self, rows: pa.Table) -> None:
        """Append rows in one commit, durable when this returns."""
        with self._lock:
            table = self._table()
            file = parquet.write(rows.cast(self._columns), self._address, bounds=())
            parquet.sync(file)
            table.append([file])

    def merge(self) -> None:
        """Put the rows of all files into one; nothing is lost when others add at the same time."""
        with self._lock:
            table = self._table()
            table.refresh()
            before = table.files()
            if len(before) > MERGE_FROM_FILES:
                file = parquet.write(table.read(self._columns), self._address, bounds=())
                parquet.sync(file)
                table.rewrite(before, [file])

    def close(self) -> None:
        """Wait for the checksums and checkpoints of its commits."""
        with self._lock:
            if self._opened is not None:
                self._opened.close()

    def _table(self) -> DeltaTable:
        if self._opened is None:
            self._opened = DeltaTable(self._address, self._gateway)
        return self._opened
