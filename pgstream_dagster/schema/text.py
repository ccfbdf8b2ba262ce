"""
Whether a column's values keep their text when its type or rules become others: pure, no I/O.

Postgres rewrites no row when it can use the old bytes under the new type (`timestamp` to
`timestamptz`, `oid` to `int4`, `cidr` to `inet`). The stream then sends nothing for the old rows,
and their text in the log is not what the source shows.

Source:
    ATColumnChangeRequiresRewrite in src/backend/commands/tablecmds.c
"""

from __future__ import annotations

from typing import Final

from pgstream_dagster.schema.table import Column, TableSchema

FIRST_USER_OID: Final = 16384
"""Oids from here on are of objects that users made (FirstNormalObjectId)."""

TEXT_OID: Final = 25
VARCHAR_OID: Final = 1043  # its values have the text of `text`

_UNLIMITED: Final = -1
_FAMILIES: Final = {"varchar": "text", "int2": "int8", "int4": "int8"}
_WIDENING: Final = {"varchar", "varbit", "time", "timetz", "timestamp", "timestamptz"}
_NUMERIC_HEADER: Final = 4
_SCALE_BITS: Final = 0x7FF


def text_changes(before: Column, after: Column) -> bool:
    """
    Whether a value may have another text after its column became `after`; `False` is certain.

    What a USING expression does to the values is not in a type; it always rewrites the table.
    """
    if before.modified != after.modified:
        return True
    if before.type_oid != after.type_oid:
        # A domain may have a modifier of its own, which no column shows.
        is_plain = after.type_oid < FIRST_USER_OID and after.typmod == _UNLIMITED
        return not is_plain or _family(before) != _family(after)
    if after.typmod in (before.typmod, _UNLIMITED):
        return False
    if before.typmod == _UNLIMITED:
        return True
    value_type = after.value_type.rstrip("[]")
    if value_type == "numeric":
        return _scale(before.typmod) != _scale(after.typmod)
    return value_type not in _WIDENING or after.typmod < before.typmod


def retyped(before: TableSchema, after: TableSchema) -> tuple[str, ...]:
    """The columns of `after`, by name, whose values may have had another text in `before`."""
    older = {column.attnum: column for column in before.columns}
    return tuple(
        column.name
        for column in after.columns
        if (was := older.get(column.attnum)) is not None and text_changes(was, column)
    )


def _family(column: Column) -> str:
    """The same for types whose values have the same text; of its own for a forgotten type."""
    element = column.value_type.rstrip("[]")
    family = _FAMILIES.get(element, element) or f"type {column.type_oid}"
    return family + column.value_type[len(element) :]


def _scale(typmod: int) -> int:
    """Digits behind the point of a numeric: the low bits of its modifier."""
    return (typmod - _NUMERIC_HEADER) & _SCALE_BITS
