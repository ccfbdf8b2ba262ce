"""Which tables have a history, under which names, and which relations it is of."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from pgstream_dagster.config.tables import TablesConfig
from pgstream_dagster.errors import HistoryNameTaken, HistoryNeedsKey
from pgstream_dagster.lsn import Lsn
from pgstream_dagster.patterns import exact
from pgstream_dagster.pipeline import OpenPipeline
from pgstream_dagster.schema.table import TableSchema
from pgstream_dagster.tables.assignment import Copied, assigned
from pgstream_dagster.tables.history.lineage import Relation, lineage
from pgstream_dagster.tables.relations import copied_relations


@dataclass(frozen=True, slots=True)
class Relations:
    """The relations of the newest epoch at a position, and all that have ever been copied."""

    present: Mapping[int, Copied]
    ever: Mapping[tuple[int, int], Relation]
    epoch: int

    def chain(self, relation_id: int) -> list[Relation]:
        """A relation of the newest epoch after those that it continues."""
        return lineage(self.ever[self.epoch, relation_id], list(self.ever.values()))


def related(opened: OpenPipeline, position: Lsn) -> Relations:
    """The relations at a position of the newest epoch."""
    present = copied_relations(opened, position)
    ever: dict[tuple[int, int], Relation] = {}
    for epoch in range(1, opened.epoch + 1):
        versions: dict[int, list[tuple[Lsn, TableSchema]]] = {}
        for since, version in opened.schema_log.history(epoch):
            versions.setdefault(version.relation_id, []).append((since, version))
        for point, oid in reversed(opened.ledger.consistent_points(epoch)):
            is_known = oid in versions and (epoch < opened.epoch or oid in present)
            if is_known and (epoch < opened.epoch or point <= position):
                described = [version for _, version in versions[oid]]
                if epoch == opened.epoch:
                    described = list(present[oid].history)
                began_as = _name_at(point, versions[oid])
                ever[epoch, oid] = Relation(epoch, oid, point, began_as, described)
    return Relations(present, ever, opened.epoch)


def _name_at(point: Lsn, versions: Sequence[tuple[Lsn, TableSchema]]) -> str:
    """What a relation was called when it was copied."""
    names = [version.full_name for since, version in versions if since <= point]
    return names[-1] if names else versions[0][1].full_name


def patterns(config: TablesConfig) -> list[str]:
    """The patterns of the tables that histories are asked for."""
    return [*config.history, *(name for name, table in config.types.items() if table.history)]


@dataclass(frozen=True, slots=True)
class Chosen:
    """
    Name of a history -> oid of its relation; and why others that are asked for are none.

    `waiting` are histories from before that cannot be continued now: they are built again, of the
    same relations, when they can.
    """

    names: Mapping[str, int] = field(default_factory=dict)
    waiting: Collection[str] = ()
    errors: Sequence[HistoryNeedsKey | HistoryNameTaken] = ()


def chosen(
    relations: Mapping[int, Copied],
    typed: Mapping[str, int],
    before: Mapping[str, int],
    config: TablesConfig,
) -> Chosen:
    """
    The tables that have a history. One without a key that only a wildcard names is passed over.

    Shape:
        typed: typed table -> oid, at the last pass of this epoch.
        before: the same of histories.

    Raises:
        TypedNameTaken: two histories would have one name.
    """
    asked = patterns(config)
    if not asked:
        return Chosen()
    tables = assigned(relations, typed, config)
    able = {oid: relations[oid] for oid in tables.values() if relations[oid].newest.key}
    keyless = {oid: relations[oid] for oid in tables.values() if oid not in able}
    own = config.model_copy(update={"include": tuple(asked), "name": config.history_name})
    names = assigned(able, before, own)
    waiting = {n: oid for n, oid in before.items() if oid in keyless and n not in names}
    by_name = own.model_copy(update={"include": tuple(filter(exact, asked))})
    unkeyed = assigned(keyless, waiting, by_name).values()
    taken = {name: able[oid].newest.full_name for name, oid in names.items() if name in tables}
    return Chosen(
        {name: oid for name, oid in names.items() if name not in tables},
        waiting.keys() | (taken.keys() & before.keys()),
        [
            *(HistoryNeedsKey(keyless[oid].newest.full_name) for oid in unkeyed),
            *(HistoryNameTaken(name, table) for name, table in taken.items()),
        ],
    )
