"""Assembly: which transactions leave, in what order, and what damage does."""

from __future__ import annotations

import itertools
import struct
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pgstream_dagster.capture.spool import FRAME_BYTES, Spool
from pgstream_dagster.capture.transactions import (
    HEADER,
    Assembler,
    LargeTransaction,
    StreamEnded,
    TransactionBatch,
    Transactions,
)
from pgstream_dagster.changelog.land import Keepalive
from pgstream_dagster.errors import ProtocolError
from pgstream_dagster.lsn import Lsn
from pgstream_dagster.wire.messages import MessageBatch
from tests.support.reference import encode

OID = 16_400


# --- the wire ---------------------------------------------------------------------------------


def xlog(message: bytes, lsn: int = 1) -> bytes:
    return b"w" + struct.pack(">QQq", lsn, lsn, 0) + message


def keepalive(wal_end: int, *, wants_reply: bool = False) -> bytes:
    return b"k" + struct.pack(">QqB", wal_end, 0, wants_reply)


def stream_start(xid: int, *, first: bool = True) -> bytes:
    return b"S" + struct.pack(">IB", xid, first)


STREAM_STOP = b"E"


def stream_commit(xid: int, commit_lsn: int) -> bytes:
    return b"c" + struct.pack(">IBQQq", xid, 0, commit_lsn, commit_lsn + 48, 0)


def stream_abort(xid: int, subxid: int) -> bytes:
    return b"A" + struct.pack(">II", xid, subxid)


def row(text: str = "x", xid: int | None = None) -> bytes:
    return encode.insert(OID, [text], xid=xid)


def small(commit_lsn: int, *texts: str) -> list[bytes]:
    rows = [row(text) for text in texts]
    return [encode.begin(commit_lsn, xid=commit_lsn), *rows, encode.commit(commit_lsn)]


def block(xid: int, *messages: bytes, first: bool = True) -> list[bytes]:
    return [stream_start(xid, first=first), *messages, STREAM_STOP]


class Wire:
    """A socket that has these messages and then nothing."""

    def __init__(self, *messages: bytes) -> None:
        self.messages: Iterator[bytes] = iter(messages)

    def __call__(self, wait: int) -> tuple[int, memoryview | None]:
        message = next(self.messages, None)
        return (0, None) if message is None else (len(message), memoryview(message))


@pytest.fixture
def spool(tmp_path: Path) -> Iterator[Spool]:
    spool = Spool(tmp_path / "spool")
    yield spool
    spool.close()


def batches(assembler: Assembler, *messages: bytes, bare: bool = True) -> list[TransactionBatch]:
    """Everything that leaves when these messages came and the socket fell silent."""
    wire = Wire(*(xlog(m) if bare else m for m in messages))
    left: list[TransactionBatch] = []
    while (batch := assembler.pull(wire)) is not None:
        left.append(batch)
    while (batch := assembler.drain()) is not None:
        left.append(batch)
    return left


def texts(batch: MessageBatch) -> list[bytes]:
    """The text of the inserts of a batch, the kinds of its other messages."""
    at = 5 if batch.streamed else 1
    bodies = [bytes(batch.data[s:e]) for s, e in zip(batch.starts, batch.ends, strict=True)]
    return [m[at + 12 :] if m[:1] == b"I" else m[:1] for m in bodies]


def contents(batch: TransactionBatch) -> list[bytes]:
    match batch:
        case Transactions():
            return texts(batch.messages)
        case LargeTransaction():
            return list(itertools.chain.from_iterable(texts(b) for b in batch.batches()))
        case Keepalive():
            return [b"k"]


# --- whole transactions -----------------------------------------------------------------------


def test_small_transactions_leave_together_in_order(spool: Spool) -> None:
    [batch] = batches(Assembler(spool), *small(100, "a", "b"), *small(200, "c"))
    assert isinstance(batch, Transactions)
    assert contents(batch) == [b"B", b"a", b"b", b"C", b"B", b"c", b"C"]
    assert batch.end_lsn == 248


def test_an_open_transaction_stays(spool: Spool) -> None:
    assembler = Assembler(spool)
    [batch] = batches(assembler, *small(100, "a"), encode.begin(200), row("b"))
    assert contents(batch) == [b"B", b"a", b"C"]
    assert not assembler.holds_complete
    [later] = batches(assembler, row("c"), encode.commit(200))
    assert contents(later) == [b"B", b"b", b"c", b"C"]


def test_a_full_batch_leaves_before_the_socket_falls_silent(spool: Spool) -> None:
    assembler = Assembler(spool, batch_messages=6)
    wire = Wire(*map(xlog, [*small(100, "a"), *small(200, "b"), *small(300, "c")]))
    batch = assembler.pull(wire)
    assert isinstance(batch, Transactions)
    assert batch.end_lsn == 248
    assert assembler.pull(wire) is None
    assert assembler.holds_complete


def test_a_transaction_too_large_for_memory_goes_by_the_spool_in_its_place(spool: Spool) -> None:
    assembler = Assembler(spool, batch_bytes=2_000)
    large = small(200, *(f"{n:03}" for n in range(100)))
    before, it, after = batches(assembler, *small(100, "a"), *large, *small(300, "z"))
    assert contents(before) == [b"B", b"a", b"C"]
    assert isinstance(it, LargeTransaction)
    assert it.fields == (200, 248, encode.POSTGRES_EPOCH_US, 200)
    assert contents(it) == [f"{n:03}".encode() for n in range(100)]
    assert contents(after) == [b"B", b"z", b"C"]


@pytest.mark.parametrize("what", ["rows", "messages", "truncates"])
def test_memory_is_bounded_whatever_a_transaction_consists_of(spool: Spool, what: str) -> None:
    largest = {
        "rows": row("x" * 100),
        "messages": encode.message("p", b"x" * 100),
        "truncates": encode.truncate(OID),
    }[what]
    assembler = Assembler(spool, messages=True, batch_bytes=10_000)
    batches(assembler, encode.begin(100), *([largest] * 1_000))
    assert sum(map(len, assembler._messages)) <= 10_000 + len(largest) + HEADER


def test_the_rest_of_a_spooled_transaction_is_in_its_order(spool: Spool) -> None:
    assembler = Assembler(spool, batch_bytes=200)
    messages = [row(f"{n}") if n % 3 else encode.truncate(OID) for n in range(30)]
    [batch] = batches(assembler, encode.begin(100), *messages, encode.commit(100))
    assert contents(batch) == [str(n).encode() if n % 3 else b"T" for n in range(30)]


@pytest.mark.parametrize(("is_kept", "kinds"), [(True, b"BMC"), (False, b"BC")])
def test_messages_are_kept_where_they_are_wanted(spool: Spool, is_kept: bool, kinds: bytes) -> None:
    outside = encode.message("p", b"x", transactional=False)
    inside = encode.message("p", b"x")
    sent = [outside, encode.begin(100), inside, encode.commit(100), outside]
    [batch] = batches(Assembler(spool, messages=is_kept), *sent)
    assert b"".join(contents(batch)) == kinds


@pytest.mark.parametrize("is_kept", [True, False])
def test_a_position_that_is_waited_for_leaves_at_once(spool: Spool, is_kept: bool) -> None:
    passing = [encode.begin(200), encode.message("pgstream", b"pass"), encode.commit(200)]
    wire = Wire(*map(xlog, [*small(100, "a"), *passing, *small(300, "b")]))
    assembler = Assembler(spool, messages=is_kept)
    whole, beat = assembler.pull(wire), assembler.pull(wire)
    assert isinstance(whole, Transactions)
    assert contents(whole) == [b"B", b"a", b"C", b"B", b"C"]
    assert beat == Keepalive(whole.end_lsn, wants_reply=True)
    assert assembler.pull(wire) is None
    last = assembler.drain()
    assert last is not None
    assert contents(last) == [b"B", b"b", b"C"]


# --- streamed transactions --------------------------------------------------------------------


def test_a_streamed_transaction_leaves_at_its_commit_and_in_that_place(spool: Spool) -> None:
    first, it, last = batches(
        Assembler(spool),
        *block(7, row("s1", 7)),
        *small(100, "a"),
        *block(7, row("s2", 7), first=False),
        stream_commit(7, 200),
        *small(300, "b"),
    )
    assert contents(first) == [b"B", b"a", b"C"]
    assert isinstance(it, LargeTransaction)
    assert it.fields == (200, 248, encode.POSTGRES_EPOCH_US, 7)
    assert contents(it) == [b"s1", b"s2"]
    assert contents(last) == [b"B", b"b", b"C"]


def test_interleaved_streams_do_not_mix(spool: Spool) -> None:
    sent = [
        *block(7, row("7a", 7)),
        *block(8, row("8a", 8)),
        *block(7, row("7b", 7), first=False),
        stream_commit(8, 100),
        *block(7, row("7c", 7), first=False),
        stream_commit(7, 200),
    ]
    eight, seven = batches(Assembler(spool), *sent)
    assert contents(eight) == [b"8a"]
    assert contents(seven) == [b"7a", b"7b", b"7c"]


def test_an_aborted_stream_leaves_nothing_behind(spool: Spool) -> None:
    sent = [*block(7, row("a", 7)), stream_abort(7, 7), *small(100, "b")]
    [batch] = batches(Assembler(spool), *sent)
    assert contents(batch) == [b"B", b"b", b"C"]
    assert not spool._files


def test_an_aborted_sub_transaction_takes_its_rows_along_but_no_description(spool: Spool) -> None:
    described = b"R" + struct.pack(">I", 9) + b"\0" * 20
    sent = [
        *block(7, row("a", 7), described, row("b", 9), encode.truncate(OID, xid=9), row("c", 10)),
        stream_abort(7, 9),
        *block(7, row("d", 9), row("e", 7), first=False),  # an xid is never used again: aborted too
        stream_commit(7, 100),
    ]
    [batch] = batches(Assembler(spool), *sent)
    assert contents(batch) == [b"a", b"R", b"c", b"e"]


def test_a_message_in_a_stream_is_left_out(spool: Spool) -> None:
    """Postgres does not say which sub-transaction wrote it, so it may have been rolled back."""
    sent = [*block(7, row("a", 7), encode.message("p", b"?", xid=7)), stream_commit(7, 100)]
    [batch] = batches(Assembler(spool, messages=True), *sent)
    assert contents(batch) == [b"a"]


def test_the_abort_of_one_stream_does_not_touch_another(spool: Spool) -> None:
    sent = [
        *block(7, row("a", 9)),
        *block(8, row("b", 9)),  # not possible in Postgres, and still kept apart
        stream_abort(7, 9),
        stream_commit(7, 100),
        stream_commit(8, 200),
    ]
    seven, eight = batches(Assembler(spool), *sent)
    assert (contents(seven), contents(eight)) == ([], [b"b"])


def test_an_empty_stream_is_a_transaction_without_changes(spool: Spool) -> None:
    [batch] = batches(Assembler(spool), *block(7), stream_commit(7, 100))
    assert isinstance(batch, LargeTransaction)
    assert contents(batch) == []


def test_more_than_a_frame_is_read_back_in_bounded_blocks(spool: Spool) -> None:
    value = "x" * (FRAME_BYTES // 5)
    sent = [*block(7, *(row(value, 7) for _ in range(17))), stream_commit(7, 100)]
    [batch] = batches(Assembler(spool), *sent)
    assert isinstance(batch, LargeTransaction)
    parts = list(batch.batches())
    assert [len(b.starts) for b in parts] == [5, 5, 5, 2]
    assert all(len(b.data) < 2 * FRAME_BYTES for b in parts)


# --- keepalives -------------------------------------------------------------------------------


def wire_batches(assembler: Assembler, *messages: bytes) -> list[TransactionBatch]:
    return batches(assembler, *messages, bare=False)


def test_a_keepalive_leaves_behind_the_transactions_before_it(spool: Spool) -> None:
    sent = [*map(xlog, small(100, "a")), keepalive(500)]
    batch, beat = wire_batches(Assembler(spool), *sent)
    assert isinstance(batch, Transactions)
    assert beat == Keepalive(Lsn(500), wants_reply=False)


def test_a_keepalive_inside_an_open_transaction_does_not_wait_for_it(spool: Spool) -> None:
    assembler = Assembler(spool)
    sent = [xlog(encode.begin(900)), xlog(row("a")), keepalive(500, wants_reply=True)]
    assert wire_batches(assembler, *sent) == [Keepalive(Lsn(500), wants_reply=True)]
    [batch] = batches(assembler, row("b"), encode.commit(900))
    assert contents(batch) == [b"B", b"a", b"b", b"C"]


def test_a_keepalive_is_not_later_than_a_transaction_that_came_behind_it(spool: Spool) -> None:
    """Else a position would be recorded while a transaction before it is still in hand."""
    sent = [keepalive(500), *map(xlog, small(600, "a")), keepalive(700, wants_reply=True)]
    first, second = wire_batches(Assembler(spool), *sent)
    assert isinstance(first, Transactions)
    assert second == Keepalive(Lsn(700), wants_reply=True)


def test_the_wish_for_a_reply_outlives_a_later_keepalive(spool: Spool) -> None:
    assembler = Assembler(spool)
    left = wire_batches(assembler, keepalive(500, wants_reply=True), keepalive(600))
    assert [beat.wants_reply for beat in left if isinstance(beat, Keepalive)] == [True, False]


def test_what_was_received_is_the_furthest_position(spool: Spool) -> None:
    assembler = Assembler(spool)
    wire_batches(assembler, keepalive(500), *map(xlog, small(100, "a")))
    assert assembler.received == 500


# --- the end and damage -----------------------------------------------------------------------


@pytest.mark.parametrize("nothing", [None, memoryview(b"")])  # psycopg's two implementations
def test_the_end_of_the_stream_is_reported(spool: Spool, nothing: memoryview | None) -> None:
    with pytest.raises(StreamEnded):
        Assembler(spool).pull(lambda _: (-1, nothing))


@pytest.mark.parametrize(
    "messages",
    [
        [encode.commit(1)],
        [row("a")],
        [encode.truncate(OID)],
        [encode.begin(1), encode.begin(2)],
        [encode.begin(1), stream_start(7)],
        [encode.begin(1), stream_commit(7, 2)],
        [stream_start(7, first=False)],
        [stream_commit(7, 100)],
        [STREAM_STOP],
        [*block(7), stream_start(7), encode.begin(1)],
        [*block(7)[:-1], stream_commit(7, 100)],
        [*block(7)[:-1], stream_start(8)],
        [b"X"],
        [b"C\0"],
        [encode.begin(1), b"C\0\0"],
        [encode.begin(1), b"M"],
        [*block(7)[:-1], b"M\0"],
        [b"S\0"],
        [b"A\0"],
    ],
    ids=lambda messages: "+".join(chr(m[0]) for m in messages),
)
def test_what_the_protocol_does_not_allow_is_refused(
    spool: Spool, messages: Sequence[bytes]
) -> None:
    with pytest.raises(ProtocolError):
        batches(Assembler(spool), *messages)


@pytest.mark.parametrize("second", [100, 90], ids=["repeated", "decreasing"])
@pytest.mark.parametrize("is_streamed", [False, True], ids=["whole", "streamed"])
def test_a_transaction_that_does_not_end_behind_the_one_before_is_refused(
    spool: Spool, second: int, *, is_streamed: bool
) -> None:
    again = [*block(7, row("b", 7)), stream_commit(7, second)] if is_streamed else small(second)
    with pytest.raises(ProtocolError, match="ends at"):
        batches(Assembler(spool), *small(100, "a"), *again)


@pytest.mark.parametrize("raw", [b"w", b"w" + bytes(24), b"k", b"k" + bytes(30), b"x" + bytes(40)])
def test_what_replication_does_not_allow_is_refused(spool: Spool, raw: bytes) -> None:
    with pytest.raises(ProtocolError):
        wire_batches(Assembler(spool), raw)


MESSAGES = st.one_of(
    st.integers(1, 1_000).map(encode.begin),
    st.integers(1, 1_000).map(encode.commit),
    st.integers(1, 3).map(stream_start),
    st.integers(1, 3).map(lambda xid: stream_start(xid, first=False)),
    st.just(STREAM_STOP),
    st.tuples(st.integers(1, 3), st.integers(1, 1_000)).map(lambda at: stream_commit(*at)),
    st.tuples(st.integers(1, 3), st.integers(1, 5)).map(lambda xids: stream_abort(*xids)),
    st.integers(1, 5).map(lambda xid: row("v", xid)),
    st.just(row("v")),
    st.just(encode.message("p", b"c")),
    st.binary(min_size=1, max_size=60),
)


@given(st.lists(MESSAGES, max_size=25), st.data())
def test_any_bytes_are_assembled_or_refused(messages: list[bytes], data: st.DataObject) -> None:
    cut = [
        m[: data.draw(st.integers(1, len(m)))] if data.draw(st.booleans()) else m for m in messages
    ]
    with tempfile.TemporaryDirectory() as folder, closing(Spool(Path(folder))) as spool:
        try:
            for batch in batches(Assembler(spool, batch_bytes=100), *cut):
                contents(batch)
        except ProtocolError:
            pass
