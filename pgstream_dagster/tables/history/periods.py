"""
The periods of a relation: from a copy or truncate to the next, with the gaps between. Pure.

Rows that were there at the end of a period end with it; a copy brings those again that it has.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from pgstream_dagster.lsn import Lsn
from pgstream_dagster.schema.change import Place
from pgstream_dagster.schema.changes import Op


@dataclass(frozen=True, slots=True)
class Marker:
    """A copy, truncate or gap, and when it was committed."""

    place: Place
    op: Op
    committed_at_us: int | None = None


@dataclass(frozen=True, slots=True)
class Period:
    """
    Changes from `start` on, up to the next period's; `is_open`: they count.

    `end`: the copy or truncate that ends the rows; `None` if none has.
    """

    start: Marker
    is_open: bool
    end: Marker | None


def periods(markers: Iterable[Marker]) -> list[Period]:
    """
    The periods of a relation, in order. What is before its first copy is in none.

    After a gap nothing counts until the next copy, not even a truncate.
    """
    effective, is_open = list[tuple[Marker, bool]](), False
    for marker in sorted(markers, key=lambda marker: marker.place):
        if marker.op is not Op.COPY and not is_open:
            continue
        is_open = marker.op is not Op.GAP
        effective.append((marker, is_open))
    return [
        Period(marker, is_open, _end(effective[n + 1 :]))
        for n, (marker, is_open) in enumerate(effective)
    ]


def _end(later: Sequence[tuple[Marker, bool]]) -> Marker | None:
    return next((marker for marker, is_open in later[:2] if is_open), None)


def gap_at(parts: Sequence[Period], point: Lsn) -> tuple[Lsn, Lsn | None] | None:
    """
    The gap that the state at a point is in, and the copy that ends it; `None`: it is in none.

    The state at a point is that after the transactions that commit before it.
    """
    before = [n for n, part in enumerate(parts) if part.start.place < Place(point, 0)]
    if not before or parts[before[-1]].is_open:
        return None
    part = parts[before[-1]]
    return part.start.place.commit_lsn, None if part.end is None else part.end.place.commit_lsn
