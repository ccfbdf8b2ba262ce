"""
SQL expressions that make text of any value: as Postgres prints it, or as JSON. Pure.

The engine makes the text, so a number of 38 digits or a time before our era never becomes a value
of Python, which could not hold it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final, cast

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
        case _ if str(type_) == "JSON":
            return f"{value}::varchar"
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


def _json(value: str, type_: DuckDBPyType) -> str:
    """An expression of type JSON."""
    return f"to_json({_fit(value, type_, 0)})"


def _fit(value: str, type_: DuckDBPyType, depth: int) -> str:
    """An expression whose JSON is the one that we want; the items of each depth have a name."""
    if _is_plain(type_):
        return value
    if type_.id in NESTED:
        return _nested(value, type_, depth)
    if type_.id == "variant":
        return f"case when {value} is not null then {value}::json end"  # else JSON's null
    if type_.id in {"float", "double"}:
        number = f"to_json({value}::varchar::double)"  # a float has more digits as a double
        name = f"to_json({_scalar(value, type_)})"
        return f"case when isfinite({value}) then {number} else {name} end"
    return _scalar(value, type_)


def _nested(value: str, type_: DuckDBPyType, depth: int) -> str:
    children = dict(_children(type_))
    match type_.id:
        case "struct":
            return _struct(value, type_, depth)
        case "map":
            return _map(value, children["value"], depth)
        case _:
            return _items(value, children["child"], depth)


def _is_plain(type_: DuckDBPyType) -> bool:
    """Whether DuckDB's own JSON of a value is the one that we want."""
    if type_.id in NESTED:
        return all(_is_plain(child) for _, child in _children(type_))
    return type_.id in _PLAIN


def _children(type_: DuckDBPyType) -> list[tuple[str, DuckDBPyType]]:
    """The types in a nested type; the size of an array is among DuckDB's children."""
    children = cast("list[tuple[str, DuckDBPyType | int]]", type_.children)
    return [(name, child) for name, child in children if not isinstance(child, int)]


def _struct(value: str, type_: DuckDBPyType, depth: int) -> str:
    fields = [
        f"{quoted(name)} := {_fit(f'struct_extract({value}, {literal(name)})', child, depth)}"
        for name, child in _children(type_)
    ]
    return f"case when {value} is not null then struct_pack({', '.join(fields)}) end"


def _map(value: str, item: DuckDBPyType, depth: int) -> str:
    values = _items(f"map_values({value})", item, depth)
    made = f"map_from_entries(list_zip(map_keys({value}), {values}))"
    return f"case when {value} is not null then {made} end"


def _items(value: str, item: DuckDBPyType, depth: int) -> str:
    variable = f"item_{depth}"
    return f"list_transform({value}, lambda {variable}: {_fit(variable, item, depth + 1)})"


Rendering = Callable[[str, "DuckDBPyType"], str]
"""`text` or `json`."""
