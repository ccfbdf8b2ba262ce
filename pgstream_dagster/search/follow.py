"""
How a generation's fields follow its table's columns while it is live. No I/O.

A field belongs to a column by attnum and keeps its name and mapping for the life of its generation:
a renamed column can be searched under both names, a dropped column is left out of later documents,
a new column gets a field. What a live index cannot follow is reported, and needs a re-index.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from pgstream_dagster.config import IndexConfig
from pgstream_dagster.schema.table import TableSchema
from pgstream_dagster.search.fields import Field, fields_of


@dataclass(frozen=True, slots=True)
class Followed:
    """
    The fields from now on, the new ones among them, and further names of others.

    `outdated`: what needs a re-index; `None`: nothing does.
    """

    fields: tuple[Field, ...]
    added: tuple[Field, ...]
    renamed: dict[str, Field]
    outdated: str | None


def follow(fields: Sequence[Field], schema: TableSchema, config: IndexConfig) -> Followed:
    """The fields of a live generation, now that its table looks like `schema`."""
    by_attnum = {field.attnum: field for field in fields}
    taken = {field.name for field in fields}
    followed: list[Field] = []
    added: list[Field] = []
    renamed: dict[str, Field] = {}
    outdated: list[str] = []
    missing = {column.attnum: column.missing for column in schema.columns}
    for fresh in fields_of(schema, config):
        field = by_attnum.get(fresh.attnum)
        if field is None:
            field = fresh if fresh.name not in taken else _other_name(fresh)
            added.append(field)
            if missing[fresh.attnum] is not None:
                outdated.append(f"column {fresh.column!r} was added with a default")
        elif _form(field) != _form(fresh):
            outdated.append(f"column {fresh.column!r} has another type")
        if field.name != fresh.name and fresh.name not in taken:
            renamed[fresh.name] = field
        taken |= {field.name, fresh.name}
        followed.append(replace(field, column=fresh.column))
    return Followed(tuple(followed), tuple(added), renamed, "; ".join(outdated) or None)


def _form(field: Field) -> tuple[object, ...]:
    return field.kind, field.is_array, dict(field.mapping)


def _other_name(field: Field) -> Field:
    """The name still belongs to a column that was dropped, and to its mapping."""
    return replace(field, name=f"{field.name}_{field.attnum}")
