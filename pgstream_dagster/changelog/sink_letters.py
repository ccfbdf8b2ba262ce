"""
Changes that a sink's target refused, and later ones that wait behind them, in the lake.

Append only: a change that is refused or held back is a row, and so is its delivery. A change is
open when its newest row is not a delivery. `change` is what would have been delivered, with masked
values only, so that it can be delivered again exactly.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from typing import Any, TypeAlias

from py4j.java_gateway import JavaGateway

from pgstream_dagster.changelog.lake import Lake
from pgstream_dagster.changelog.table_specs import SINK_LETTERS
from pgstream_dagster.delta.small_table import SmallTable
from pgstream_dagster.errors import TableMissing

Position: TypeAlias = tuple[int, int, int, int]
"""Epoch, commit LSN, ordinal, and the relation, as rows of several copies may share the others."""


class LetterState(StrEnum):
    """What has become of a change."""

    REFUSED = "refused"
    HELD = "held"  # it waits behind a change of its key that was refused
    DELIVERED = "delivered"


@dataclass(frozen=True, slots=True)
class SinkLetter:
    """A change that was not delivered: its position and key, why, and its content as JSON."""

    sink: str
    epoch: int
    commit_lsn: int
    ordinal: int
    state: LetterState
    namespace: str
    relation: str
    relation_id: int
    key: tuple[str | None, ...] | None
    old_key: tuple[str | None, ...] | None
    reason: str
    change: str | None

    @property
    def position(self) -> Position:
        """Of the change; the order in which letters are delivered again."""
        return self.epoch, self.commit_lsn, self.ordinal, self.relation_id

    def delivered(self) -> SinkLetter:
        """The row that ends this letter."""
        return replace(self, state=LetterState.DELIVERED, reason="", change=None)


class SinkLetters(SmallTable):
    """The dead letters of the sinks of a lake. Threads may share it."""

    def __init__(self, lake: Lake, gateway: JavaGateway) -> None:
        super().__init__(lake.sink_letters, SINK_LETTERS.columns, gateway)

    def add(self, letters: Iterable[SinkLetter]) -> None:
        """Record letters; durable when this returns."""
        self.add_records(
            asdict(letter)
            | {
                "state": letter.state.value,
                "key": _listed(letter.key),
                "old_key": _listed(letter.old_key),
            }
            for letter in letters
        )

    def open(self, sink: str) -> list[SinkLetter]:
        """The changes of a sink that were not delivered, in the order of their positions."""
        try:
            rows = [row for row in self.rows().to_pylist() if row["sink"] == sink]
        except TableMissing:  # a lake without sinks
            return []
        newest = {letter.position: letter for letter in map(_letter, rows)}
        pending = (le for le in newest.values() if le.state is not LetterState.DELIVERED)
        return sorted(pending, key=lambda letter: letter.position)


def _listed(key: tuple[str | None, ...] | None) -> list[str | None] | None:
    return None if key is None else list(key)


def _letter(row: dict[str, Any]) -> SinkLetter:
    fields = {name: value for name, value in row.items() if name != "recorded_at"}
    for name in ("key", "old_key"):
        fields[name] = None if row[name] is None else tuple(row[name])
    fields["state"] = LetterState(row["state"])
    return SinkLetter(**fields)
