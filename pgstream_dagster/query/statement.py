"""
What a statement asks for: the tables that it names, by DuckDB's own parser. Runs nothing of it.

Only a SELECT is let through, and in it only table functions that make rows of their arguments: the
Delta reader has one that writes to a table's log, and others open files.
"""

from __future__ import annotations

import json
from collections.abc import Generator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from pgstream_dagster.errors import SqlInvalid, SqlNotAllowed

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

TABLE_FUNCTIONS: Final = frozenset(
    {"generate_series", "json_each", "json_tree", "range", "repeat", "repeat_row", "unnest"}
)


@dataclass(frozen=True, slots=True)
class Statement:
    """
    One SELECT, without a semicolon.

    `names`: the namespace (empty if it has none) and the name of what it may read; names of its own
    common table expressions are among them.
    """

    text: str
    names: frozenset[tuple[str, str]]


def parsed(connection: DuckDBPyConnection, text: str) -> Statement:
    """
    The statement of a text.

    Raises:
        SqlInvalid: DuckDB cannot parse it.
        SqlNotAllowed: it is not one SELECT, or calls a table function that is not in the list.
    """
    tree = _tree(connection, text)
    if tree["error"] and tree["error_type"] == "parser":
        raise SqlInvalid(tree["error_message"])
    if tree["error"] or len(tree["statements"]) != 1:
        raise SqlNotAllowed("a statement that is not one SELECT")
    nodes = list(_nodes(tree["statements"]))
    functions = {
        node["function"]["function_name"] for node in nodes if node.get("type") == "TABLE_FUNCTION"
    }
    for name in sorted(functions - TABLE_FUNCTIONS):
        raise SqlNotAllowed(f"the table function {name!r}")
    names = {
        (node["schema_name"], node["table_name"])
        for node in nodes
        if node.get("type") == "BASE_TABLE"
    }
    return Statement(_without_end(text), frozenset(names))


def _without_end(text: str) -> str:
    """The text without the semicolons at its end, and the comments after them."""
    import duckdb

    statement = text.encode()
    for place, _ in reversed(duckdb.tokenize(text)):  # in bytes; comments are no tokens
        if statement[place : place + 1] != b";":
            break
        statement = statement[:place]
    return statement.decode()


def _tree(connection: DuckDBPyConnection, text: str) -> dict[str, Any]:
    [(tree,)] = connection.execute("select json_serialize_sql(?)", [text]).fetchall()
    return json.loads(tree)


def _nodes(tree: Any) -> Generator[dict[str, Any]]:
    """Every object in a tree of JSON."""
    if isinstance(tree, dict):
        yield tree
    children = tree.values() if isinstance(tree, dict) else tree if isinstance(tree, list) else ()
    for child in children:
        yield from _nodes(child)
