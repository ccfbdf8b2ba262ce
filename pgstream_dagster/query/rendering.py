"""
SQL expressions that make text of any value: as Postgres prints it, or as JSON. Pure.

The engine makes the text, so a number of 38 digits or a time before our era never becomes a value
of Python, which could not hold it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from pgstream_dagster.query.engine import literal, quoted

if TYPE_CHECKING:
    from duckdb.sqltypes import DuckDBPyType

NESTED: Final = frozenset({"list", "array", "struct", "map"})

_PLAIN: Final = frozenset(
    {"tinyint", "smallint", "integer", "bigint", "hugeint", "decimal", "boolean"}
    | {"utinyint", "usmallint", "uinteger", "ubigint", "uhugeint", "varchar"}
)


def text(value: str, type_: DuckDBPyType) -> str:
    """An expression of the text of a value; of a list, struct or map it is JSON. NULL is NULL."""
    if type_.id in NESTED or type_.id == "variant":
        return f"{_json(value, type_)}::varchar"
    return _scalar(value, type_)


def json(value: str, type_: DuckDBPyType) -> str:
    """
    An expression of the JSON of a value, as a text; NULL is NULL.

    Numbers have all their digits; NaN and infinity are strings, as JSON has no number for them.
    """
    match type_.id:
        case "decimal":
            return _scalar(value, type_)
        case "float" | "double":
            number = _scalar(value, type_)
            return f"case when isfinite({value}) then {number} else to_json({number})::varchar end"
        case _:
            return f"{_json(value, type_)}::varchar"


def _scalar(value: str, type_: DuckDBPyType) -> str:
    match type_.id:
        case "blob":
            return f"'\\x' || lower(hex({value}))"
        case "float" | "double":
            names = {"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}
            cases = " ".join(f"when '{old}' then '{new}'" for old, new in names.items())
            return f"case {value}::varchar {cases} else {value}::varchar end"
        case _:
            return f"{value}::varchar"


def _json(value: str, type_: DuckDBPyType, depth: int = 0) -> str:
    """An expression of type JSON; each depth has a name of its own for its items."""
    match type_.id:
        case _ if _is_plain(type_):
            return f"to_json({value})"
        case "list" | "array":
            item = dict(type_.children)["child"]
            return f"to_json({_each(value, item, depth)})"
        case "struct":
            return _struct(value, type_, depth)
        case "map":
            return _map(value, dict(type_.children)["value"], depth)
        case "variant":
            return f"{value}::json"
        case "float" | "double":
            number = f"to_json({value}::varchar::double)"  # a float has more digits as a double
            name = _string_json(value, type_)
            return f"case when isfinite({value}) then {number} else {name} end"
        case "blob":
            return _string_json(value, type_)
        case _:
            return f"to_json({value}::varchar)"


def _is_plain(type_: DuckDBPyType) -> bool:
    """Whether DuckDB's own JSON of a value is the one that we want."""
    if type_.id in NESTED:
        return all(_is_plain(child) for _, child in _children(type_))
    return type_.id in _PLAIN


def _children(type_: DuckDBPyType) -> list[tuple[str, DuckDBPyType]]:
    """The types in a nested type; the size of an array is among DuckDB's children."""
    return [(name, child) for name, child in type_.children if not isinstance(child, int)]


def _struct(value: str, type_: DuckDBPyType, depth: int) -> str:
    fields = [
        f"{quoted(name)} := {_json(f'struct_extract({value}, {literal(name)})', child, depth)}"
        for name, child in _children(type_)
    ]
    return f"case when {value} is not null then to_json(struct_pack({', '.join(fields)})) end"


def _map(value: str, item: DuckDBPyType, depth: int) -> str:
    values = _each(f"map_values({value})", item, depth)
    made = f"map_from_entries(list_zip(map_keys({value}), {values}))"
    return f"case when {value} is not null then to_json({made}) end"


def _each(value: str, item: DuckDBPyType, depth: int) -> str:
    variable = f"item_{depth}"
    return f"list_transform({value}, lambda {variable}: {_json(variable, item, depth + 1)})"


def _string_json(value: str, type_: DuckDBPyType) -> str:
    return f"to_json({_scalar(value, type_)})"


Rendering = Callable[[str, "DuckDBPyType"], str]
