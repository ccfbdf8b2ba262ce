"""
Makes in the target what the source's catalog has, and the log has not: see `schema`.

It happens when the sink opens, when a table or a partition comes up that the target lacks, and when
a table's copy ends. The source shows the present, the log a moment of the past: a table is recorded
with the columns it was made with, and `tables` brings it to the version of its first change.
"""

from __future__ import annotations

import logging
from collections.abc import Generator, Sequence
from contextlib import closing, contextmanager
from functools import partial
from typing import Final, LiteralString, cast

import psycopg
from psycopg import sql

from pgstream_dagster.errors import SinkRefused, SinkUnreachable, SourceError, TargetSchemaDiffers
from pgstream_dagster.schema.table import TableSchema
from pgstream_dagster.sinks.base import Modify
from pgstream_dagster.sinks.postgres.failures import Failure, failure_of, reason_of
from pgstream_dagster.sinks.postgres.schema import (
    AfterRows,
    Catalog,
    Existing,
    missing_labels,
    post_data,
    pre_data,
    read,
    read_after,
)
from pgstream_dagster.sinks.postgres.tables import Tables, Version
from pgstream_dagster.sinks.postgres.target import Target
from pgstream_dagster.source.catalog import describe
from pgstream_dagster.source.connect import Session, connect
from pgstream_dagster.sql import statement

logger = logging.getLogger(__name__)

_FOREIGN_KEY: Final = 3
"""The step of foreign keys in `sink/source_indexes`."""


class SourceSchema:
    """The source's schema, and what of it the target lacks."""

    def __init__(
        self, target: Target, session: Session, tables: Tables, epoch: int, modify: Modify | None
    ) -> None:
        self._target, self._session, self._tables = target, session, tables
        self._epoch, self._modify = epoch, modify
        self._postponed: dict[int, Version] = {}
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
            existing = self._existing()
            statements = pre_data(catalog, existing)
            with self._session.transaction():
                for text in statements:
                    self._execute(text)
                for table in catalog.tables:
                    is_new = not existing.has("relation", table.name)
                    if is_new and table.partition_of is None:
                        self._tables.created(self._leaving(source, table.relation_id))
            self._forward(catalog)
        return bool(statements)

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

        Those that name a column which the source got or renamed later wait for that version.

        Raises:
            SinkUnreachable, TargetSchemaDiffers
        """
        is_due = self._postponed.get(schema.relation_id) != schema.version
        if not self._is_used or not is_due or not self._tables.incomplete(schema):
            return
        if schema.epoch != self._epoch:
            return  # the source has it no more, or under another OID
        ready = {*self._tables.complete_ids(self._epoch), schema.relation_id}
        with self._source() as source:
            after = read_after(
                source, schema.relation_id, self._dropped(source, schema.relation_id)
            )
        items = post_data(after, self._existing(), ready)
        postponed = [item for item in items if not self._is_made(item)]
        if postponed:
            self._postponed[schema.relation_id] = schema.version
        else:
            self._tables.completed(schema)

    def _is_made(self, item: AfterRows) -> bool:
        """Make an index or a constraint; false if its columns come later."""
        try:
            with self._session.transaction():
                if item.step == _FOREIGN_KEY:
                    self._add_foreign_key(item)
                else:
                    self._execute(item.statement)
        except TargetSchemaDiffers as error:
            if not isinstance(error.__cause__, psycopg.errors.UndefinedColumn):
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
        target = self._target
        return read(source, target.selects, target.publication, partial(self._dropped, source))

    def _leaving(self, source: Session, relation_id: int) -> TableSchema:
        """What modifiers leave of a table as the source has it now."""
        schema = describe(source, self._epoch, relation_id)
        return schema if self._modify is None else self._modify(schema)

    def _dropped(self, source: Session, relation_id: int) -> set[str]:
        """The columns that modifiers leave out."""
        if self._modify is None:
            return set()
        schema = describe(source, self._epoch, relation_id)
        return schema.attnums.keys() - self._modify(schema).attnums.keys()

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
        try:
            with closing(connect(self._target.source_dsn)) as source:
                yield source
        except SourceError as error:
            raise SinkUnreachable(self._target.sink, f"the source: {error}") from error
