"""
Which kind of text the values of a type are written with, by `types`.

Pure. Keyed by `Column.value_type`. A type that is not in the table is text.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

from pgstream_dagster.values.types import SEPARATED_OTHERWISE, TYPES, Kind

__all__ = ["KINDS", "SEPARATED_OTHERWISE", "Kind", "ValueKind", "kind_of"]

KINDS: Final[Mapping[str, Kind]] = {name: entry.kind for name, entry in TYPES.items()}


class ValueKind(NamedTuple):
    """The kind of a value, or of the elements of an array, nested or not."""

    kind: Kind
    is_array: bool = False


def kind_of(value_type: str) -> ValueKind:
    """The kind of a type; of an array, the kind of its element."""
    element, bracket, more = value_type.partition("[]")
    kind = KINDS.get(element)
    if kind is None or not bracket:
        return ValueKind(kind or Kind.TEXT)
    if more or element in SEPARATED_OTHERWISE:  # an array of a domain over arrays
        return ValueKind(Kind.TEXT)
    return ValueKind(kind, is_array=True)
