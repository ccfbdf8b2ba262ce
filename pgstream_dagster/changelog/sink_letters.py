"""
Changes that a sink's target refused, and later ones that wait behind them, in the lake.

Append only: a change that is refused or held back is a row, and so is its delivery. A change is
open when its newest row is not a delivery. `change` is what would have been delivered, with masked
values only, so that it can be delivered again exactly. It may be large, and there may be many: it
is read for those letters alone that are to be delivered.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from typing import Any, Final, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc
from py4j.java_gateway import JavaGateway

from pgstream_dagster.changelog.lake import Lake
from pgstream_dagster.changelog.table_specs import SINK_LETTERS
from pgstream_dagster.delta import parquet, uri
from pgstream_dagster.delta.small_table import SmallTable
from pgstream_dagster.errors import TableMissing
from pgstream_dagster.lsn import Lsn

Position: TypeAlias = tuple[int, Lsn, int, int]
"""Epoch, commit LSN, ordinal, and the relation, as rows of several copies may share the others."""

PLACE: Final[tuple[str, ...]] = ("epoch", "commit_lsn", "ordinal", "relation_id")
"""The columns of a position."""

WITHOUT_CONTENT: Final = tuple(
    name for name in SINK_LETTERS.columns.names if name not in ("change", "recorded_at")
)


class SinkLetterState(StrEnum):
    """What has become of a change."""

    REFUSED = "refused"
    HELD = "held"  # it waits behind a change of its key that was refused
    DELIVERED = "delivered"


@dataclass(frozen=True, slots=True)
class SinkLetter:
    """
    A change that was not delivered: its position and key, why, and its content as JSON.

    `change` is `None` where it was not read, or the change is delivered; `change_bytes` is its
    size. `rules` is the fingerprint of the modifiers that it went through.
    """

    sink: str
    epoch: int
    commit_lsn: Lsn
    ordinal: int
    state: SinkLetterState
    namespace: str
    relation: str
    relation_id: int
    key: tuple[str | None, ...] | None
    old_key: tuple[str | None, ...] | None
    reason: str
    change: str | None = None
    change_bytes: int = 0
    rules: str = ""

    @property
    def position(self) -> Position:
        """Of the change; the order in which letters are delivered again."""
        return self.epoch, self.commit_lsn, self.ordinal, self.relation_id

    def delivered(self) -> SinkLetter:
        """The row that ends this letter."""
        return replace(
            self, state=SinkLetterState.DELIVERED, reason="", change=None, change_bytes=0, rules=""
        )

    def in_short(self) -> SinkLetter:
        """What a sink keeps of it in memory: neither content nor reason."""
        return replace(
            self,
            sink=sys.intern(self.sink),
            namespace=sys.intern(self.namespace),
            relation=sys.intern(self.relation),
            rules=sys.intern(self.rules),
            reason="",
            change=None,
        )


class SinkLetters(SmallTable):
    """The dead letters of the sinks of a lake. Threads may share it."""

    def __init__(self, lake: Lake, gateway: JavaGateway) -> None:
        super().__init__(lake.sink_letters, SINK_LETTERS.columns, gateway)

    def add(self, letters: Iterable[SinkLetter]) -> None:
        """Record letters; durable when this returns."""
        self.add_records(
            asdict(letter)
            | {
                "commit_lsn": int(letter.commit_lsn),
                "state": letter.state.value,
                "key": _listed(letter.key),
                "old_key": _listed(letter.old_key),
            }
            for letter in letters
        )

    def open(self, sink: str) -> list[SinkLetter]:
        """
        The changes of a sink that were not delivered, in the order of their positions.

        Without their contents.
        """
        letters = [_letter(row) for row in self._pending(WITHOUT_CONTENT, sink).to_pylist()]
        return sorted(letters, key=lambda letter: letter.position)

    def with_content(self, letters: Collection[SinkLetter]) -> list[SinkLetter]:
        """Letters of one sink as they are now, in their order; without those delivered since."""
        sinks = {letter.position: letter.sink for letter in letters}
        newest: dict[Position, SinkLetter] = {}
        if sinks:
            numbers = {name: {place[n] for place in sinks} for n, name in enumerate(PLACE)}
            for row in self._rows_at(next(iter(sinks.values())), numbers):
                if (letter := _letter(row)).position in sinks:
                    newest[letter.position] = letter
        pending = (newest[position] for position in sinks if position in newest)
        return [letter for letter in pending if letter.change is not None]

    def counts(self) -> Mapping[str, Counter[SinkLetterState]]:
        """Sink -> how many open letters of each state it has."""
        counts: dict[str, Counter[SinkLetterState]] = {}
        grouped = self._pending(()).group_by(["sink", "state"]).aggregate([([], "count_all")])
        for row in grouped.to_pylist():
            of_sink = counts.setdefault(row["sink"], Counter())
            of_sink[SinkLetterState(row["state"])] = row["count_all"]
        return counts

    def _pending(self, names: Sequence[str], sink: str | None = None) -> pa.Table:
        """The newest row of each change that is open, of one sink or of all."""
        names = tuple(dict.fromkeys((*names, "sink", "state", *PLACE)))
        schema = pa.schema([self._columns.field(name) for name in names])
        parts = [
            _of_sink(parquet.columns(path, schema.names), schema, sink) for path in self._paths()
        ]
        rows = pa.concat_tables(parts) if parts else schema.empty_table()
        places = rows.select(["sink", *PLACE])
        numbered = places.append_column("row", pa.array(range(rows.num_rows), pa.int64()))
        newest = numbered.group_by(["sink", *PLACE]).aggregate([("row", "max")])
        rows = rows.take(newest.column("row_max"))
        return rows.filter(pc.not_equal(rows.column("state"), SinkLetterState.DELIVERED.value))

    def _rows_at(self, sink: str, numbers: Mapping[str, set[int]]) -> Iterator[dict[str, Any]]:
        """The rows of a sink with these numbers, and others, in the order they were added in."""
        within = {name: (min(values), max(values)) for name, values in numbers.items()}
        for path in self._paths():
            for piece in parquet.pieces(path, self._columns, within=within):
                chosen = pc.equal(piece.column("sink"), sink)
                for name, values in numbers.items():
                    column = piece.column(name)
                    chosen = pc.and_(chosen, pc.is_in(column, pa.array(list(values), column.type)))
                yield from piece.filter(chosen).to_pylist()

    def _paths(self) -> list[str]:
        """The files, in the order in which they were added; none in a lake without sinks."""
        with self._lock:
            try:
                table = self._table()
            except TableMissing:
                return []
            table.refresh()
            return [uri.child(self.uri, name) for name in sorted(f.name for f in table.files())]


def _of_sink(rows: pa.Table, schema: pa.Schema, sink: str | None) -> pa.Table:
    rows = parquet.fitted(rows, schema)
    return rows if sink is None else rows.filter(pc.equal(rows.column("sink"), sink))


def _listed(key: tuple[str | None, ...] | None) -> list[str | None] | None:
    return None if key is None else list(key)


def _letter(row: dict[str, Any]) -> SinkLetter:
    fields = {name: value for name, value in row.items() if name != "recorded_at"}
    for name in ("key", "old_key"):
        fields[name] = None if row[name] is None else tuple(row[name])
    fields["commit_lsn"] = Lsn(row["commit_lsn"])
    fields["state"] = SinkLetterState(row["state"])
    fields["change_bytes"], fields["rules"] = row["change_bytes"] or 0, row["rules"] or ""
    return SinkLetter(**fields)
