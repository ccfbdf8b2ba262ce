"""
The columns of a typed table as its files have them: Arrow types, and names by column mapping. Pure.

A renamed column keeps its name in the files, so do the fields of structs. Files have field ids,
which some readers go by.

Source:
    https://github.com/delta-io/delta/blob/master/PROTOCOL.md (Column Mapping, Schema Serialization)
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

import pyarrow as pa
from pyspark.sql import types as T

_ID, _NAME = "delta.columnMapping.id", "delta.columnMapping.physicalName"
_FIELD_ID: Final = b"PARQUET:field_id"

_DECIMAL: Final = re.compile(r"decimal\((\d+),(\d+)\)")

_SIMPLE: Final = {
    "string": pa.string(),
    "long": pa.int64(),
    "integer": pa.int32(),
    "short": pa.int16(),
    "byte": pa.int8(),
    "float": pa.float32(),
    "double": pa.float64(),
    "boolean": pa.bool_(),
    "binary": pa.binary(),
    "date": pa.date32(),
    "timestamp": pa.timestamp("us", "UTC"),
    "timestamp_ntz": pa.timestamp("us"),
}


def physical(schema: Mapping[str, Any]) -> dict[str, pa.Field] | None:
    """
    Column name -> field in the files; `None`: a type that only Spark reads and writes (variant).

    Shape:
        schema: the table's `schemaString`.
    """
    fields = {field["name"]: _field(field) for field in schema["fields"]}
    readable = {name: field for name, field in fields.items() if field is not None}
    return readable if len(readable) == len(fields) else None


def logical(columns: Sequence[T.StructField], names: Sequence[str]) -> list[str]:
    """The names of columns in the table, by their names in the files."""
    in_table = {column.metadata.get(_NAME, column.name): column.name for column in columns}
    return [in_table[name] for name in names]


def in_file(rows: pa.Table, fields: Mapping[str, pa.Field]) -> pa.Table:
    """
    Rows with the names and types of the files.

    Shape:
        rows: as Spark gives them to Arrow: types with the same layout in memory.
    """
    columns = [
        rows.column(name).combine_chunks().view(field.type) for name, field in fields.items()
    ]
    return pa.Table.from_arrays(columns, schema=pa.schema(list(fields.values())))


def _field(field: Mapping[str, Any]) -> pa.Field | None:
    type_, metadata = _type(field["type"]), field["metadata"]
    if type_ is None or _NAME not in metadata:
        return None
    ids = {_FIELD_ID: str(metadata[_ID]).encode()}
    return pa.field(metadata[_NAME], type_, nullable=True, metadata=ids)


def _type(type_: Any) -> pa.DataType | None:
    if isinstance(type_, str):
        decimal = _DECIMAL.fullmatch(type_)
        return pa.decimal128(int(decimal[1]), int(decimal[2])) if decimal else _SIMPLE.get(type_)
    match type_["type"]:
        case "array":
            element = _type(type_["elementType"])
            return None if element is None else pa.list_(pa.field("element", element))
        case "map":
            key, value = _type(type_["keyType"]), _type(type_["valueType"])
            return None if key is None or value is None else pa.map_(key, value)
        case "struct":
            fields = [field for member in type_["fields"] if (field := _field(member)) is not None]
            return pa.struct(fields) if len(fields) == len(type_["fields"]) else None
        case _:
            return None
