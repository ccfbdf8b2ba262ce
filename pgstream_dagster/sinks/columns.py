"""
Messages of many changes at once, from the columns of the log. Pure.

Rows of one version of a table go in; texts of JSON come out, the same as those made change by
change. What columns do not express is left to that: markers, a few rows of many tables, rows of
megabytes.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple, TypeAlias, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pgstream_dagster.readers.change import (
    VERSION,
    Change,
    LoggedChanges,
    changes_of,
    codes_of,
    same_values,
)
from pgstream_dagster.schema.changes import COPY_ORDINAL, ROW_OPS
from pgstream_dagster.schema.table import TableSchema
from pgstream_dagster.values.columns import rendered
from pgstream_dagster.values.exact import Render, string

T = TypeVar("T")

OfVersion: TypeAlias = "Callable[[pa.Table, Change], Iterable[T] | None]"
"""From rows of one version, and the first of their changes, to a result per row, if it can."""

AT_ONCE_ROWS: Final = 4_096
AT_ONCE_BYTES: Final = 2 << 20
"""What is rendered together, which takes several times as much memory. Twice as many bytes, of a
few large values, are not."""

LEAST_ROWS: Final = 48
"""Rows of a version that take less time together than one by one."""


class Member(NamedTuple):
    """A column: its name, its label in JSON, and the rendering of its values."""

    name: str
    label: str
    render: Render


def of_changes(
    changes: Sequence[Change], of_version: OfVersion[T], of_change: Callable[[Change], T]
) -> Iterator[T]:
    """The result of each change in order, by `of_version` where that can be, else one by one."""
    if not isinstance(changes, LoggedChanges) or changes.rows is None:
        yield from map(of_change, changes)
        return
    rows, schemas = changes.rows, changes.schemas
    row_bytes = rows.nbytes // max(1, rows.num_rows)
    count = max(1, min(AT_ONCE_ROWS, AT_ONCE_BYTES // max(1, row_bytes)))
    for start in range(0, rows.num_rows, count):
        part = rows.slice(start, count).combine_chunks()
        yield from _of_rows(part, schemas, of_version, of_change)


def _of_rows(
    rows: pa.Table,
    schemas: Mapping[int, TableSchema],
    of_version: OfVersion[T],
    of_change: Callable[[Change], T],
) -> Iterable[T]:
    results: dict[int, T] = {}
    if rows.num_rows >= LEAST_ROWS and rows.nbytes <= AT_ONCE_BYTES * 2:
        for places in _versions(rows):
            is_all = len(places) == rows.num_rows
            same = rows if is_all else rows.take(pa.array(places))
            [first] = changes_of(same.slice(0, 1), schemas)
            made = of_version(same, first)
            if made is not None and is_all:
                return made
            if made is not None:
                results |= zip(places.tolist(), made, strict=True)
    left = [place for place in range(rows.num_rows) if place not in results]
    one_by_one = changes_of(rows.take(pa.array(left, pa.int64())), schemas)
    results |= zip(left, map(of_change, one_by_one), strict=True)
    return map(results.__getitem__, range(rows.num_rows))


def _versions(rows: pa.Table) -> Iterator[np.ndarray]:
    """The places of the rows of each version that columns express, if there are enough."""
    codes = np.zeros(rows.num_rows, np.int64)
    for name in VERSION:
        column = codes_of(rows.column(name))
        codes = codes * (int(column.max()) + 1) + column
    is_plain = pc.is_in(rows.column("op"), value_set=pa.array([*ROW_OPS], pa.string()))
    for name, is_usual in (("payload", pc.is_null), ("schema_id", pc.is_valid)):
        is_plain = pc.and_(is_plain, is_usual(rows.column(name)))
    plain = np.flatnonzero(is_plain.to_numpy())
    order = plain[np.argsort(codes[plain], kind="stable")]
    ends = np.flatnonzero(np.diff(codes[order])) + 1
    return (places for places in np.split(order, ends) if len(places) >= LEAST_ROWS)


def joined(*parts: pa.Array | str, separator: str = "") -> pa.Array:
    """Texts after each other, row by row; null where one of them is."""
    return pc.binary_join_element_wise(*parts, separator)


def enclosed(opening: str, parts: Iterable[pa.Array], closing: str) -> pa.Array:
    """Texts that each begin with a comma between two brackets; those that are null are left out."""
    # Arrow 26 leaves out the rows in which all are null, so the first never is.
    texts = pc.binary_join_element_wise("", *parts, "", null_handling="skip")
    return joined(pc.binary_replace_slice(texts, 0, 1, opening), closing)


def octets_of(texts: pa.Array) -> list[bytes]:
    """Texts as UTF-8, in less time than `to_pylist`."""
    return texts.cast(pa.binary()).to_numpy(zero_copy_only=False).tolist()


def by_group(texts: Sequence[str], group: np.ndarray) -> pa.Array:
    """The text of each row's group."""
    return pa.array(texts, pa.string()).take(pa.array(group))


def transactions(rows: pa.Table, *names: str) -> tuple[np.ndarray, list[tuple[Any, ...]]]:
    """
    Neighbours of one transaction, by columns with an epoch and a commit LSN first.

    Shape:
        result: the transaction of each row; the values of these columns in each transaction.
    """
    group, starts = same_values(rows, names)
    first = rows.select(names).take(pa.array(starts))
    columns = [first.column(name) for name in names]
    values = (c.cast(pa.int64()).to_pylist() for c in columns)
    return group, list(zip(*values, strict=True))


def numbers(rows: pa.Table) -> pa.Array:
    """The last part of each change's event id (`Change.number`)."""
    ordinals = rows.column("ordinal").combine_chunks()
    is_copied = pc.less(ordinals, 0)
    texts = ordinals.cast(pa.string())
    if not pc.any(is_copied).as_py():
        return texts
    ids = rows.column("relation_id").combine_chunks().cast(pa.string())
    copied = pc.subtract(ordinals, COPY_ORDINAL).cast(pa.string())
    return pc.if_else(is_copied, joined(ids, ".", copied), texts)


def keys(column: pa.ListArray, members: Sequence[Member]) -> pa.Array | None:
    """Keys as objects of JSON, and null for none; `None` if one is not of these columns."""
    if column.null_count == len(column):
        return pa.nulls(len(column), pa.string())
    parts = key_parts(column, len(members))
    if parts is None:
        return None
    values = (
        joined(f",{m.label}", rendered(m.render, p)) for m, p in zip(members, parts, strict=True)
    )
    return _objects(list(values), column)


def key_parts(column: pa.ListArray, width: int) -> list[pa.Array] | None:
    """The values of keys by column; `None` if a key has another width."""
    is_key = column.is_valid().to_numpy(zero_copy_only=False)
    starts = column.offsets.to_numpy()
    if (np.diff(starts)[is_key] != width).any():
        return None
    places = (pa.array(starts[:-1] + number, mask=~is_key) for number in range(width))
    return [column.values.take(place) for place in places]


class Images(NamedTuple):
    """Images as objects of JSON; null for none. And those of their columns that were not sent."""

    objects: pa.Array
    missing: pa.Array | str


def images(
    column: pa.MapArray, members: Sequence[Member], absent: Sequence[str] = ()
) -> Images | None:
    """
    Images of rows; `None` if one has a column that is none of `members`.

    `absent` has what is written for a value that was not sent; it is left out without.
    """
    if column.null_count == len(column):
        return Images(pa.nulls(len(column), pa.string()), "[]")
    sent = _Sent(column)
    if not sent.names <= {member.name for member in members}:
        return None
    texts, missing = list[pa.Array](), list[pa.Array]()
    for number, (name, label, render) in enumerate(members):
        values, places = sent.values(name)
        text = joined(f",{label}", rendered(render, values))
        if places is not None:
            text = text.take(places)
            missing.append(pc.if_else(text.is_null(), f",{string(name)}", None))
            if absent:
                text = text.fill_null(f",{label}{absent[number]}")
        texts.append(text)
    if not missing:
        return Images(_objects(texts, column), "[]")
    return Images(
        _objects(texts, column), pc.if_else(column.is_valid(), enclosed("[", missing, "]"), "[]")
    )


class _Sent:
    """The values of images by their column."""

    def __init__(self, column: pa.MapArray) -> None:
        offsets = column.offsets.to_numpy()
        count = offsets[-1] - offsets[0]
        encoded = column.keys.slice(offsets[0], count).dictionary_encode()
        codes = encoded.indices.to_numpy().astype(np.uint16)  # a table has 1,600 columns at most
        order = np.argsort(codes, kind="stable")
        names = encoded.dictionary.to_pylist()
        ends = [0, *np.cumsum(np.bincount(codes, minlength=len(names))).tolist()]
        self._count = len(column)
        self._items = column.items.slice(offsets[0], count).take(pa.array(order))
        self._rows = np.repeat(np.arange(len(column)), np.diff(offsets))[order]
        self._ends = dict(zip(names, itertools.pairwise(ends), strict=True))

    @property
    def names(self) -> set[str]:
        return set(self._ends)

    def values(self, name: str) -> tuple[pa.Array, pa.Array | None]:
        """The values of a column, and where each row has its; `None` if that is in order."""
        start, end = self._ends.get(name, (0, 0))
        values, rows = self._items.slice(start, end - start), self._rows[start:end]
        if np.array_equal(rows, np.arange(self._count)):
            return values, None
        places = np.full(self._count, -1)
        places[rows] = np.arange(end - start)
        return values, pa.array(places, mask=places < 0)


def _objects(members: Sequence[pa.Array], column: pa.Array) -> pa.Array:
    """Objects of these members where `column` has a value, and null elsewhere."""
    texts = enclosed("{", members, "}") if members else "{}"
    return pc.if_else(column.is_valid(), texts, None)
