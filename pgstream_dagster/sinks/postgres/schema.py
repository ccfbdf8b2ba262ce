"""
The source's schema as its catalog has it, and the statements that make what a target lacks of it.

The log has the columns, types and keys of tables, but no defaults, sequences, indexes, checks and
foreign keys: those are asked from the source, as `pg_get_constraintdef` and its like print them.
What is made before rows arrive (`pre_data`) and after them (`post_data`) are lists of statements;
only `read` and `read_after` ask the catalog.

Of a masked column only the type is made: a default, a bound of a partition or a constraint could
show a value of the source, or refuse a masked one.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeAlias

from pgstream_dagster.source.connect import Session
from pgstream_dagster.source.query import query_all


@dataclass(frozen=True, slots=True)
class SourceTable:
    """
    One row of `sink/source_tables`: a table, or a partition of the table `root_id`.

    `partition_needs` are the columns that it is partitioned by.
    """

    relation_id: int
    namespace: str
    name: str
    root_id: int
    root_namespace: str
    root_name: str
    partition_by: str
    partition_of: str | None
    parent_name: str | None = None
    partition_needs: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class SourceColumn:
    """
    One row of `sink/source_columns`; `needs` are those that it is generated from.

    `plain` is its name and type.
    """

    relation_id: int
    name: str
    needs: list[str]
    plain: str
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
    """One row of `sink/source_sequences`; `owner` and `used_by` are columns, as `oid/column`."""

    namespace: str
    name: str
    statement: str | None
    owned_by: str | None
    last_value: int | None
    is_descending: bool
    owner: str = ""
    used_by: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class AfterRows:
    """
    One row of `sink/source_indexes`: an index, a constraint, or a foreign key (step 3).

    `kind` is `index`, `unique` or `condition`, see there. `needs` are columns of the table,
    `other_needs` those of the other table of a foreign key. `is_part`: it is of a partition.
    """

    step: int
    place: str
    name: str
    other_id: int | None
    needs: list[str]
    statement: str
    kind: str = "index"
    other_needs: Sequence[str] = ()
    is_part: bool = False


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


@dataclass(frozen=True, slots=True)
class Leaving:
    """
    What modifiers do to the columns of a table: those they leave out, and those they mask.

    `key` are the columns of its key, which masked rows have, too.
    """

    dropped: frozenset[str] = frozenset()
    masked: frozenset[str] = frozenset()
    key: frozenset[str] = frozenset()

    @property
    def hidden(self) -> frozenset[str]:
        """The columns whose values do not leave."""
        return self.dropped | self.masked


Leaves: TypeAlias = Callable[[int], Leaving]
"""What is done to the columns of a relation."""


def read(
    source: Session,
    is_wanted: Callable[[SourceTable], bool],
    publication: str | None,
    leaves: Leaves = lambda _: Leaving(),
) -> Catalog:
    """The part of the source's catalog that belongs to the chosen tables."""
    rows = query_all(source, SourceTable, "sink/source_tables", publication=publication)
    tables = [table for table in rows if is_wanted(table)]
    ids = {"relation_ids": [table.relation_id for table in tables]}
    of_root = {root_id: leaves(root_id) for root_id in {table.root_id for table in tables}}
    leaving = {table.relation_id: of_root[table.root_id] for table in tables}
    columns: dict[int, list[str]] = {}
    for column in query_all(source, SourceColumn, "sink/source_columns", **ids):
        of_table = leaving[column.relation_id]
        if of_table.dropped.isdisjoint([column.name, *column.needs]):
            is_masked = column.name in of_table.masked
            definition = column.plain if is_masked else column.definition
            columns.setdefault(column.relation_id, []).append(definition)
    keys: dict[int, list[str]] = {}
    for key in query_all(source, SourceKey, "sink/source_keys", **ids):
        if leaving[key.relation_id].dropped.isdisjoint(key.needs):
            keys.setdefault(key.relation_id, []).append(key.statement)
    sequences = query_all(source, SourceSequence, "sink/source_sequences", **ids)
    return Catalog(
        [unpartitioned(table, leaving[table.relation_id]) for table in tables],
        query_all(source, SourceType, "sink/source_types", **ids),
        list(leaving_sequences(sequences, leaving)),
        columns,
        keys,
    )


def read_after(source: Session, relation_id: int) -> list[AfterRows]:
    """What a table has besides its rows and key."""
    return query_all(source, AfterRows, "sink/source_indexes", relation_id=relation_id)


def unpartitioned(table: SourceTable, leaving: Leaving) -> SourceTable:
    """The table, as an ordinary one if it is partitioned by a column whose values do not leave."""
    is_hidden = not leaving.hidden.isdisjoint(table.partition_needs)
    return replace(table, partition_by="") if is_hidden else table


def leaving_sequences(
    sequences: Iterable[SourceSequence], leaving: Mapping[int, Leaving]
) -> Iterator[SourceSequence]:
    """The sequences without those that fill only columns whose values do not leave."""
    hidden = {f"{oid}/{name}" for oid, of_table in leaving.items() for name in of_table.hidden}
    dropped = {f"{oid}/{name}" for oid, of_table in leaving.items() for name in of_table.dropped}
    for sequence in sequences:
        if not sequence.used_by or not hidden.issuperset(sequence.used_by):
            has_owner = sequence.owner not in dropped
            yield sequence if has_owner else replace(sequence, owned_by=None)


def is_dropped(item: AfterRows, leaving: Leaving, other: Leaving) -> bool:
    """Whether an index or a constraint needs a column that is left out."""
    return not (
        leaving.dropped.isdisjoint(item.needs) and other.dropped.isdisjoint(item.other_needs)
    )


def masked_columns(item: AfterRows, leaving: Leaving, other: Leaving) -> set[str]:
    """
    The masked columns for which an index or a constraint is left out.

    An ordinary index takes any value, and the key stays unique: it finds the rows.
    """
    if item.kind == "index":
        return set()
    masked = set(leaving.masked & set(item.needs))
    if item.kind == "unique":
        return set() if set(item.needs) <= leaving.key else masked
    return masked | (other.masked & set(item.other_needs))


def pre_data(catalog: Catalog, existing: Existing) -> list[str]:
    """What makes namespaces, types, sequences, tables and keys that the target lacks, in order."""
    new_tables = list(_new_tables(catalog, existing))
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


def _new_tables(catalog: Catalog, existing: Existing) -> Iterator[SourceTable]:
    """The tables that the target lacks, and the partitions of those that are partitioned there."""
    partitioned = set(existing.names.get("partitioned", ()))
    for table in catalog.tables:
        has_place = table.partition_of is None or table.parent_name in partitioned
        if has_place and not existing.has("relation", table.name):
            if table.partition_by:
                partitioned.add(table.name)
            yield table


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
