"""Control messages, one at a time."""

from __future__ import annotations

import struct

import pytest

from pgstream_dagster.errors import ProtocolError
from pgstream_dagster.lsn import Lsn
from pgstream_dagster.schema.table import Column, ReplicaIdentity, TableSchema
from pgstream_dagster.wire import pgoutput
from pgstream_dagster.wire.pgoutput import Control, parse
from tests.support.reference import encode

ORDERS = TableSchema(
    epoch=1,
    relation_id=16384,
    namespace="shop",
    name="örders",
    identity=ReplicaIdentity.DEFAULT,
    columns=(Column("id", 1, 20, "bigint"), Column("total", 3, 1700, "numeric(12,2)", 786438)),
    key=("id",),
)
COLUMNS = (
    pgoutput.RelationColumn("id", 20, -1, in_key=True),
    pgoutput.RelationColumn("total", 1700, 786438, in_key=False),
)
RELATION = pgoutput.Relation(16384, "shop", "örders", ReplicaIdentity.DEFAULT, COLUMNS)
AT_US = 1_700_000_000_000_001

PLAIN: list[tuple[bytes, Control]] = [
    (
        encode.begin(0x16B374D848, AT_US, 4_000_000_000),
        pgoutput.Begin(Lsn(0x16B374D848), AT_US, 4_000_000_000),
    ),
    (encode.commit(16, 64, AT_US), pgoutput.Commit(Lsn(16), Lsn(64), AT_US)),
    (encode.origin(7, "elsewhere"), pgoutput.Origin(Lsn(7), "elsewhere")),
    (encode.relation(ORDERS), RELATION),
    (encode.type_name(16500, "shop", "mood"), pgoutput.TypeName(16500, "shop", "mood")),
    (encode.type_name(25, "", "text"), pgoutput.TypeName(25, "pg_catalog", "text")),
    (
        encode.truncate(1, 2, options=3),
        pgoutput.Truncate((1, 2), cascade=True, restart_identity=True),
    ),
    (
        encode.message("note", b"\xff\0", lsn=9),
        pgoutput.LogicalMessage(transactional=True, lsn=Lsn(9), prefix="note", content=b"\xff\0"),
    ),
    (b"S" + struct.pack(">IB", 5, 1), pgoutput.StreamStart(5, first=True)),
    (b"E", pgoutput.StreamStop()),
    (
        b"c" + struct.pack(">IBQQq", 5, 0, 16, 64, AT_US - encode.POSTGRES_EPOCH_US),
        pgoutput.StreamCommit(5, Lsn(16), Lsn(64), AT_US),
    ),
    (b"A" + struct.pack(">II", 5, 6), pgoutput.StreamAbort(5, 6)),
]
BEFORE_2000 = encode.begin(1, 0)


@pytest.mark.parametrize(("message", "expected"), PLAIN)
def test_a_control_message_is_read(message: bytes, expected: Control) -> None:
    assert parse(message, streamed=False) == expected
    assert parse(memoryview(message), streamed=False) == expected


@pytest.mark.parametrize(("message", "_"), PLAIN)
def test_a_message_that_is_cut_or_grown_anywhere_is_refused(message: bytes, _: Control) -> None:
    for size in range(len(message)):
        with pytest.raises(ProtocolError):
            parse(message[:size], streamed=False)
    with pytest.raises(ProtocolError, match="1 bytes too many"):
        parse(message + b"\0", streamed=False)


def test_the_xid_of_a_streamed_message_is_read_where_the_kind_has_one() -> None:
    relation = parse(encode.relation(ORDERS, xid=77), streamed=True)
    assert isinstance(relation, pgoutput.Relation)
    assert relation.xid == 77
    assert relation.columns == COLUMNS
    assert parse(encode.origin(7, "o"), streamed=True) == pgoutput.Origin(Lsn(7), "o")
    assert parse(encode.truncate(3, xid=77), streamed=True) == pgoutput.Truncate(
        (3,), cascade=False, restart_identity=False, xid=77
    )


def test_times_before_2000_are_negative_on_the_wire() -> None:
    begin = parse(BEFORE_2000, streamed=False)
    assert isinstance(begin, pgoutput.Begin)
    assert begin.committed_at_us == 0


@pytest.mark.parametrize(
    ("message", "fact"),
    [
        (b"", "not a control message"),
        (b"Zabc", "kind b'Z'"),
        (encode.insert(1, ["a"]), "kind b'I'"),
        (b"C\1" + bytes(24), "unknown flags 0x01"),
        (encode.truncate(1, options=4), "unknown flags 0x04"),
        (b"B" + b"\xff" * 8 + bytes(12), "past every WAL"),
        (b"B" + bytes(8) + b"\x7f" + b"\xff" * 7 + bytes(4), "past every timestamp"),
        (b"O" + bytes(8) + b"\xff\0", "a name is not UTF-8"),
        (b"O" + bytes(8) + b"name", "has no end"),
        (encode.relation(ORDERS).replace(b"\0d\0\2", b"\0x\0\2"), "unknown replica identity 'x'"),
        (b"T" + struct.pack(">IB", 1 << 30, 0), "want 4,294,967,296 bytes"),
        (b"M\0" + bytes(8) + b"p\0" + struct.pack(">i", -1), "want 4,294,967,295 bytes"),
    ],
)
def test_damage_is_named(message: bytes, fact: str) -> None:
    with pytest.raises(ProtocolError, match=fact):
        parse(message, streamed=False)
