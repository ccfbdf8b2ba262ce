"""
Which relation each typed table belongs to, and what a table is called. Pure.

A relation is an oid in an epoch, never a name. Its table follows it through renames, until another
relation takes the name: then that one begins the table again, and the former goes to its own name.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from pgstream_dagster.config.tables import TablesConfig
from pgstream_dagster.errors import TypedNameTaken
from pgstream_dagster.lsn import Lsn
from pgstream_dagster.patterns import TablePattern, exact, matching
from pgstream_dagster.schema.table import TableSchema, names_of

_UNSAFE: Final = re.compile(r"[^A-Za-z0-9_.-]|^[._]")
"""A folder whose name begins with `.` or `_` is hidden from Spark and others."""


@dataclass(frozen=True, slots=True)
class Copied:
    """
    A relation whose copy is in the log: the copy's consistent point, versions oldest first.

    `history` has a version each time that it began to hold, also under former names, `since` the
    commit of each, and `versions` every version once, under the newest of its names. `named_at`
    orders relations by when they took their present names. `is_dropped`: the source is known to
    lack it.
    """

    consistent_point: Lsn
    versions: Sequence[TableSchema]
    history: Sequence[TableSchema] = ()
    named_at: int = 0
    is_dropped: bool = False
    since: Sequence[Lsn] = ()

    @property
    def dated(self) -> list[tuple[Lsn, TableSchema]]:
        """The versions of `history`, and since when each held."""
        return list(zip(self.since, self.history, strict=True))

    @property
    def newest(self) -> TableSchema:
        """The version in force."""
        return self.versions[-1]

    @property
    def names(self) -> list[str]:
        """The names that it had, the present one first."""
        return names_of([*self.history, self.newest])


def table_name(template: str, namespace: str, relation: str) -> str:
    """The name of the typed table of a relation; it is the name of a folder."""
    name = template.format(namespace=namespace, relation=relation)
    return _UNSAFE.sub(lambda match: "".join(f"~{ord(c):x}" for c in match[0]), name)


def assigned(
    relations: Mapping[int, Copied], before: Mapping[str, int], config: TablesConfig
) -> dict[str, int]:
    """
    Table name -> oid of the relation whose rows it has.

    Shape:
        before: the same at the last merge of this epoch.

    Raises:
        TypedNameTaken: the template gives two tables of the source one name.
    """
    selected = _Selected.by(config)
    holders = _holders(relations, selected, config.name)
    # Those that have the name of a typed table of another relation now.
    moved = {r for name, r in holders.items() if before.get(name, r) != r}
    kept = {
        name: relation_id
        for name, relation_id in before.items()
        if holders.get(name, relation_id) == relation_id
        and (relation_id not in moved or name in holders)
        and relation_id in relations
        and selected.follows(relations[relation_id])
    }
    placed = set(kept.values())
    new = {name: relation_id for name, relation_id in holders.items() if relation_id not in placed}
    return {**new, **kept}


def named_in_file(config: TablesConfig, captured: Sequence[str]) -> list[str]:
    """
    The typed tables of those tables that the pipeline file names without a wildcard.

    Shape:
        captured: patterns of the tables that are captured.
    """
    selected = _Selected.by(config)
    places = [place for written in (*config.include, *captured) if (place := exact(written))]
    names = [table_name(config.name, *place) for place in places if selected.matches(*place)]
    return list(dict.fromkeys(names))


def without_histories(names: Sequence[str], config: TablesConfig) -> list[str]:
    """These folders of typed tables, but for those that are the history of another one."""
    if not (config.history or any(table.history for table in config.types.values())):
        return list(names)
    template = re.escape(config.name)
    for part in ("namespace", "relation"):
        template = template.replace(rf"\{{{part}\}}", f"(?P<{part}>.+?)", 1)
    tables = [match for name in names if (match := re.fullmatch(template, name))]
    parts = [{"namespace": "", **match.groupdict()} for match in tables]
    histories = {config.history_name.format(**part) for part in parts}
    return [name for name in names if name not in histories]


def _holders(relations: Mapping[int, Copied], selected: _Selected, template: str) -> dict[str, int]:
    """
    Table name -> the relation that has this name now; of several, the one that took it last.

    One that was dropped has it only if no other has.
    """
    holders: dict[str, int] = {}
    for relation_id, copied in sorted(relations.items(), key=lambda item: _order(item[1])):
        newest = copied.newest
        if not selected.has(newest):
            continue
        name = table_name(template, newest.namespace, newest.name)
        other = relations[holders.get(name, relation_id)]
        if other.newest.full_name != newest.full_name and not other.is_dropped:
            raise TypedNameTaken(name, sorted([other.newest.full_name, newest.full_name]))
        holders[name] = relation_id
    return holders


def _order(copied: Copied) -> tuple[bool, int, Lsn]:
    return not copied.is_dropped, copied.named_at, copied.consistent_point


@dataclass(frozen=True, slots=True)
class _Selected:
    """The tables that get a typed table."""

    include: Sequence[TablePattern]
    exclude: Sequence[TablePattern]

    @classmethod
    def by(cls, config: TablesConfig) -> _Selected:
        """Those of the pipeline file."""
        return cls(*(list(map(TablePattern.parse, p)) for p in (config.include, config.exclude)))

    def has(self, version: TableSchema) -> bool:
        """Whether the table has one, under the name of this version."""
        return self.matches(version.namespace, version.name)

    def follows(self, copied: Copied) -> bool:
        """Whether a table keeps the one that it has: it may have been included by a former name."""
        newest = copied.newest
        is_excluded = bool(matching(self.exclude, newest.namespace, newest.name))
        return not is_excluded and any(map(self.has, [*copied.history, newest]))

    def matches(self, namespace: str, name: str) -> bool:
        """Whether a table of this name has one."""
        place = namespace, name
        return bool(matching(self.include, *place)) and not matching(self.exclude, *place)
