"""What is sent again is compared with the log, and passed over only when it is the same."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from pgstream_dagster.capture.decoding import Decoder
from pgstream_dagster.capture.resent import Resent
from pgstream_dagster.capture.transactions import Transactions
from pgstream_dagster.changelog.land import DecodedBatch, Keepalive
from pgstream_dagster.errors import SourceRestored
from pgstream_dagster.lsn import Lsn
from pgstream_dagster.schema.table import Column, ReplicaIdentity, TableSchema
from pgstream_dagster.source.catalog import Resolved
from pgstream_dagster.wire import pgoutput
from pgstream_dagster.wire.messages import TransactionFields, join
from pgstream_dagster.wire.pgoutput import POSTGRES_EPOCH_US
from tests.support.reference import encode

OID = 16_400
SCHEMA = TableSchema(
    1, OID, "public", "t", ReplicaIdentity("d"), (Column("x", 1, 25, "text", -1),), ("x",)
)


def resent(watermark: int, last: tuple[int, int] | None) -> Resent:
    """Over a log whose last transaction at or after the slot's position is `last`: LSN and xid."""

    def resolve(relation: pgoutput.Relation, earlier: TableSchema | None, xid: int) -> Resolved:
        return Resolved(SCHEMA, certain=True)

    in_force = {OID: (Lsn(1), SCHEMA)}
    decoder = Decoder(
        1, resolve, lambda *_: set(), in_force, lambda _: None, *[lambda *_: None] * 3
    )
    fields = last and TransactionFields(Lsn(last[0]), Lsn(last[0] + 8), POSTGRES_EPOCH_US, last[1])
    return Resent(decoder, Lsn(watermark), fields)


def transaction(lsn: int, xid: int, *messages: bytes) -> list[bytes]:
    return [encode.begin(lsn, xid=xid), *messages, encode.commit(lsn, lsn + 8)]


def batch(*transactions: Sequence[bytes]) -> Transactions:
    messages = [message for messages in transactions for message in messages]
    end_lsn = int.from_bytes(messages[-1][10:18], "big")
    return Transactions(join(messages, header=0), Lsn(end_lsn))


DESCRIBED, ROW = encode.relation(SCHEMA), encode.insert(OID, ["x"])
EMPTY = transaction(60, 7)
END = Keepalive(Lsn(100), wants_reply=False)


def landed(resending: Resent, *batches: Transactions | Keepalive) -> list[int]:
    """Commit LSNs of the rows that are handed on."""
    decoded = [changes for batch in batches for changes in resending.decode(batch)]
    return [
        lsn
        for batch in decoded
        if isinstance(batch, DecodedBatch)
        for lsn in batch.changes.column("commit_lsn").to_pylist()
    ]


def test_what_the_log_holds_is_passed_over_and_what_it_described_is_known() -> None:
    resending = resent(100, (50, 6))
    again = batch(transaction(40, 5, DESCRIBED, ROW), transaction(50, 6, ROW), EMPTY)
    assert landed(resending, again, batch(transaction(100, 8, ROW))) == [100]


def test_old_and_new_transactions_may_come_in_one_batch() -> None:
    resending = resent(58, (50, 6))
    both = batch(
        transaction(50, 6, DESCRIBED, ROW), transaction(58, 8, ROW), transaction(70, 9, ROW)
    )
    assert landed(resending, both) == [58, 70]


@pytest.mark.parametrize(
    "sent",
    [
        pytest.param([batch(transaction(50, 7, DESCRIBED, ROW))], id="another at its place"),
        pytest.param([batch(transaction(50, 7))], id="an empty one at its place"),
        pytest.param([batch(transaction(60, 7, DESCRIBED, ROW))], id="a later one before it"),
        pytest.param([batch(transaction(100, 9, DESCRIBED, ROW))], id="a new one without it"),
        pytest.param([Keepalive(Lsn(100), wants_reply=True)], id="the end without it"),
        pytest.param(
            [batch(transaction(50, 6, DESCRIBED, ROW), transaction(70, 8, ROW))],
            id="one more up to the watermark",
        ),
    ],
)
def test_another_history_is_refused(sent: list[Transactions | Keepalive]) -> None:
    with pytest.raises(SourceRestored):
        landed(resent(100, (50, 6)), *sent)


def test_another_history_is_refused_where_the_log_has_nothing() -> None:
    with pytest.raises(SourceRestored, match="an earlier transaction"):
        landed(resent(100, None), batch(transaction(60, 7, DESCRIBED, ROW)))


def test_messages_alone_are_no_changes() -> None:
    logged = batch(transaction(60, 7, encode.message("prefix", b"content")))
    assert landed(resent(100, None), logged, END) == []


def test_a_keepalive_before_the_watermark_decides_nothing() -> None:
    resending = resent(100, (50, 6))
    [idle] = resending.decode(Keepalive(Lsn(45), wants_reply=True))
    assert idle == Keepalive(Lsn(45), wants_reply=True)
    assert landed(resending, batch(transaction(50, 6, DESCRIBED, ROW)), END) == []
