"""
The table of types of the whole product: what is made of each type of Postgres.

Pure. Keyed by `Column.value_type`. Per type: the kind of text its values are written with, which
determines their JSON (`kinds`, `exact`, `renderings`); the type of its column in a typed table
(`tables.types`); the mapping of its field in a search index (`search.types`). A type that is not in
it is text everywhere.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum, auto
from typing import Any, Final

FieldMapping = Mapping[str, Any]
"""The mapping of one field of a search index."""


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


class LakeType(StrEnum):
    """What a value is in a typed table. Modifiers and options of a column decide the rest."""

    STRING = auto()
    BOOLEAN = auto()
    SMALLINT = auto()
    INT = auto()
    BIGINT = auto()
    UNSIGNED = auto()  # of 32 bits, as BIGINT
    FLOAT = auto()
    DOUBLE = auto()
    DECIMAL = auto()  # STRING where no precision bounds the values
    DATE = auto()
    TIMESTAMP_NTZ = auto()
    TIMESTAMP = auto()
    BINARY = auto()
    JSON = auto()  # STRING, or VARIANT on request
    VARIANT = auto()
    MAP = auto()
    VECTOR = auto()
    RANGE = auto()
    MULTIRANGE = auto()
    ARRAY = auto()  # of any type, as `<type>[]`


KEYWORD_CHARACTERS: Final = 8191
"""Longest value of a keyword that is indexed, in characters. Lucene refuses terms of more than
32,766 bytes, and with them the document; a character has up to four bytes."""

KEYWORD: Final[FieldMapping] = {"type": "keyword", "ignore_above": KEYWORD_CHARACTERS}
TEXT: Final[FieldMapping] = {"type": "text", "fields": {"keyword": KEYWORD}}
KEPT: Final[FieldMapping] = {"type": "object", "enabled": False}
"""Stored in the document but not searched: its content may be anything."""

LONG: Final[FieldMapping] = {"type": "long"}

_TIME: Final = "strict_date_optional_time"  # takes 1 to 9 digits of a second's fraction
DATE: Final[FieldMapping] = {"type": "date", "format": _TIME}
DATE_RANGE: Final[FieldMapping] = {"type": "date_range", "format": _TIME}


@dataclass(frozen=True, slots=True)
class PostgresType:
    """What is made of the values of one type."""

    kind: Kind = Kind.TEXT
    lake: LakeType = LakeType.STRING
    mapping: FieldMapping | None = None  # `None`: a keyword
    bound: str = ""  # of a range and a multirange: the type of their bounds


def _mapped(kind: Kind, lake: LakeType, name: str) -> PostgresType:
    return PostgresType(kind, lake, {"type": name})


def _range(kind: Kind, bound: str, mapping: FieldMapping) -> PostgresType:
    lake = LakeType.MULTIRANGE if kind.endswith("multirange") else LakeType.RANGE
    return PostgresType(kind, lake, mapping, bound)


_DOCUMENT: Final = PostgresType(Kind.JSON, LakeType.JSON, KEPT)
_INTEGERS: Final[FieldMapping] = {"type": "integer_range"}
_LONGS: Final[FieldMapping] = {"type": "long_range"}
_DOUBLES: Final[FieldMapping] = {"type": "double_range"}

TYPES: Final[Mapping[str, PostgresType]] = {
    "bool": _mapped(Kind.BOOLEAN, LakeType.BOOLEAN, "boolean"),
    "int2": _mapped(Kind.INTEGER, LakeType.SMALLINT, "short"),
    "int4": _mapped(Kind.INTEGER, LakeType.INT, "integer"),
    "int8": PostgresType(Kind.INTEGER, LakeType.BIGINT, LONG),
    **dict.fromkeys(["oid", "xid", "cid"], PostgresType(Kind.INTEGER, LakeType.UNSIGNED, LONG)),
    "float4": _mapped(Kind.FLOAT, LakeType.FLOAT, "float"),
    "float8": _mapped(Kind.FLOAT, LakeType.DOUBLE, "double"),
    "numeric": _mapped(Kind.NUMERIC, LakeType.DECIMAL, "double"),
    "date": PostgresType(Kind.DATE, LakeType.DATE, DATE),
    "timestamp": PostgresType(Kind.TIMESTAMP, LakeType.TIMESTAMP_NTZ, DATE),
    "timestamptz": PostgresType(Kind.TIMESTAMPTZ, LakeType.TIMESTAMP, DATE),
    # not every cluster offers k-NN search; a mapping in the pipeline file may request it
    "json": _DOCUMENT,
    "jsonb": _DOCUMENT,
    "hstore": PostgresType(Kind.HSTORE, LakeType.MAP, KEPT),
    **dict.fromkeys(["vector", "halfvec"], PostgresType(Kind.VECTOR, LakeType.VECTOR, KEPT)),
    "int4range": _range(Kind.INTEGER_RANGE, "int4", _INTEGERS),
    "int8range": _range(Kind.INTEGER_RANGE, "int8", _LONGS),
    "numrange": _range(Kind.NUMERIC_RANGE, "numeric", _DOUBLES),
    "daterange": _range(Kind.DATE_RANGE, "date", DATE_RANGE),
    "tsrange": _range(Kind.TIMESTAMP_RANGE, "timestamp", DATE_RANGE),
    "tstzrange": _range(Kind.TIMESTAMPTZ_RANGE, "timestamptz", DATE_RANGE),
    "int4multirange": _range(Kind.INTEGER_MULTIRANGE, "int4", _INTEGERS),
    "int8multirange": _range(Kind.INTEGER_MULTIRANGE, "int8", _LONGS),
    "nummultirange": _range(Kind.NUMERIC_MULTIRANGE, "numeric", _DOUBLES),
    "datemultirange": _range(Kind.DATE_MULTIRANGE, "date", DATE_RANGE),
    "tsmultirange": _range(Kind.TIMESTAMP_MULTIRANGE, "timestamp", DATE_RANGE),
    "tstzmultirange": _range(Kind.TIMESTAMPTZ_MULTIRANGE, "timestamptz", DATE_RANGE),
    **dict.fromkeys(
        ["text", "varchar", "bpchar", "citext", "xml", "tsvector", "tsquery", "jsonpath"],
        PostgresType(mapping=TEXT),
    ),
    **dict.fromkeys(
        ["name", "char", "uuid", "enum", "composite", "range", "multirange"], PostgresType()
    ),
    "bytea": PostgresType(lake=LakeType.BINARY),
    **dict.fromkeys(
        [
            *("bit", "varbit", "money", "interval", "time", "timetz"),
            *("inet", "cidr", "macaddr", "macaddr8"),
            *("point", "line", "lseg", "box", "path", "polygon", "circle"),
            *("xid8", "tid", "pg_lsn", "pg_snapshot", "txid_snapshot"),  # xid8 is past int8's end
            *("regclass", "regcollation", "regconfig", "regdictionary", "regnamespace", "regoper"),
            *("regoperator", "regproc", "regprocedure", "regrole", "regtype", "regdatabase"),
            *("int2vector", "oidvector", "aclitem", "refcursor", "sparsevec", "ltree"),
        ],
        PostgresType(),
    ),
}

UNKNOWN: Final = PostgresType()
"""What is made of a type that is not in the table."""

SEPARATED_OTHERWISE: Final = frozenset({"box"})
"""Types whose arrays have another separator than a comma (`typdelim`): these stay text."""
