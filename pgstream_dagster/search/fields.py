"""
The fields of an index: which column each shows, under which name, how it is rendered and mapped.

Pure: from a relation's schema and the configuration to fields, and from those to a mapping.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from pgstream_dagster.schema.table import Column, TableSchema
from pgstream_dagster.search.types import KEPT, FieldMapping, Form, Kind, form_of

RESCUED: Final = "_rescued"
"""The field that keeps, as text, what its own field cannot hold: `{"<field>": "<text>"}`."""

RESERVED: Final = frozenset(
    f"_{name}"
    for name in (
        *("all", "data_stream_timestamp", "doc", "doc_count", "feature", "field_names", "id"),
        *("ignored", "ignored_source", "index", "index_mode", "inference_fields", "legacy_type"),
        *("meta", "name", "nested_path", "op_type", "parent", "primary_term", "project"),
        *("recovery_source", "rescued", "routing", "routing_hash", "score", "seq_no", "size"),
        *("soft_deletes", "source", "tier", "timestamp", "tombstone", "ts_routing_hash", "tsid"),
        *("ttl", "type", "uid", "version"),
    )
)
"""Names the engines (2 and 3, 8 and 9) keep for themselves, their plugins and older versions of
theirs, and our own. In a document they are refused."""

_UNSAFE: Final = re.compile(r"[.\x00-\x1f\x7f-\x9f]")  # a dot would make an object of the field

_STRINGS: Final = frozenset(
    {"constant_keyword", "keyword", "match_only_text", "search_as_you_type", "text", "wildcard"}
)
_OBJECTS: Final = frozenset(
    kind for kind in Kind if kind in (Kind.JSON, Kind.HSTORE, Kind.VECTOR) or "range" in kind
)
"""Kinds that are objects or arrays in a document, which a field of strings does not take."""


@dataclass(frozen=True, slots=True)
class Field:
    """One field of a document: reads `column` of an image, writes `name`."""

    name: str
    column: str
    attnum: int
    kind: Kind
    is_array: bool
    mapping: FieldMapping


@dataclass(frozen=True, slots=True)
class Overrides:
    """
    What the configuration says of an index's fields, by column.

    `mappings` take the place of the table's. `include`: only these columns; `exclude`: not these.
    """

    mappings: Mapping[str, FieldMapping] = field(default_factory=dict[str, FieldMapping])
    include: Sequence[str] | None = None
    exclude: Sequence[str] = ()


DEFAULTS: Final = Overrides()


def fields_of(schema: TableSchema, overrides: Overrides = DEFAULTS) -> tuple[Field, ...]:
    """The fields of a relation's documents, in the order of its columns."""
    names = _names(schema.columns)
    chosen = [
        column
        for column in schema.columns
        if (overrides.include is None or column.name in overrides.include)
        and column.name not in overrides.exclude
    ]
    return tuple(_field(c, names[c.attnum], overrides.mappings.get(c.name)) for c in chosen)


def unknown_names(schema: TableSchema, overrides: Overrides) -> tuple[str, ...]:
    """The columns that the configuration names and the relation does not have, each once."""
    named = [*overrides.mappings, *(overrides.include or ()), *overrides.exclude]
    return tuple(dict.fromkeys(name for name in named if name not in schema.attnums))


def mapping_of(fields: Sequence[Field]) -> dict[str, Any]:
    """The mapping of an index of such documents; what it does not name is not indexed."""
    properties = {each.name: dict(each.mapping) for each in fields}
    return {"dynamic": False, "properties": {**properties, RESCUED: dict(KEPT)}}


def _field(column: Column, name: str, mapping: FieldMapping | None) -> Field:
    form = form_of(column.value_type)
    if mapping is not None:
        form = _overridden(form, mapping)
    return Field(name, column.name, column.attnum, form.kind, form.is_array, form.mapping)


def _overridden(form: Form, mapping: FieldMapping) -> Form:
    """The same under another mapping: what is an object there is text where strings are wanted."""
    if mapping.get("type") in _STRINGS and form.kind in _OBJECTS:
        return Form(Kind.TEXT, mapping, form.is_array)
    return Form(form.kind, mapping, form.is_array)


def _names(columns: Sequence[Column]) -> Mapping[int, str]:
    """
    A field name per attnum: the column's, made safe, case kept.

    A column whose name needs no change has it, whatever the others are called; one that collides
    has its attnum appended. All columns take part, so what is left out changes no other's name.
    """
    wanted = {column.attnum: _safe(column.name) for column in columns}
    taken = {c.name for c in columns if c.name == wanted[c.attnum] and not _is_blank(c.name)}
    names: dict[int, str] = {}
    for column in sorted(columns, key=lambda column: column.attnum):
        name = wanted[column.attnum]
        if name != column.name or _is_blank(name):
            while name in taken or _is_blank(name):
                name = f"{name}_{column.attnum}"
            taken.add(name)
        names[column.attnum] = name
    return names


def _safe(name: str) -> str:
    name = _UNSAFE.sub("_", name)
    return f"{name}_" if name in RESERVED else name


def _is_blank(name: str) -> bool:
    return not name or name.isspace()
