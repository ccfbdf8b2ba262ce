"""The versions of a table's schema from the log of schemas, and what differs between two."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import count

from pgstream_dagster.changelog.schema_log import SchemaEntry, SchemaLog
from pgstream_dagster.errors import BeforeHistory, NoSchemaHistory, NoSuchVersion
from pgstream_dagster.lsn import Lsn
from pgstream_dagster.named import named
from pgstream_dagster.patterns import canonical
from pgstream_dagster.pipeline import Pipeline
from pgstream_dagster.schema.ddl import DdlTable
from pgstream_dagster.schema.difference import Difference, differences
from pgstream_dagster.schema.table import TableSchema

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class SchemaVersion(SchemaEntry):
    """
    A version of a table, or a command that left the version as it was.

    `since` is the commit LSN from which it holds. `ddl` is the command; `None` for a version that a
    copy or the rows brought, whose command was not reported. After a drop, `schema` is the last
    version. `differences` are those from the version before it of the same relation.
    """

    number: int
    differences: tuple[Difference, ...]

    @property
    def committed_at(self) -> datetime | None:
        """When the command was committed; `None` if it was not reported."""
        if self.ddl is None:
            return None
        return EPOCH + timedelta(microseconds=self.ddl.committed_at_us)


@named
def schema_history(pipeline: Pipeline, table: str) -> list[SchemaVersion]:
    """
    Every version of the tables that have, or had at their end, this name; oldest first.

    A table that was dropped and created again is several relations: the versions of each come
    together. Versions of every epoch are there.

    Raises:
        NotSetUp: `setup` was never run for this pipeline and lake.
        NoSchemaHistory: no table of this name was ever captured.
    """
    with pipeline.open() as opened:
        log = opened.schema_log
        histories = [log.entries(*relation) for relation in _relations(log, canonical(table))]
    histories.sort(key=lambda entries: (entries[0].schema.epoch, entries[0].since))
    numbers = count(1)
    return [
        SchemaVersion(entry.since, entry.schema, entry.ddl, next(numbers), tuple(changed))
        for entries in histories
        for entry, changed in zip(entries, _differences(entries), strict=True)
    ]


def version_at(versions: Sequence[SchemaVersion], written: str) -> SchemaVersion:
    """
    The version with this number, or the one in force after what was committed at this position.

    Positions are those of the newest epoch. Of several versions at one position, the last.

    Raises:
        NoSuchVersion: it is neither, or there is no version with this number.
        BeforeHistory: no version of this epoch had begun at this position.
    """
    table = versions[-1].schema.full_name
    if "/" not in written:
        for version in versions:
            if str(version.number) == written:
                return version
        raise NoSuchVersion(table, written, len(versions))
    try:
        position = Lsn.parse(written)
    except ValueError as error:
        raise NoSuchVersion(table, written, len(versions)) from error
    ours = [v for v in versions if v.schema.epoch == versions[-1].schema.epoch]
    begun = [version for version in ours if version.since <= position]
    if not begun:
        raise BeforeHistory(table, position, min(version.since for version in ours))
    # `max` takes the first of equals, and the one that comes last holds.
    return max(reversed(begun), key=lambda version: version.since)


def differences_between(start: SchemaVersion, end: SchemaVersion) -> list[Difference]:
    """What differs at `end` from what was at `start`; after a drop there is no table."""
    (before, described_before), (after, described_after) = _state(start), _state(end)
    return differences(before, after, (described_before, described_after))


def _state(at: SchemaEntry) -> tuple[TableSchema | None, DdlTable | None]:
    """The table after it, and the catalog's description; of a DROP neither."""
    if at.is_drop:
        return None, None
    return at.schema, None if at.ddl is None else at.ddl.description


def _differences(entries: Iterable[SchemaEntry]) -> Iterator[list[Difference]]:
    """What differs at each entry of a relation from the entry before."""
    before: tuple[TableSchema | None, DdlTable | None] = (None, None)
    for entry in entries:
        after = _state(entry)
        yield differences(before[0], after[0], (before[1], after[1]))
        before = after


def _relations(log: SchemaLog, name: str) -> list[tuple[int, int]]:
    """
    The relations, with their epochs, whose last name this is.

    Raises:
        NoSchemaHistory: there is none; it has the present name of one that was renamed.
    """
    names: dict[tuple[int, int], list[str]] = {}
    for version in log.named_versions():
        names.setdefault((version.epoch, version.relation_id), []).append(version.full_name)
    relations = [relation for relation, all_names in names.items() if all_names[-1] == name]
    if not relations:
        renamed = [all_names[-1] for all_names in names.values() if name in all_names]
        raise NoSchemaHistory(name, renamed[-1] if renamed else None)
    return relations
