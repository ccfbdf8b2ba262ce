"""
Makes in the target what the source's catalog has, and the log has not: see `schema`.

It happens when the sink opens, when a table or a partition comes up that the target lacks, and when
a table's copy ends. The source shows the present, the log a moment of the past: a table is recorded
with the columns it was made with, and `tables` brings it to the version of its first change.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Generator, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace
from functools import partial
from typing import Final, LiteralString, cast

import psycopg
from psycopg import sql

from pgstream_dagster.errors import SinkRefused, SinkUnreachable, SourceError, TargetSchemaDiffers
from pgstream_dagster.schema.table import TableSchema
from pgstream_dagster.sinks.base import History, Modifies
from pgstream_dagster.sinks.postgres.failures import Failure, failure_of, reason_of
from pgstream_dagster.sinks.postgres.schema import (
    AfterRows,
    Catalog,
    Existing,
    Leaving,
    SourceTable,
    is_dropped,
    masked_columns,
    missing_labels,
    post_data,
    pre_data,
    read,
    read_after,
)
from pgstream_dagster.sinks.postgres.tables import Place, Tables, Version
from pgstream_dagster.sinks.postgres.target import Target
from pgstream_dagster.source.catalog import describe
from pgstream_dagster.source.connect import Session, connect
from pgstream_dagster.source.query import query
from pgstream_dagster.sql import statement

logger = logging.getLogger(__name__)

_FOREIGN_KEY: Final = 3
"""The step of foreign keys in `sink/source_indexes`."""

_COMES_LATER: Final = (psycopg.errors.UndefinedTable, psycopg.errors.UndefinedColumn)


class SourceSchema:
    """The source's schema, and what of it the target lacks."""

    def __init__(
        self,
        target: Target,
        session: Session,
        tables: Tables,
        epoch: int,
        modifiers: Modifies | None,
        history: History,
    ) -> None:
        self._target, self._session, self._tables = target, session, tables
        self._epoch, self._modifiers, self._history = epoch, modifiers, history
        self._postponed: dict[int, Version] = {}
        self._logged: dict[int, TableSchema] = {}  # the newest version of each relation in the log
        tables.create = self.create_missing

    @property
    def _is_used(self) -> bool:
        return self._target.creates_tables and self._target.source_dsn is not None

    def create_missing(self) -> bool:
        """
        Create types, sequences, tables and keys that are missing; whether there were any.

        Raises:
            SinkUnreachable: the source cannot be asked.
            SinkRefused: the target is the source.
            TargetSchemaDiffers: a statement failed.
        """
        if not self._is_used:
            return False
        with self._source() as source:
            self._require_another_database(source)
            catalog = self._read(source)
            statements = pre_data(catalog, self._existing())
            try:
                self._create(source, catalog)
            except TargetSchemaDiffers as error:
                if not self._has_room(error, "; ".join(statements)):
                    raise
                self._create(source, catalog)
            self._forward(catalog)
        return bool(statements)

    def _create(self, source: Session, catalog: Catalog) -> None:
        """Create what the target lacks of a catalog."""
        existing = self._existing()
        with self._session.transaction():
            for text in pre_data(catalog, existing):
                self._execute(text)
            for table in catalog.tables:
                is_new = not existing.has("relation", table.name)
                if is_new and table.partition_of is None:
                    self._tables.created(self._schema(source, table.relation_id))

    def _has_room(self, error: TargetSchemaDiffers, text: str) -> bool:
        """Whether a statement failed by names of former tables, which are free now."""
        is_duplicate = isinstance(error.__cause__, psycopg.errors.DuplicateTable)
        return is_duplicate and self._tables.make_room(text)

    def place_of(self, schema: TableSchema) -> Place | None:
        """
        The name that a relation has now; `None` if the source has it no more, or cannot be asked.

        Raises:
            SinkUnreachable: the source does not answer.
        """
        if self._target.source_dsn is None or schema.epoch != self._epoch:
            return None
        with self._source() as source:
            return _places(source, [schema.relation_id]).get(schema.relation_id)

    def labels(self) -> list[str]:
        """What adds the labels that enums of the target lack."""
        if not self._is_used:
            return []
        with self._source() as source:
            return missing_labels(self._read(source), self._existing())

    def add_labels(self) -> int:
        """Add the labels that enums lack, outside of a transaction; how many."""
        statements = self.labels()
        for text in statements:
            self._execute(text)
        return len(statements)

    def complete(self, schema: TableSchema) -> None:
        """
        Create the indexes and constraints of a table whose copy has ended.

        Those that name a table or a column which the source got or renamed later wait for that
        version.

        Raises:
            SinkUnreachable, TargetSchemaDiffers
        """
        is_due = self._postponed.get(schema.relation_id) != schema.version
        if not self._is_used or not is_due or not self._tables.incomplete(schema):
            return
        if schema.epoch != self._epoch:
            return  # the source has it no more, or under another OID
        others = self._tables.complete_places(self._epoch)
        with self._source() as source:
            places = _places(source, [*others, schema.relation_id])
            is_gone = schema.relation_id not in places
            is_here = places.get(schema.relation_id) == (schema.namespace, schema.name)
            after = self._after(source, schema, others) if is_here else []
        ready = {oid for oid, place in others.items() if places.get(oid) == place}
        items = post_data(after, self._existing(), ready | {schema.relation_id})
        is_whole = is_gone or is_here
        for item in items:
            is_whole &= self._is_made(item)
        if is_whole and not any(item.other_id in others.keys() - ready for item in after):
            self._tables.completed(schema)
        else:
            self._postponed[schema.relation_id] = schema.version

    def _after(
        self, source: Session, schema: TableSchema, others: Collection[int]
    ) -> list[AfterRows]:
        """The indexes and constraints that the target can take."""
        taken: list[AfterRows] = []
        has_parts = self._tables.is_partitioned(schema)
        leaving = self._leaving(source, schema.relation_id)
        for item in read_after(source, schema.relation_id):
            other_id = item.other_id if item.other_id in others else None
            other = Leaving() if other_id is None else self._leaving(source, other_id)
            if is_dropped(item, leaving, other) or (item.is_part and not has_parts):
                continue
            if masked := masked_columns(item, leaving, other):
                columns = ", ".join(sorted(masked))
                text = "sink %r: %r of %s is not made: modifiers mask column %s"
                logger.info(text, self._target.sink, item.name, item.place, columns)
                continue
            taken.append(item)
        return taken

    def _is_made(self, item: AfterRows) -> bool:
        """Make an index or a constraint; false if its table or its columns come later."""
        try:
            with self._session.transaction():
                if item.step == _FOREIGN_KEY:
                    self._add_foreign_key(item)
                else:
                    self._execute(item.statement)
        except TargetSchemaDiffers as error:
            if self._has_room(error, item.statement):
                return self._is_made(item)
            if not isinstance(error.__cause__, _COMES_LATER):
                raise
            return False
        return True

    def _add_foreign_key(self, item: AfterRows) -> None:
        """Rows of two tables may be of different moments until the copies are caught up with."""
        try:
            with self._session.transaction():
                self._execute(item.statement)
        except psycopg.errors.ForeignKeyViolation:
            logger.warning(
                "sink %r: foreign key %r of %s does not hold yet; it is made without a check of the"
                " rows; later run in the target: alter table %s validate constraint %s",
                self._target.sink,
                item.name,
                item.place,
                item.place,
                sql.Identifier(item.name).as_string(None),
            )
            self._execute(f"{item.statement} not valid")

    def _execute(self, text: str) -> None:
        """Run a statement that the source's catalog gave."""
        logger.info("sink %r: %s", self._target.sink, text)
        try:
            self._session.execute(cast("LiteralString", text), prepare=False)
        except psycopg.Error as error:
            is_key = isinstance(error, psycopg.errors.ForeignKeyViolation)
            if is_key or failure_of(error) in (Failure.LATER, Failure.RIGHTS):
                raise
            table = " ".join(text.split()[:3])
            raise TargetSchemaDiffers(self._target.sink, table, reason_of(error), text) from error

    def _forward(self, catalog: Catalog) -> None:
        """Move the target's sequences to where the source's are; they never go back."""
        for sequence in catalog.sequences:
            if sequence.last_value is not None:
                values = {
                    "sequence": sequence.name,
                    "value": sequence.last_value,
                    "is_descending": sequence.is_descending,
                }
                self._session.execute(statement("sink/forward_sequence"), values)

    def _existing(self) -> Existing:
        names: dict[str, set[str]] = {}
        for kind, name in self._session.execute(statement("sink/existing")).fetchall():
            names.setdefault(kind, set()).add(name)
        return Existing(names)

    def _read(self, source: Session) -> Catalog:
        has_place = self._tables.places(self._epoch)

        def is_wanted(table: SourceTable) -> bool:
            place = table.root_namespace, table.root_name
            is_known = table.root_id in self._logged or not self._target.is_log_modified
            return self._target.selects(*place) and is_known and has_place(table.root_id, place)

        publication = self._target.publication
        return read(source, is_wanted, publication, partial(self._leaving, source))

    def _schema(self, source: Session, relation_id: int) -> TableSchema:
        """What modifiers leave of a table as the source has it now."""
        schema = self._described(source, relation_id)
        return schema if self._modifiers is None else self._modifiers.schema(schema)

    def _described(self, source: Session, relation_id: int) -> TableSchema:
        """A table as the source has it now, without values that are masked in front of the log."""
        schema = describe(source, self._epoch, relation_id)
        logged = self._logged.get(relation_id)
        modified = {c.attnum: c.modified for c in logged.columns if c.modified} if logged else {}
        columns = tuple(
            replace(c, default=None, missing=None, modified=modified[c.attnum])
            if c.attnum in modified
            else c
            for c in schema.columns
        )
        return replace(schema, columns=columns)

    def _leaving(self, source: Session, relation_id: int) -> Leaving:
        """What modifiers do to the columns of a table, in front of the log and behind it."""
        if self._modifiers is None and not self._target.is_log_modified:
            return Leaving()
        schema = self._described(source, relation_id)
        masked = {column.name for column in schema.columns if column.modified}
        if self._modifiers is None:
            return Leaving(masked=frozenset(masked), key=frozenset(schema.key))
        # Only the log has the generated columns that are published.
        for version in (schema, self._logged.get(relation_id, schema)):
            masked |= {*self._modifiers.transformed(version)}
        dropped = schema.attnums.keys() - self._modifiers.schema(schema).attnums.keys()
        return Leaving(frozenset(dropped), frozenset(masked), frozenset(schema.key))

    def _require_another_database(self, source: Session) -> None:
        """Changes that are written back to their source would be captured again, without end."""
        places: list[Sequence[object]] = [
            session.execute(statement("sink/same_database")).fetchone() or ()
            for session in (source, self._session)
        ]
        if places[0] == places[1]:
            remedy = f"{self._target.dsn_variable} must name another database"
            raise SinkRefused(self._target.sink, "its target is the source", remedy)

    @contextmanager
    def _source(self) -> Generator[Session]:
        assert self._target.source_dsn is not None
        self._logged = {schema.relation_id: schema for _, schema in self._history(self._epoch)}
        try:
            with closing(connect(self._target.source_dsn)) as source:
                yield source
        except SourceError as error:
            raise SinkUnreachable(self._target.sink, f"the source: {error}") from error


def _places(source: Session, relation_ids: Sequence[int]) -> dict[int, Place]:
    """The names that relations have on the source now."""
    rows = query(source, "sink/relation_places", relation_ids=relation_ids)
    return {relation_id: (namespace, name) for relation_id, namespace, name in rows}
