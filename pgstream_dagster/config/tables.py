"""The keys of typed tables: which tables of the source get one, under which names and types."""

from __future__ import annotations

import string
from collections.abc import Sequence
from enum import StrEnum
from typing import Annotated, Final

from pydantic import AfterValidator, Field

from pgstream_dagster.config.column_types import ColumnTypes
from pgstream_dagster.config.metastore import MetastoreConfig
from pgstream_dagster.config.section import Identifier, Pattern, Section, TableName

MERGE_SECONDS: Final = 60.0
"""A pass costs some seconds of Spark, and each changed table some tenths, however few the changes;
and a file in each of these tables, which are to be few."""

NAME_TEMPLATE: Final = "{namespace}.{relation}"

HISTORY_TEMPLATE: Final = "{namespace}.{relation}__history"

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


class OnSchemaChange(StrEnum):
    """What happens to a typed table when the columns or the key of its table change."""

    APPLY = "apply"
    HOLD = "hold"


class OnTypeChange(StrEnum):
    """What happens to a column whose type becomes one that has not all of its values."""

    REBUILD = "rebuild"
    KEEP = "keep"


class TypedTableConfig(Section):
    """The typed table of one table of the source."""

    columns: dict[Identifier, ColumnTypes] = Field(
        default_factory=dict, description="How the values of columns are kept, by column."
    )
    history: bool = Field(
        default=False, description="Keep a history of the table, as `tables.history` does."
    )
    cluster: Annotated[tuple[Identifier, ...], Field(max_length=4, strict=False)] = Field(
        default=(),
        description="Columns by whose values `pgstream optimize` brings rows together in files"
        " (Delta's liquid clustering), so that a query for some of them reads few files.",
    )
    on_schema_change: OnSchemaChange | None = Field(
        default=None, description="As for all tables; without it, what is said there."
    )
    on_type_change: OnTypeChange | None = Field(
        default=None, description="As for all tables; without it, what is said there."
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
        " a digit, `_`, `-` or `.` becomes `~` and its hexadecimal number. When it changes, typed"
        " tables that are there keep their names.",
    )
    merge_seconds: float = Field(
        default=MERGE_SECONDS,
        ge=1,
        le=86_400,
        description="Seconds between the starts of two merges of `pgstream tables run`.",
    )
    on_schema_change: OnSchemaChange = Field(
        default=OnSchemaChange.APPLY,
        description="`apply`: typed tables follow changes of columns and keys by themselves."
        " `hold`: a table whose columns or key changed stays as it is until `pgstream tables"
        " approve`.",
    )
    on_type_change: OnTypeChange = Field(
        default=OnTypeChange.REBUILD,
        description="When the type of a column becomes one that has not all of its values, its"
        " typed table is written again from the log. `keep`: the former values stay, too, in a"
        " column of their own: those of `amount` in `amount__v1`, then `amount__v2`. For tables"
        " with a key.",
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
        description="Options of single tables, by namespace.name; a renamed table keeps those of"
        " its former name unless there are some for the new one.",
    )
    history: Annotated[tuple[Pattern, ...], Field(strict=False)] = Field(
        default=(),
        description="Patterns of the tables with a history: a second table with every version of"
        " every row. Of those that have a typed table. A table that a pattern without wildcards"
        " names must have a key.",
    )
    history_name: Annotated[str, AfterValidator(_template)] = Field(
        default=HISTORY_TEMPLATE, description="Name of a history, as `name` is of a typed table."
    )
    metastore: MetastoreConfig | None = Field(
        default=None,
        description="A Hive metastore in which typed tables and histories are registered.",
    )

    def columns_of(self, *names: str) -> dict[str, ColumnTypes]:
        """
        The options of columns of a table.

        Shape:
            names: as namespace.name, the present one first; the first with options has them.
        """
        options = self._options_of(names)
        return {} if options is None else options.columns

    def cluster_of(self, *names: str) -> tuple[str, ...]:
        """The columns by which a table is clustered; names as for `columns_of`."""
        options = self._options_of(names)
        return () if options is None else options.cluster

    def on_schema_change_of(self, *names: str) -> OnSchemaChange:
        """What happens when the columns of a table change; names as for `columns_of`."""
        options = self._options_of(names)
        chosen = None if options is None else options.on_schema_change
        return self.on_schema_change if chosen is None else chosen

    def on_type_change_of(self, *names: str) -> OnTypeChange:
        """What happens when the type of a column changes; names as for `columns_of`."""
        options = self._options_of(names)
        chosen = None if options is None else options.on_type_change
        return self.on_type_change if chosen is None else chosen

    def _options_of(self, names: Sequence[str]) -> TypedTableConfig | None:
        return next((self.types[name] for name in names if name in self.types), None)
