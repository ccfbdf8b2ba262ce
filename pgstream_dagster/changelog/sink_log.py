"""
The states of sinks in the lake: how far each is, who delivers for it, what a person asks of it.

A state is a row, and the newest row of a sink and kind counts. Every change of a state is a
compare-and-set on its revision, so a process that was replaced learns it at its next save. Old rows
are dropped from time to time: nothing needs them.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from typing import Final

import pyarrow as pa
from py4j.java_gateway import JavaGateway

from pgstream_dagster.changelog.lake import Lake
from pgstream_dagster.changelog.table_specs import SINKS
from pgstream_dagster.delta import parquet, uri
from pgstream_dagster.delta.delta_table import DeltaTable
from pgstream_dagster.delta.small_table import append_next, written
from pgstream_dagster.errors import TableMissing

DROP_FROM_FILES: Final = 64
"""Files, one per save, after which old rows are dropped: reading them takes some 50 ms."""


class Kind(StrEnum):
    """What a row is about; each kind has one writer at a time."""

    PROGRESS = "progress"  # of the process that delivers
    REQUEST = "request"  # of people: paused, reset


@dataclass(frozen=True, slots=True)
class StateRow:
    """The newest row of a sink and kind; revision 0 and an empty state: there is none."""

    revision: int = 0
    state: str = ""
    recorded_at: datetime | None = None


class Overtaken(Exception):
    """Another process has changed the state since it was read."""


class SinkLog:
    """The states of all sinks of a lake. Threads may share it."""

    def __init__(self, lake: Lake, gateway: JavaGateway, *, uri: str | None = None) -> None:
        """`uri`: of another table with the columns of `SINKS`, for states of something else."""
        self.uri = uri or lake.sinks
        self._gateway = gateway
        self._lock = threading.RLock()
        self._opened: DeltaTable | None = None
        self._newest: dict[tuple[str, str], StateRow] = {}
        self._read_version = -1
        self._room = 1  # commits of this object until it counts files: that reads the Delta log
        self._dropped: list[str] = []

    def get(self, sink: str, kind: Kind) -> StateRow:
        """The newest state; there is none in a lake without sinks."""
        with self._lock:
            self._refresh()
            return self._newest.get((sink, kind.value), StateRow())

    def sinks(self) -> list[str]:
        """The readers of sinks that have started, and whose state was not ended."""
        with self._lock:
            self._refresh()
            rows = self._newest.items()
            return sorted({s for (s, kind), row in rows if kind == Kind.PROGRESS and row.state})

    def put(self, sink: str, kind: Kind, state: str, over: StateRow) -> StateRow:
        """
        Make `state` the newest one, durable when this returns; returns it as `get` would.

        Raises:
            Overtaken: `over` is not the newest one any more; nothing was written.
        """
        with self._lock:
            while True:
                self._refresh()
                newest = self._newest.get((sink, kind.value), StateRow())
                if newest.revision != over.revision:
                    raise Overtaken
                row = StateRow(over.revision + 1, state, datetime.now(UTC))
                if append_next(self._table(), _table_of([(sink, kind.value, row)])):
                    self._read_version = self._table().version
                    self._newest[sink, kind.value] = row
                    self._drop_old()
                    return row

    def close(self) -> None:
        """Wait for the checksums and checkpoints of its commits."""
        with self._lock:
            if self._opened is not None:
                self._opened.close()

    def _table(self) -> DeltaTable:
        if self._opened is None:
            self._opened = DeltaTable(self.uri, self._gateway)
        return self._opened

    def _refresh(self) -> None:
        try:
            table = self._table()
        except TableMissing:
            return
        table.refresh()
        while table.version != self._read_version:
            try:
                rows = table.read(SINKS.columns)
            except FileNotFoundError:  # dropped meanwhile, after another commit
                table.refresh()
                continue
            self._newest = _newest(rows)
            self._read_version = table.version

    def _drop_old(self) -> None:
        """Keep only the newest rows; the files that this drops are removed at the next time."""
        self._room -= 1
        if self._room > 0:
            return
        table = self._table()
        files = table.files()
        self._room = DROP_FROM_FILES - len(files)
        if self._room > 0:
            return
        rows = [(sink, kind, row) for (sink, kind), row in self._newest.items()]
        file = written(self.uri, _table_of(rows), table.version)
        if table.rewrite(files, [file]) is None:
            return
        self._room = DROP_FROM_FILES - 1
        for path in self._dropped:
            parquet.discard(path)
        self._dropped = [uri.child(self.uri, file.name) for file in files]
        self._read_version = -1  # another process may have added a row meanwhile


def _table_of(rows: Iterable[tuple[str, str, StateRow]]) -> pa.Table:
    return pa.Table.from_pylist(
        [
            {
                "recorded_at": row.recorded_at,
                "sink": sink,
                "kind": kind,
                "revision": row.revision,
                "state": row.state,
            }
            for sink, kind, row in rows
        ],
        SINKS.columns,
    )


def _newest(rows: pa.Table) -> dict[tuple[str, str], StateRow]:
    newest: dict[tuple[str, str], StateRow] = {}
    for row in sorted(rows.to_pylist(), key=lambda row: row["revision"]):
        newest[row["sink"], row["kind"]] = _row(row)
    return newest


def _row(row: dict[str, object]) -> StateRow:
    return StateRow(row["revision"], row["state"], row["recorded_at"])  # pyright: ignore[reportArgumentType]
