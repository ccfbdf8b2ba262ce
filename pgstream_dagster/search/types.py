"""
The types of a document: the kind of a value's text, and how its field is mapped.

Pure. Both are from `values.types`, keyed by `Column.value_type`; used by both renderings (`render`,
`render_spark`), by the mapping and by the documentation. A type that is not in it is text.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from pgstream_dagster.values import types
from pgstream_dagster.values.kinds import Kind, kind_of
from pgstream_dagster.values.types import KEPT, KEYWORD, FieldMapping

__all__ = ["KEPT", "KEYWORD", "TYPES", "UNKNOWN", "FieldMapping", "Form", "form_of"]


@dataclass(frozen=True, slots=True)
class Form:
    """How values of one type appear in a document."""

    kind: Kind
    mapping: FieldMapping
    is_array: bool = False  # of values of `kind`, nested or not


UNKNOWN: Final = Form(types.UNKNOWN.kind, KEYWORD)

TYPES: Final[Mapping[str, Form]] = {
    name: Form(entry.kind, KEYWORD if entry.mapping is None else entry.mapping)
    for name, entry in types.TYPES.items()
}


def form_of(value_type: str) -> Form:
    """The form of a type; of an array, the form of its element."""
    kind, is_array = kind_of(value_type)
    element = value_type.partition("[]")[0] if is_array else value_type
    form = TYPES.get(element, UNKNOWN)
    return Form(kind, form.mapping, is_array)
