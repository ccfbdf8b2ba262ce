"""
The source's schema as its catalog has it, and the statements that make what a target lacks of it.

The log has the columns, types and keys of tables, but no defaults, sequences, indexes, checks and
foreign keys: those are asked from the source, as `pg_get_constraintdef` and its like print them.
What is made before rows arrive (`pre_data`) and after them (`post_data`) are lists of statements;
only `read` and `read_after` ask the catalog.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from pgstream_dagster.source.connect import Session
from pgstream_dagster.source.query import query_all


@dataclass(frozen=True, slots=True)
class SourceTable:
    """One row of `sink/source_tables`: a table, or a partition of the table `root_id`."""

    relation_id: int
    namespace: str
    name: str
    root_id: int
    root_namespace: str
    root_name: str
    partition_by: str
    partition_of: str | None


@dataclass(frozen=True, slots=True)
class SourceColumn:
    """One row of `sink/source_columns`; `needs` are those that it is generated from."""

    relation_id: int
    name: str
    needs: list[str]
    definition: str


@dataclass(frozen=True, slots=True)
class SourceKey:
    """One row of `sink/source_keys`, with its columns."""

    relation_id: int
    statement: str
    needs: list[str]


@dataclass(frozen=True, slots=True)
class SourceType:
    """One row of `sink/source_types`."""

    namespace: str
    name: str
    extension: str | None
    labels: list[str] | None
    statement: str


@dataclass(frozen=True, slots=True)
class SourceSequence:
    """One row of `sink/source_sequences`."""

    namespace: str
    name: str
    statement: str | None
    owned_by: str | None
    last_value: int | None
    is_descending: bool


@dataclass(frozen=True, slots=True)
class AfterRows:
    """One row of `sink/source_indexes`: an index, a constraint, or a foreign key (step 3)."""

    step: int
    place: str
    name: str
    other_id: int | None
    needs: list[str]
    statement: str


@dataclass(frozen=True, slots=True)
class Existing:
    """What the target has, by kind; see `sink/existing`."""

    names: Mapping[str, Collection[str]]

    def has(self, kind: str, name: str) -> bool:
        """Whether there is an object of this name."""
        return name in self.names.get(kind, ())


@dataclass(frozen=True, slots=True)
class Catalog:
    """The tables that a sink receives, and what they need."""

    tables: Sequence[SourceTable]
    types: Sequence[SourceType] = ()
    sequences: Sequence[SourceSequence] = ()
    columns: Mapping[int, Sequence[str]] = field(default_factory=dict[int, Sequence[str]])
    keys: Mapping[int, Sequence[str]] = field(default_factory=dict[int, Sequence[str]])


Dropped: TypeAlias = Callable[[int], Collection[str]]
"""The columns of a relation that do not leave: the target does not get them."""


def read(
    source: Session,
    selects: Callable[[str, str], bool],
    publication: str | None,
    dropped: Dropped = lambda _: (),
) -> Catalog:
    """The part of the source's catalog that belongs to the chosen tables."""
    rows = query_all(source, SourceTable, "sink/source_tables", publication=publication)
    tables = [table for table in rows if selects(table.root_namespace, table.root_name)]
    ids = {"relation_ids": [table.relation_id for table in tables]}
    left_out = {table.relation_id: frozenset(dropped(table.root_id)) for table in tables}
    columns: dict[int, list[str]] = {}
    for column in query_all(source, SourceColumn, "sink/source_columns", **ids):
        if left_out[column.relation_id].isdisjoint([column.name, *column.needs]):
            columns.setdefault(column.relation_id, []).append(column.definition)
    keys: dict[int, list[str]] = {}
    for key in query_all(source, SourceKey, "sink/source_keys", **ids):
        if left_out[key.relation_id].isdisjoint(key.needs):
            keys.setdefault(key.relation_id, []).append(key.statement)
    return Catalog(
        tables,
        query_all(source, SourceType, "sink/source_types", **ids),
        query_all(source, SourceSequence, "sink/source_sequences", **ids),
        columns,
        keys,
    )


def read_after(source: Session, relation_id: int, dropped: Collection[str] = ()) -> list[AfterRows]:
    """What a table has besides its rows and key, without what needs a column that is left out."""
    items = query_all(source, AfterRows, "sink/source_indexes", relation_id=relation_id)
    return [item for item in items if not set(dropped) & set(item.needs)]


def pre_data(catalog: Catalog, existing: Existing) -> list[str]:
    """What makes namespaces, types, sequences, tables and keys that the target lacks, in order."""
    new_tables = [t for t in catalog.tables if not existing.has("relation", t.name)]
    statements = list(_namespaces(catalog, new_tables, existing))
    made: set[str] = set()
    for kind in catalog.types:
        if not existing.has("type", kind.name) and kind.statement not in made:
            made.add(kind.statement)
            statements.append(kind.statement)
    new_sequences = [
        s for s in catalog.sequences if s.statement and not existing.has("relation", s.name)
    ]
    statements += [sequence.statement for sequence in new_sequences if sequence.statement]
    statements += [_create(table, catalog) for table in new_tables]
    for table in new_tables:
        statements += catalog.keys.get(table.relation_id, ())
    return statements + [s.owned_by for s in new_sequences if s.owned_by]


def _namespaces(
    catalog: Catalog, new_tables: Sequence[SourceTable], existing: Existing
) -> Iterator[str]:
    types = {t.namespace for t in catalog.types if not existing.has("type", t.name)}
    sequences = {s.namespace for s in catalog.sequences if s.statement}
    for namespace in sorted({t.namespace for t in new_tables} | types | sequences):
        if not existing.has("namespace", namespace):
            yield 'create schema "' + namespace.replace('"', '""') + '"'


def _create(table: SourceTable, catalog: Catalog) -> str:
    if table.partition_of is not None:
        return f"create table {table.name} {table.partition_of}{table.partition_by}"
    columns = ", ".join(catalog.columns.get(table.relation_id, ()))
    return f"create table {table.name} ({columns}){table.partition_by}"


def missing_labels(catalog: Catalog, existing: Existing) -> list[str]:
    """What adds the labels that enums of the target lack, each behind the one before it."""
    statements: list[str] = []
    for kind in catalog.types:
        before: str | None = None
        for label in kind.labels or ():
            if existing.has("type", kind.name) and not existing.has(
                "label", f"{kind.name}/{label}"
            ):
                place = "" if before is None else f" after {_literal(before)}"
                statements.append(
                    f"alter type {kind.name} add value if not exists {_literal(label)}{place}"
                )
            before = label
    return statements


def post_data(
    after: Sequence[AfterRows], existing: Existing, ready: Collection[int]
) -> list[AfterRows]:
    """
    What a table still lacks besides its rows, in order.

    Shape:
        ready: the relations whose copies have ended: a foreign key needs both of its tables.
    """
    return [
        item
        for item in after
        if not existing.has("constraint", f"{item.place}/{item.name}")
        and (item.other_id is None or item.other_id in ready)
    ]


def _literal(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"
