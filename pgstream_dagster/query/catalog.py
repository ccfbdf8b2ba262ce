"""
The names that a query may use, and what each reads: read from the lake's own small tables.

- A typed table has the namespace and the name of its table of the source.
- `change_log_<name>` in the same namespace has that table's changes, a column per column.
- Another Delta table in the folder of typed tables has its folder's name.
- `change_log`, `schema_log` and the lake's other tables are as they are, in `main`.

DuckDB does not distinguish names by case: of two that would be one, the later gets a number.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from pgstream_dagster.changelog.schema_log import versions_of
from pgstream_dagster.delta.entries import LOG_FOLDER
from pgstream_dagster.patterns import DEFAULT_NAMESPACE, full_name
from pgstream_dagster.query.changes import changes_query
from pgstream_dagster.query.engine import scan
from pgstream_dagster.schema.table import TableSchema, by_id, named_at

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

OWN: Final = "main"
"""DuckDB's schema for what has no namespace."""

LAKE_TABLES: Final = ("change_log", "schema_log", "daily_changes", "dead_letters", "sink_letters")

TABLES: Final = "tables"

_ESCAPED: Final = re.compile(r"~([0-9a-f]{2})(?![0-9a-f])")
"""A character in a folder's name; of more digits it is not known which are its own."""


@dataclass(frozen=True, slots=True)
class Readable:
    """A name, and the query of its rows."""

    namespace: str
    name: str
    query: str

    @property
    def full_name(self) -> str:
        """How a query writes it."""
        return self.name if self.namespace == OWN else full_name(self.namespace, self.name)


@dataclass(slots=True)
class Catalog:
    """Everything that can be read, each under a name of its own."""

    _by_name: dict[tuple[str, str], Readable] = field(default_factory=dict)

    def add(self, namespace: str, name: str, query: str, number: int = 2) -> None:
        """Add what a query reads; the number distinguishes it where the name is taken."""
        while _folded(namespace, name) in self._by_name:
            name = f"{name}_{number}"
        self._by_name[_folded(namespace, name)] = Readable(namespace, name, query)

    def find(self, namespace: str, name: str) -> Readable | None:
        """What a name stands for; without a namespace ours come first, then `public`."""
        places = [namespace] if namespace else [OWN, DEFAULT_NAMESPACE]
        matches = (self._by_name.get(_folded(place, name)) for place in places)
        return next((readable for readable in matches if readable is not None), None)

    def names(self) -> list[str]:
        """All names, as a query writes them."""
        return sorted(readable.full_name for readable in self._by_name.values())


def read_catalog(connection: DuckDBPyConnection, pipeline: str, lake: Path) -> Catalog:
    """What there is in the lake of a pipeline now."""
    catalog = Catalog()
    epoch, copied = _ledger(connection, lake, pipeline)
    relations, holders = _relations(connection, lake, epoch, copied)
    typed, shown = _typed(connection, lake, pipeline), set[str]()
    for folder, relation_id in sorted(typed.items(), key=lambda item: item[1]):
        if relation_id in relations:
            newest = relations[relation_id][-1]
            query = f"from {scan(lake / TABLES / folder)}"
            catalog.add(newest.namespace, newest.name, query, relation_id)
            shown.add(folder)
    for name in LAKE_TABLES:
        if (lake / name / LOG_FOLDER).is_dir():
            catalog.add(OWN, name, f"from {scan(lake / name)}")
    for folder in _other_folders(lake / TABLES, shown):
        catalog.add(*place(folder), f"from {scan(lake / TABLES / folder)}")
    for relation_id in sorted(relations, key=lambda oid: (oid not in holders, oid)):
        versions = relations[relation_id]
        newest = versions[-1]
        query = changes_query(scan(lake / "change_log"), versions)
        catalog.add(newest.namespace, f"change_log_{newest.name}", query, relation_id)
    return catalog


def _folded(namespace: str, name: str) -> tuple[str, str]:
    return namespace.casefold(), name.casefold()


def _ledger(connection: DuckDBPyConnection, lake: Path, pipeline: str) -> tuple[int, set[int]]:
    """The newest epoch, and the relations that were copied in it."""
    query = f"select epoch, kind, facts from {scan(lake / 'ledger')} order by recorded_at"  # noqa: S608
    rows = [(epoch, kind, json.loads(facts)) for epoch, kind, facts in _rows(connection, query)]
    newest = max(
        (
            epoch
            for epoch, kind, facts in rows
            if kind == "identity" and facts["pipeline"] == pipeline
        ),
        default=0,
    )
    copies = (facts for epoch, kind, facts in rows if (epoch, kind) == (newest, "copy"))
    return newest, {facts["relation_id"] for facts in copies}


def _relations(
    connection: DuckDBPyConnection, lake: Path, epoch: int, copied: Collection[int]
) -> tuple[dict[int, list[TableSchema]], set[int]]:
    """
    The versions of every relation that was copied, oldest first; and those that have their names.

    Of relations with one name, the one that took it last has it: the others were dropped.
    """
    query = f"select epoch_us(recorded_at), commit_lsn, schema from {scan(lake / 'schema_log')}"  # noqa: S608
    # Sorted here: rows that were recorded together keep their order.
    rows = sorted(_rows(connection, query), key=itemgetter(0))
    all_versions = versions_of((since, schema) for _, since, schema in rows)
    history = [version for _, version in all_versions if version.epoch == epoch]
    versions: dict[int, list[TableSchema]] = {}
    for version in history:
        if version.relation_id in copied:
            versions.setdefault(version.relation_id, []).append(version)
    places = named_at(history)
    by_place = sorted(versions, key=lambda oid: places[oid])
    holders = {versions[oid][-1].full_name: oid for oid in by_place}
    unique = {oid: list(by_id(of_relation).values()) for oid, of_relation in versions.items()}
    return unique, set(holders.values())


def _typed(connection: DuckDBPyConnection, lake: Path, pipeline: str) -> dict[str, int]:
    """The folder of each typed table, and its relation, as of the last merge."""
    folder = lake / "typed_tables"
    if not (folder / LOG_FOLDER).is_dir():
        return {}
    query = f"select sink, revision, state from {scan(folder)} where kind = 'progress'"  # noqa: S608
    rows = _rows(connection, query)
    states = [(revision, state) for sink, revision, state in rows if sink == pipeline and state]
    if not states:
        return {}
    _, newest = max(states)
    tables: dict[str, dict[str, Any]] = json.loads(newest)["tables"]
    return {name: entry["relation_id"] for name, entry in tables.items()}


def _other_folders(folder: Path, shown: Collection[str]) -> list[str]:
    if not folder.is_dir():
        return []
    names = (path.name for path in folder.iterdir() if (path / LOG_FOLDER).is_dir())
    return sorted(set(names) - set(shown))


def place(folder: str) -> tuple[str, str]:
    """
    Namespace and name of a table that is known by its folder only.

    As they are in the folder's name, where it is not known what they were.
    """
    namespace, dot, name = folder.partition(".")
    parts = (namespace, name) if dot else (TABLES, folder)
    if folder.count("~") == len(_ESCAPED.findall(folder)):
        parts = tuple(_ESCAPED.sub(lambda match: chr(int(match[1], 16)), part) for part in parts)
    return parts[0], parts[1]


def _rows(connection: DuckDBPyConnection, query: str) -> Iterable[tuple[Any, ...]]:
    return connection.execute(query).fetchall()
