"""
Dead letters: documents that a search cluster refused for good, in the lake.

Append only: a refusal is a row, and so is the end of one (sent again, or replaced by a later change
of its row). What is open is what was refused last.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from enum import StrEnum

import pyarrow as pa
from py4j.java_gateway import JavaGateway

from pgstream_dagster.changelog.lake import DEAD_LETTERS, Lake
from pgstream_dagster.delta.small_table import SmallTable
from pgstream_dagster.lsn import Lsn


class LetterState(StrEnum):
    """What has become of a document."""

    REFUSED = "refused"
    SETTLED = "settled"  # a later write of the same document was taken


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """One document that was refused: which, at which change, why, and as what it was sent."""

    index: str
    id: str
    key: tuple[str | None, ...]
    epoch: int
    commit_lsn: Lsn
    state: LetterState
    type: str | None = None
    reason: str | None = None
    document: str | None = None


class DeadLetters:
    """The dead letters of one pipeline's indices. Threads may share it."""

    def __init__(self, lake: Lake, gateway: JavaGateway) -> None:
        self._table = SmallTable(lake.dead_letters, DEAD_LETTERS.columns, gateway)

    def add(self, letters: Iterable[DeadLetter]) -> None:
        """Record letters; durable when this returns."""
        now = datetime.now(UTC)
        rows = [
            asdict(letter)
            | {
                "recorded_at": now,
                "state": letter.state.value,
                "key": list(letter.key),
                "commit_lsn": int(letter.commit_lsn),
            }
            for letter in letters
        ]
        if rows:
            self._table.add(pa.Table.from_pylist(rows, DEAD_LETTERS.columns))

    def open(self, index: str) -> dict[str, DeadLetter]:
        """Id -> the newest refusal of each document of an index that was not settled."""
        rows = [row for row in self._table.rows().to_pylist() if row["index"] == index]
        newest = {row["id"]: _letter(row) for row in rows}.values()
        return {found.id: found for found in newest if found.state is LetterState.REFUSED}

    def merge(self) -> None:
        """Fewer files, the same letters."""
        self._table.merge()

    def close(self) -> None:
        """Wait for what follows its commits."""
        self._table.close()


def _letter(row: dict[str, object]) -> DeadLetter:
    said = {name: value for name, value in row.items() if name != "recorded_at"}
    return DeadLetter(
        **{  # pyright: ignore[reportArgumentType]
            **said,
            "key": tuple(said["key"]),  # pyright: ignore[reportArgumentType]
            "commit_lsn": Lsn(said["commit_lsn"]),  # pyright: ignore[reportArgumentType]
            "state": LetterState(said["state"]),  # pyright: ignore[reportArgumentType]
        }
    )
