"""Rows of a table for people and for programs: as JSON, as CSV, as cells."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T

from pgstream_dagster.tables.columns import quoted

_EXACT: Final = {
    "ignoreNullFields": "false",
    "timestampFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX",
    "timestampNTZFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSS",
}


@dataclass(frozen=True, slots=True)
class Printed:
    """Rows as JSON values, by name; decimals are texts. `is_limited`: there are more."""

    names: Sequence[str]
    rows: Sequence[dict[str, Any]]
    is_limited: bool

    def as_cells(self) -> list[list[str]]:
        """Texts; NULL is empty."""
        return [[_text(row[name]) for name in self.names] for row in self.rows]

    def as_csv(self) -> str:
        """A line of names, then the rows; NULL is empty, an empty text is `""`."""
        lines = [self.names, *([row[name] for name in self.names] for row in self.rows)]
        return "".join(",".join(map(_csv, line)) + "\n" for line in lines)


def printed(rows: DataFrame, limit: int | None) -> Printed:
    """The rows, in no order, at most `limit`; runs a job."""
    asked = rows if limit is None else rows.limit(limit + 1)
    columns = [
        _shown(F.col(quoted(field.name)), field.dataType).alias(field.name)
        for field in rows.schema.fields
    ]
    texts = asked.select(F.to_json(F.struct(*columns), _EXACT)).toLocalIterator()
    objects = [json.loads(text) for (text,) in islice(texts, limit)]
    is_limited = limit is not None and next(texts, None) is not None
    return Printed(rows.columns, objects, is_limited)


def _shown(value: Column, type_: T.DataType) -> Column:
    """The value as JSON shall have it: bytes as Postgres prints them, decimals as texts."""
    match type_:
        case T.BinaryType():
            return F.concat(F.lit("\\x"), F.lower(F.hex(value)))
        case T.ArrayType():
            return F.transform(value, lambda item: _shown(item, type_.elementType))
        case _:
            return value.cast(_exact(type_))


def _exact(type_: T.DataType) -> T.DataType:
    """The type with text for decimals: a JSON number is read as a binary one."""
    match type_:
        case T.DecimalType():
            return T.StringType()
        case T.ArrayType():
            return T.ArrayType(_exact(type_.elementType), type_.containsNull)
        case T.StructType():
            fields = [T.StructField(f.name, _exact(f.dataType), f.nullable) for f in type_.fields]
            return T.StructType(fields)
        case _:
            return type_


def _text(value: object) -> str:
    if value is None:
        return ""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _csv(value: object) -> str:
    if value is None or isinstance(value, int | float):
        return _text(value)
    return '"' + _text(value).replace('"', '""') + '"'
