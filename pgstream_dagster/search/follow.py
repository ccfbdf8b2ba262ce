"""
How a generation's fields follow its table's columns while it is live. No I/O.

A field belongs to a column by attnum and keeps its name and mapping as long as its generation
lives: a renamed column is searched under both names, a dropped one is left out of what is written
from then on, a new one gets a field. What a live index cannot follow is said, and a re-index gives
the fields again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from pgstream_dagster.config import IndexConfig
from pgstream_dagster.schema.table import TableSchema
from pgstream_dagster.search.fields import Field, Overrides, fields_of


@dataclass(frozen=True, slots=True)
class Followed:
    """
    The fields from now on, those that are new, and further names of others.

    `outdated`: what only a re-index can give; `None` when nothing.
    """

    fields: tuple[Field, ...]
    added: tuple[Field, ...]
    renamed: dict[str, Field]
    outdated: str | None


def wanted_fields(schema: TableSchema, config: IndexConfig) -> tuple[Field, ...]:
    """The fields of a generation that begins with this version of the table."""
    return fields_of(schema, overrides(config))


def overrides(config: IndexConfig) -> Overrides:
    """What the pipeline file says of the fields."""
    chosen = None if config.columns is None else (*config.columns, *(config.id or ()))
    return Overrides(config.mapping, chosen)


def follow(fields: Sequence[Field], schema: TableSchema, config: IndexConfig) -> Followed:
    """The fields of a live generation, now that its table looks like `schema`."""
    known = {field.attnum: field for field in fields}
    taken = {field.name for field in fields}
    now: list[Field] = []
    added: list[Field] = []
    renamed: dict[str, Field] = {}
    outdated: list[str] = []
    older = {column.attnum: column.missing for column in schema.columns}
    for fresh in wanted_fields(schema, config):
        field = known.get(fresh.attnum)
        if field is None:
            field = fresh if fresh.name not in taken else _other_name(fresh)
            added.append(field)
            if older[fresh.attnum] is not None:
                outdated.append(f"column {fresh.column!r} was added with a default")
        elif _form(field) != _form(fresh):
            outdated.append(f"column {fresh.column!r} has another type")
        if field.name != fresh.name and fresh.name not in taken:
            renamed[fresh.name] = field
        taken |= {field.name, fresh.name}
        now.append(replace(field, column=fresh.column))
    return Followed(tuple(now), tuple(added), renamed, "; ".join(outdated) or None)


def _form(field: Field) -> tuple[object, ...]:
    return field.kind, field.is_array, dict(field.mapping)


def _other_name(field: Field) -> Field:
    """The name is that of a column dropped before, and of its mapping."""
    return replace(field, name=f"{field.name}_{field.attnum}")
