"""
The fields of an index: the column, name, rendering and mapping of each.

Pure: a relation's schema and the configuration to fields, and these to a mapping.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from pgstream_dagster.schema.table import Column, TableSchema
from pgstream_dagster.search.types import KEPT, FieldMapping, Form, form_of
from pgstream_dagster.values.kinds import Kind

if TYPE_CHECKING:  # the tasks of a re-index import this module and parse no configuration
    from pgstream_dagster.config import IndexConfig

RESCUED: Final = "_rescued"
"""Keeps, as text, the values that their own fields cannot hold: `{"<field>": "<text>"}`."""

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
"""Names reserved by the engines (2 and 3, 8 and 9), their plugins and their older versions, and
ours. The engines refuse them in documents."""

_UNSAFE: Final = re.compile(r"[.\x00-\x1f\x7f-\x9f]")  # a dot would make the field an object

_STRINGS: Final = frozenset(
    {"constant_keyword", "keyword", "match_only_text", "search_as_you_type", "text", "wildcard"}
)
_OBJECTS: Final = frozenset(
    kind for kind in Kind if kind in (Kind.JSON, Kind.HSTORE, Kind.VECTOR) or "range" in kind
)
"""Kinds that are objects or arrays in a document, which a string field does not take."""


@dataclass(frozen=True, slots=True)
class Field:
    """One field of a document: reads `column` of an image, writes `name`."""

    name: str
    column: str
    attnum: int
    kind: Kind
    is_array: bool
    mapping: FieldMapping


def fields_of(schema: TableSchema, config: IndexConfig) -> tuple[Field, ...]:
    """The fields of a relation's documents, in the order of its columns."""
    names, chosen = _names(schema.columns), _chosen(config)
    columns = [c for c in schema.columns if chosen is None or c.name in chosen]
    return tuple(_field(c, names[c.attnum], config.mapping.get(c.name)) for c in columns)


def unknown_names(schema: TableSchema, config: IndexConfig) -> tuple[str, ...]:
    """The columns that the configuration names and the relation does not have, each once."""
    named = [*config.mapping, *(_chosen(config) or ())]
    return tuple(dict.fromkeys(name for name in named if name not in schema.attnums))


def _chosen(config: IndexConfig) -> Sequence[str] | None:
    """The columns that get a field; `None`: all."""
    return None if config.columns is None else (*config.columns, *(config.id or ()))


def mapping_of(fields: Sequence[Field]) -> dict[str, Any]:
    """The mapping of an index with these fields; others are not indexed."""
    properties = {field.name: dict(field.mapping) for field in fields}
    return {"dynamic": False, "properties": {**properties, RESCUED: dict(KEPT)}}


def _field(column: Column, name: str, mapping: FieldMapping | None) -> Field:
    form = form_of(column.value_type)
    if mapping is not None:
        form = _overridden(form, mapping)
    return Field(name, column.name, column.attnum, form.kind, form.is_array, form.mapping)


def _overridden(form: Form, mapping: FieldMapping) -> Form:
    """The form under another mapping: objects become text in a string field."""
    if mapping.get("type") in _STRINGS and form.kind in _OBJECTS:
        return Form(Kind.TEXT, mapping, form.is_array)
    return Form(form.kind, mapping, form.is_array)


def _names(columns: Sequence[Column]) -> Mapping[int, str]:
    """
    A field name per attnum: the column's, made safe, case kept.

    A column whose name needs no change keeps it; a name that collides with another gets the attnum
    appended. All columns take part, so leaving a column out changes no other field's name.
    """
    safe = {column.attnum: _safe(column.name) for column in columns}
    taken = {c.name for c in columns if c.name == safe[c.attnum] and not _is_blank(c.name)}
    names: dict[int, str] = {}
    for column in sorted(columns, key=lambda column: column.attnum):
        name = safe[column.attnum]
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
