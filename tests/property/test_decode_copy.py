"""Binary COPY: rows come out as they went in, and damage is refused."""

from __future__ import annotations

import struct
from typing import Any, Final
from unittest import mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pgstream_dagster.errors import ProtocolError
from pgstream_dagster.lsn import Lsn
from pgstream_dagster.schema.changes import Op
from pgstream_dagster.schema.table import TableSchema
from pgstream_dagster.wire import copy_rows
from pgstream_dagster.wire.copy_rows import decode_copy
from tests.support.reference import encode
from tests.support.reference.change import Change, Position
from tests.support.reference.pgoutput import as_changes, escaped_payload, value_text
from tests.support.reference.strategies import EXAMPLES, VALUES, schemas

effort: Final = settings(max_examples=EXAMPLES, deadline=None)
POINT, TAKEN_AT_US, FIRST = Lsn(0x16B374D848), 1_700_000_000_000_000, -(1 << 62) + 1


@st.composite
def copies(draw: st.DrawFn) -> tuple[TableSchema, list[list[str | None]]]:
    schema = draw(schemas(16384))
    row = st.tuples(*(VALUES for _ in schema.columns)).map(list)
    return schema, draw(st.lists(row, max_size=6))


def decoded(messages: list[bytes], schema: TableSchema) -> list[Change]:
    table = decode_copy(
        messages,
        schema,
        epoch=3,
        consistent_point=POINT,
        first_ordinal=FIRST,
        taken_at_us=TAKEN_AT_US,
    )
    table.validate(full=True)
    return as_changes(table)


def expected(rows: list[list[str | None]], schema: TableSchema) -> list[Change]:
    names = [column.name for column in schema.columns]
    images = [dict(zip(names, row, strict=True)) for row in rows]
    return [
        Change(
            Position(3, POINT, FIRST + place),
            POINT,
            Op.READ,
            schema.namespace,
            schema.name,
            schema.relation_id,
            schema.schema_id,
            key=tuple(image[name] for name in schema.key) if schema.key else None,
            after=image,
            payload=escaped_payload(image),
            committed_at_us=TAKEN_AT_US,
        )
        for place, image in enumerate(images)
    ]


@effort
@given(copies(), st.sampled_from(["none", "own", "joined"]), st.booleans(), st.integers(1, 1 << 20))
def test_copied_rows_come_out_as_they_went_in(
    copy: tuple[TableSchema, list[list[str | None]]], header: str, trailer: bool, slots: int
) -> None:
    schema, rows = copy
    messages = [encode.copy_row(row) for row in rows]
    messages += [encode.COPY_TRAILER] if trailer else []
    if header == "joined" and messages:
        messages[0] = encode.COPY_HEADER + messages[0]
    elif header != "none":
        messages.insert(0, encode.COPY_HEADER)
    with mock.patch.object(copy_rows, "CHUNK_SLOTS", slots):
        assert decoded(messages, schema) == expected(rows, schema)


def obvious(message: bytes, width: int) -> list[str | None]:
    """One row, field by field; ValueError (or its kin) when damaged."""
    at, row = 2, list[Any]()
    if struct.unpack(">H", message[:2])[0] != width:
        raise ValueError
    for _ in range(width):
        size = struct.unpack(">i", message[at : at + 4])[0]
        at += 4
        if size < -1 or at + max(size, 0) > len(message):
            raise ValueError
        row.append(None if size < 0 else value_text(message[at : at + size]))
        at += max(size, 0)
    if at != len(message):
        raise ValueError
    return row


@settings(max_examples=3 * EXAMPLES, deadline=None)
@given(copies().filter(lambda copy: bool(copy[1])), st.data())
def test_a_damaged_copy_is_refused_or_means_what_it_says(
    copy: tuple[TableSchema, list[list[str | None]]], data: st.DataObject
) -> None:
    schema, rows = copy
    messages = [encode.copy_row(row) for row in rows]
    at = data.draw(st.integers(0, len(messages) - 1))
    place = data.draw(st.integers(0, len(messages[at])))
    junk = data.draw(st.binary(max_size=4))
    lost = data.draw(st.integers(0, 4))
    messages[at] = messages[at][:place] + junk + messages[at][place + lost :]
    if messages[-1] == encode.COPY_TRAILER:
        return
    try:
        rows = [obvious(message, len(schema.columns)) for message in messages]
    except (ValueError, struct.error):
        with pytest.raises(ProtocolError):
            decoded(messages, schema)
    else:
        assert decoded(messages, schema) == expected(rows, schema)
