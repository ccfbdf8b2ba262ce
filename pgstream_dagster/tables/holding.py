"""
Which changes of a table's columns wait for an approval, and what identifies them. Pure.

A table is compared by the versions that it went through, never by what the first and the last of
them have: a column that was dropped and made again, or a type that was changed and changed back, is
a change. What identifies versions is a digest of all of them in order, so an approval of some never
holds for those that come later.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from typing import Final

from pgstream_dagster.lsn import Lsn
from pgstream_dagster.schema.difference import Aspect, Difference, columns_text, differences
from pgstream_dagster.schema.table import Column, TableSchema
from pgstream_dagster.tables.progress import Entry, Held

DIGEST_BYTES: Final = 6
"""People type it; two histories of one table that anyone would confuse are few."""

_HELD: Final = frozenset(
    {
        *(Aspect.KEY, Aspect.TYPE, Aspect.COLUMN_RENAMED),
        *(Aspect.COLUMN_ADDED, Aspect.COLUMN_PUBLISHED),
        *(Aspect.COLUMN_DROPPED, Aspect.COLUMN_UNPUBLISHED),
    }
)
"""What changes the columns of a typed table, or the rows that a key tells apart."""


def unapplied(
    entry: Entry, history: Sequence[TableSchema], columns: str, position: Lsn
) -> Held | None:
    """
    The changes of a relation that its typed table does not have; `None` if there are none.

    Shape:
        history: the relation's versions, each time that one began to hold.
        columns: the digest of the columns that the typed table shall have.
        position: that of the typed table.
    """
    newest, versions = history[-1], versions_digest(history)
    is_as_it_was = not entry.versions and entry.columns == columns
    applied = versions if is_as_it_was else entry.versions
    if (entry.relation_id, applied) == (newest.relation_id, versions):
        return None
    changes = changes_since(applied, history)
    return Held(newest.full_name, versions, int(position), changes)


def versions_digest(history: Iterable[TableSchema]) -> str:
    """
    What identifies the versions of a relation's columns and key, in order.

    Two that follow each other and have the same ones count as one; so a version that is seen again,
    and a change of the table's name or of its defaults, leave the digest as it is.
    """
    return _digests(_distinct(history))[-1]


def changes_since(applied: str, history: Sequence[TableSchema]) -> tuple[str, ...]:
    """
    What changed after the versions with the digest `applied`, step by step, for people.

    Of another relation, or when the versions from before are not known any more: what the table is
    now.
    """
    distinct = _distinct(history)
    digests = _digests(distinct)
    if applied not in digests:
        newest = distinct[-1]
        return (str(Difference(Aspect.TABLE_ADDED, newest.full_name, after=columns_text(newest))),)
    since = distinct[digests.index(applied) :]
    steps = (step for pair in pairwise(since) for step in differences(*pair))
    return tuple(str(step) for step in steps if step.aspect in _HELD)


def _distinct(history: Iterable[TableSchema]) -> list[TableSchema]:
    return list(_changing(history))


def _changing(history: Iterable[TableSchema]) -> Iterator[TableSchema]:
    before = None
    for version in history:
        if _columns_and_key(version) != before:
            before = _columns_and_key(version)
            yield version


def _digests(versions: Sequence[TableSchema]) -> list[str]:
    """Of the versions up to each of them."""
    whole, digests = hashlib.blake2b(digest_size=DIGEST_BYTES), list[str]()
    for version in versions:
        whole.update(json.dumps(_columns_and_key(version)).encode())
        digests.append(whole.copy().hexdigest())
    return digests


def _columns_and_key(version: TableSchema) -> tuple[object, ...]:
    columns = [_column(column) for column in version.columns]
    return version.epoch, version.relation_id, columns, list(version.key_attnums)


def _column(column: Column) -> list[int | str]:
    return [column.attnum, column.name, column.type_oid, column.typmod]
