"""
A change in the JSON that pgstream posts: `{"Data": {...}}`. Pure.

For receivers written for pgstream. Ours differs in two facts: `lsn` is that of the commit, and
types are those of the catalog in copied rows, too. Columns that were not sent (unchanged TOAST) are
left out, as there. `id` and `metadata` are empty, as without pgstream's injector.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import msgspec

from pgstream_dagster.readers.change import Change, Image
from pgstream_dagster.schema.changes import Op

ACTIONS: Final[Mapping[str, str]] = {
    Op.INSERT: "I",
    Op.READ: "I",
    Op.UPDATE: "U",
    Op.DELETE: "D",
    Op.TRUNCATE: "T",
}
"""Other operations have no form in pgstream."""

NUMBERS: Final = frozenset({"int2", "int4", "int8", "float4", "float8", "numeric"})
NO_NUMBER: Final = frozenset({"NaN", "Infinity", "-Infinity"})
"""Null in pgstream: JSON has no such numbers."""

METADATA: Final = {"schema_id": None, "table_pgstream_id": "", "id_col_pgstream_id": None}
EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_encode: Final = msgspec.json.Encoder().encode


def pgstream_body(change: Change) -> bytes | None:
    """The body of a call; `None` for a change that pgstream has no form for."""
    action = ACTIONS.get(change.op)
    if action is None:
        return None
    is_copied = change.op == Op.READ
    data = {
        "action": action,
        "timestamp": _timestamp(change.committed_at_us, is_copied=is_copied),
        "lsn": "0/0" if is_copied else str(change.commit_lsn),
        "schema": change.namespace,
        "table": change.relation,
        "columns": _columns(change, change.after),
        "identity": _columns(change, _identity(change)),
        "metadata": METADATA,
    }
    return _encode({"Data": data})


def _identity(change: Change) -> Image | None:
    """The old row as far as it was sent, else the key: what identifies the row before."""
    if change.op not in (Op.UPDATE, Op.DELETE):
        return None
    key = change.old_key or change.key
    if change.before or key is None or change.schema is None:
        return change.before
    return dict(zip(change.schema.key, key, strict=True))


def _columns(change: Change, image: Image | None) -> list[dict[str, Any]] | None:
    if image is None or change.schema is None:
        return None
    return [
        {
            "id": "",
            "name": column.name,
            "type": column.type_name,
            "value": _value(image[column.name], column.value_type),
        }
        for column in change.schema.columns
        if column.name in image
    ]


def _value(text: str | None, value_type: str) -> Any:
    if text is None or (value_type in NUMBERS and text in NO_NUMBER):
        return None
    if value_type in NUMBERS:
        return msgspec.Raw(text.encode())  # every digit as Postgres writes it
    if value_type == "bool":
        return text == "t"
    if value_type == "bytea":
        return base64.b64encode(bytes.fromhex(text.removeprefix("\\x"))).decode()
    return text


def _timestamp(committed_at_us: int | None, *, is_copied: bool) -> str:
    if committed_at_us is None:
        return ""
    at = EPOCH + timedelta(microseconds=committed_at_us)
    if is_copied:
        return at.isoformat().replace("+00:00", "Z")
    return at.isoformat(" ").removesuffix(":00")
