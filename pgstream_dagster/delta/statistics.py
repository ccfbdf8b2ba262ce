"""
Delta's statistics of the rows of one file. Pure.

Readers skip files by them. Bounds are given where they compare in JSON as the values do.

Source:
    https://github.com/delta-io/delta/blob/master/PROTOCOL.md (Per-file Statistics)
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from datetime import MAXYEAR, date, datetime, timedelta
from types import MappingProxyType
from typing import Any, Final, cast

import pyarrow as pa
import pyarrow.compute as pc

_compute: Final = cast("Any", pc)  # its functions are made when it is imported

TEXT_LENGTH: Final = 32
"""Characters of a text that its bound has; Spark gives as many."""

LAST_CHARACTER: Final = "\U0010ffff"
"""Behind the greatest text, if that is longer: so it stays the upper bound."""

Within = Mapping[str, tuple[Any, Any]]
"""Column -> least and greatest value of the rows that a reader looks for; numbers or texts."""

ALL_ROWS: Final[Within] = MappingProxyType({})

_MILLISECOND: Final = timedelta(milliseconds=1)


class Statistics:
    """
    Row count, bounds and null counts of a file, gathered over the tables that are written to it.

    A condition on a column without null counts and bounds skips no file, whatever it is joined to
    by AND. So these are of every column but structures, which have null counts per part.

    Shape:
        bounds: the columns that have bounds, if their type can have them; `None`: all.
    """

    def __init__(self, bounds: Collection[str] | None = None) -> None:
        self._names = bounds
        self._rows = 0
        self._nulls = dict[str, int]()
        self._least, self._greatest = dict[str, Any](), dict[str, Any]()
        self._out_of_range = set[str]()

    def add(self, rows: pa.Table) -> None:
        """Take the rows of one more table; with the names of the file."""
        self._rows += rows.num_rows
        for field in rows.schema:
            column = rows.column(field.name)
            if not pa.types.is_struct(field.type):
                self._nulls[field.name] = self._nulls.get(field.name, 0) + column.null_count
            if _has_bounds(field.type) and (self._names is None or field.name in self._names):
                self._add_bounds(field.name, column)

    def to_dict(self) -> dict[str, Any]:
        """As they are written into a commit."""
        names = self._least.keys() - self._out_of_range
        pairs = {name: _bounds(self._least[name], self._greatest[name]) for name in sorted(names)}
        bounds = {name: pair for name, pair in pairs.items() if pair is not None}
        return {
            "numRecords": self._rows,
            "minValues": {name: least for name, (least, _) in bounds.items()},
            "maxValues": {name: greatest for name, (_, greatest) in bounds.items()},
            "nullCount": self._nulls,
        }

    def _add_bounds(self, name: str, column: pa.ChunkedArray) -> None:
        try:
            least, greatest = _compute.min_max(column).as_py().values()
        except (OverflowError, ValueError):  # a time before the year 1, or after 9999
            self._out_of_range.add(name)
            return
        if least is not None:
            self._least[name] = min(least, self._least.get(name, least))
            self._greatest[name] = max(greatest, self._greatest.get(name, greatest))


def statistics(rows: pa.Table) -> dict[str, Any]:
    """
    Those of a file with these rows, as they are written into a commit; all rows count.

    Shape:
        rows: with the names of the file.
    """
    gathered = Statistics()
    gathered.add(rows)
    return {**gathered.to_dict(), "tightBounds": True}


def may_have(statistics: Mapping[str, Any], within: Within) -> bool:
    """Whether a file with these statistics may have a row with all values within bounds."""
    least, greatest = (statistics.get(name) or {} for name in ("minValues", "maxValues"))
    return all(overlap(least.get(name), greatest.get(name), within[name]) for name in within)


def overlap(least: Any, greatest: Any, bounds: tuple[Any, Any]) -> bool:
    """Whether a value from `least` to `greatest` may be within bounds; `None`: it has no bound."""
    first, last = bounds
    return (least is None or least <= last) and (greatest is None or greatest >= first)


def _bounds(least: Any, greatest: Any) -> tuple[Any, Any] | None:
    match greatest:
        case datetime():
            # The year 9999 may have no next millisecond.
            has_next = greatest.year < MAXYEAR
            return (_time(least), _time(greatest + _MILLISECOND)) if has_next else None
        case date():
            return least.isoformat(), greatest.isoformat()
        case str() if greatest[TEXT_LENGTH:].startswith(LAST_CHARACTER):
            return None
        case str():
            last = LAST_CHARACTER if len(greatest) > TEXT_LENGTH else ""
            return least[:TEXT_LENGTH], greatest[:TEXT_LENGTH] + last
        case _:
            return least, greatest


def _has_bounds(type_: pa.DataType) -> bool:
    is_number = pa.types.is_integer(type_)
    is_time = pa.types.is_timestamp(type_) or pa.types.is_date(type_)
    return is_number or is_time or pa.types.is_string(type_)


def _time(at: datetime) -> str:
    text = at.replace(tzinfo=None).isoformat(timespec="milliseconds")
    return text if at.tzinfo is None else f"{text}Z"
