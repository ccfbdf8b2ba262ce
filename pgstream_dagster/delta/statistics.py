"""
Delta's statistics of the rows of one file. Pure.

Readers skip files by them; a column without bounds is not skipped by. So bounds are given where
they are exact in JSON, and compare there as the values do.

Source:
    https://github.com/delta-io/delta/blob/master/PROTOCOL.md (Per-file Statistics)
"""

from __future__ import annotations

from datetime import MAXYEAR, date, datetime, timedelta
from typing import Any, Final, cast

import pyarrow as pa
import pyarrow.compute as pc

_compute: Final = cast("Any", pc)  # its functions are made when it is imported

TEXT_LENGTH: Final = 32
"""Spark gives bounds of as many characters; a longer text has none here."""

_MILLISECOND: Final = timedelta(milliseconds=1)


def statistics(rows: pa.Table) -> dict[str, Any]:
    """
    Row count, and bounds and null counts by column name.

    Shape:
        rows: with the names of the file.
    """
    bounds = {
        field.name: bounds
        for field in rows.schema
        if (bounds := _bounds(rows.column(field.name))) is not None
    }
    flat = [field.name for field in rows.schema if not pa.types.is_nested(field.type)]
    return {
        "numRecords": rows.num_rows,
        "minValues": {name: least for name, (least, _) in bounds.items()},
        "maxValues": {name: greatest for name, (_, greatest) in bounds.items()},
        "nullCount": {name: rows.column(name).null_count for name in flat},
        "tightBounds": True,
    }


def _bounds(column: pa.ChunkedArray) -> tuple[Any, Any] | None:
    if not _has_bounds(column.type):
        return None
    least, greatest = _compute.min_max(column).as_py().values()
    if least is None:
        return None
    match greatest:
        case datetime():
            # The year 9999 may have no next millisecond.
            has_next = greatest.year < MAXYEAR
            return (_time(least), _time(greatest + _MILLISECOND)) if has_next else None
        case date():
            return least.isoformat(), greatest.isoformat()
        case str() if max(len(least), len(greatest)) > TEXT_LENGTH:
            return None
        case _:
            return least, greatest


def _has_bounds(type_: pa.DataType) -> bool:
    is_number = pa.types.is_integer(type_)
    is_time = pa.types.is_timestamp(type_) or pa.types.is_date(type_)
    return is_number or is_time or pa.types.is_string(type_)


def _time(at: datetime) -> str:
    text = at.replace(tzinfo=None).isoformat(timespec="milliseconds")
    return text if at.tzinfo is None else f"{text}Z"
