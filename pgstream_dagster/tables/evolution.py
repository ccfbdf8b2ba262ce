"""
How the columns of a typed table become those of a newer version. Pure.

The plan follows from the columns that the table has and those that it shall have. So a table that
was left between two statements needs no record of where: its next plan is what is left to do.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pyspark.sql import types as T

from pgstream_dagster.tables.columns import INTERNAL, Layout, comment, quoted


@dataclass(frozen=True, slots=True)
class Evolution:
    """
    What is left to do: statements in order, without `ALTER TABLE <table>` before each.

    `must_rebuild`: they would not do, because values change. `vacated`: names that a column loses;
    if `_rescued` has texts under one of them, they would be lost or another column's.
    """

    statements: tuple[str, ...] = ()
    vacated: tuple[str, ...] = ()
    must_rebuild: bool = False


REBUILD = Evolution(must_rebuild=True)


def evolution(
    existing: Mapping[int, tuple[str, T.DataType]],
    desired: Layout,
    missing: Mapping[int, str | None],
) -> Evolution:
    """
    The plan from `existing` columns to the `desired` ones.

    Columns are dropped first, then renamed, by way of names that no column has where one takes
    another's name, and then added. Older rows have null in a new column; where they show another
    value, and where a type differs, the table must be rebuilt.

    Shape:
        missing: what rows older than a column show for it, by attnum.
    """
    types = desired.types
    both = [attnum for attnum in existing if attnum in types]
    added = [attnum for attnum in types if attnum not in existing]
    if any(existing[n][1].simpleString() != types[n].simpleString() for n in both):
        return REBUILD
    if not existing or any(missing.get(attnum) is not None for attnum in added):
        return REBUILD
    features = {feature for _, type_ in existing.values() for feature in _features(type_)}
    if not features.issuperset(feature for n in added for feature in _features(types[n])):
        return REBUILD
    dropped = [name for attnum, (name, _) in existing.items() if attnum not in types]
    renames = {
        existing[n][0]: (n, desired.columns[n].name)
        for n in both
        if existing[n][0] != desired.columns[n].name
    }
    statements = [
        *(f"DROP COLUMN {quoted(name)}" for name in dropped),
        *_renames(renames, [existing[n][0] for n in both]),
        *(_added(desired.columns[n].name, types[n], n) for n in added),
    ]
    return Evolution(tuple(statements), (*dropped, *renames))


def _renames(renames: Mapping[str, tuple[int, str]], present: Sequence[str]) -> list[str]:
    """Statements that rename columns; all by way of temporary names if a new one is in use."""
    direct = [(old, new) for old, (_, new) in renames.items()]
    used = {name.casefold() for name in present}
    if any(new.casefold() in used for _, new in direct):
        aside = [(old, f"{INTERNAL}{attnum}") for old, (attnum, _) in renames.items()]
        back = [(f"{INTERNAL}{attnum}", new) for attnum, new in renames.values()]
        direct = [step for step in aside if step[0] != step[1]] + back
    return [f"RENAME COLUMN {quoted(old)} TO {quoted(new)}" for old, new in direct]


def _features(type_: T.DataType) -> set[str]:
    """The types in it that need a feature of the table, which an added column does not turn on."""
    text = type_.simpleString()
    return {name for name in ("timestamp_ntz", "variant") if name in text}


def _added(name: str, type_: T.DataType, attnum: int) -> str:
    return f"ADD COLUMNS ({quoted(name)} {type_.simpleString()} COMMENT '{comment(attnum)}')"
