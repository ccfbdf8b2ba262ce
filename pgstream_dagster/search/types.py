"""
The table of types of a document: the kind of a value's text, and how its field is mapped.

Pure. Keyed by `Column.value_type`; used by both renderings (`render`, `render_spark`), by the
mapping and by the documentation. A type that is not in it is text.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from pgstream_dagster.values.kinds import KINDS, Kind, kind_of

FieldMapping = Mapping[str, Any]
"""The mapping of one field."""

KEYWORD_CHARACTERS: Final = 8191
"""Longest value of a keyword that is indexed, in characters. Lucene refuses terms of more than
32,766 bytes, and with them the document; a character has up to four bytes."""


@dataclass(frozen=True, slots=True)
class Form:
    """How values of one type appear in a document."""

    kind: Kind
    mapping: FieldMapping
    is_array: bool = False  # of values of `kind`, nested or not


KEYWORD: Final[FieldMapping] = {"type": "keyword", "ignore_above": KEYWORD_CHARACTERS}
TEXT: Final[FieldMapping] = {"type": "text", "fields": {"keyword": KEYWORD}}
KEPT: Final[FieldMapping] = {"type": "object", "enabled": False}
"""Stored in the document but not searched: its content may be anything."""

_TIME: Final = "strict_date_optional_time"  # takes 1 to 9 digits of a second's fraction
DATE: Final[FieldMapping] = {"type": "date", "format": _TIME}
DATE_RANGE: Final[FieldMapping] = {"type": "date_range", "format": _TIME}

UNKNOWN: Final = Form(Kind.TEXT, KEYWORD)

LONG: Final[FieldMapping] = {"type": "long"}

MAPPINGS: Final[Mapping[str, FieldMapping]] = {
    "bool": {"type": "boolean"},
    "int2": {"type": "short"},
    "int4": {"type": "integer"},
    **dict.fromkeys(["int8", "oid", "xid", "cid"], LONG),
    "float4": {"type": "float"},
    "float8": {"type": "double"},
    "numeric": {"type": "double"},
    **dict.fromkeys(["date", "timestamp", "timestamptz"], DATE),
    # not every cluster offers k-NN search; a mapping in the pipeline file may request it
    **dict.fromkeys(["json", "jsonb", "hstore", "vector", "halfvec"], KEPT),
    "int4range": {"type": "integer_range"},
    "int8range": {"type": "long_range"},
    "numrange": {"type": "double_range"},
    "int4multirange": {"type": "integer_range"},
    "int8multirange": {"type": "long_range"},
    "nummultirange": {"type": "double_range"},
    **dict.fromkeys(["daterange", "tsrange", "tstzrange"], DATE_RANGE),
    **dict.fromkeys(["datemultirange", "tsmultirange", "tstzmultirange"], DATE_RANGE),
    **dict.fromkeys(
        ["text", "varchar", "bpchar", "citext", "xml", "tsvector", "tsquery", "jsonpath"], TEXT
    ),
}
"""The mappings of types; those of the others are `KEYWORD`."""

TYPES: Final[Mapping[str, Form]] = {
    name: Form(kind, MAPPINGS.get(name, KEYWORD)) for name, kind in KINDS.items()
}


def form_of(value_type: str) -> Form:
    """The form of a type; of an array, the form of its element."""
    kind, is_array = kind_of(value_type)
    element = value_type.partition("[]")[0] if is_array else value_type
    form = TYPES.get(element, UNKNOWN)
    return Form(kind, form.mapping, is_array)
