"""Blocks of messages into rows of the change log: what each kind of message says."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace

import pyarrow as pa
import pytest

from pgstream_dagster.errors import ProtocolError
from pgstream_dagster.schema.changes import Op
from pgstream_dagster.schema.layout import CHANGES
from pgstream_dagster.schema.table import Column, ReplicaIdentity, TableSchema
from pgstream_dagster.wire.columns import SchemaTimeline, decode
from pgstream_dagster.wire.messages import TransactionFields, join, relations
from pgstream_dagster.wire.ragged import CHUNK_SLOTS
from tests.support.reference import encode
from tests.support.reference.change import Change
from tests.support.reference.encode import UNSENT
from tests.support.reference.pgoutput import as_changes

LONG = "longer than the twelve bytes that fit beside a length"


def schema(
    relation_id: int, columns: str, key: str, identity: ReplicaIdentity = ReplicaIdentity.DEFAULT
) -> TableSchema:
    described = tuple(Column(name, at, 25, "text") for at, name in enumerate(columns.split(), 1))
    return TableSchema(
        1, relation_id, "shop", f"t{relation_id}", identity, described, tuple(key.split())
    )


ORDERS = schema(1, "id note total", "id")
FULL = schema(2, "id note", "id", ReplicaIdentity.FULL)
KEYLESS = schema(3, "a b", "", ReplicaIdentity.FULL)
PAIRS = schema(4, "a b c", "c a")
DESCRIBED: SchemaTimeline = {s.relation_id: [(-1, s)] for s in (ORDERS, FULL, KEYLESS, PAIRS)}
STREAM = TransactionFields(commit_lsn=500, end_lsn=548, committed_at_us=7, xid=42)


def table_of(messages: Sequence[bytes], timeline: SchemaTimeline = DESCRIBED) -> pa.Table:
    table = decode(join(messages, header=0), timeline, epoch=1).table
    table.validate(full=True)
    return table


def changes(messages: Sequence[bytes], timeline: SchemaTimeline = DESCRIBED) -> list[Change]:
    """Of one transaction that holds `messages`."""
    return as_changes(table_of([encode.begin(100), *messages, encode.commit(100)], timeline))


def change(message: bytes) -> Change:
    [only] = changes([message])
    return only


def test_an_insert_has_every_value_and_null_is_not_empty() -> None:
    decoded = change(encode.insert(1, ["1", None, ""]))
    assert decoded.op is Op.INSERT
    assert decoded.after == {"id": "1", "note": None, "total": ""}
    assert (decoded.key, decoded.before, decoded.old_key) == (("1",), None, None)
    assert (decoded.namespace, decoded.relation, decoded.relation_id) == ("shop", "t1", 1)
    assert decoded.schema_id == ORDERS.schema_id


def test_an_insert_without_a_value_is_named_with_the_column() -> None:
    rows = [["1", "x", ""], ["2", "x", UNSENT], [UNSENT, "x", "y"]]
    messages = [encode.begin(100), *(encode.insert(1, row) for row in rows), encode.commit(100)]
    done = decode(join(messages, header=0), DESCRIBED, epoch=1)
    assert done.unplaced.keys() == {1, 2}
    assert "'total'" in done.unplaced[1] and "alter table shop.t1 replica" in done.unplaced[1]
    assert "'id'" in done.unplaced[2]
    assert as_changes(done.table)[1].after == {"id": "2", "note": "x"}


def test_octets_that_are_not_utf_8_are_escaped_and_the_columns_named() -> None:
    decoded = changes(
        [
            encode.insert(1, ["1", b"a\xc3(", "é"]),
            encode.update(2, [b"\xfe", UNSENT], old=[b"\xff", b"\x80"]),
            encode.delete(1, [b"\xff", b"\xff", None], tag="K"),
            encode.insert(1, ["2", "\\xff", ""]),
        ]
    )
    assert decoded[0].after == {"id": "1", "note": "a\\xc3(", "total": "é"}
    assert (decoded[1].key, decoded[1].old_key) == (("\\xfe",), ("\\xff",))
    assert decoded[1].before == {"id": "\\xff", "note": "\\x80"}
    assert decoded[1].after == {"id": "\\xfe", "note": "\\x80"}
    assert (decoded[2].key, decoded[2].before) == (("\\xff",), {"id": "\\xff"})
    assert [json.loads(c.payload)["escaped"] if c.payload else None for c in decoded] == [
        ["note"],
        ["id", "note"],
        ["id"],
        None,
    ]


def test_an_update_leaves_out_what_was_not_sent() -> None:
    decoded = change(encode.update(1, ["1", None, UNSENT]))
    assert decoded.after == {"id": "1", "note": None}
    assert (decoded.key, decoded.before, decoded.old_key) == (("1",), None, None)


def test_a_key_tuple_carries_the_key_and_not_its_filling() -> None:
    decoded = change(encode.update(1, ["2", LONG, UNSENT], old=["1", None, None], tag="K"))
    assert decoded.before == {"id": "1"}
    assert decoded.after == {"id": "2", "note": LONG}
    assert (decoded.key, decoded.old_key) == (("2",), ("1",))


def test_an_unsent_value_is_completed_from_a_whole_old_tuple() -> None:
    decoded = change(encode.update(2, ["1", UNSENT], old=["1", LONG]))
    assert decoded.after == {"id": "1", "note": LONG}
    assert decoded.old_key is None


def test_an_unsent_value_is_completed_with_null_where_the_old_tuple_says_null() -> None:
    assert change(encode.update(2, ["1", UNSENT], old=["1", None])).after == {
        "id": "1",
        "note": None,
    }


def test_an_unsent_key_is_completed_from_a_key_tuple_and_nothing_else_is() -> None:
    decoded = change(encode.update(1, [UNSENT, UNSENT, "3"], old=[LONG, None, None], tag="K"))
    assert decoded.after == {"id": LONG, "total": "3"}
    assert (decoded.key, decoded.old_key) == ((LONG,), None)


def test_an_old_key_differs_when_null_became_empty() -> None:
    decoded = change(encode.update(2, ["", "x"], old=[None, "x"]))
    assert (decoded.key, decoded.old_key) == (("",), (None,))


def test_a_delete_has_the_old_key() -> None:
    decoded = change(encode.delete(1, ["1", None, None], tag="K"))
    assert decoded.op is Op.DELETE
    assert (decoded.key, decoded.before, decoded.after) == (("1",), {"id": "1"}, None)
    whole = change(encode.delete(2, ["1", None]))
    assert (whole.key, whole.before) == (("1",), {"id": "1", "note": None})


def test_a_relation_without_a_key_has_no_key() -> None:
    decoded = changes(
        [
            encode.insert(3, ["1", "x"]),
            encode.update(3, ["2", "x"], old=["1", "x"]),
            encode.delete(3, ["2", "x"]),
        ]
    )
    assert [(c.key, c.old_key) for c in decoded] == [(None, None)] * 3


def test_the_key_has_its_own_order() -> None:
    decoded = change(encode.update(4, ["a", "b", "c"], old=["a", None, "z"], tag="K"))
    assert (decoded.key, decoded.old_key) == (("c", "a"), ("z", "a"))
    assert decoded.before == {"a": "a", "c": "z"}


def test_a_truncate_is_one_row_for_each_relation() -> None:
    decoded = changes([encode.truncate(3, 1), encode.insert(1, ["1", "", ""])])
    assert [(c.op, c.relation_id, c.position.ordinal) for c in decoded] == [
        (Op.TRUNCATE, 3, 0),
        (Op.TRUNCATE, 1, 1),
        (Op.INSERT, 1, 2),
    ]
    assert (decoded[0].key, decoded[0].before, decoded[0].after) == (None, None, None)


def test_a_transactional_message_is_a_row_and_another_is_none() -> None:
    decoded = changes(
        [
            encode.message("note", "é\0".encode()),
            encode.message("note", b"\xff"),
            encode.message("note", b"lost", transactional=False),
        ]
    )
    assert [json.loads(c.payload or "") for c in decoded] == [
        {"prefix": "note", "content": "é\0"},
        {"prefix": "note", "content_base64": "/w=="},
    ]
    assert {(c.op, c.relation, c.relation_id, c.schema_id) for c in decoded} == {
        (Op.MESSAGE, None, None, None)
    }


def test_every_row_has_the_fields_of_its_transaction() -> None:
    row = encode.insert(1, ["1", "", ""])
    table = table_of(
        [
            encode.begin(100, 5, 4_000_000_000),
            encode.origin(3, "elsewhere"),
            row,
            row,
            encode.commit(100, 148),
            encode.message("note", b"between", transactional=False),
            encode.begin(200, 6, 8),
            encode.commit(200),
            encode.begin(300, 7, 9),
            row,
            encode.commit(300, 348),
        ]
    )
    assert [
        (c.position.commit_lsn, c.position.ordinal, c.end_lsn, c.xid, c.committed_at_us)
        for c in as_changes(table)
    ] == [
        (100, 0, 148, 4_000_000_000, 5),
        (100, 1, 148, 4_000_000_000, 5),
        (300, 0, 348, 9, 7),
    ]


def test_a_streamed_part_goes_on_where_the_last_one_ended() -> None:
    row = encode.insert(1, ["1", "", ""], xid=43)
    batch = join([row, encode.truncate(1, xid=42), row], header=0, streamed=True)
    done = decode(batch, DESCRIBED, epoch=1, transaction=STREAM, first_ordinal=10)
    assert [c.position for c in as_changes(done.table)] == [(1, 500, n) for n in (10, 11, 12)]
    assert set(done.table["xid"].to_pylist()) == {42}
    assert done.next_ordinal == 13


def test_a_row_has_the_version_of_its_relation_that_was_described_last() -> None:
    wider = schema(1, "id note total extra", "id")
    renamed = replace(wider, name="renamed")
    timeline = {1: [(-1, ORDERS), (2, wider), (4, renamed)]}
    decoded = changes(
        [
            encode.insert(1, ["1", "", ""]),
            encode.relation(wider),
            encode.insert(1, ["2", "", "", ""]),
            encode.relation(renamed),
            encode.delete(1, ["2", None, None, None], tag="K"),
        ],
        timeline,
    )
    assert [c.schema_id for c in decoded] == [s.schema_id for s in (ORDERS, wider, wider)]
    assert [c.relation for c in decoded] == ["t1", "t1", "renamed"]
    assert [len(c.after or {}) for c in decoded] == [3, 4, 0]


def test_relations_are_found_with_their_place() -> None:
    batch = join([encode.begin(1), encode.relation(ORDERS), encode.commit(1)], header=0)
    [(index, relation)] = relations(batch)
    assert (index, relation.name) == (1, "t1")


def test_a_block_without_rows_is_an_empty_table_of_changes() -> None:
    for messages in ([], [encode.begin(1), encode.commit(1)]):
        assert table_of(messages).equals(CHANGES.empty_table())


def test_a_table_has_the_schema_of_the_log() -> None:
    assert table_of([encode.begin(1), encode.truncate(1), encode.commit(1)]).schema.equals(CHANGES)


def test_a_row_of_1600_columns_is_read() -> None:
    wide = schema(9, " ".join(f"c{at}" for at in range(1600)), "c1599")
    [decoded] = changes([encode.insert(9, [str(at) for at in range(1600)])], {9: [(0, wide)]})
    assert decoded.after == {f"c{at}": str(at) for at in range(1600)}
    assert decoded.key == ("1599",)


def test_a_table_without_columns_has_rows() -> None:
    bare = schema(9, "", "", ReplicaIdentity.FULL)
    decoded = changes([encode.insert(9, []), encode.delete(9, [])], {9: [(0, bare)]})
    assert [(c.key, c.before, c.after) for c in decoded] == [(None, None, {}), (None, {}, None)]


def test_a_value_of_32_mb_comes_through() -> None:
    value = "é" * (16 << 20)
    decoded = change(encode.insert(1, ["1", value, ""]))
    assert decoded.after is not None
    assert decoded.after["note"] == value


def test_many_nulls_are_decoded_in_bounded_chunks() -> None:
    wide = schema(9, " ".join(f"c{at}" for at in range(1600)), "c0")
    row = encode.insert(9, ["1", *[None] * 1599])
    rows = 2 * CHUNK_SLOTS // 1600
    table = table_of([encode.begin(1), *[row] * rows, encode.commit(1)], {9: [(0, wide)]})
    assert len(table) == rows
    assert table["after"].num_chunks >= 2


@pytest.mark.parametrize(
    ("messages", "fact"),
    [
        ([encode.insert(77, ["1"])], "relation 77, which Postgres has not described"),
        ([encode.truncate(77)], "relation 77, which Postgres has not described"),
        (
            [encode.insert(1, ["1", "2"])],
            r"Insert of 'shop.t1' \(message 1 of its batch\): its column",
        ),
        ([encode.insert(1, ["1", "2", "3"])[:-1]], "do not end where the message ends"),
        ([encode.insert(1, ["1", "2", "3"]) + b"n"], "do not end where the message ends"),
        ([encode.update(1, ["1", "", ""], old=["1", None, None])[:12]], "runs past|not end"),
        (
            [encode.insert(1, ["1", "", ""]).replace(b"t\0\0\0\x011", b"b\0\0\0\x011")],
            "do not end where the message ends",
        ),
        ([encode.insert(1, ["1", "", None])[:-1] + b"x"], r"unknown value \(kind 0x78\)"),
        ([encode.insert(1, ["1", "", ""]).replace(b"N", b"K")], "unknown kind of tuple"),
        (
            [encode.update(2, ["1", ""], old=["1", ""]).replace(b"N\0\2", b"K\0\2")],
            "its second tuple is not a new one",
        ),
        (
            [encode.update(2, ["1", ""], old=["1", ""]).partition(b"N\0\2")[0]],
            "it has no new tuple",
        ),
        ([encode.update(1, [UNSENT, "", ""])], "a key value is not sent"),
        ([encode.delete(1, [UNSENT, None, None], tag="K")], "a key value is not sent"),
        ([encode.insert(1, ["1", "", ""])[:5]], "too short"),
        ([b"Xabc"], "its kind is unknown"),
        ([encode.begin(100)], "do not alternate"),
        ([encode.origin(1, "o")[:6]], "it is damaged"),
        ([encode.origin(1 << 63, "o")], "it is damaged"),
    ],
)
def test_damage_is_named(messages: list[bytes], fact: str) -> None:
    with pytest.raises(ProtocolError, match=fact):
        changes(messages)


@pytest.mark.parametrize(
    ("messages", "fact"),
    [
        ([encode.insert(1, ["1", "", ""])], "belongs to no transaction"),
        ([encode.begin(1), encode.commit(1), encode.truncate(1)], "belongs to no transaction"),
        ([encode.message("p", b"")], "belongs to no transaction"),
        ([encode.commit(1), encode.begin(1)], "do not alternate"),
        (
            [encode.message("p", b"", transactional=False), encode.insert(1, ["1", "", ""])],
            "message 1 of its batch, b'I': it belongs to no transaction",
        ),
        ([encode.begin(1), encode.commit(2)], "of another transaction"),
        ([encode.begin(1), b"C\1" + encode.commit(1)[2:]], "unknown flags"),
        ([encode.begin(1)[:-1], encode.commit(1)], "has not 21 bytes"),
        ([encode.begin(1), encode.commit(1) + b"\0"], "has not 26 bytes"),
        ([encode.begin(1 << 63), encode.commit(1 << 63)], "past every WAL"),
    ],
)
def test_transactions_that_are_not_whole_are_refused(messages: list[bytes], fact: str) -> None:
    with pytest.raises(ProtocolError, match=fact):
        table_of(messages)


def test_a_begin_inside_a_streamed_transaction_is_refused() -> None:
    batch = join([encode.begin(1)], header=0, streamed=True)
    with pytest.raises(ProtocolError, match="cannot be inside a streamed"):
        decode(batch, DESCRIBED, epoch=1, transaction=STREAM)


def test_a_message_without_a_kind_is_refused() -> None:
    with pytest.raises(ProtocolError, match="its header alone has 25"):
        join([bytes(25)], header=25)


def test_a_batch_that_32_bit_offsets_cannot_hold_is_refused_before_it_is_made() -> None:
    quarter = memoryview(bytes(1 << 26))
    with pytest.raises(ValueError, match="a batch of 2,147,483,648 bytes"):
        join([quarter] * 32, header=0)
