"""
The columns of a typed table: those of the newest version of its relation, and our own. Pure.

A column is identified by its attnum, which its comment in the table has; so what a table's columns
are can be read from the table, wherever a change of them was interrupted.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from pyspark.sql import types as T

from pgstream_dagster.config.column_types import ColumnTypes
from pgstream_dagster.config.tables import OnTypeChange, TablesConfig
from pgstream_dagster.schema.table import Column, TableSchema
from pgstream_dagster.tables.assignment import Copied
from pgstream_dagster.tables.forms import DEFAULTS, form_of
from pgstream_dagster.tables.kept import OFFSET, KeptColumn, kept_columns
from pgstream_dagster.tables.types import RESCUED, RESCUED_TYPE, TypedColumn, delta_type
from pgstream_dagster.values.types import LakeType

EPOCH, COMMIT_LSN, ORDINAL, COMMITTED_AT = "_epoch", "_commit_lsn", "_ordinal", "_committed_at"

OWN: Final[Mapping[str, T.DataType]] = {
    EPOCH: T.IntegerType(),
    COMMIT_LSN: T.LongType(),
    ORDINAL: T.LongType(),
    COMMITTED_AT: T.TimestampType(),
    RESCUED: RESCUED_TYPE,
}
"""Of each row, its last change, and the texts that their columns cannot hold."""

INTERNAL: Final = "_pgstream_"
"""Names that begin so are for what a merge needs meanwhile."""

_COMMENT: Final = re.compile(r"attnum (\d+)(?:, version (\d+))?")

_NOT_IN_PARQUET: Final = re.compile(r"[ ,;{}()\n\t=]")
"""What Delta refuses in a name without column mapping."""

_NEVER_RESCUED: Final = frozenset(
    {LakeType.STRING, LakeType.BOOLEAN, LakeType.SMALLINT, LakeType.INT, LakeType.BIGINT}
)

_AS_TEXT: Final = ColumnTypes(text=True)


@dataclass(frozen=True, slots=True)
class Layout:
    """
    The columns that a typed table shall have: attnum -> column, and the names of its key.

    `kept` are those that have a former type of another one; they have numbers of their own.
    """

    columns: Mapping[int, TypedColumn]
    key: tuple[str, ...]
    kept: tuple[KeptColumn, ...] = ()

    @property
    def types(self) -> dict[int, T.DataType]:
        """The type of each column by attnum."""
        return {n: delta_type(c.source, c.options) for n, c in self.columns.items()}

    @property
    def names(self) -> list[str]:
        """The names of all columns, ours last."""
        return [*(column.name for column in self.columns.values()), *OWN]

    @property
    def sources(self) -> dict[int, str]:
        """Which column of the source each is of, by number."""
        former = {k.number: k.column.name for k in self.kept}
        return {n: former.get(n, column.source.name) for n, column in self.columns.items()}

    def digest(self, more: str = "") -> str:
        """Of the names and types of the columns, the key, and more."""
        types = self.types
        columns = [(n, column.name, types[n].simpleString()) for n, column in self.columns.items()]
        text = repr((columns, self.key)) + more
        return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()

    def rescuable(self, names: Sequence[str]) -> list[str]:
        """Those of these columns whose texts may be in `_rescued` instead."""
        by_name = {column.name: column for column in self.columns.values()}
        return [name for name in names if may_be_rescued(by_name[name])]


def layout(
    schema: TableSchema,
    options: Mapping[str, ColumnTypes],
    taken: Mapping[str, T.DataType] = OWN,
    kept: Sequence[KeptColumn] = (),
    *,
    is_mapped: bool = True,
) -> Layout:
    """
    The columns for a version of a relation.

    A key column whose values cannot be compared in Spark is kept as text. `is_mapped`: the table
    has column mapping, so its columns may have any name.

    Shape:
        options: of columns, by the name in the source.
        taken: names that no column of the source gets.
        kept: further columns, which take no name of the source's.
    """
    former = [replace(k.column, attnum=k.number, name=k.name) for k in kept]
    names = column_names([*schema.columns, *former], taken, is_mapped=is_mapped)
    columns: dict[int, TypedColumn] = {}
    for column in schema.columns:
        chosen = options.get(column.name, DEFAULTS)
        if column.name in schema.key and not _is_comparable(delta_type(column, chosen)):
            chosen = _AS_TEXT
        columns[column.attnum] = TypedColumn(names[column.attnum], column, chosen)
    for k in kept:
        source, chosen = replace(k.column, name=k.entry), options.get(k.column.name, DEFAULTS)
        columns[k.number] = TypedColumn(names[k.number], source, chosen)
    return Layout(columns, tuple(names[attnum] for attnum in schema.key_attnums), tuple(kept))


def layout_of(config: TablesConfig, copied: Copied) -> Layout:
    """The columns that the typed table of a relation shall have."""
    options = config.columns_of(*copied.names)
    is_kept = config.on_type_change_of(*copied.names) is OnTypeChange.KEEP
    kept = kept_columns(copied.dated, options) if is_kept else ()
    return layout(copied.newest, options, kept=kept, is_mapped=config.column_mapping)


def column_names(
    columns: Sequence[Column], ours: Mapping[str, T.DataType] = OWN, *, is_mapped: bool = True
) -> dict[int, str]:
    """
    Attnum -> name in the table: that of the source, unless Spark would confuse it with another.

    Names are not distinguished by case there, and some are ours: the attnum is added to such a one.
    Without column mapping a name has `_` for what Parquet's readers do not take.
    """
    taken, names = {name.casefold() for name in ours}, dict[int, str]()
    for column in sorted(columns, key=lambda column: column.attnum):
        name = column.name if is_mapped else _NOT_IN_PARQUET.sub("_", column.name)
        if name.casefold() in taken or name.casefold().startswith(INTERNAL):
            name = f"{name}_{column.attnum}".lstrip("_")
        while name.casefold() in taken:
            name = f"{name}_{column.attnum}"
        taken.add(name.casefold())
        names[column.attnum] = name
    return names


def comment(number: int) -> str:
    """What the comment of a column says: its attnum, and of a kept one which it is."""
    version, attnum = divmod(number, OFFSET)
    return f"attnum {attnum}, version {version}" if version else f"attnum {attnum}"


def existing(fields: Sequence[T.StructField]) -> dict[int, tuple[str, T.DataType]]:
    """Attnum -> name and type of the columns that a table has."""
    columns: dict[int, tuple[str, T.DataType]] = {}
    for field in fields:
        if match := _COMMENT.fullmatch(field.metadata.get("comment", "")):
            number = int(match[1]) + OFFSET * int(match[2] or 0)
            columns[number] = field.name, field.dataType
    return columns


def may_be_rescued(column: TypedColumn) -> bool:
    """Whether a text of the column may be one that its type cannot hold."""
    return form_of(column.source, column.options).lake not in _NEVER_RESCUED


def quoted(name: str) -> str:
    """A name as part of a statement or of an expression."""
    return f"`{name.replace('`', '``')}`"


def _is_comparable(type_: T.DataType) -> bool:
    match type_:
        case T.MapType() | T.VariantType():
            return False
        case T.ArrayType():
            return _is_comparable(type_.elementType)
        case T.StructType():
            return all(_is_comparable(field.dataType) for field in type_.fields)
        case _:
            return True
