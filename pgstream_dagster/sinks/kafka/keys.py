r"""
The keys of records, by which Kafka keeps order. Pure.

`namespace`, `namespace.relation` or `namespace.relation:value,value`. A dot, a colon or a backslash
in a name has a backslash before it, and so has a comma or a backslash in a value; NULL is `\N`. So
no two rows share a key. (The format is that of pgstream.)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Final, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from pgstream_dagster.readers.change import Change
from pgstream_dagster.schema.changes import Op
from pgstream_dagster.sinks.columns import joined, key_parts, octets_of

KeyOf: TypeAlias = Callable[[Change], "bytes | None"]
"""From a change to its record's key."""


def schema_key(change: Change) -> bytes:
    """The key of all changes of a namespace."""
    return _name(change.namespace).encode()


def table_key(change: Change) -> bytes:
    """The key of all changes of a table; of DDL, that of its namespace."""
    if change.op == Op.DDL:
        return schema_key(change)
    return _table(change.namespace, change.relation)


def row_key(change: Change) -> bytes:
    """The key of the changes of a row; of a change without a key, that of its table."""
    if not change.key:
        return table_key(change)
    return _row(change, change.key)


def old_row_key(change: Change) -> bytes:
    """The key that the row had before an update of its key."""
    return _row(change, change.old_key or ())


def keys_of_version(key: KeyOf, rows: pa.Table, first: Change) -> list[bytes | None] | None:
    """
    The key of each change of one version of a table, by one of `STRATEGIES`.

    `None`: columns do not express them. `first` is the change of the first row.
    """
    column = rows.column("key").combine_chunks()
    if key is not row_key or column.null_count == len(column):
        return [key(first)] * len(column)
    parts = key_parts(column, len(first.key or ()))
    if not parts or column.null_count:
        return None
    for special in ("\\", ","):
        parts = [pc.replace_substring(part, special, f"\\{special}") for part in parts]
    values = joined(*(part.fill_null("\\N") for part in parts), separator=",")
    table = _table(first.namespace, first.relation).decode()
    return [*octets_of(joined(f"{table}:", values))]


def _row(change: Change, key: tuple[str | None, ...]) -> bytes:
    table = _table(change.namespace, change.relation)
    return b"%b:%b" % (table, ",".join([_value(value) for value in key]).encode())


@lru_cache(maxsize=10_000)
def _table(namespace: str, relation: str) -> bytes:
    return f"{_name(namespace)}.{_name(relation)}".encode()


def _name(name: str) -> str:
    return name.replace("\\", "\\\\").replace(".", "\\.").replace(":", "\\:")


def _value(value: str | None) -> str:
    if value is None:
        return "\\N"
    return value.replace("\\", "\\\\").replace(",", "\\,")


STRATEGIES: Final[Mapping[str, KeyOf]] = {
    "primary_key": row_key,
    "table": table_key,
    "schema": schema_key,
}
"""From the strategies of `KafkaConfig.key` that need no code of the user's."""
