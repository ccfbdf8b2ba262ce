"""
How the columns of a typed table become those of a newer version. Pure.

The plan follows from the columns that the table has and those that it shall have. So a table that
was left between two statements needs no record of where: its next plan is what is left to do.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from pyspark.sql import types as T

from pgstream_dagster.tables.columns import INTERNAL, Layout, comment, quoted
from pgstream_dagster.tables.kept import OFFSET
from pgstream_dagster.tables.widening import widened


@dataclass(frozen=True, slots=True)
class Evolution:
    """
    What is left to do: statements in order, without `ALTER TABLE <table>` before each.

    `must_rewrite`: they would not do, but the new values follow from the rows that are there (see
    `recast`). `must_rebuild`: they do not, and the table has to be folded from the log. `vacated`:
    columns that lose their name or their type; if `_rescued` has texts under one of these names,
    the table must be rebuilt, too: they would be lost, or another column's. `must_map`: the
    statements need column mapping.
    """

    statements: tuple[str, ...] = ()
    vacated: tuple[str, ...] = ()
    must_rewrite: bool = False
    must_rebuild: bool = False
    must_map: bool = False


NEVER_RESCUED: Final = (T.StringType, T.BooleanType, T.ShortType, T.IntegerType, T.LongType)
"""The types of columns that hold every text of their type in the source."""

_FEATURES: Final = {"timestamp_ntz": "timestampNtz", "variant": "variantType"}

REBUILD: Final = Evolution(must_rebuild=True)


def evolution(
    existing: Mapping[int, tuple[str, T.DataType]],
    desired: Layout,
    missing: Mapping[int, str | None],
    *,
    is_clustered: bool = False,
) -> Evolution:
    """
    The plan from `existing` columns to the `desired` ones.

    Columns are dropped first, then renamed, by way of names that no column has where one takes
    another's name, and then added. Older rows have null in a new column; where they show another
    value, where a type has become wider, and where the Delta table lacks a feature that a new type
    needs, the rows must be written again; where another type differs, the table must be rebuilt.
    So must one without a key that loses a column: of rows that are equal without it, the fold takes
    others to be those that were removed. Delta drops no column that a table is clustered by; the
    next `optimize` clusters it again.

    Shape:
        missing: what rows older than a column show for it, by attnum.
    """
    types = desired.types
    both = [attnum for attnum in existing if attnum in types]
    added = [attnum for attnum in types if attnum not in existing]
    retyped = [n for n in both if existing[n][1].simpleString() != types[n].simpleString()]
    are_wider = all(widened(existing[n][1], types[n]) for n in retyped)
    if not existing or not are_wider or _keeps_others(existing, desired, {*added, *retyped}):
        return REBUILD
    dropped = [name for attnum, (name, _) in existing.items() if attnum not in types]
    if dropped and not desired.key:
        return REBUILD
    renames = {
        existing[n][0]: (n, desired.columns[n].name)
        for n in both
        if existing[n][0] != desired.columns[n].name
    }
    lost = {*dropped, *renames, *(existing[n][0] for n in retyped)}
    vacated = tuple(n for n, type_ in existing.values() if n in lost and _may_be_rescued(type_))
    has_features = features_of(existing[n][1] for n in existing).issuperset(
        features_of(types[n] for n in added)
    )
    if retyped or not has_features or any(missing.get(n) is not None for n in added):
        return Evolution(vacated=vacated, must_rewrite=True)
    statements = [
        *(["CLUSTER BY NONE"] if dropped and is_clustered else []),
        *(f"DROP COLUMN {quoted(name)}" for name in dropped),
        *_renames(renames, [existing[n][0] for n in both]),
        *(_added(desired.columns[n].name, types[n], n) for n in added),
    ]
    return Evolution(tuple(statements), vacated, must_map=bool(dropped or renames))


def _keeps_others(
    existing: Mapping[int, tuple[str, T.DataType]], desired: Layout, changed: Collection[int]
) -> bool:
    """
    Whether former values are wanted that the table does not have.

    Of a column that had other numbers of former types, too, none is what it was: other options
    begin them elsewhere.
    """
    numbers = {kept.number for kept in desired.kept}
    attnums = {number % OFFSET for number in numbers}
    others = (n for n in existing if n > OFFSET and n not in numbers and n % OFFSET in attnums)
    return not numbers.isdisjoint(changed) or any(others)


def _renames(renames: Mapping[str, tuple[int, str]], present: Sequence[str]) -> list[str]:
    """Statements that rename columns; all by way of temporary names if a new one is in use."""
    direct = [(old, new) for old, (_, new) in renames.items()]
    used = {name.casefold() for name in present}
    if any(new.casefold() in used for _, new in direct):
        aside = [(old, f"{INTERNAL}{attnum}") for old, (attnum, _) in renames.items()]
        back = [(f"{INTERNAL}{attnum}", new) for attnum, new in renames.values()]
        direct = [step for step in aside if step[0] != step[1]] + back
    return [f"RENAME COLUMN {quoted(old)} TO {quoted(new)}" for old, new in direct]


def features_of(types: Iterable[T.DataType]) -> set[str]:
    """The features that a table must have for types, which a column of them does not turn on."""
    texts = [type_.simpleString() for type_ in types]
    return {feature for name, feature in _FEATURES.items() if any(name in text for text in texts)}


def _may_be_rescued(type_: T.DataType) -> bool:
    """Whether a text of a column may be one that its type cannot hold."""
    return not isinstance(type_, NEVER_RESCUED)


def _added(name: str, type_: T.DataType, attnum: int) -> str:
    return f"ADD COLUMNS ({quoted(name)} {type_.simpleString()} COMMENT '{comment(attnum)}')"
