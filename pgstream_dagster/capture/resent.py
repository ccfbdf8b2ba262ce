"""
What the server sends again, up to the watermark: compared with the log, then passed over.

A slot goes on from its own position, so every transaction between that and the watermark arrives
once more. One comparison is enough to know that this is the history the log holds: WAL is one
sequence, so a server that has the same commit record (position, transaction, time) at the same
place has everything before it, too. Let `last` be the last transaction of the log at or after the
slot's position. It must arrive again, and after it nothing with changes up to the watermark. When
the log has none there, the slot was confirmed past all that the log holds, which only the right
history can have been; then nothing with changes may arrive.

Rows that are passed over are not decoded: the catalog shows the present, and their schema versions
are recorded. Descriptions of relations go on to the decoder, since Postgres does not repeat them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from typing import Final

import numpy as np

from pgstream_dagster.capture.decoding import Decoder
from pgstream_dagster.capture.spool import without
from pgstream_dagster.capture.transactions import Heartbeat, LargeTransaction, Transactions, Unit
from pgstream_dagster.changelog.land import Arrival
from pgstream_dagster.errors import SourceRestored
from pgstream_dagster.lsn import Lsn
from pgstream_dagster.wire import pgoutput
from pgstream_dagster.wire.columns import OVERSIZED, Block, TransactionFields

_BEGIN, _COMMIT = ord("B"), ord("C")
_CHANGES: Final = np.frombuffer(b"IUDT" + OVERSIZED, dtype=np.uint8)
_PASSED_OVER: Final = np.frombuffer(b"IUDTM" + OVERSIZED, dtype=np.uint8)


class Resent:
    """A decoder that begins to decode behind the watermark; belongs to one connection."""

    def __init__(
        self, decoder: Decoder, watermark: Lsn, last: tuple[int, int, int, int] | None
    ) -> None:
        self._decoder, self._watermark = decoder, watermark
        self._last = None if last is None else TransactionFields(*last)
        self._is_found = last is None
        self._is_past = False

    def parts(self, unit: Unit) -> Iterator[Arrival]:
        """
        As `Decoder.parts`, without changes up to the watermark.

        Raises:
            SourceRestored: the server's history is another one than the log's.
        """
        if not self._is_past:
            unit = self._compared(unit)
        yield from self._decoder.parts(unit)

    def _compared(self, unit: Unit) -> Unit:
        match unit:
            case Heartbeat():
                if unit.wal_end >= self._watermark:
                    self._pass()
                return unit
            case Transactions():
                return replace(unit, block=self._new(unit.block))
            case LargeTransaction():
                if unit.fields.end_lsn > self._watermark:
                    self._pass()
                    return unit
                if self._is_of_interest(unit.fields):
                    self._compare(unit.fields, any(map(_has_changes, unit.blocks())))
                return _Described(unit.fields, unit.file, unit.streamed, unit.aborted)

    def _new(self, block: Block) -> Block:
        """Without the changes of the block's first transactions, those up to the watermark."""
        kinds = block.kinds
        dropped = np.zeros(len(kinds), dtype=np.bool_)
        ends = zip(np.flatnonzero(kinds == _BEGIN), np.flatnonzero(kinds == _COMMIT), strict=True)
        for begin, commit in ends:
            fields = _fields(block, int(begin), int(commit))
            if fields.end_lsn > self._watermark:
                self._pass()
                break
            inside = kinds[begin : commit + 1]
            self._compare(fields, bool(np.isin(inside, _CHANGES).any()))
            dropped[begin : commit + 1] = np.isin(inside, _PASSED_OVER)
        return without(block, dropped)

    def _is_of_interest(self, fields: TransactionFields) -> bool:
        return self._last is None or fields.commit_lsn >= self._last.commit_lsn

    def _compare(self, fields: TransactionFields, has_changes: bool) -> None:
        if not self._is_of_interest(fields):
            return
        if fields == self._last:
            self._is_found = True
        elif has_changes or (self._last and fields.commit_lsn == self._last.commit_lsn):
            raise self._restored(_text(fields))

    def _pass(self) -> None:
        """All that the log holds has been sent."""
        if not self._is_found:
            raise self._restored("no such transaction")
        self._is_past = True

    def _restored(self, sent: str) -> SourceRestored:
        landed = "an earlier transaction" if self._last is None else _text(self._last)
        return SourceRestored(landed, sent, str(self._watermark))


class _Described(LargeTransaction):
    """A large transaction that the log holds: only what it says of relations."""

    def blocks(self) -> Iterator[Block]:
        for block in super().blocks():
            yield without(block, np.isin(block.kinds, _PASSED_OVER))


def _has_changes(block: Block) -> bool:
    return bool(np.isin(block.kinds, _CHANGES).any())


def _fields(block: Block, begin: int, commit: int) -> TransactionFields:
    first, last = (
        pgoutput.parse(block.data[block.starts[at] : block.ends[at]], streamed=False)
        for at in (begin, commit)
    )
    assert isinstance(first, pgoutput.Begin)
    assert isinstance(last, pgoutput.Commit)
    return TransactionFields(first.commit_lsn, last.end_lsn, first.committed_at_us, first.xid)


def _text(fields: TransactionFields) -> str:
    at = datetime.fromtimestamp(fields.committed_at_us / 1e6, UTC).isoformat(" ")
    return f"transaction {fields.xid} at {Lsn(fields.commit_lsn)} of {at}"
