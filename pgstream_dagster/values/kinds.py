"""
The table of types: which kind of text the values of a type are written with.

Pure. Keyed by `Column.value_type`. A type that is not in it is text.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Final, NamedTuple


class Kind(StrEnum):
    """The format of a value's text, which determines how it is written in JSON."""

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


class ValueKind(NamedTuple):
    """The kind of a value, or of the elements of an array, nested or not."""

    kind: Kind
    is_array: bool = False


KINDS: Final[Mapping[str, Kind]] = {
    "bool": Kind.BOOLEAN,
    **dict.fromkeys(["int2", "int4", "int8", "oid", "xid", "cid"], Kind.INTEGER),
    **dict.fromkeys(["float4", "float8"], Kind.FLOAT),
    "numeric": Kind.NUMERIC,
    "date": Kind.DATE,
    "timestamp": Kind.TIMESTAMP,
    "timestamptz": Kind.TIMESTAMPTZ,
    **dict.fromkeys(["json", "jsonb"], Kind.JSON),
    "hstore": Kind.HSTORE,
    **dict.fromkeys(["vector", "halfvec"], Kind.VECTOR),
    **dict.fromkeys(["int4range", "int8range"], Kind.INTEGER_RANGE),
    "numrange": Kind.NUMERIC_RANGE,
    "daterange": Kind.DATE_RANGE,
    "tsrange": Kind.TIMESTAMP_RANGE,
    "tstzrange": Kind.TIMESTAMPTZ_RANGE,
    **dict.fromkeys(["int4multirange", "int8multirange"], Kind.INTEGER_MULTIRANGE),
    "nummultirange": Kind.NUMERIC_MULTIRANGE,
    "datemultirange": Kind.DATE_MULTIRANGE,
    "tsmultirange": Kind.TIMESTAMP_MULTIRANGE,
    "tstzmultirange": Kind.TIMESTAMPTZ_MULTIRANGE,
    **dict.fromkeys(
        [
            *("text", "varchar", "bpchar", "citext", "xml", "tsvector", "tsquery", "jsonpath"),
            *("name", "char", "uuid", "enum", "composite", "range", "multirange"),
            *("bytea", "bit", "varbit", "money", "interval", "time", "timetz"),
            *("inet", "cidr", "macaddr", "macaddr8"),
            *("point", "line", "lseg", "box", "path", "polygon", "circle"),
            *("xid8", "tid", "pg_lsn", "pg_snapshot", "txid_snapshot"),  # xid8 is past int8's end
            *("regclass", "regcollation", "regconfig", "regdictionary", "regnamespace", "regoper"),
            *("regoperator", "regproc", "regprocedure", "regrole", "regtype", "regdatabase"),
            *("int2vector", "oidvector", "aclitem", "refcursor", "sparsevec", "ltree"),
        ],
        Kind.TEXT,
    ),
}

SEPARATED_OTHERWISE: Final = frozenset({"box"})
"""Types whose arrays have another separator than a comma (`typdelim`): these stay text."""


def kind_of(value_type: str) -> ValueKind:
    """The kind of a type; of an array, the kind of its element."""
    element, bracket, more = value_type.partition("[]")
    kind = KINDS.get(element)
    if kind is None or not bracket:
        return ValueKind(kind or Kind.TEXT)
    if more or element in SEPARATED_OTHERWISE:  # an array of a domain over arrays
        return ValueKind(Kind.TEXT)
    return ValueKind(kind, is_array=True)
