"""Bytes that real servers sent: decoded as the reference decodes them, and as the tables show."""

from __future__ import annotations

import gzip
import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Final

import pytest

from pgstream_dagster.schema.changes import Op
from pgstream_dagster.schema.table import Column, TableSchema
from pgstream_dagster.wire import pgoutput
from pgstream_dagster.wire.columns import decode
from pgstream_dagster.wire.messages import TransactionFields, join, relations
from tests.support import wire_samples
from tests.support.reference import pgoutput as reference
from tests.support.reference.change import Change, RowImage

MAJORS: Final = (15, 18)
every_sample = pytest.mark.parametrize("major", MAJORS)
every_protocol = pytest.mark.parametrize("protocol", ["1", "2"])


@dataclass(frozen=True)
class Transaction:
    """A transaction; `fields` when it was streamed, so without its Begin and Commit."""

    messages: list[bytes]
    fields: TransactionFields | None


@cache
def sample(major: int) -> dict[str, Any]:
    path = Path(wire_samples.__file__).parent / f"pg{major}.json.gz"
    return json.loads(gzip.decompress(path.read_bytes()))


def messages(major: int, protocol: str) -> list[bytes]:
    return [bytes.fromhex(message) for message in sample(major)["messages"][protocol]]


def grouped(sent: list[bytes]) -> Iterator[Transaction]:
    """Transactions in commit order, without what was rolled back."""
    streams: dict[int, list[bytes]] = {}
    plain: list[bytes] = []
    streaming: int | None = None
    for message in sent:
        kind = message[:1]
        if kind in b"SEcA":
            match pgoutput.parse(message, streamed=False):
                case pgoutput.StreamStart(xid, first):
                    assert first == (xid not in streams)
                    streams.setdefault(xid, [])
                    streaming = xid
                case pgoutput.StreamStop():
                    streaming = None
                case pgoutput.StreamAbort(xid, subxid) if xid == subxid:
                    del streams[xid]
                case pgoutput.StreamAbort(xid, subxid):
                    aborted = subxid.to_bytes(4)
                    streams[xid] = [m for m in streams[xid] if m[1:5] != aborted or m[:1] == b"O"]
                case pgoutput.StreamCommit(xid, commit_lsn, end_lsn, at_us):
                    yield Transaction(
                        streams.pop(xid), TransactionFields(commit_lsn, end_lsn, at_us, xid)
                    )
                case other:
                    raise AssertionError(other)
        elif streaming is not None:
            streams[streaming].append(message)
        else:
            plain.append(message)
            if kind == b"C":
                yield Transaction(plain, None)
                plain = []
    assert not streams
    assert all(message[:1] == b"M" for message in plain)


def schema_of(relation: pgoutput.Relation, keys: dict[int, list[str]]) -> TableSchema:
    columns = tuple(
        Column(column.name, place, column.type_oid, "", column.typmod)
        for place, column in enumerate(relation.columns, start=1)
    )
    return TableSchema(
        1,
        relation.relation_id,
        relation.namespace,
        relation.name,
        relation.identity,
        columns,
        tuple(keys[relation.relation_id]),
    )


@cache
def both_decoded(major: int, protocol: str) -> tuple[list[Change], list[Change]]:
    """By the package and by the reference."""
    keys = {table["relation_id"]: table["key"] for table in sample(major)["tables"]}
    schemas: dict[int, TableSchema] = {}
    fast: list[Change] = []
    slow: list[Change] = []
    for group in grouped(messages(major, protocol)):
        streamed = group.fields is not None
        batch = join(group.messages, header=0, streamed=streamed)
        timeline = {oid: [(-1, schema)] for oid, schema in schemas.items()}
        for index, relation in relations(batch):
            if relation.relation_id not in keys:
                continue  # a leaf is described behind its root, and no row is said to be in it
            schema = schema_of(relation, keys)
            timeline.setdefault(schema.relation_id, []).append((index, schema))
            schemas[schema.relation_id] = schema
        table = decode(batch, timeline, epoch=1, transaction=group.fields).table
        table.validate(full=True)
        fast += reference.as_changes(table)
        slow += reference.changes(
            group.messages, timeline, streamed=streamed, transaction=group.fields
        )
    return fast, slow


def decoded(major: int, protocol: str = "1") -> list[Change]:
    return both_decoded(major, protocol)[0]


def changes_of(major: int, relation: str, op: Op) -> list[Change]:
    return [c for c in decoded(major) if c.relation == relation and c.op is op]


@every_sample
@every_protocol
def test_real_bytes_decode_as_the_obvious_decoder_says(major: int, protocol: str) -> None:
    fast, slow = both_decoded(major, protocol)
    assert fast == slow


@every_sample
def test_both_protocols_give_the_same_changes(major: int) -> None:
    assert decoded(major, "1") == decoded(major, "2")


@every_sample
@every_protocol
def test_every_kind_of_message_was_captured(major: int, protocol: str) -> None:
    kinds = {message[:1].decode() for message in messages(major, protocol)}
    assert kinds == set("BCRYIUDTM") | (set("SEcA") if protocol == "2" else set())


@every_sample
@every_protocol
def test_every_control_message_is_read(major: int, protocol: str) -> None:
    streaming = False
    for message in messages(major, protocol):
        kind = message[:1]
        streaming = (streaming or kind == b"S") and kind != b"E"
        if kind not in b"IUD":
            pgoutput.parse(message, streamed=streaming)


RENAMED: Final = {"note": "remark"}
ADDED: Final = {"extra": "5", "b": "d"}
"""Defaults of columns added later: older rows show them, the stream does not."""


@every_sample
@every_protocol
def test_the_changes_add_up_to_the_tables(major: int, protocol: str) -> None:
    changes = decoded(major, protocol)
    for table in sample(major)["tables"]:
        rows_now = folded([c for c in changes if c.relation_id == table["relation_id"]])
        rows = [
            tuple(row.get(name, ADDED.get(name)) for name in table["columns"]) for row in rows_now
        ]
        assert Counter(rows) == Counter(map(tuple, table["rows"])), table["name"]


def folded(changes: list[Change]) -> list[dict[str, str | None]]:
    """Current rows of one relation; a keyless row is its own key."""
    rows: list[tuple[object, dict[str, str | None]]] = []
    for change in changes:
        before, after = named(change.before), named(change.after)
        row: dict[str, str | None] = {}
        if change.op is Op.TRUNCATE:
            rows = []
        elif change.op in {Op.UPDATE, Op.DELETE}:
            gone = before if change.key is None else change.old_key or change.key
            place = [key for key, _ in rows].index(gone)
            _, row = rows.pop(place)
        if change.op in {Op.INSERT, Op.UPDATE}:
            row |= after
            rows.append((row if change.key is None else change.key, row))
    return [row for _, row in rows]


def named(image: RowImage | None) -> dict[str, str | None]:
    return {RENAMED.get(name, name): value for name, value in (image or {}).items()}


@every_sample
def test_an_untouched_large_value_is_missing_and_not_null(major: int) -> None:
    small, moved, emptied, _ = changes_of(major, "toasted", Op.UPDATE)
    assert small.after == {"id": "1", "small": "2"}
    assert moved.after == {"id": "2", "small": "2"}
    assert (moved.key, moved.old_key, moved.before) == (("2",), ("1",), {"id": "1"})
    assert emptied.after == {"id": "2", "big": None, "small": "2"}


@every_sample
def test_an_untouched_large_value_is_completed_under_full(major: int) -> None:
    [inserted, _] = changes_of(major, "whole", Op.INSERT)
    small, moved, same = changes_of(major, "whole", Op.UPDATE)
    assert inserted.after is not None
    assert small.after == {**inserted.after, "small": "2"}
    assert small.before == inserted.after
    assert (small.old_key, moved.old_key, same.old_key) == (None, ("1",), None)
    assert same.before == same.after


@every_sample
def test_a_large_key_is_completed_from_the_key_tuple(major: int) -> None:
    [inserted] = changes_of(major, "toasted_key", Op.INSERT)
    small, _ = changes_of(major, "toasted_key", Op.UPDATE)
    assert inserted.after is not None
    assert small.after == {"k": inserted.after["k"], "small": "2"}
    assert small.before == {"k": inserted.after["k"]}
    assert small.key == inserted.key
    assert small.old_key is None


@every_sample
def test_the_identity_index_is_the_key_and_a_changed_primary_key_is_not_in_it(major: int) -> None:
    first, moved_id, moved_code, *_ = changes_of(major, "by_index", Op.UPDATE)
    assert (first.key, first.before) == (("x",), None)
    assert (moved_id.key, moved_id.old_key, moved_id.before) == (("x",), None, None)
    assert (moved_code.key, moved_code.old_key) == (("yy",), ("y",))
    assert moved_code.before == {"code": "y"}


@every_sample
def test_the_key_has_the_order_of_its_index(major: int) -> None:
    [deleted] = changes_of(major, "two_keys", Op.DELETE)
    assert deleted.key == ("2", "a")
    assert deleted.before == {"b": "2", "a": "a"}


@every_sample
def test_values_are_the_text_of_the_output_functions(major: int) -> None:
    first, second, third, *_ = (c.after or {} for c in changes_of(major, "plain", Op.INSERT))
    assert (first["n"], first["flag"], first["raw"]) == ("1.50", "t", "\\x00ff")
    assert (second["a"], second["n"], second["at"]) == ("", "NaN", "infinity")
    assert (third["a"], third["at"]) == (None, "0044-03-15 00:00:00+00 BC")


@every_sample
def test_only_transactional_messages_become_changes(major: int) -> None:
    payloads = [json.loads(c.payload or "") for c in decoded(major) if c.op is Op.MESSAGE]
    assert payloads == [
        {"prefix": "note", "content": "text é"},
        {"prefix": "bytes", "content_base64": "/wA="},
        {"prefix": "note", "content": "in a stream"},
    ]
