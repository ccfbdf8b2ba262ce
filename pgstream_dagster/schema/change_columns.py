"""
The changes of a table with one column per column of its newest version: which name is where. Pure.

In the log a change has its values by name, in the version that its row has. Here each column of the
newest version is found in every version by its attnum, so a renamed column is one column. `read`
and `query` make an expression of Spark and of SQL of this.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from pgstream_dagster.schema.table import TableSchema

SENT: Final = "_sent"
"""The columns that the change carried; of an update, the others kept the value that they had."""

BEFORE: Final = "_before"
"""A struct with the values before the change, as far as the source sent them."""

BEFORE_SENT: Final = "_before_sent"
"""The columns of `BEFORE` that were sent."""

OF_LOG: Final[Mapping[str, str]] = {
    "_epoch": "epoch",
    "_commit_lsn": "commit_lsn",
    "_ordinal": "ordinal",
    "_committed_at": "committed_at",
    "_xid": "xid",
    "_op": "op",
    "_key": "key",
    "_old_key": "old_key",
}
"""The columns that come first, and the columns of the log that they are."""


@dataclass(frozen=True, slots=True)
class ChangeColumn:
    """
    A column of the newest version.

    `name`: in the result. `names`: schema id -> what it is called in the log's rows of that
    version; a version that is not there did not have the column. `same_name`: what every version
    calls it, if there is such a name.
    """

    name: str
    names: Mapping[int, str]
    same_name: str | None = None


def change_columns(versions: Sequence[TableSchema]) -> list[ChangeColumn]:
    """
    The columns of the newest version, in its order.

    Names that differ only in case are one name for Spark and DuckDB, and some are ours: such a
    column has its attnum added, as in a typed table.

    Shape:
        versions: of one relation, oldest first.
    """
    taken = {name.casefold() for name in (*OF_LOG, SENT, BEFORE, BEFORE_SENT)}
    columns: list[ChangeColumn] = []
    for column in sorted(versions[-1].columns, key=lambda column: column.attnum):
        name = column.name
        while name.casefold() in taken:
            name = f"{name}_{column.attnum}".lstrip("_")
        taken.add(name.casefold())
        columns.append(_column(name, versions, column.attnum))
    return columns


def _column(name: str, versions: Sequence[TableSchema], attnum: int) -> ChangeColumn:
    names = {
        version.schema_id: column.name
        for version in versions
        for column in version.columns
        if column.attnum == attnum
    }
    is_everywhere = len(names) == len({version.schema_id for version in versions})
    same = set(names.values())
    return ChangeColumn(name, names, same.pop() if is_everywhere and len(same) == 1 else None)
