"""
Which relations a history is of: a table that is created again goes on under its name. Pure.

So does a table in the next epoch, whose oid and attnums may be others.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pgstream_dagster.lsn import Lsn
from pgstream_dagster.schema.table import TableSchema


@dataclass(frozen=True, slots=True)
class Relation:
    """
    A relation, the consistent point of its first copy, and what it was called there.

    `versions`: each time that one began to hold, in that order.
    """

    epoch: int
    relation_id: int
    first_copy: Lsn
    began_as: str
    versions: Sequence[TableSchema]

    @property
    def begins(self) -> tuple[int, Lsn]:
        """By which relations are ordered."""
        return self.epoch, self.first_copy


def lineage(present: Relation, others: Sequence[Relation]) -> list[Relation]:
    """
    The relations that the present one continues, oldest first, and itself.

    A relation continues the last one that was copied before it and ended with the name that it
    had at its first copy. One that was renamed later to the name of another brings its own history
    instead.
    """
    chain = [present]
    while True:
        first = chain[0]
        before = [
            other
            for other in others
            if other.begins < first.begins and other.versions[-1].full_name == first.began_as
        ]
        if not before:
            return chain
        chain.insert(0, max(before, key=lambda other: other.begins))
