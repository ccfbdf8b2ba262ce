"""
How far a reader is in the log, and how that is written down. No I/O.

A cursor is complete: a reader that starts from it delivers every change that follows, and none
twice. It is stored by the process that delivers, after the changes or in one transaction with them.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Final

import msgspec

from pgstream_dagster.lsn import Lsn, lsn_of_number
from pgstream_dagster.readers.change import Place
from pgstream_dagster.schema.changes import DIFFERENCE_ORDINAL


class Intake(StrEnum):
    """How a reader takes in the copy of a table."""

    ROWS = "rows"  # the copied rows, then the changes since
    DIFFERENCES = "differences"  # between what was delivered and what the copy says


class Pending(msgspec.Struct, frozen=True):
    """
    Copies that are being taken in.

    `points` has the consistent point of each relation's copy. `place` is that of the last delivered
    row, after its relation: rows come relation by relation.
    """

    intake: Intake
    points: dict[int, Lsn]
    place: tuple[int, Lsn, int] | None = None

    def left_open(self, gaps: Mapping[int, Lsn]) -> dict[int, Lsn]:
        """The gaps that the copies do not close. Those after a copy come again with its rows."""
        points, is_difference = self.points, self.intake is Intake.DIFFERENCES
        return {
            r: at for r, at in gaps.items() if r not in points or (is_difference and at > points[r])
        }

    def has_passed(self, commit_lsn: Lsn, ordinal: int, relation_id: int) -> bool:
        """Whether a row of the copies is delivered."""
        if self.place is None or relation_id not in self.points:
            return False
        return (relation_id, commit_lsn, ordinal) <= self.place


class Cursor(msgspec.Struct, frozen=True):
    """
    The progress of a reader in one epoch of the log.

    `watermark`: every landed change up to it was delivered; `place`: and of the transactions after
    it, every change up to this place. `copies` has the consistent point of the copy that each
    relation was taken in with; `gaps` the relations of which changes are missing, until their next
    copy. `left` are relations that were delivered and of which changes were left out since: they
    begin again when they are selected again. `compared` has the watermark at which the last
    differences of a relation were delivered. `generation` grows with every reset, so that a
    target's older cursor does not count. `is_restarted`: the target may have rows of an earlier
    start, so copies begin with their marker. `redriven` are the dead letters (epoch, commit LSN,
    ordinal, relation) that were delivered in one transaction with this cursor, which the lake may
    not know yet. `log` is the change log that the cursor is of; empty: that is not known.
    """

    generation: int
    epoch: int
    watermark: Lsn
    place: Place | None = None
    copies: dict[int, Lsn] = {}
    gaps: dict[int, Lsn] = {}
    pending: Pending | None = None
    is_restarted: bool = False
    redriven: tuple[tuple[int, Lsn, int, int], ...] = ()
    left: tuple[int, ...] = ()
    compared: dict[int, Lsn] = {}
    log: str = ""

    @property
    def end(self) -> Lsn:
        """Everything that committed before this position was delivered."""
        return self.watermark if self.place is None else Lsn(self.place[0] + 1)

    def has_passed(self, epoch: int, commit_lsn: Lsn, ordinal: int, relation_id: int) -> bool:
        """Whether a reader at this cursor will not give the change at a position again."""
        if epoch != self.epoch:
            return epoch < self.epoch
        if self.pending is not None and self.pending.has_passed(commit_lsn, ordinal, relation_id):
            return True
        if ordinal < DIFFERENCE_ORDINAL:  # a copied row
            return relation_id in self.left or self.copies.get(relation_id, -1) >= commit_lsn
        is_compared = ordinal < 0 and self.compared.get(relation_id, -1) >= commit_lsn
        is_placed = self.place is not None and (commit_lsn, ordinal) <= self.place
        return is_compared or is_placed or commit_lsn < self.watermark

    def to_json(self) -> str:
        """The text that `from_json` reads."""
        return _ENCODER.encode(self).decode()

    @classmethod
    def from_json(cls, text: str) -> Cursor:
        """The cursor that `to_json` wrote."""
        return _DECODER.decode(text)


_ENCODER: Final = msgspec.json.Encoder(enc_hook=int)
_DECODER: Final = msgspec.json.Decoder(Cursor, dec_hook=lsn_of_number)
