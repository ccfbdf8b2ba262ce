"""
The tables of the target, each in the version of the change that is written next.

`Tables.prepared` is called before the first row of a version; what it alters is in the transaction
of that row. A rollback is followed by `restore`.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

import psycopg
from psycopg import sql
from psycopg.rows import class_row

from pgstream_dagster.errors import SinkUnreachable, TargetSchemaDiffers
from pgstream_dagster.schema.table import TableSchema
from pgstream_dagster.sinks.postgres import progress
from pgstream_dagster.sinks.postgres.empty import empty
from pgstream_dagster.sinks.postgres.evolve import (
    adopted,
    alterations,
    by_name,
    create_statement,
    has_other_key,
    new_key,
)
from pgstream_dagster.sinks.postgres.failures import Failure, failure_of, reason_of
from pgstream_dagster.sinks.postgres.progress import (
    NEVER,
    Position,
    Recorded,
    Relation,
    relation_of,
)
from pgstream_dagster.sinks.postgres.target import Target, TargetColumn, TargetTable
from pgstream_dagster.source.connect import Session, quoted
from pgstream_dagster.sql import statement

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Row:
    """One row of `sink/target_columns`."""

    table_oid: int
    kind: str
    name: str | None
    type_name: str
    plain_type: str
    identity: str
    is_generated: bool
    sequence: str | None
    is_descending: bool | None
    needs: list[str]
    key_name: str | None
    key: list[str]


Version: TypeAlias = tuple[int, str, str]

Place: TypeAlias = tuple[str, str]
"""The namespace and the name of a table."""


@dataclass(slots=True)
class State:
    """
    What is true as long as the transaction is not rolled back.

    `aside` has the names of tables that gave way to others, and wait until these are free.
    """

    versions: dict[Relation, Recorded] = field(default_factory=dict["Relation", Recorded])
    prepared: dict[tuple[int, Version], TargetTable] = field(
        default_factory=dict[tuple[int, Version], TargetTable]
    )
    aside: dict[Relation, Place] = field(default_factory=dict["Relation", Place])

    def copy(self) -> State:
        """The same, to go back to."""
        return State(dict(self.versions), dict(self.prepared), dict(self.aside))


class Tables:
    """The target's tables; `state` is replaced after a rollback."""

    def __init__(self, target: Target, session: Session) -> None:
        self._target, self._session = target, session
        self.create: Callable[[], bool] = lambda: False  # what the source has and the target lacks
        self.state = State(progress.versions(target, session))

    def has(self, schema: TableSchema) -> bool:
        """Whether the sink has made or written to this table before, or one of this name."""
        return relation_of(schema) in self.state.versions or bool(self._of_its_name(schema))

    def is_altered_next(self, schema: TableSchema) -> bool:
        """Whether a table that has rows of ours gets another version, or its indexes."""
        recorded = self._last(schema)
        if recorded is None:
            return bool(self.holders(schema))
        return not recorded.is_complete or recorded.schema.version != schema.version

    def newest(self, schema: TableSchema, position: Position) -> TableSchema:
        """The version of a change at `position`, or the table's if it has a newer one."""
        recorded = self.recorded(schema)
        return schema if recorded is None or position >= recorded.since else recorded.schema

    def prepared(self, schema: TableSchema, since: Position) -> TargetTable:
        """
        The table, with the columns of this version, which it has since `since`.

        Raises:
            TargetSchemaDiffers: it has not, and they cannot or must not be made.
        """
        key = (schema.relation_id, schema.version)
        table = self.state.prepared.get(key)
        return self._prepare(schema, since) if table is None else table

    def is_prepared(self, schema: TableSchema) -> bool:
        """Whether the table has this version, and its name."""
        return (schema.relation_id, schema.version) in self.state.prepared

    def recorded(self, schema: TableSchema) -> Recorded | None:
        """What is recorded of the relation."""
        return self.state.versions.get(relation_of(schema))

    def holders(self, schema: TableSchema) -> list[Recorded]:
        """
        The other relations whose tables have the name of `schema` in the target.

        That of a former epoch is the same table, of a database before a dump and restore, unless
        the relation has one already.
        """
        has_own = self.recorded(schema) is not None
        return [
            v
            for v in self._of_its_name(schema)
            if relation_of(v.schema) != relation_of(schema)
            and (has_own or v.schema.epoch == schema.epoch)
        ]

    def places(self, epoch: int) -> Callable[[int, Place], bool]:
        """Whether a relation of an epoch may have a table of this name in the target now."""
        own: dict[int, Place] = {}
        for version in self.state.versions.values():
            if version.schema.epoch == epoch:
                own[version.schema.relation_id] = version.schema.namespace, version.schema.name
        taken = set(own.values())
        return lambda relation_id, place: (
            own.get(relation_id) == place or (relation_id not in own and place not in taken)
        )

    def is_partitioned(self, schema: TableSchema) -> bool:
        """Whether the target's table has partitions."""
        table = self._existing(schema)
        return table is not None and table.kind == "p"

    def move(self, version: Recorded, place: Place, since: Position) -> None:
        """
        Rename the target's table of a relation.

        Raises:
            TargetSchemaDiffers
        """
        schema = replace(version.schema, namespace=place[0], name=place[1])
        self._execute(schema, self.renames(version, place))
        self.moved(version, place, since)

    def renames(self, version: Recorded, place: Place) -> list[sql.Composed]:
        """The statements that give the target's table of a relation another name."""
        schema = replace(version.schema, namespace=place[0], name=place[1])
        table = self._existing(version.schema)
        return [] if table is None else self._evolved(version.schema, schema, table)

    def moved(self, version: Recorded, place: Place, since: Position) -> None:
        """Record that the table of a relation has another name."""
        schema = replace(version.schema, namespace=place[0], name=place[1])
        self._unprepare(schema)
        self._record(replace(version, schema=schema, since=since))

    def drop(self, version: Recorded) -> None:
        """
        Drop the target's table of a relation, and the foreign keys that refer to it.

        Raises:
            TargetSchemaDiffers: something else depends on it.
        """
        if (table := self._existing(version.schema)) is not None:
            drop = sql.SQL("drop table {}").format(table.identifier)
            self._execute(version.schema, [*self._without_referring(table), drop])
        self.forget(version)

    def make_room(self, text: str) -> bool:
        """
        Rename the indexes and sequences of tables of ours that a statement names; whether any.

        It makes what the source has now, so these are of tables that have ended or been renamed.
        """
        tables = [v.schema for v in self.state.versions.values()]
        oids = [table.table_oid for table in map(self._existing, tables) if table is not None]
        renames = [
            _renamed(*names) for *names, _ in self._names_of(oids, "") if _is_named(names[2], text)
        ]
        for rename in renames:
            logger.info("%s: %s", self._target.sink, rename.as_string(None))
            self._session.execute(rename, prepare=False)
        return bool(renames)

    def _evolved(
        self, before: TableSchema, after: TableSchema, table: TargetTable
    ) -> list[sql.Composed]:
        """What makes a table one of another version, whatever depends on it or has a name of it."""
        statements: list[sql.Composed] = []
        if table.namespace != after.namespace:
            names = self._names_of([table.table_oid], after.namespace)
            statements += [_renamed(*name) for *name, is_taken in names if is_taken]
        if has_other_key(before, after, table) and table.key_name is not None:
            statements += self._without_referring(table, table.key_name)
        return statements + alterations(before, after, table)

    def _names_of(self, table_oids: Sequence[int], namespace: str) -> list[tuple[Any, ...]]:
        values = {"table_oids": list(table_oids), "namespace": namespace}
        return self._session.execute(statement("sink/names_of_tables"), values).fetchall()

    def _without_referring(
        self, table: TargetTable, key_name: str | None = None
    ) -> list[sql.Composed]:
        """What drops the foreign keys that refer to a table, or to one of its keys."""
        values = {"table_oid": table.table_oid, "key_name": key_name}
        keys = self._session.execute(statement("sink/referring_keys"), values).fetchall()
        return [
            sql.SQL("alter table {} drop constraint {}").format(
                sql.Identifier(namespace, relation), sql.Identifier(name)
            )
            for namespace, relation, name in keys
        ]

    def hand_over(self, version: Recorded, schema: TableSchema, since: Position) -> None:
        """Empty the target's table of a relation; it is the one of the relation of `schema` now."""
        if (table := self._existing(version.schema)) is not None:
            empty(self._target, self._session, [table])
        self.forget(version)
        if table is not None and self._target.creates_tables:
            before = replace(
                by_name(version.schema, schema),
                epoch=schema.epoch,
                relation_id=schema.relation_id,
            )
            self._record(replace(version, schema=before, since=since))

    def is_of_another(self, version: Recorded, place: Place) -> bool:
        """Whether the target's table of this name is the one that another relation was last in."""
        table = self.existing(place)
        return table is not None and any(
            other.table_oid == table.table_oid
            for relation, other in self.state.versions.items()
            if relation != relation_of(version.schema)
        )

    def forget(self, version: Recorded) -> None:
        """Remove what is recorded of a relation."""
        self._unprepare(version.schema)
        progress.forget(self._target, self._session, version.schema)
        del self.state.versions[relation_of(version.schema)]

    def existing(self, place: Place) -> TargetTable | None:
        """The target's table of this name."""
        return read_table(self._session, *place)

    def completed(self, schema: TableSchema) -> None:
        """Record that the indexes and constraints of a table are made."""
        recorded = self.recorded(schema)
        if recorded is not None and not recorded.is_complete:
            self._record(replace(recorded, is_complete=True))

    def complete_places(self, epoch: int) -> dict[int, Place]:
        """The relations of an epoch whose tables have their indexes and constraints."""
        return {
            version.schema.relation_id: (version.schema.namespace, version.schema.name)
            for version in self.state.versions.values()
            if version.is_complete and version.schema.epoch == epoch
        }

    def without_indexes(self) -> list[TableSchema]:
        """The tables that lack their indexes and constraints."""
        return [v.schema for v in self.state.versions.values() if not v.is_complete]

    def incomplete(self, schema: TableSchema) -> bool:
        """Whether the table still lacks its indexes and constraints."""
        recorded = self.recorded(schema)
        return recorded is not None and not recorded.is_complete

    def created(self, schema: TableSchema) -> None:
        """Record a table that was just created, without its indexes and constraints."""
        self._record(Recorded(schema, NEVER, is_complete=False, is_made=True))

    def _record(self, version: Recorded) -> None:
        progress.record(self._target, self._session, version)
        self.state.versions[relation_of(version.schema)] = version

    def _last(self, schema: TableSchema) -> Recorded | None:
        """
        The version that is recorded of the relation, or that a former epoch left under its name.

        The OID and attnums of a former one may be those of another table, of a database before a
        dump and restore: it has the attnums of `schema`.
        """
        if (recorded := self.recorded(schema)) is not None:
            return recorded
        former = [v for v in self._of_its_name(schema) if v.schema.epoch < schema.epoch]
        if not former:
            return None
        newest = max(former, key=lambda version: version.since)
        return replace(newest, schema=by_name(newest.schema, schema))

    def _of_its_name(self, schema: TableSchema) -> list[Recorded]:
        name = schema.namespace, schema.name
        versions = self.state.versions.values()
        return [v for v in versions if (v.schema.namespace, v.schema.name) == name]

    def _prepare(self, schema: TableSchema, since: Position) -> TargetTable:
        if self.recorded(schema) is None and self._existing(schema) is None:
            self.create()
        last = self._last(schema)
        if last is None:
            is_made = self._existing(schema) is None
            self._alter(schema, None)
            self._record(Recorded(schema, since, is_complete=True, is_made=is_made))
        elif last.schema.version != schema.version:
            self._unprepare(schema)
            self._alter(schema, last.schema)
            self._record(replace(last, schema=schema, since=since))
            if last.schema.epoch != schema.epoch:
                self.forget(last)
        elif last.since == NEVER:
            self._record(replace(last, since=since))
        table = self._existing(schema)
        if table is None:
            raise self.differs(schema, "it does not exist", [create_statement(schema)])
        if missing := adopted(schema, table):
            raise self.differs(schema, "columns are missing", missing)
        recorded = self.state.versions[relation_of(schema)]
        if recorded.table_oid != table.table_oid:
            self._record(replace(recorded, table_oid=table.table_oid))
        self.state.prepared[schema.relation_id, schema.version] = table
        return table

    def _unprepare(self, schema: TableSchema) -> None:
        for prior in [k for k in self.state.prepared if k[0] == schema.relation_id]:
            del self.state.prepared[prior]

    def _alter(self, schema: TableSchema, before: TableSchema | None) -> None:
        """Bring the target's table to this version, or say what would."""
        table = self._existing(schema)
        if table is None and before is not None:
            table = read_table(self._session, before.namespace, before.name)
        if table is None:
            statements = [create_statement(schema)]
        elif before is None:
            statements = adopted(schema, table)
        else:
            statements = self._evolved(before, schema, table)
        if self._target.creates_tables:
            self._execute(schema, statements)
            if before is not None and table is not None:
                self._add_key(schema, new_key(before, schema, table))
            return
        existing = self._existing(schema)
        if existing is None or adopted(schema, existing):
            raise self.differs(schema, "it has not the columns of the source", statements)

    def _add_key(self, schema: TableSchema, key: sql.Composed | None) -> None:
        """Add a key that has moved; the rows may fit it only after the copy that follows."""
        if key is None:
            return
        try:
            with self._session.transaction():
                self._session.execute(key, prepare=False)
        except psycopg.IntegrityError as error:
            logger.warning(
                "sink %r: the rows of %s do not fit its new key yet, and it is not made (%s); later"
                " run in the target: %s",
                self._target.sink,
                schema.full_name,
                reason_of(error),
                key.as_string(None),
            )

    def _execute(self, schema: TableSchema, statements: Sequence[sql.Composed]) -> None:
        for one_statement in statements:
            logger.info("%s: %s", self._target.sink, one_statement.as_string(None))
            try:
                self._execute_with_types(schema, one_statement)
            except psycopg.Error as error:
                if failure_of(error) is Failure.LATER:
                    raise SinkUnreachable(self._target.sink, reason_of(error)) from error
                raise self.differs(schema, reason_of(error), [one_statement]) from error

    def _execute_with_types(self, schema: TableSchema, one_statement: sql.Composed) -> None:
        """Run a statement; a type or namespace that it needs and the target lacks is made first."""
        try:
            with self._session.transaction():
                self._session.execute(one_statement, prepare=False)
        except psycopg.errors.UndefinedObject:
            if not self.create():
                raise
            self._session.execute(one_statement, prepare=False)
        except psycopg.errors.InvalidSchemaName:
            self.create()
            namespace = sql.Identifier(schema.namespace)
            self._session.execute(sql.SQL("create schema if not exists {}").format(namespace))
            self._session.execute(one_statement, prepare=False)

    def _existing(self, schema: TableSchema) -> TargetTable | None:
        return read_table(self._session, schema.namespace, schema.name)

    def differs(
        self, schema: TableSchema, reason: str, statements: Sequence[sql.Composed]
    ) -> TargetSchemaDiffers:
        """The error that names what a person must run."""
        text = "; ".join(s.as_string(self._session) for s in statements)
        return TargetSchemaDiffers(self._target.sink, schema.full_name, reason, text)


def _renamed(kind: str, namespace: str, name: str, free_name: str) -> sql.Composed:
    """What gives an index or a sequence a name that no other has."""
    is_sequence = kind == "sequence"
    text = "alter sequence {} rename to {}" if is_sequence else "alter index {} rename to {}"
    return sql.SQL(text).format(sql.Identifier(namespace, name), sql.Identifier(free_name))


def _is_named(name: str, text: str) -> bool:
    """Whether a statement has a name, as an identifier of its own."""
    plain, in_quotes = re.escape(name), re.escape(quoted(name))
    return re.search(rf'{in_quotes}|(?<![\w$"]){plain}(?![\w$"])', text) is not None


def read_table(session: Session, namespace: str, name: str) -> TargetTable | None:
    """A table of the target as its catalog has it; `None` if it does not exist."""
    with session.cursor(row_factory=class_row(_Row)) as cursor:
        values = {"namespace": namespace, "name": name}
        rows = cursor.execute(statement("sink/target_columns"), values).fetchall()
    if not rows:
        return None
    columns = tuple(
        TargetColumn(
            row.name,
            row.type_name,
            row.plain_type,
            row.identity,
            row.is_generated,
            row.sequence,
            bool(row.is_descending),
            tuple(row.needs),
        )
        for row in rows
        if row.name is not None
    )
    of_table = rows[0]
    return TargetTable(
        *(namespace, name, of_table.table_oid, of_table.kind, columns),
        key_name=of_table.key_name,
        key=tuple(of_table.key),
    )
