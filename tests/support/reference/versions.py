"""The versions of rows in plain Python, transaction by transaction: the oracle of histories."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby

from pgstream_dagster.schema.changes import Op
from pgstream_dagster.schema.table import TableSchema
from tests.support.reference.change import Change, Position
from tests.support.reference.fold import Key, Relation

Values = dict[int, str | None]


@dataclass
class Version:
    """A version of a row: values by attnum, and what began and ended it."""

    key: Key
    values: Values
    start: Position
    end: Position | None = None
    ended_by: str | None = None


@dataclass
class AllColumns(Relation):
    """A relation whose rows keep every column there ever was, by attnum written as a name."""

    def renamed(self, change: Change, image: object) -> dict[str, str | None]:
        assert isinstance(image, dict)
        attnums = self.schema_of(change).attnums
        values = {str(attnums[name]): value for name, value in image.items()}
        others = {c.attnum for schema in self.schemas for c in schema.columns} - {*attnums.values()}
        dropped = self.dropped_before(change)[0]
        return values | {str(n): None if n in dropped else self.missing(n) for n in others}

    def whole(self, change: Change, image: object) -> dict[str, str | None]:
        return self.renamed(change, image)

    def dropped_before(self, change: Change) -> list[set[int]]:
        """The attnums that were dropped before the change's version, each time that it began."""
        has = {column.attnum for column in self.schema_of(change).columns}
        before, dropped = set[int](), list[set[int]]()
        for schema in self.schemas:
            before |= {column.attnum for column in schema.columns}
            if schema.schema_id == change.schema_id:
                dropped.append(before - has)
        return dropped


@dataclass
class Versions:
    """Every version so far, and what the transaction under way has done to keys."""

    relation: AllColumns
    done: list[Version] = field(default_factory=list)
    current: dict[Key, Version] = field(default_factory=dict)
    at: dict[Key, Position] = field(default_factory=dict)
    removed_by: dict[Key, str] = field(default_factory=dict)
    lacking: dict[Key, set[int]] = field(default_factory=dict)
    in_period: set[Key] = field(default_factory=set)

    def apply(self, change: Change) -> None:
        was_open = self.relation.open
        self.relation.apply(change)
        if change.op is Op.COPY or (change.op is Op.TRUNCATE and was_open):
            for key in self.in_period:
                self.at[key], self.removed_by[key] = change.position, change.op.value
            self.in_period.clear()
        elif change.key is not None and was_open:
            self.touch(change.key, change)
            if change.op is Op.DELETE:
                self.removed_by[change.key] = "delete"
            elif change.old_key is not None:
                self.touch(change.old_key, change)
                self.removed_by[change.old_key] = "key change"
            if change.op is not Op.DELETE:
                self.lacking[change.key] = set().union(*self.relation.dropped_before(change))

    def touch(self, key: Key, change: Change) -> None:
        self.at[key] = change.position
        self.in_period.add(key)

    def end_transaction(self) -> None:
        for key, position in self.at.items():
            row, version = self.relation.keyed.get(key), self.current.get(key)
            values = None if row is None else {int(n): text for n, text in row.image.items()}
            if version is not None and values is not None and self.is_same(version, values):
                continue
            if version is not None:
                version.end = position
                change = "update" if position.ordinal >= 0 else "copy"
                version.ended_by = self.removed_by.get(key, change)
                self.done.append(self.current.pop(key))
            if values is not None:
                self.current[key] = Version(key, values, position)
        self.at.clear()
        self.removed_by.clear()

    def is_same(self, version: Version, values: Values) -> bool:
        lacking = self.lacking[version.key]
        return all(values[n] == value for n, value in version.values.items() if n not in lacking)


def versions(changes: Iterable[Change], schemas: Sequence[TableSchema]) -> list[Version]:
    """Every version of every row of a relation, from its first copy on."""
    relation = AllColumns(schemas, open=False)
    played = Versions(relation)
    in_order = sorted(changes, key=lambda change: change.position)

    def transaction(change: Change) -> tuple[int, bool]:
        return change.position.commit_lsn, change.position.ordinal >= 0

    for _, group in groupby(in_order, transaction):
        for change in group:
            played.apply(change)
        played.end_transaction()
    return [*played.done, *map(replace, played.current.values())]
