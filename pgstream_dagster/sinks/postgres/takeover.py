"""
A name of a table that another relation has now: it was dropped and created, or tables were renamed.

Changes come in the order of the source, so the first change of a relation under a name proves that
the former relation has lost it. Its table in the target gives way before that change is written, in
the same transaction: it gets the name that the former relation has now, by the log or else by the
source's catalog. If there is none, the source has dropped it, or the sink receives it no more: then
the new relation begins with an empty table.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final

from psycopg import sql

from pgstream_dagster.schema.table import TableSchema
from pgstream_dagster.sinks.base import History
from pgstream_dagster.sinks.postgres.evolve import name_aside
from pgstream_dagster.sinks.postgres.progress import (
    NEVER,
    Position,
    Recorded,
    Relation,
    relation_of,
)
from pgstream_dagster.sinks.postgres.tables import Place, Tables
from pgstream_dagster.sinks.postgres.target import Target

_TAKEN: Final = "a former table of the source still has its name in the target"


class Replaced(Exception):
    """A change is of a relation whose table in the target another one has had since."""


def later_name(
    versions: Sequence[tuple[int, TableSchema]], schema: TableSchema, commit_lsn: int
) -> Place | None:
    """
    The name that a relation has at a commit, or after it, instead of that in `schema`.

    The log describes a renamed table with its next row, so the rename may have been before.

    Shape:
        versions: those of the epoch, each with the commit LSN from which it holds, in that order.
    """
    places = [
        (since, (version.namespace, version.name))
        for since, version in versions
        if version.relation_id == schema.relation_id
    ]
    before = [place for since, place in places if since <= commit_lsn][-1:]
    after = [place for since, place in places if since > commit_lsn]
    other = (place for place in before + after if place != (schema.namespace, schema.name))
    return next(other, None)


class Takeover:
    """Lets tables of the target give way; what it does is in the session's transaction."""

    def __init__(
        self,
        target: Target,
        tables: Tables,
        history: History,
        place_of: Callable[[TableSchema], Place | None],
    ) -> None:
        """`place_of` gives the name that the source's catalog has for a relation."""
        self._target, self._tables = target, tables
        self._history, self._place_of = history, place_of
        self._gone = set[Relation]()  # the source has them no more

    def make_way(self, schema: TableSchema, since: Position, *, is_copy: bool) -> TableSchema:
        """
        Free the name of `schema` for its relation, whose change at `since` is written next.

        `is_copy`: the table begins with it. The result has the name that the table has now: another
        one if the change comes late, and its table was renamed meanwhile.

        Raises:
            Replaced: the change comes late, and its table has ended.
            TargetSchemaDiffers: a person must act.
        """
        if self._tables.is_prepared(schema):
            return schema
        if self._comes_late(schema, since, is_copy=is_copy):
            schema = self._renamed(schema, since, is_copy=is_copy)
        for holder in self._tables.holders(schema):
            if holder.since == NEVER:  # it has the name later
                self._tables.move(holder, _aside(holder.schema), NEVER)
                continue
            place = None
            if holder.schema.epoch == schema.epoch:
                place = self._next_place(holder.schema, since)
            if place is None:
                self._retire(holder, schema, since)
            elif self._target.creates_tables:
                self._tables.move(holder, _aside(holder.schema), since)
                self._tables.state.aside[relation_of(holder.schema)] = place
            else:
                self._follow(holder, place, schema, since)
        return schema

    def _comes_late(self, schema: TableSchema, since: Position, *, is_copy: bool) -> bool:
        """Whether another table has had the name since a change."""
        is_known = self._tables.recorded(schema) is not None or is_copy
        return any(
            holder.since > since or not (is_known or self._is_later(schema, holder.schema))
            for holder in self._tables.holders(schema)
        )

    def _renamed(self, schema: TableSchema, since: Position, *, is_copy: bool) -> TableSchema:
        """
        The version under the name that its table has since; aside while that is taken.

        Raises:
            Replaced
        """
        place = self._next_place(schema, since)
        if place is None:
            raise Replaced
        renamed = replace(schema, namespace=place[0], name=place[1])
        if not self._comes_late(renamed, since, is_copy=is_copy):
            return renamed
        if not self._target.creates_tables:
            raise Replaced
        self._tables.state.aside[relation_of(schema)] = place  # it has that name later still
        namespace, name = _aside(schema)
        return replace(schema, namespace=namespace, name=name)

    def _is_later(self, schema: TableSchema, other: TableSchema) -> bool:
        """Whether the log has had a relation after another one; a change may come late."""
        first = {v.relation_id: since for since, v in reversed(self._history(schema.epoch))}
        return first.get(schema.relation_id, math.inf) >= first.get(other.relation_id, 0)

    def settle(self) -> None:
        """Give the tables that gave way their names, where these are free by now."""
        aside = self._tables.state.aside
        for relation, place in list(aside.items()):
            version = self._tables.state.versions.get(relation)
            is_aside = version is not None and version.schema.name == name_aside(version.schema)
            if version is None or not is_aside:
                del aside[relation]
            elif self._tables.existing(place) is None:
                del aside[relation]
                self._tables.move(version, place, version.since)

    def _next_place(self, former: TableSchema, position: Position) -> Place | None:
        """The name that a relation has now; `None` if it is not received under any."""
        place = later_name(self._history(former.epoch), former, position[1])
        if place is None and relation_of(former) not in self._gone:
            place = self._place_of(former)
            if place is None:
                self._gone.add(relation_of(former))
        return place if place is not None and self._target.has_rows(*place) else None

    def _retire(self, holder: Recorded, schema: TableSchema, since: Position) -> None:
        """Let the table of `holder` end; the relation of `schema` takes its place."""
        own = self._tables.recorded(schema)
        has_own = own is not None and self._has_table(own)
        if self._target.creates_tables and holder.is_made:
            self._tables.drop(holder)
        elif not has_own and own is None:
            self._tables.hand_over(holder, schema, since)
        elif not has_own and not self._target.creates_tables:
            self._tables.forget(holder)  # somebody has renamed the table
        else:
            place = sql.Identifier(holder.schema.namespace, holder.schema.name)
            raise self._tables.differs(schema, _TAKEN, [sql.SQL("drop table {}").format(place)])

    def _follow(self, holder: Recorded, place: Place, schema: TableSchema, since: Position) -> None:
        """
        Record that somebody has renamed a table that is not ours to rename.

        Where another one still has the name, it waits aside until that is renamed.
        """
        aside = _aside(holder.schema)
        for name in (place, aside):
            if self._has_moved(holder, name):
                self._tables.moved(holder, name, since)
                return
        free = place if self._tables.existing(place) is None else aside
        raise self._tables.differs(schema, _TAKEN, self._tables.renames(holder, free))

    def _has_moved(self, holder: Recorded, place: Place) -> bool:
        """Whether a table has another name in the target by now."""
        is_there = self._tables.existing(place) is not None
        return is_there and not self._tables.is_of_another(holder, place)

    def _has_table(self, version: Recorded) -> bool:
        return self._tables.existing((version.schema.namespace, version.schema.name)) is not None


def _aside(schema: TableSchema) -> Place:
    """A name for a table that gives way, until it gets one of its own."""
    return schema.namespace, name_aside(schema)
