"""
The SQL of a table's changes with one column per column. Pure.

`tables.column_changes` says the same to Spark; a test compares them.
"""

from __future__ import annotations

from collections.abc import Sequence

from pgstream_dagster.query.engine import literal, quoted
from pgstream_dagster.schema.change_columns import (
    BEFORE,
    BEFORE_SENT,
    OF_LOG,
    SENT,
    ChangeColumn,
    change_columns,
)
from pgstream_dagster.schema.table import TableSchema


def changes_query(log: str, versions: Sequence[TableSchema]) -> str:
    """
    Every change of a relation in its epoch, copied rows and markers too; in no order.

    Shape:
        log: the expression that reads the change log.
        versions: of one relation, oldest first.
        result: the columns of `OF_LOG`, SENT, BEFORE, BEFORE_SENT, then the newest version's with
            the values after the change, as texts.
    """
    columns, newest = change_columns(versions), versions[-1]
    own = [f"{of_log} as {quoted(name)}" for name, of_log in OF_LOG.items()]
    values = [f"after[{_name(column)}] as {quoted(column.name)}" for column in columns]
    chosen = [
        *own,
        f"{_sent('after', columns)} as {SENT}",
        f"{_before(columns)} as {BEFORE}",
        f"{_sent('before', columns)} as {BEFORE_SENT}",
        *values,
    ]
    return (
        f"select {', '.join(chosen)} from {log}"  # noqa: S608  expressions of ours, names quoted
        f" where relation_id = {newest.relation_id} and epoch = {newest.epoch}"
    )


def _name(column: ChangeColumn) -> str:
    """What the column is called in a row; null in a version without it."""
    if column.same_name is not None:
        return literal(column.same_name)
    cases = (f"when {version} then {literal(name)}" for version, name in column.names.items())
    return f"case schema_id {' '.join(cases)} end"


def _sent(image: str, columns: Sequence[ChangeColumn]) -> str:
    names = (
        f"case when map_contains({image}, {_name(column)}) then {literal(column.name)} end"
        for column in columns
    )
    return f"list_filter([{', '.join(names)}], lambda name: name is not null)"


def _before(columns: Sequence[ChangeColumn]) -> str:
    fields = ", ".join(f"{quoted(column.name)} := before[{_name(column)}]" for column in columns)
    return f"case when before is not null then struct_pack({fields}) end"
