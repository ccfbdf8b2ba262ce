"""
The plan of a copy: which pages each task reads, and the statement it runs. Pure; no I/O.

The pages of a table (or of all leaves of its partition tree, one after the other) are divided
among tasks. Every range but a leaf's last has an end, and the last has none: pages added since the
count are read, too.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Final, LiteralString, cast

from psycopg import sql

TASK_PAGES: Final = 1024
"""Fewest pages worth a task of its own (8 MB): a task costs a connection and a file."""


@dataclass(frozen=True, slots=True)
class Leaf:
    """
    A table that stores rows, or, `with_partitions`, a whole partition tree read by its root.

    `pages` is their number now; it only decides where ranges are cut.
    """

    relation_id: int
    namespace: str
    name: str
    pages: int
    with_partitions: bool = False


@dataclass(frozen=True, slots=True)
class PageRange:
    """Pages of one leaf from `first` up to, not including, `end`; `None`: to the last one."""

    leaf: Leaf
    first: int = 0
    end: int | None = None


@dataclass(frozen=True, slots=True)
class ScanTask:
    """What one task reads; its rows get the ordinals of range `number` of the copy."""

    number: int
    ranges: tuple[PageRange, ...]


def divide(leaves: Sequence[Leaf], *, at_most: int) -> tuple[ScanTask, ...]:
    """
    Share the pages of `leaves` evenly among at most `at_most` tasks.

    Every page of every leaf, those it gets later included, is in exactly one range. No leaf: one
    task without ranges.
    """
    total = sum(leaf.pages for leaf in leaves)
    tasks = max(1, min(at_most, total // TASK_PAGES))
    shares: list[list[PageRange]] = [[] for _ in range(tasks)]
    before = 0
    for leaf in leaves:
        for cut in _cut(leaf, before, total, tasks):
            share = (before + cut.first) * tasks // max(total, 1)
            shares[min(share, tasks - 1)].append(cut)
        before += leaf.pages
    return tuple(ScanTask(number, tuple(ranges)) for number, ranges in enumerate(shares))


def _cut(leaf: Leaf, before: int, total: int, tasks: int) -> Iterator[PageRange]:
    """The ranges of one leaf that begins `before` pages into `total`; the last one is open."""
    inside = (-(-total * task // tasks) - before for task in range(1, tasks))
    firsts = [0, *(page for page in inside if 0 < page < leaf.pages)]
    for first, end in zip_longest(firsts, firsts[1:]):
        yield PageRange(leaf, first, end)


@dataclass(frozen=True, slots=True)
class TextColumn:
    """
    One column to copy, and how to get its output text.

    `by_cast`: its cast to text is its output function. Otherwise `output` names that function if
    it is in pg_catalog.
    """

    name: str
    by_cast: bool = True
    output: str | None = None


def text_columns(
    columns: Sequence[tuple[str, int]], forms: Mapping[int, str | None]
) -> tuple[TextColumn, ...]:
    """The columns (name, type oid); `forms` has the types whose cast to text is another text."""
    return tuple(
        TextColumn(name, type_oid not in forms, forms.get(type_oid)) for name, type_oid in columns
    )


def select(columns: Sequence[TextColumn], pages: PageRange, row_filter: str | None) -> sql.Composed:
    """
    The query for one range: every column as the text its output function gives, NULL as NULL.

    `row_filter` is the publication's, as `pg_get_expr` prints it: SQL of the source's owner.
    """
    leaf = pages.leaf
    conditions = list(_within(pages))
    if row_filter is not None:
        conditions.append(sql.SQL(cast("LiteralString", f"({row_filter})")))
    return sql.Composed(
        [
            sql.SQL("select "),
            sql.SQL(", ").join(map(_text, columns)),
            sql.SQL(" from " if leaf.with_partitions else " from only "),
            sql.Identifier(leaf.namespace, leaf.name),
            sql.SQL(" where " if conditions else ""),
            sql.SQL(" and ").join(conditions),
        ]
    )


def copy_statement(
    columns: Sequence[TextColumn], pages: PageRange, row_filter: str | None
) -> sql.Composed:
    """
    The statement that sends one range, each row laid out as a pgoutput tuple.

    Source:
        https://www.postgresql.org/docs/current/sql-copy.html (Binary Format)
    """
    query = select(columns, pages, row_filter)
    return sql.Composed([sql.SQL("copy ("), query, sql.SQL(") to stdout (format binary)")])


def _text(column: TextColumn) -> sql.Composed:
    name = sql.Identifier(column.name)
    if column.by_cast:
        return sql.SQL("{}::pg_catalog.text").format(name)
    if column.output is not None:
        output = sql.Identifier("pg_catalog", column.output)
        return sql.SQL("pg_catalog.textin({}({}))").format(output, name)
    # `format` finds the output function by itself, in any schema, also where this role may not look
    # it up. `is null` would be true for a composite of nulls.
    return sql.SQL(
        "case when {0} is distinct from null then pg_catalog.format('%s', {0}) end"
    ).format(name)


def _within(pages: PageRange) -> Iterator[sql.Composable]:
    if pages.first:
        yield sql.SQL("ctid >= {}::pg_catalog.tid").format(sql.Literal(f"({pages.first},0)"))
    if pages.end is not None:
        yield sql.SQL("ctid < {}::pg_catalog.tid").format(sql.Literal(f"({pages.end},0)"))
