"""The types of columns as transformers know them. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from pgstream_dagster.config.transformers import Transformer, TypeClass
from pgstream_dagster.schema.table import Column

CLASSES: Final[Mapping[str, TypeClass]] = {
    **dict.fromkeys(["text", "varchar", "bpchar"], TypeClass.STRING),
    "citext": TypeClass.CITEXT,
    "bytea": TypeClass.BYTEA,
    **dict.fromkeys(["int2", "int4", "int8"], TypeClass.INTEGER),
    **dict.fromkeys(["float4", "float8"], TypeClass.FLOAT),
    "bool": TypeClass.BOOLEAN,
    "date": TypeClass.DATE,
    **dict.fromkeys(["timestamp", "timestamptz"], TypeClass.TIMESTAMP),
    "uuid": TypeClass.UUID,
    **dict.fromkeys(["json", "jsonb"], TypeClass.JSON),
    "hstore": TypeClass.HSTORE,
}
"""By `Column.value_type`; any other type has no class."""

RANGES: Final[Mapping[str, tuple[int, int]]] = {
    name: (-(1 << bits), (1 << bits) - 1)
    for name, bits in (("int2", 15), ("int4", 31), ("int8", 63))
}
"""What whole numbers of a type can be."""

_FLOAT: Final = r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?|NaN|[+-]?Infinity"
_TEXTS: Final[Mapping[str, str]] = {
    **dict.fromkeys(["int2", "int4", "int8", "oid"], r"[+-]?\d+"),
    **dict.fromkeys(["float4", "float8", "numeric"], _FLOAT),
    "bool": r"[tf]",
    "uuid": r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}",
    "bytea": r"\\x([0-9a-f]{2})*",
    "date": r"\d{4}-\d{2}-\d{2}",
    "timestamp": r"\d{4}-\d{2}-\d{2} \d{2}:\d{2}:\d{2}(\.\d{1,6})?",
    "timestamptz": r"\d{4}-\d{2}-\d{2} \d{2}:\d{2}:\d{2}(\.\d{1,6})?\+00",
}
"""How Postgres prints values, of types where a wrong text is easily written."""

_HEADER: Final = 4  # of a modifier of varchar and bpchar (VARHDRSZ)


def element_type(value_type: str) -> str:
    """The type of what a transformer gets: of an array its elements'."""
    return value_type.partition("[]")[0]


def takes(rule: Transformer, value_type: str) -> bool:
    """Whether a transformer takes a type, or the elements of an array of it."""
    accepted = type(rule).accepts
    return accepted is None or CLASSES.get(element_type(value_type)) in accepted


def is_printed(text: str, value_type: str) -> bool:
    """Whether a text may be a value as Postgres prints it; `True` for types not known here."""
    pattern = _TEXTS.get(value_type)
    if pattern is not None and not re.fullmatch(pattern, text, re.ASCII):
        return False
    least, greatest = RANGES.get(value_type, (0, 0))
    return value_type not in RANGES or least <= int(text) <= greatest


def longest(column: Column) -> int | None:
    """The most characters that a varchar(n) or char(n) column holds; `None` without a limit."""
    is_limited = column.value_type in ("varchar", "bpchar") and column.typmod > _HEADER
    return column.typmod - _HEADER if is_limited else None
