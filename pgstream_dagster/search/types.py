"""
The table of types: how a value's text appears in a document, and how its field is mapped.

Pure. Keyed by `Column.value_type`; used by both renderings (`render`, `render_spark`), by the
mapping and by the documentation. A type that is not in it is text.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

FieldMapping = Mapping[str, Any]
"""The mapping of one field."""

KEYWORD_CHARACTERS: Final = 8191
"""Longest value of a keyword that is indexed, in characters. Lucene refuses terms of more than
32,766 bytes, and with them the document; a character has up to four bytes."""


class Kind(StrEnum):
    """The format of a value's text, which determines how it is written in a document."""

    TEXT = "text"
    INTEGER = "integer"
    FLOAT = "float"
    NUMERIC = "numeric"
    BOOLEAN = "boolean"
    DATE = "date"
    TIMESTAMP = "timestamp"
    TIMESTAMPTZ = "timestamptz"
    JSON = "json"
    HSTORE = "hstore"
    VECTOR = "vector"
    INTEGER_RANGE = "integer range"
    NUMERIC_RANGE = "numeric range"
    DATE_RANGE = "date range"
    TIMESTAMP_RANGE = "timestamp range"
    TIMESTAMPTZ_RANGE = "timestamptz range"
    INTEGER_MULTIRANGE = "integer multirange"
    NUMERIC_MULTIRANGE = "numeric multirange"
    DATE_MULTIRANGE = "date multirange"
    TIMESTAMP_MULTIRANGE = "timestamp multirange"
    TIMESTAMPTZ_MULTIRANGE = "timestamptz multirange"


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

TYPES: Final[Mapping[str, Form]] = {
    "bool": Form(Kind.BOOLEAN, {"type": "boolean"}),
    "int2": Form(Kind.INTEGER, {"type": "short"}),
    "int4": Form(Kind.INTEGER, {"type": "integer"}),
    **dict.fromkeys(["int8", "oid", "xid", "cid"], Form(Kind.INTEGER, {"type": "long"})),
    "float4": Form(Kind.FLOAT, {"type": "float"}),
    "float8": Form(Kind.FLOAT, {"type": "double"}),
    "numeric": Form(Kind.NUMERIC, {"type": "double"}),
    "date": Form(Kind.DATE, DATE),
    "timestamp": Form(Kind.TIMESTAMP, DATE),
    "timestamptz": Form(Kind.TIMESTAMPTZ, DATE),
    **dict.fromkeys(["json", "jsonb"], Form(Kind.JSON, KEPT)),
    "hstore": Form(Kind.HSTORE, KEPT),
    # not every cluster offers k-NN search; a mapping in the pipeline file may request it
    **dict.fromkeys(["vector", "halfvec"], Form(Kind.VECTOR, KEPT)),
    "int4range": Form(Kind.INTEGER_RANGE, {"type": "integer_range"}),
    "int8range": Form(Kind.INTEGER_RANGE, {"type": "long_range"}),
    "numrange": Form(Kind.NUMERIC_RANGE, {"type": "double_range"}),
    "daterange": Form(Kind.DATE_RANGE, DATE_RANGE),
    "tsrange": Form(Kind.TIMESTAMP_RANGE, DATE_RANGE),
    "tstzrange": Form(Kind.TIMESTAMPTZ_RANGE, DATE_RANGE),
    "int4multirange": Form(Kind.INTEGER_MULTIRANGE, {"type": "integer_range"}),
    "int8multirange": Form(Kind.INTEGER_MULTIRANGE, {"type": "long_range"}),
    "nummultirange": Form(Kind.NUMERIC_MULTIRANGE, {"type": "double_range"}),
    "datemultirange": Form(Kind.DATE_MULTIRANGE, DATE_RANGE),
    "tsmultirange": Form(Kind.TIMESTAMP_MULTIRANGE, DATE_RANGE),
    "tstzmultirange": Form(Kind.TIMESTAMPTZ_MULTIRANGE, DATE_RANGE),
    **dict.fromkeys(
        ["text", "varchar", "bpchar", "citext", "xml", "tsvector", "tsquery", "jsonpath"],
        Form(Kind.TEXT, TEXT),
    ),
    **dict.fromkeys(
        [
            *("name", "char", "uuid", "enum", "composite", "range", "multirange"),
            *("bytea", "bit", "varbit", "money", "interval", "time", "timetz"),
            *("inet", "cidr", "macaddr", "macaddr8"),
            *("point", "line", "lseg", "box", "path", "polygon", "circle"),
            *("xid8", "tid", "pg_lsn", "pg_snapshot", "txid_snapshot"),  # xid8 is past a long's end
            *("regclass", "regcollation", "regconfig", "regdictionary", "regnamespace", "regoper"),
            *("regoperator", "regproc", "regprocedure", "regrole", "regtype", "regdatabase"),
            *("int2vector", "oidvector", "aclitem", "refcursor", "sparsevec", "ltree"),
        ],
        Form(Kind.TEXT, KEYWORD),
    ),
}

SEPARATED_OTHERWISE: Final = frozenset({"box"})
"""Types whose arrays have another separator than a comma (`typdelim`): these stay text."""


def form_of(value_type: str) -> Form:
    """The form of a type; of an array, the form of its element."""
    element, bracket, more = value_type.partition("[]")
    form = TYPES.get(element)
    if form is None or not bracket:
        return form or UNKNOWN
    if more or element in SEPARATED_OTHERWISE:  # an array of a domain over arrays
        return UNKNOWN
    return Form(form.kind, form.mapping, is_array=True)
