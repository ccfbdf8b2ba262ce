"""Creates in the target what the source's catalog has, and the log has not: see `schema`."""

from __future__ import annotations

from pgstream_dagster.schema.table import TableSchema
from pgstream_dagster.sinks.postgres.tables import Tables
from pgstream_dagster.sinks.postgres.target import Target
from pgstream_dagster.source.connect import Session


class SourceSchema:
    """The source's schema, and what of it is missing in the target."""

    def __init__(self, target: Target, session: Session, tables: Tables) -> None:
        self._target, self._session, self._tables = target, session, tables

    def create_missing(self) -> None:
        """Create types, sequences and tables that are missing, without indexes."""

    def complete(self, schema: TableSchema) -> None:
        """Create the indexes and constraints of a table whose copy has ended."""
        self._tables.completed(schema)
