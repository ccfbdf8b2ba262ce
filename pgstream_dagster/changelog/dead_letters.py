"""
Dead letters: documents that a search cluster refused permanently, in the lake.

Append only: a refusal is a row, and so is the end of one (sent again, or replaced by a later change
of its row). A document is open when its newest row is a refusal.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any

from py4j.java_gateway import JavaGateway

from pgstream_dagster.changelog.lake import Lake
from pgstream_dagster.changelog.table_specs import DEAD_LETTERS
from pgstream_dagster.delta.small_table import SmallTable
from pgstream_dagster.lsn import Lsn


class DeadLetterState(StrEnum):
    """What has become of a document."""

    REFUSED = "refused"
    SETTLED = "settled"  # a later write of the same document was accepted


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """A document that was refused: which, at which change, why, and its content as sent."""

    index: str
    id: str
    key: tuple[str | None, ...]
    epoch: int
    commit_lsn: Lsn
    state: DeadLetterState
    type: str | None = None
    reason: str | None = None
    document: str | None = None


class DeadLetters(SmallTable):
    """The dead letters of one pipeline's indices. Threads may share it."""

    def __init__(self, lake: Lake, gateway: JavaGateway) -> None:
        super().__init__(lake.dead_letters, DEAD_LETTERS.columns, gateway)

    def add(self, letters: Iterable[DeadLetter]) -> None:
        """Record letters; durable when this returns."""
        self.add_records(
            asdict(letter)
            | {
                "state": letter.state.value,
                "key": list(letter.key),
                "commit_lsn": int(letter.commit_lsn),
            }
            for letter in letters
        )

    def open(self, index: str) -> dict[str, DeadLetter]:
        """Id -> the newest refusal of each document of an index that was not settled."""
        rows = [row for row in self.rows().to_pylist() if row["index"] == index]
        newest = {row["id"]: _letter(row) for row in rows}.values()
        return {letter.id: letter for letter in newest if letter.state is DeadLetterState.REFUSED}


def _letter(row: dict[str, Any]) -> DeadLetter:
    fields = {name: value for name, value in row.items() if name != "recorded_at"}
    fields["key"] = tuple(row["key"])
    fields["commit_lsn"] = Lsn(row["commit_lsn"])
    fields["state"] = DeadLetterState(row["state"])
    return DeadLetter(**fields)
