"""What commands print: values into text or JSON. No I/O."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass
from enum import Enum
from typing import Any

from pgstream_dagster.lsn import Lsn


def as_json(value: object) -> str:
    """`value` for a machine: LSNs as Postgres prints them, dataclasses by their field names."""
    return json.dumps(plain(value), indent=2, ensure_ascii=False)


def plain(value: object) -> Any:  # noqa: PLR0911 - one line per type
    """`value` of JSON's own types."""
    match value:
        case Enum():
            return plain(value.value)
        case Lsn():  # before int: it is one
            return str(value)
        case None | str() | int() | float():
            return value
        case Mapping():
            return {str(name): plain(said) for name, said in value.items()}
        case set() | frozenset():
            return sorted(plain(item) for item in value)
        case Sequence():
            return [plain(item) for item in value]
    if is_dataclass(value) and not isinstance(value, type):
        return {field.name: plain(getattr(value, field.name)) for field in fields(value)}
    return str(value)


def table(heads: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """Columns under their heads; numbers to the right, with separators."""
    cells = [[_cell(value) for value in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(heads, *cells, strict=True)]
    right = [all(isinstance(row[i], int | float) for row in rows) for i in range(len(heads))]
    lines = [
        "  ".join(
            text.rjust(width) if to_right else text.ljust(width)
            for text, width, to_right in zip(line, widths, right, strict=True)
        ).rstrip()
        for line in [list(heads), *cells]
    ]
    return "\n".join(lines)


def _cell(value: object) -> str:
    if isinstance(value, Lsn):
        return str(value)
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:,.1f}"
    return "" if value is None else str(value)


def size(count: int) -> str:
    """Bytes as a person reads them."""
    amount = float(count)
    for unit in ("bytes", "KB", "MB", "GB"):
        if abs(amount) < 1024:
            return f"{amount:,.0f} {unit}" if unit == "bytes" else f"{amount:,.1f} {unit}"
        amount /= 1024
    return f"{amount:,.1f} TB"
