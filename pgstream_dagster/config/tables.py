"""The keys of typed tables: which tables of the source get one, under which names and types."""

from __future__ import annotations

import string
from typing import Annotated, Final

from pydantic import AfterValidator, Field

from pgstream_dagster.config.column_types import ColumnTypes
from pgstream_dagster.config.section import Identifier, Pattern, Section, TableName

MERGE_SECONDS: Final = 60.0
"""A merge costs some seconds of Spark per changed table, whatever the number of its changes."""

NAME_TEMPLATE: Final = "{namespace}.{relation}"

_PARTS: Final = frozenset({"namespace", "relation"})


def _template(text: str) -> str:
    try:
        parts = {part[1] for part in string.Formatter().parse(text) if part[1]}
        rest = text.format(namespace="n", relation="r")
    except (ValueError, KeyError, IndexError, AttributeError):
        parts, rest = set(), ""
    if not parts <= _PARTS or "relation" not in parts or not rest:
        raise ValueError("must contain {relation}, and may contain {namespace}; nothing else")
    return text


class TypedTableConfig(Section):
    """The typed table of one table of the source."""

    columns: dict[Identifier, ColumnTypes] = Field(
        default_factory=dict, description="How the values of columns are kept, by column."
    )


class TablesConfig(Section):
    """Typed tables: the current rows of each table, as a Delta table with typed columns."""

    include: Annotated[tuple[Pattern, ...], Field(min_length=1, strict=False)] = Field(
        default=("*.*",),
        description="Patterns of the tables that get a typed table, of those that are captured. A"
        " wildcard does not stand for the schema `pgstream`.",
    )
    exclude: Annotated[tuple[Pattern, ...], Field(strict=False)] = Field(
        default=(), description="Patterns of tables that get none, whatever `include` says."
    )
    name: Annotated[str, AfterValidator(_template)] = Field(
        default=NAME_TEMPLATE,
        description="Name of a typed table, which is its folder in `tables` of the lake:"
        " `{namespace}` and `{relation}` are those of the source. A character other than a letter,"
        " a digit, `_`, `-` or `.` becomes `~` and its hexadecimal number.",
    )
    merge_seconds: float = Field(
        default=MERGE_SECONDS,
        ge=1,
        le=86_400,
        description="Seconds between the starts of two merges of `pgstream tables run`.",
    )
    column_mapping: bool = Field(
        default=True,
        description="Use Delta's column mapping: columns are renamed and dropped in place. Without"
        " it the table is written again then, and names have `_` for blanks and ` ,;{}()=`. Some"
        " readers lack it: see docs/reference/readers.md.",
    )
    deletion_vectors: bool = Field(
        default=True,
        description="Use Delta's deletion vectors: a merge marks the rows that it replaces. Without"
        " them it writes the files of those rows again. Some readers lack them.",
    )
    types: dict[TableName, TypedTableConfig] = Field(
        default_factory=dict,
        description="Options of single tables, by namespace.name.",
    )
