"""What a sink knows of its target: how to reach it, and the columns of its tables. No I/O."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal, TypeAlias

from psycopg import sql

from pgstream_dagster.config.sinks import SinkConfig
from pgstream_dagster.patterns import full_name
from pgstream_dagster.pipeline import Pipeline
from pgstream_dagster.sinks.table_filter import TableFilter

OnConflict: TypeAlias = Literal["error", "nothing", "update"]


@dataclass(frozen=True, slots=True)
class Target:
    """
    A target database and how changes are applied to it.

    `dsn` and `source_dsn` hold secrets and are never printed; messages use the names of the
    variables. `source_dsn` is needed only to create tables as on the source: those of `publication`
    that `tables`, `exclude` and `schema_only` choose. `is_log_modified`: modifiers stand before the
    log, which says what of a table may leave.
    """

    pipeline: str
    sink: str
    dsn: str = field(repr=False)
    dsn_variable: str = "the sink's DSN"
    on_conflict: OnConflict = "error"
    creates_tables: bool = True
    lock_seconds: float = 60.0
    source_dsn: str | None = field(default=None, repr=False)
    publication: str | None = None
    tables: Sequence[str] = ("*.*",)
    exclude: Sequence[str] = ()
    schema_only: Sequence[str] = ()
    is_log_modified: bool = False

    @property
    def lock_name(self) -> str:
        """What the advisory lock is taken on."""
        return f"pgstream/{self.pipeline}/{self.sink}"

    def selects(self, namespace: str, name: str) -> bool:
        """Whether the table is one of the sink's, with rows or without."""
        return self._filter.has_schema(namespace, name)

    def has_rows(self, namespace: str, name: str) -> bool:
        """Whether the sink receives the changes of this table."""
        return self._filter.has_rows(namespace, name)

    @property
    def _filter(self) -> TableFilter:
        return TableFilter(self.tables, self.exclude, self.schema_only)


def target_of(pipeline: Pipeline, name: str, config: SinkConfig, dsn: str) -> Target:
    """The target of a sink of the pipeline file; `dsn` is the value of its variable."""
    assert config.postgres is not None
    settings = config.postgres
    return Target(
        pipeline=pipeline.name,
        sink=name,
        dsn=dsn,
        dsn_variable=settings.dsn_variable,
        on_conflict=settings.on_conflict,
        creates_tables=settings.tables_are == "create",
        lock_seconds=settings.lock_seconds,
        source_dsn=pipeline.dsn or None,
        publication=pipeline.config.source.publication,
        tables=config.tables,
        exclude=config.exclude,
        schema_only=config.schema_only,
        is_log_modified=bool(pipeline.config.source.modifiers),
    )


@dataclass(frozen=True, slots=True)
class TargetColumn:
    """
    A column of the target's table; `sequence` is the one it owns, qualified and quoted.

    `identity` as in `pg_attribute.attidentity`; `needs` are the columns that it is generated from.
    """

    name: str
    type_name: str
    plain_type: str
    identity: str = ""
    is_generated: bool = False
    sequence: str | None = None
    is_descending: bool = False
    needs: tuple[str, ...] = ()

    @property
    def is_always_identity(self) -> bool:
        """Whether only an INSERT that overrides it can set it."""
        return self.identity == "a"


@dataclass(frozen=True)
class TargetTable:
    """A table of the target, as its catalog has it."""

    namespace: str
    name: str
    table_oid: int
    kind: str
    columns: tuple[TargetColumn, ...]
    key_name: str | None = None  # of the primary key
    key: tuple[str, ...] = ()

    @cached_property
    def by_name(self) -> dict[str, TargetColumn]:
        """The columns that can be written, by name."""
        return {column.name: column for column in self.columns if not column.is_generated}

    @cached_property
    def places(self) -> dict[str, int]:
        """Column name to its number in the staging table."""
        return {column.name: place for place, column in enumerate(self.columns)}

    @property
    def full_name(self) -> str:
        """`namespace.name`, for messages."""
        return full_name(self.namespace, self.name)

    @property
    def identifier(self) -> sql.Identifier:
        """The table in a statement."""
        return sql.Identifier(self.namespace, self.name)

    @property
    def reference(self) -> sql.Composable:
        """The table whose rows are written; without those of tables that inherit from it."""
        return self.identifier if self.kind == "p" else sql.SQL("only {}").format(self.identifier)

    @cached_property
    def staging(self) -> sql.Identifier:
        """The temporary table for its changes; another one after its columns have changed."""
        shape = repr([(column.name, column.plain_type) for column in self.columns])
        digest = hashlib.blake2b(shape.encode(), digest_size=6).hexdigest()
        return sql.Identifier("pg_temp", f"pgstream_{self.table_oid}_{digest}")

    @cached_property
    def sequences(self) -> dict[str, TargetColumn]:
        """The columns that own a sequence."""
        return {column.name: column for column in self.columns if column.sequence}

    def unknown(self, names: Collection[str]) -> list[str]:
        """The names that no column of the table has."""
        existing = self.places
        return [name for name in names if name not in existing]
