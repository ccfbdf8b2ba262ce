"""
Modifiers of a source: rows on their way into the log, and the versions of their tables.

Arrow tables of the log's columns go in; the same rows come out, modified by the functions that
serve sinks and search. A column that is left out stays in its table, and is NULL in every row:
Postgres sends all columns of a row, and a version of a table says which.
"""

from __future__ import annotations

import hmac
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Final, Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pgstream_dagster.modifiers.rules import Rules
from pgstream_dagster.schema.change import Change, Image, Key, changes_of
from pgstream_dagster.schema.table import TableSchema
from pgstream_dagster.wire.ragged import image_column, key_column

_IMAGES: Final = ("before", "after")
_KEYS: Final = ("key", "old_key")


class LogModifiers:
    """
    What the modifiers of the source make of rows and schemas. One thread uses it, and closes it.

    Those of an index, too, which leave columns out (`before_log` is false).
    """

    def __init__(self, rules: Rules, *, before_log: bool = True) -> None:
        self._rules, self._modifiers = rules, rules.open(before_log=before_log)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()

    def close(self) -> None:
        """End the sessions with servers that transformers ask."""
        self._modifiers.close()

    def schema(self, schema: TableSchema) -> TableSchema:
        """
        The version as the log has it: it says of each column what was done to it, and no values.

        What older rows show for a column is not modified again if the log has it modified: by
        rules that were others it stays so until the table's next copy, as the rows do.

        Raises:
            SinkError: as `Modifiers.change`.
        """
        tables = self._modifiers.tables(schema)
        modified = tables[-1].schema if tables else schema
        columns = (replace(c, modified=self._digest(schema, c.name)) for c in modified.columns)
        return replace(schema, columns=tuple(columns))

    def is_current(self, schema: TableSchema) -> bool:
        """
        Whether a version of the log says that these rules made its values.

        No value is transformed: what older rows show may be no value that the rules take.

        Raises:
            RulesRefused, NewColumn, MissingSetting, InvalidSetting: as `Modifiers.change`.
        """
        bare = replace(schema, columns=tuple(replace(c, missing=None) for c in schema.columns))
        return all(c.modified == self._digest(bare, c.name) for c in schema.columns)

    def rows(self, rows: pa.Table, schemas: Iterable[TableSchema]) -> pa.Table:
        """
        Rows of `layout.CHANGES`, modified, in their order.

        Shape:
            schemas: the versions that the rows name, as `schema` returned them.
        Raises:
            SinkError: as `Modifiers.change`.
        """
        if self._rules.is_empty:
            return rows
        named = set(pc.unique(rows["schema_id"]).to_pylist())
        versions = {s.schema_id: s for s in schemas if s.schema_id in named}
        affected = [i for i, schema in versions.items() if self._modifiers.tables(schema)]
        if not affected:
            return rows
        is_affected = pc.is_in(rows["schema_id"], value_set=pa.array(affected, pa.int64()))
        changes = [
            self._modified(change) for change in changes_of(rows.filter(is_affected), versions)
        ]
        return _replaced(rows, is_affected, changes)

    def _modified(self, change: Change) -> Change:
        result = self._modifiers.change(change)
        assert result is not None  # its schema is known, so it is no message
        return result

    def _digest(self, schema: TableSchema, column: str) -> str:
        """The same as long as the column's values become the same; empty where they stay."""
        steps = [
            (table.rules[column], table.on_error)
            for table in self._modifiers.tables(schema)
            if column in table.rules
        ]
        if not steps:
            return ""
        text = repr(
            [(rule.model_dump_json(exclude_defaults=True), on_error) for rule, on_error in steps]
        )
        secret = self._rules.secret_of([rule for rule, _ in steps])
        return hmac.digest(secret, text.encode(), "sha256")[:8].hex()


def _replaced(rows: pa.Table, is_affected: pa.ChunkedArray, changes: Sequence[Change]) -> pa.Table:
    """The rows with the images and keys of some of them, in the order of these."""
    places = np.flatnonzero(is_affected.to_numpy())
    others = np.flatnonzero(~is_affected.to_numpy())
    modified = rows.take(pa.array(places))
    for name in (*_KEYS, *_IMAGES):
        values = [getattr(change, name) for change in changes]
        column = _keys(values) if name in _KEYS else _images(values)
        at = modified.schema.get_field_index(name)
        modified = modified.set_column(at, modified.schema.field(at), column)
    if not len(others):
        return modified
    both = pa.concat_tables([modified, rows.take(pa.array(others))])
    return both.take(pa.array(np.argsort(np.concatenate([places, others]))))


def _keys(keys: Sequence[Key | None]) -> pa.Array:
    values = [value for key in keys if key is not None for value in key]
    counts = np.array([len(key or ()) for key in keys], dtype=np.int64)
    return key_column(pa.array(values, pa.string()), counts, _is_present(keys))


def _images(images: Sequence[Image | None]) -> pa.Array:
    names = [name for image in images if image is not None for name in image]
    values = [value for image in images if image is not None for value in image.values()]
    counts = np.array([len(image or ()) for image in images], dtype=np.int64)
    return image_column(
        pa.array(names, pa.string()), pa.array(values, pa.string()), counts, _is_present(images)
    )


def _is_present(values: Sequence[Mapping[str, str | None] | Key | None]) -> np.ndarray:
    return np.array([value is not None for value in values], dtype=np.bool_)
