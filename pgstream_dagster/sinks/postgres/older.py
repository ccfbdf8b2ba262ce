"""
Changes of an older version of a table than the target has: they are sent again. Pure.

A table never goes back to an older version, which would drop columns. The values are written to the
columns that have the same attnums now; those of columns that were dropped since are left out. A
whole row has in younger columns what the source shows for it.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from pgstream_dagster.readers.change import Change, Image
from pgstream_dagster.schema.table import TableSchema
from pgstream_dagster.sinks.postgres.fold import WRITES


class KeyChanged(Exception):
    """A table has another key now, so an older change does not say which row it is about."""


def in_version(change: Change, schema: TableSchema) -> Change:
    """
    The change with the columns of a newer version.

    Raises:
        KeyChanged
    """
    if change.schema is None or change.schema.key_attnums != schema.key_attnums:
        raise KeyChanged
    names = {column.attnum: column.name for column in schema.columns}
    renamed = {column.name: names.get(column.attnum) for column in change.schema.columns}
    after = _renamed(change.after, renamed)
    if after is not None and change.op in WRITES:
        had = change.schema.attnums.values()
        after |= {c.name: c.missing for c in schema.columns if c.attnum not in had}
    return msgspec.structs.replace(
        change, schema=schema, before=_renamed(change.before, renamed), after=after
    )


def _renamed(image: Image | None, names: Mapping[str, str | None]) -> dict[str, str | None] | None:
    if image is None:
        return None
    pairs = ((names.get(name), value) for name, value in image.items())
    return {name: value for name, value in pairs if name is not None}
