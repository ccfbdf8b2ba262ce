"""
The slow, obvious decoder: one message, one value at a time. The oracle of `wire.columns`.

It shares no code with the package's decoders. Damage raises `Damaged`.
"""

from __future__ import annotations

import base64
import json
import struct
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import pyarrow as pa

from pgstream_dagster.lsn import Lsn
from pgstream_dagster.schema.changes import Op
from pgstream_dagster.schema.table import ReplicaIdentity, TableSchema
from tests.support.reference.change import Change, Position

UNSENT: Final = object()
EPOCH_2000_US: Final = 946_684_800_000_000
INT64: Final = 1 << 63

Timeline = Mapping[int, Sequence[tuple[int, TableSchema]]]


class Damaged(Exception):
    """The bytes are not what the manual says, or say what the decoder must refuse."""


class Reader:
    def __init__(self, data: bytes) -> None:
        self.data, self.at = data, 0

    def take(self, size: int) -> bytes:
        if self.at + size > len(self.data):
            raise Damaged("the message is too short")
        self.at += size
        return self.data[self.at - size : self.at]

    def number(self, form: str) -> int:
        return struct.unpack(">" + form, self.take(struct.calcsize(">" + form)))[0]

    def position(self) -> int:
        value = self.number("Q")
        if value >= INT64:
            raise Damaged("no such position")
        return value

    def time(self) -> int:
        value = self.number("q") + EPOCH_2000_US
        if value >= INT64:
            raise Damaged("no such time")
        return value

    def flags(self, *allowed: int) -> int:
        value = self.number("B")
        if value not in allowed:
            raise Damaged("unknown flags")
        return value

    def string(self) -> str:
        raw = bytearray()
        while (byte := self.take(1)) != b"\0":
            raw += byte
        return text(bytes(raw))

    def end(self) -> None:
        if self.at != len(self.data):
            raise Damaged("the message is too long")


def text(raw: bytes) -> str:
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError as error:
        raise Damaged("not UTF-8") from error


class Escaped(str):
    """The text of a value that is not UTF-8."""

    __slots__ = ()


def value_text(raw: bytes) -> str:
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError:
        return Escaped(raw.decode("utf-8", "backslashreplace"))


@dataclass
class Transaction:
    commit_lsn: int
    at_us: int
    xid: int
    end_lsn: int = 0
    rows: list[dict[str, Any]] = field(default_factory=list)

    def changes(self, epoch: int, first_ordinal: int) -> list[Change]:
        return [
            Change(
                Position(epoch, Lsn(self.commit_lsn), ordinal),
                Lsn(self.end_lsn),
                xid=self.xid,
                committed_at_us=self.at_us,
                **fields,
            )
            for ordinal, fields in enumerate(self.rows, first_ordinal)
        ]


def changes(
    messages: Sequence[bytes],
    schemas: Timeline,
    *,
    epoch: int = 1,
    streamed: bool = False,
    transaction: tuple[int, int, int, int] | None = None,
    first_ordinal: int = 0,
) -> list[Change]:
    """What `columns.decode` must give. `transaction`: commit LSN, end LSN, time, xid."""
    if transaction is not None:
        commit_lsn, end_lsn, at_us, xid = transaction
        whole = Transaction(commit_lsn, at_us, xid, end_lsn)
        for index, data in enumerate(messages):
            whole.rows += _rows(Reader(data), index, schemas, streamed=streamed)[1]
        return whole.changes(epoch, first_ordinal)
    decoded: list[Change] = []
    current: Transaction | None = None
    for index, data in enumerate(messages):
        at = Reader(data)
        if data[:1] == b"B":
            current = _begin(at, current)
        elif data[:1] == b"C":
            _commit(at, current)
            assert current is not None
            decoded += current.changes(epoch, first_ordinal)
            current = None
        else:
            floats, rows = _rows(at, index, schemas, streamed=streamed)
            if current is not None:
                current.rows += rows
            elif not floats:
                raise Damaged("outside a transaction")
    if current is not None:
        raise Damaged("a transaction without Commit")
    return decoded


def _begin(at: Reader, current: Transaction | None) -> Transaction:
    if current is not None:
        raise Damaged("Begin in a transaction")
    at.take(1)
    begun = Transaction(at.position(), at.time(), at.number("I"))
    at.end()
    return begun


def _commit(at: Reader, current: Transaction | None) -> None:
    if current is None:
        raise Damaged("Commit without Begin")
    at.take(1)
    at.flags(0)
    if at.position() != current.commit_lsn:
        raise Damaged("Commit of another transaction")
    current.end_lsn = at.position()
    at.time()
    at.end()


def _rows(
    at: Reader, index: int, schemas: Timeline, *, streamed: bool
) -> tuple[bool, list[dict[str, Any]]]:
    """Whether the message may come outside transactions, and its rows."""
    kind = at.take(1)
    if streamed and kind in b"RYIUDTM":
        at.number("I")
    rows: list[dict[str, Any]] = []
    if kind == b"T":
        rows = _truncate(at, index, schemas)
    elif kind in b"IUD":
        schema = _schema(at.number("I"), index, schemas)
        rows = [_marked({b"I": _insert, b"U": _update, b"D": _delete}[kind](at, schema))]
    elif kind in b"ORYM":
        rows = {b"O": _origin, b"R": _relation, b"Y": _type, b"M": _message}[kind](at)
    else:
        raise Damaged("unknown kind")
    at.end()
    return kind == b"M" and not rows, rows


def _truncate(at: Reader, index: int, schemas: Timeline) -> list[dict[str, Any]]:
    count = at.number("I")
    at.flags(0, 1, 2, 3)
    oids = [at.number("I") for _ in range(count)]
    return [{"op": Op.TRUNCATE, **_named(_schema(oid, index, schemas))} for oid in oids]


def _marked(row: dict[str, Any]) -> dict[str, Any]:
    """With the names of its columns whose values are escaped."""
    payload = escaped_payload(row.get("before") or {}, row.get("after") or {})
    return row | {"payload": payload} if payload else row


def escaped_payload(*images: Mapping[str, str | None]) -> str | None:
    escaped = {name for image in images for name, v in image.items() if isinstance(v, Escaped)}
    return json.dumps({"escaped": sorted(escaped)}, ensure_ascii=False) if escaped else None


def _insert(at: Reader, schema: TableSchema) -> dict[str, Any]:
    _tag(at, b"N")
    after = _image(_tuple(at), schema)
    if len(after) != len(schema.columns):
        raise Damaged("an insert without one of its values")
    return {"op": Op.INSERT, **_named(schema), "after": after, "key": _key(after, schema)}


def _delete(at: Reader, schema: TableSchema) -> dict[str, Any]:
    before = _old(_tag(at, b"KO"), _tuple(at), schema)
    return {"op": Op.DELETE, **_named(schema), "before": before, "key": _key(before, schema)}


def _update(at: Reader, schema: TableSchema) -> dict[str, Any]:
    fields: dict[str, Any] = {"op": Op.UPDATE, **_named(schema)}
    tag = _tag(at, b"KON")
    before = None
    if tag != b"N":
        before = fields["before"] = _old(tag, _tuple(at), schema)
        _tag(at, b"N")
    after = _image(_tuple(at), schema)
    for name, value in (before or {}).items():
        after.setdefault(name, value)
    fields["after"], fields["key"] = after, _key(after, schema)
    if before is not None and (old_key := _key(before, schema)) != fields["key"]:
        fields["old_key"] = old_key
    return fields


def _origin(at: Reader) -> list[dict[str, Any]]:
    at.position()
    at.string()
    return []


def _type(at: Reader) -> list[dict[str, Any]]:
    at.number("I")
    at.string()
    at.string()
    return []


def _relation(at: Reader) -> list[dict[str, Any]]:
    at.number("I")
    at.string()
    at.string()
    if at.take(1) not in b"dnfi":
        raise Damaged("unknown identity")
    for _ in range(at.number("H")):
        at.flags(0, 1)
        at.string()
        at.number("I")
        at.number("i")
    return []


def _message(at: Reader) -> list[dict[str, Any]]:
    transactional = at.flags(0, 1)
    at.position()
    prefix, content = at.string(), at.take(at.number("I"))
    try:
        content_fields = {"prefix": prefix, "content": content.decode("utf-8")}
    except UnicodeDecodeError:
        content_fields = {"prefix": prefix, "content_base64": base64.b64encode(content).decode()}
    payload = json.dumps(content_fields, ensure_ascii=False)
    return [{"op": Op.MESSAGE, **_named(None), "payload": payload}] if transactional else []


def _named(schema: TableSchema | None) -> dict[str, Any]:
    names = ("namespace", "relation", "relation_id", "schema_id")
    if schema is None:
        return dict.fromkeys(names)
    values = (schema.namespace, schema.name, schema.relation_id, schema.schema_id)
    return dict(zip(names, values, strict=True))


def _schema(oid: int, index: int, schemas: Timeline) -> TableSchema:
    in_force = [schema for since, schema in schemas.get(oid, ()) if since <= index]
    if not in_force:
        raise Damaged("a relation nobody described")
    return in_force[-1]


def _tag(at: Reader, allowed: bytes) -> bytes:
    tag = at.take(1)
    if tag not in allowed:
        raise Damaged("unknown tuple")
    return tag


def _tuple(at: Reader) -> list[bytes | object | None]:
    values: list[bytes | object | None] = []
    for _ in range(at.number("H")):
        match at.take(1):
            case b"n":
                values.append(None)
            case b"u":
                values.append(UNSENT)
            case b"t":
                values.append(at.take(at.number("I")))
            case _:
                raise Damaged("unknown value")
    return values


def _image(values: Sequence[bytes | object | None], schema: TableSchema) -> dict[str, str | None]:
    if len(values) != len(schema.columns):
        raise Damaged("another number of columns")
    pairs = zip(schema.columns, values, strict=True)
    return {
        column.name: value_text(value) if isinstance(value, bytes) else None
        for column, value in pairs
        if value is not UNSENT
    }


def _old(
    tag: bytes, values: Sequence[bytes | object | None], schema: TableSchema
) -> dict[str, str | None]:
    is_whole = tag == b"O" and schema.identity is ReplicaIdentity.FULL
    if not is_whole and len(values) == len(schema.columns):
        names = [column.name for column in schema.columns]
        values = [
            value if name in schema.key else UNSENT
            for name, value in zip(names, values, strict=True)
        ]
    return _image(values, schema)


def _key(image: Mapping[str, str | None], schema: TableSchema) -> tuple[str | None, ...] | None:
    if not schema.key:
        return None
    if not set(schema.key) <= image.keys():
        raise Damaged("a key value is missing")
    return tuple(image[name] for name in schema.key)


def as_changes(table: pa.Table) -> list[Change]:
    """The rows of a table of changes, one by one."""
    times = table["committed_at"].cast(pa.int64()).to_pylist()
    rows: Iterable[dict[str, Any]] = table.drop_columns(["committed_at"]).to_pylist()
    return [_as_change(row, at_us) for row, at_us in zip(rows, times, strict=True)]


def _as_change(row: dict[str, Any], at_us: int | None) -> Change:
    assert row.pop("landed_at") is None
    position = Position(row.pop("epoch"), Lsn(row.pop("commit_lsn")), row.pop("ordinal"))
    for name in ("key", "old_key"):
        row[name] = None if row[name] is None else tuple(row[name])
    for name in ("before", "after"):
        row[name] = None if row[name] is None else _as_image(row[name])
    op, end_lsn = Op(row.pop("op")), Lsn(row.pop("end_lsn"))
    return Change(position, end_lsn, op, committed_at_us=at_us, **row)


def _as_image(pairs: list[tuple[str, str | None]]) -> dict[str, str | None]:
    image = dict(pairs)
    assert len(image) == len(pairs)
    return image
