"""
Changes that come after later ones of their row: the log would go back to an earlier state. Pure.

A dead letter that is delivered late is one if its sink did not hold back what follows it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple, Protocol

from pgstream_dagster.changelog.consumed import LandedRow
from pgstream_dagster.consumer.records import DIFFERENCES, Read, Unfit
from pgstream_dagster.lsn import Lsn
from pgstream_dagster.readers.change import Key, Place
from pgstream_dagster.schema.changes import COPY_ORDINAL, Op

OLDER: Final = "it is a row of another copy, and the log has later changes of its table"
LATE: Final = "the log has later changes of its row"
HOLD: Final = "give the sink 'on_failure: hold', so that later changes wait for a refused one"

CLOCK_US: Final = 24 * 3600 * 1_000_000
"""How far the source's clock may have been set back between two commits."""


class Doubt(NamedTuple):
    """A change at or before its partition's highest place; `is_behind`: its commit LSN is lower."""

    change: Read
    is_behind: bool


class Log(Protocol):
    """What is asked of the log."""

    def since(self, relation_ids: Collection[int], committed_at_us: int) -> Iterable[LandedRow]:
        """The landed changes of relations from a time of commit on, and those without a time."""
        ...


def late_changes(
    arrived: Sequence[Read], doubtful: Mapping[str, Doubt], log: Log
) -> dict[str, Unfit]:
    """
    Which of the doubtful changes are not to be landed, and why, by their event ids.

    Shape:
        arrived: all changes to be landed, in the order in which they were read.
        doubtful: those of them that may come late; none is landed.
    """
    asked = {i: doubt for i, doubt in doubtful.items() if not _follows(doubt)}
    if not asked:
        return {}
    newest, late = _newest(asked.values(), log), dict[str, Unfit]()
    for change in arrived:
        rows = _Rows.of_change(change)
        if (doubt := asked.get(change.event_id)) is not None:
            if doubt.is_behind and change.op == Op.READ:
                late[change.event_id] = Unfit(OLDER, DIFFERENCES)
            elif newest.is_after(change.place, rows):
                late[change.event_id] = Unfit(LATE, HOLD)
        if change.event_id not in late:
            newest.add(change.place, rows)
    return late


def _follows(doubt: Doubt) -> bool:
    """A copied row or a difference, which is in no transaction, follows those at its LSN."""
    return not doubt.is_behind and doubt.change.place.ordinal < 0


class _Rows(NamedTuple):
    """What a change concerns: rows by their keys, or, with none, its whole table."""

    relation_id: int
    keys: tuple[Key, ...]

    @classmethod
    def of_change(cls, change: Read) -> _Rows:
        keys = tuple(key for key in (change.key, change.old_key) if key is not None)
        return cls(change.version.schema.relation_id, keys)


class _Newest:
    """The newest place of a change, of each row and table."""

    def __init__(self) -> None:
        self._rows: dict[tuple[int, Key], Place] = {}
        self._tables: dict[int, Place] = {}
        self._whole_tables: dict[int, Place] = {}

    def add(self, place: Place, rows: _Rows) -> None:
        _raise(self._tables, rows.relation_id, place)
        if not rows.keys:
            _raise(self._whole_tables, rows.relation_id, place)
        for key in rows.keys:
            _raise(self._rows, (rows.relation_id, key), place)

    def is_after(self, place: Place, rows: _Rows) -> bool:
        """Whether any change of these rows has a later place."""
        tables = self._whole_tables if rows.keys else self._tables
        places = [self._rows.get((rows.relation_id, key), place) for key in rows.keys]
        return max([tables.get(rows.relation_id, place), *places]) > place


def _raise(places: dict[Any, Place], name: object, place: Place) -> None:
    places[name] = max(places.get(name, place), place)


def _newest(asked: Collection[Doubt], log: Log) -> _Newest:
    newest = _Newest()
    relations = {doubt.change.version.schema.relation_id for doubt in asked}
    for row in log.since(relations, min(_from_us(doubt) for doubt in asked)):
        keys = () if row.op == Op.TRUNCATE else row.keys
        newest.add(_place(row.event_id), _Rows(row.relation_id, keys))
    return newest


def _from_us(doubt: Doubt) -> int:
    """From when on later changes of its row can be."""
    at = doubt.change.committed_at_us or 0
    return max(0, at - CLOCK_US) if doubt.is_behind else at


def _place(event_id: str) -> Place:
    """The place in the source's order that an event id names."""
    _epoch, lsn, number = event_id.split("-")
    _, dot, of_copy = number.partition(".")
    return Place(Lsn.parse(lsn), int(of_copy) + COPY_ORDINAL if dot else int(number))
