"""
What the server sends again, up to the watermark: compared with the log, then skipped.

A slot continues from its own position, so every transaction between that and the watermark arrives
once more. One comparison is enough to know that this is the history the log holds: WAL is one
sequence, so a server that has the same commit record (position, transaction, time) at the same
place has everything before it, too. Let `last` be the last transaction of the log at or after the
slot's position. It must arrive again, and after it nothing with changes up to the watermark. When
the log has none there, the slot was confirmed past all that the log holds, which only the right
history can have been; then nothing with changes may arrive.

Rows that are passed over are not decoded: the catalog shows the present, and their schema versions
are recorded. Descriptions of relations are passed to the decoder: Postgres does not repeat them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from typing import Final

import numpy as np

from pgstream_dagster.capture.decoding import Decoder
from pgstream_dagster.capture.spool import LateReport
from pgstream_dagster.capture.transactions import LargeTransaction, TransactionBatch, Transactions
from pgstream_dagster.changelog.land import Arrival, Keepalive
from pgstream_dagster.errors import SourceRestored
from pgstream_dagster.lsn import Lsn
from pgstream_dagster.wire.messages import (
    OVERSIZED,
    MessageBatch,
    TransactionFields,
    kind_mask,
    transaction_between,
)

_BEGIN, _COMMIT = ord("B"), ord("C")
_IS_CHANGE: Final = kind_mask(b"IUDT" + OVERSIZED)
_IS_PASSED_OVER: Final = kind_mask(b"IUDTM" + OVERSIZED)


class Resent:
    """A decoder that begins to decode behind the watermark; belongs to one connection."""

    def __init__(self, decoder: Decoder, watermark: Lsn, last: TransactionFields | None) -> None:
        self._decoder, self._watermark, self._last = decoder, watermark, last
        self._is_matched = last is None
        self._is_past = False

    def decode(self, batch: TransactionBatch) -> Iterator[Arrival]:
        """
        As `Decoder.decode`, without changes up to the watermark.

        Raises:
            SourceRestored: the server's history is another one than the log's.
        """
        yield from self._decoder.decode(batch if self._is_past else self._compared(batch))

    def _compared(self, batch: TransactionBatch) -> TransactionBatch:
        match batch:
            case Keepalive():
                if batch.wal_end >= self._watermark:
                    self._pass()
                return batch
            case Transactions():
                return replace(batch, messages=self._new(batch.messages))
            case LargeTransaction():
                if batch.fields.end_lsn > self._watermark:
                    self._pass()
                    return batch
                if self._is_of_interest(batch.fields):
                    self._compare(batch.fields, any(map(_has_changes, batch.batches())))
                return _Described(batch.fields, batch.file, batch.streamed, batch.aborted)

    def _new(self, messages: MessageBatch) -> MessageBatch:
        """Without the changes of the first transactions, those up to the watermark."""
        kinds = messages.kinds
        dropped = np.zeros(len(kinds), dtype=np.bool_)
        begins, commits = np.flatnonzero(kinds == _BEGIN), np.flatnonzero(kinds == _COMMIT)
        for begin, commit in zip(begins.tolist(), commits.tolist(), strict=True):
            fields = transaction_between(messages, begin, commit)
            if fields.end_lsn > self._watermark:
                self._pass()
                break
            inside = kinds[begin : commit + 1]
            self._compare(fields, bool(_IS_CHANGE[inside].any()))
            dropped[begin : commit + 1] = _IS_PASSED_OVER[inside]
        return messages.without(dropped)

    def _is_of_interest(self, fields: TransactionFields) -> bool:
        return self._last is None or fields.commit_lsn >= self._last.commit_lsn

    def _compare(self, fields: TransactionFields, has_changes: bool) -> None:
        if not self._is_of_interest(fields):
            return
        if fields == self._last:
            self._is_matched = True
        elif has_changes or (self._last and fields.commit_lsn == self._last.commit_lsn):
            raise self._restored(_text(fields))

    def _pass(self) -> None:
        """All that the log holds has been sent."""
        if not self._is_matched:
            raise self._restored("no such transaction")
        self._is_past = True

    def _restored(self, sent: str) -> SourceRestored:
        landed = "an earlier transaction" if self._last is None else _text(self._last)
        return SourceRestored(landed, sent, self._watermark)


class _Described(LargeTransaction):
    """A large transaction that the log holds: only its descriptions of relations."""

    @property
    def late_reports(self) -> list[LateReport]:
        return []

    def batches(self) -> Iterator[MessageBatch]:
        for batch in super().batches():
            yield batch.without(_IS_PASSED_OVER[batch.kinds])


def _has_changes(batch: MessageBatch) -> bool:
    return bool(_IS_CHANGE[batch.kinds].any())


def _text(fields: TransactionFields) -> str:
    at = datetime.fromtimestamp(fields.committed_at_us / 1e6, UTC).isoformat(" ")
    return f"transaction {fields.xid} at {fields.commit_lsn} of {at}"
