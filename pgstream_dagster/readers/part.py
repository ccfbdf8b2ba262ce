"""Where a reader continues when only the first changes of a batch are delivered. No I/O."""

from __future__ import annotations

import msgspec

from pgstream_dagster.lsn import Lsn
from pgstream_dagster.readers.change import Change
from pgstream_dagster.readers.cursor import Cursor


def cursor_within(before: Cursor, after: Cursor, last: Change) -> Cursor | None:
    """
    The cursor after `last`, a change of the batch that lies between two cursors.

    `None` if a gap is in the batch, or a change that is left out: only the cursor at its end says
    what waits.
    """
    if after.gaps != _gaps_before(before, after):
        return None
    if after.pending is not None:
        place = (last.relation_id, last.commit_lsn, last.ordinal)
        pending = msgspec.structs.replace(after.pending, place=place)
        return msgspec.structs.replace(after, pending=pending)
    if after.left != before.left:
        return None
    return msgspec.structs.replace(before, place=last.place)


def _gaps_before(before: Cursor, after: Cursor) -> dict[int, Lsn]:
    """The gaps without those of the batch: a copy that begins with it has ended some."""
    if after.pending is None or (before.pending is not None and before.pending.place is not None):
        return before.gaps
    return after.pending.left_open(before.gaps)
