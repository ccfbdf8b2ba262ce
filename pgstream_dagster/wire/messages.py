"""
Messages of pgoutput joined into one buffer: what kind each is, and which transactions they make up.

Pure: no I/O, and no Python per row.

Source:
    https://www.postgresql.org/docs/current/protocol-logicalrep-message-formats.html
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Final, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from pgstream_dagster.errors import ProtocolError
from pgstream_dagster.lsn import Lsn
from pgstream_dagster.wire import pgoutput
from pgstream_dagster.wire.ragged import MAX_BUFFER_BYTES, PADDING, Bools, Ints, Octets

Kinds: TypeAlias = npt.NDArray[np.uint8]

Controls: TypeAlias = Mapping[int, pgoutput.Control]
"""Index of a message in its batch -> the message."""

OVERSIZED: Final = b"!"
"""
Our own kind of message, in place of a row that memory has no room for; Postgres sends none.

Shape: Byte1('!'), [Int32 xid], Int32 relation, Int64 bytes of its message.
"""


def kind_mask(kinds: bytes) -> Bools:
    """By kind byte: whether it is one of `kinds`."""
    mask = np.zeros(256, dtype=np.bool_)
    mask[list(kinds)] = True
    return mask


IS_ROW: Final = kind_mask(b"IUD" + OVERSIZED)
IS_CONTROL: Final = kind_mask(b"RYTM")


@dataclass(frozen=True, eq=False)
class MessageBatch:
    """
    Messages joined into one buffer.

    Shape:
        data: the messages, each behind its header, then `ragged.PADDING`.
        starts, ends: offset of each message's kind byte, and behind its last byte.
        streamed: an Int32 xid follows every kind byte (protocol 2, inside a streamed block).
        left_out: where rows started that the messages had here and that were left out, ascending.
    """

    data: bytes
    starts: Ints
    ends: Ints
    streamed: bool
    left_out: Ints = field(default_factory=lambda: np.empty(0, np.int64))

    @cached_property
    def octets(self) -> Octets:
        """The buffer as integers."""
        return Octets(self.data)

    @cached_property
    def kinds(self) -> Kinds:
        """The kind byte of each message."""
        return self.octets.u1[self.starts]

    @property
    def bodies(self) -> Ints:
        """Where each message continues behind its kind byte and, in a streamed block, its xid."""
        return self._bodies_of(self.starts)

    @property
    def is_row(self) -> Bools:
        """Whether each message is an Insert, Update, Delete or `OVERSIZED`."""
        return IS_ROW[self.kinds]

    @cached_property
    def controls(self) -> Controls:
        """
        The Relation, Type, Truncate and Message messages, each parsed once.

        Raises:
            ProtocolError: one of them is damaged.
        """
        return {at: self.control(at) for at in np.flatnonzero(IS_CONTROL[self.kinds]).tolist()}

    def control(self, index: int) -> pgoutput.Control:
        """
        Message `index`, which must not be a row.

        Raises:
            ProtocolError: it is damaged, or a row.
        """
        message = self.data[self.starts[index] : self.ends[index]]
        return pgoutput.parse(message, streamed=self.streamed)

    def relation_ids(self, is_row: Bools) -> Ints:
        """The relation of each of some messages, all of them rows."""
        return self.octets.u4(self.bodies[is_row])

    def without(self, dropped: Bools) -> MessageBatch:
        """
        The batch without some of its messages; the rows among them are in `left_out`.

        Shape:
            dropped: one boolean per message.
        """
        rows = self.starts[dropped & self.is_row]
        return replace(
            self,
            starts=self.starts[~dropped],
            ends=self.ends[~dropped],
            left_out=np.sort(np.concatenate([self.left_out, rows])),
        )

    def part(self, begin: int, end: int) -> MessageBatch:
        """The messages from `begin` up to `end`, with the rows left out between them."""
        first, last = self.offset(begin) if begin else 0, self.offset(end)
        left_out = self.left_out[(first <= self.left_out) & (self.left_out < last)]
        starts, ends = self.starts[begin:end], self.ends[begin:end]
        return replace(self, starts=starts, ends=ends, left_out=left_out)

    def offset(self, index: int) -> int:
        """Where a message starts; the end of the buffer for the index behind the last."""
        return int(self.starts[index]) if index < len(self.starts) else len(self.data)

    def left_out_of(self, relation_id: int) -> Ints:
        """Where the rows of one relation started that were left out, ascending."""
        oids = self.octets.u4(self._bodies_of(self.left_out))
        return self.left_out[oids == relation_id]

    def _bodies_of(self, starts: Ints) -> Ints:
        return starts + (5 if self.streamed else 1)


class TransactionFields(NamedTuple):
    """What every row of a transaction has from it."""

    commit_lsn: Lsn
    end_lsn: Lsn
    committed_at_us: int
    xid: int


def join(
    messages: Sequence[bytes | memoryview], *, header: int, streamed: bool = False
) -> MessageBatch:
    """
    One buffer of `messages`, each with `header` bytes before its kind byte.

    25 for XLogData as CopyData carries it, 0 for bare messages.

    Raises:
        ProtocolError: a message without a kind byte.
        ValueError: 2 GiB and more; the caller cuts batches far below (one message is under 1 GB).
    """
    sizes = np.fromiter(map(len, messages), dtype=np.int64, count=len(messages))
    if len(sizes) and sizes.min() <= header:
        raise ProtocolError(f"a message of {sizes.min()} bytes; its header alone has {header}")
    ends = np.cumsum(sizes)
    if len(ends) and ends[-1] > MAX_BUFFER_BYTES:
        raise ValueError(f"a batch of {ends[-1]:,} bytes; at most {MAX_BUFFER_BYTES:,}")
    return MessageBatch(b"".join([*messages, PADDING]), ends - sizes + header, ends, streamed)


def transaction_between(batch: MessageBatch, begin: int, commit: int) -> TransactionFields:
    """The transaction whose Begin and Commit have these indexes."""
    first, last = batch.control(begin), batch.control(commit)
    assert isinstance(first, pgoutput.Begin)
    assert isinstance(last, pgoutput.Commit)
    return TransactionFields(first.commit_lsn, last.end_lsn, first.committed_at_us, first.xid)


def relations(batch: MessageBatch) -> list[tuple[int, pgoutput.Relation]]:
    """The Relation messages of a batch, each with its index; `ProtocolError` when damaged."""
    return [(at, m) for at, m in batch.controls.items() if isinstance(m, pgoutput.Relation)]
