"""
The columns of a history: all that its relations ever had, and our own. Pure.

A column that the source dropped stays, with the values that it had. A relation that continues an
earlier one (`lineage`) has the columns of that one by their names.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from pyspark.sql import types as T

from pgstream_dagster.config.column_types import ColumnTypes
from pgstream_dagster.schema.table import Column, TableSchema, missing_values
from pgstream_dagster.tables.columns import OWN as TYPED_OWN
from pgstream_dagster.tables.columns import Layout, column_names, layout
from pgstream_dagster.tables.forms import DEFAULTS
from pgstream_dagster.tables.types import RESCUED, RESCUED_TYPE, TypedColumn

KEY_TEXTS: Final = "_key"
FROM_EPOCH, FROM_LSN, FROM_ORDINAL, FROM = (
    f"_valid_from{part}" for part in ("_epoch", "_lsn", "_ordinal", "")
)
TO_EPOCH, TO_LSN, TO_ORDINAL, TO = (
    f"_valid_to{part}" for part in ("_epoch", "_lsn", "_ordinal", "")
)
IS_CURRENT, ENDED_BY = "_is_current", "_ended_by"

OWN: Final[Mapping[str, T.DataType]] = {
    KEY_TEXTS: T.ArrayType(T.StringType()),
    FROM_EPOCH: T.IntegerType(),
    FROM_LSN: T.LongType(),
    FROM_ORDINAL: T.LongType(),
    FROM: T.TimestampType(),
    TO_EPOCH: T.IntegerType(),
    TO_LSN: T.LongType(),
    TO_ORDINAL: T.LongType(),
    TO: T.TimestampType(),
    IS_CURRENT: T.BooleanType(),
    ENDED_BY: T.StringType(),
    RESCUED: RESCUED_TYPE,
}
"""Of each version of a row: the key's texts, where and when it began and ended, and by what."""

ANCESTOR_OFFSET: Final = 10_000
"""Numbers of columns of earlier relations begin here; attnums end at 1,600."""


@dataclass(frozen=True, slots=True)
class Image:
    """
    How images of one version are read.

    Shape:
        size: the number of columns.
        names: column name -> name in the history's layout.
        absent: the layout's columns that it has not, with what its rows show for them.
    """

    schema_id: int
    size: int
    names: Mapping[str, str]
    absent: Mapping[str, str | None]


@dataclass(frozen=True)
class HistoryLayout(Layout):
    """
    The columns of a history by number: the attnum, or one of an earlier relation's column.

    `images`: of every version of its relations. `lacking`: versions that a column was dropped
    before, by number. `missing`: what rows older than a column show, by number.
    """

    images: tuple[Image, ...] = ()
    lacking: Mapping[int, frozenset[int]] = field(default_factory=dict)
    missing: Mapping[int, str | None] = field(default_factory=dict)

    @property
    def names(self) -> list[str]:
        """The names of all columns, ours last."""
        return [*(column.name for column in self.columns.values()), *OWN]


def history_layout(
    relations: Sequence[Sequence[TableSchema]], options: Mapping[str, ColumnTypes]
) -> HistoryLayout:
    """
    The layout of the history of relations that continue each other.

    Shape:
        relations: the versions of each, oldest first; the last relation is the present one.
    """
    newest = relations[-1][-1]
    live = layout(newest, options, {**TYPED_OWN, **OWN})
    numbers = [_numbers(versions, n, newest) for n, versions in enumerate(relations[:-1])]
    numbers.append({attnum: attnum for attnum in _last(relations[-1])})
    columns = dict(live.columns)
    for versions, numbered in zip(reversed(relations), reversed(numbers), strict=True):
        for attnum, column in _last(versions).items():
            if numbered[attnum] not in columns:
                columns[numbered[attnum]] = _former(column, numbered[attnum], columns, options)
    missing = {
        number: value
        for versions, numbered in zip(relations, numbers, strict=True)
        for attnum, value in missing_values(versions).items()
        for number in [numbered[attnum]]
    }
    images, lacking = _images(relations, numbers, columns, missing)
    return HistoryLayout(columns, live.key, images=images, lacking=lacking, missing=missing)


def _last(versions: Sequence[TableSchema]) -> dict[int, Column]:
    """The last definition of every column, by attnum."""
    return {column.attnum: column for version in versions for column in version.columns}


def _numbers(versions: Sequence[TableSchema], place: int, newest: TableSchema) -> dict[int, int]:
    """Attnum of an earlier relation -> number: of the present column of its last name, or new."""
    live = {column.name: column.attnum for column in newest.columns}
    in_force = {column.attnum for column in versions[-1].columns}
    own = ANCESTOR_OFFSET * (place + 1)
    return {
        attnum: live.get(column.name, own + attnum) if attnum in in_force else own + attnum
        for attnum, column in _last(versions).items()
    }


def _former(
    column: Column,
    number: int,
    columns: Mapping[int, TypedColumn],
    options: Mapping[str, ColumnTypes],
) -> TypedColumn:
    """A column that is no more, under names that no present one has."""
    names = {c.name.casefold() for c in columns.values()}
    sources = {c.source.name for c in columns.values()}
    name = column_names([replace(column, attnum=number)], {**TYPED_OWN, **OWN})[number]
    while name.casefold() in names:
        name = f"{name}_{number}"
    source = f"former {number}"
    while source in sources:
        source += "_"
    return TypedColumn(name, replace(column, name=source), options.get(column.name, DEFAULTS))


def _images(
    relations: Sequence[Sequence[TableSchema]],
    numbers: Sequence[Mapping[int, int]],
    columns: Mapping[int, TypedColumn],
    missing: Mapping[int, str | None],
) -> tuple[tuple[Image, ...], dict[int, frozenset[int]]]:
    """
    How to read each version, and the versions that each column was dropped before.

    A version that comes again, after a column was added and dropped, is read as it was at first: so
    what is written stays as it is, and no value that a row showed becomes null. The column makes
    no difference to its rows then, as it does not to those of any later version.
    """
    images: dict[int, Image] = {}
    lacking: dict[int, set[int]] = {}
    seen: set[int] = set()
    for versions, numbered in zip(relations, numbers, strict=True):
        for version in versions:
            had = {numbered[column.attnum] for column in version.columns}
            seen |= had
            dropped = seen - had
            for number in dropped:
                lacking.setdefault(number, set()).add(version.schema_id)
            if version.schema_id in images:
                continue
            absent = {
                columns[number].source.name: None if number in dropped else missing.get(number)
                for number in columns
                if number not in had
            }
            names = {c.name: columns[numbered[c.attnum]].source.name for c in version.columns}
            images[version.schema_id] = Image(
                version.schema_id, len(version.columns), names, absent
            )
    return tuple(images.values()), {n: frozenset(ids) for n, ids in lacking.items()}
