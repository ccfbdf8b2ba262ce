"""
A sink that writes rows to another Postgres database, exactly once.

Delivered means committed in the target: the changes and the cursor of their batch are in one
transaction of the target, which ends where a transaction of the source ends. So other sessions of
the target see whole transactions of the source, and a process that is killed continues from
the cursor, with nothing twice and nothing missing.

A batch is applied in sets. When the target does not accept a value or a constraint fails, the same
changes are applied in halves, in their order, until each change is found that it does not accept.
Then nothing of the batch stays: it comes again without them, once they are dead letters.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Final

import psycopg
from psycopg import sql

from pgstream_dagster import failpoints
from pgstream_dagster.errors import (
    SinkError,
    SinkRefused,
    SinkUnreachable,
    TargetSchemaDiffers,
)
from pgstream_dagster.patterns import full_name
from pgstream_dagster.readers.change import Change, ChangeBatch
from pgstream_dagster.schema.changes import Op
from pgstream_dagster.schema.table import TableSchema
from pgstream_dagster.sinks.base import (
    BEHIND,
    History,
    LeavesLog,
    Modifies,
    NotNow,
    Refused,
    Verdict,
    Verdicts,
)
from pgstream_dagster.sinks.held_keys import HeldKeys
from pgstream_dagster.sinks.postgres import progress
from pgstream_dagster.sinks.postgres.empty import empty
from pgstream_dagster.sinks.postgres.failures import Failure, failure_of, reason_of
from pgstream_dagster.sinks.postgres.fold import NoKey, fold
from pgstream_dagster.sinks.postgres.older import KeyChanged, in_version
from pgstream_dagster.sinks.postgres.plan import (
    AlterTable,
    EmptyTables,
    Names,
    WriteRows,
    split,
    steps,
)
from pgstream_dagster.sinks.postgres.progress import Position
from pgstream_dagster.sinks.postgres.session import (
    named,
    open_session,
    sink_error,
    turn_triggers_off,
)
from pgstream_dagster.sinks.postgres.source_schema import SourceSchema
from pgstream_dagster.sinks.postgres.tables import Tables
from pgstream_dagster.sinks.postgres.takeover import Replaced, Takeover
from pgstream_dagster.sinks.postgres.target import Target, TargetTable
from pgstream_dagster.sinks.postgres.write import IdentityDiffers, RowsDiffer, Writer
from pgstream_dagster.source.connect import Session
from pgstream_dagster.sql import statement

logger = logging.getLogger(__name__)

_LEFT_OUT: Final = (
    "sink %r: %d changes of %s name no row: it had no key, and its old rows were not sent; a later"
    " copy of it has what they changed. Where this continues, run on the source: alter table %s"
    " replica identity full; then run: pgstream snapshot %s"
)

Numbered = tuple[int, Change]
"""A change and its index in the batch."""


class RowRefused(Exception):
    """The target does not accept at least one change of a group."""


class PostgresSink:
    """The sink of one target; see the module. Used by one thread."""

    keeps_cursor = True

    def __init__(self, target: Target) -> None:
        self._target = target
        self._epoch = 1
        self._modifiers: Modifies | None = None
        self._history: History = lambda _: ()
        self._leaves_log: LeavesLog = lambda _kept: False
        self._opened: _Opened | None = None

    def make_tables_of(
        self, epoch: int, modifiers: Modifies | None, history: History, leaves_log: LeavesLog
    ) -> None:
        """Create the tables of this epoch, with the columns that are left."""
        self._epoch, self._modifiers, self._history = epoch, modifiers, history
        self._leaves_log = leaves_log

    def open(self) -> str | None:
        """
        Connect, take the right to write, create what is missing; the cursor of the last commit.

        Raises:
            SinkUnreachable, SinkRefused, TargetSchemaDiffers
            OtherLog: nothing is created.
        """
        self.close()
        session = open_session(self._target)
        try:
            with named(self._target, session):
                progress.create(self._target, session)
                if self._leaves_log(progress.cursor(self._target, session)):
                    progress.set_aside(self._target, session)
                tables = Tables(self._target, session)
                source = SourceSchema(
                    *(self._target, session, tables, self._epoch, self._modifiers, self._history)
                )
                takeover = Takeover(self._target, tables, self._history, source.place_of)
                self._opened = _Opened(self._target, session, tables, source, takeover)
                return self._opened.begin()
        except BaseException:
            self._opened = None
            session.close()
            raise

    def deliver(self, batch: ChangeBatch) -> Verdicts:
        """
        Apply a batch; committed when it ends a transaction of the source.

        With a verdict nothing of the batch is applied; earlier batches of its transaction are.
        After an error nothing of the open transaction is in the target: `open` gives the position.

        Raises:
            SinkUnreachable, SinkRefused, TargetSchemaDiffers
        """
        opened = self._opened
        if opened is None:
            raise SinkUnreachable(self._target.sink, "it has no session with its target")
        try:
            return opened.deliver(batch)
        except psycopg.Error as error:
            problem = sink_error(self._target, opened.session, error)
            self.close()
            raise problem from error
        except BaseException:
            self.close()  # ends the transaction; the follower opens the sink again
            raise

    def close(self) -> None:
        """End the session, and with it the transaction and the right to write."""
        opened, self._opened = self._opened, None
        if opened is not None:
            opened.session.close()


class _Opened:
    """A sink with a session."""

    def __init__(
        self,
        target: Target,
        session: Session,
        tables: Tables,
        source: SourceSchema,
        takeover: Takeover,
    ) -> None:
        self.session = session
        self._target, self._tables, self._source, self._takeover = target, tables, source, takeover
        self._writer = Writer(session, target.on_conflict)
        self._is_in_transaction = False
        self._has_asked = False
        self._comes_late = False  # the batch that is being applied
        self._copied: dict[int, TableSchema] = {}  # in the open transaction

    def begin(self) -> str | None:
        """Create the tables that are missing; the cursor."""
        self._source.create_missing()
        for schema in self._tables.without_indexes():
            if not self._target.has_rows(schema.namespace, schema.name):
                self._source.complete(schema)  # no copy of it ends
        self._keeps_order = not turn_triggers_off(self._target, self.session)
        return progress.cursor(self._target, self.session)

    def deliver(self, batch: ChangeBatch) -> Verdicts:
        """As the sink's; the caller closes the session after an error."""
        self._ensure_transaction()
        self._comes_late = batch.comes_late
        before, passed = self._tables.state.copy(), dict(self._writer.passed)
        self.session.execute("savepoint pgstream_batch")
        verdicts = self._applied(list(enumerate(batch.changes)))
        if verdicts:
            self.session.execute("rollback to savepoint pgstream_batch")
            self._tables.state, self._writer.passed = before, passed
        self.session.execute("release savepoint pgstream_batch")
        if verdicts:
            return verdicts
        self._copied |= {schema.relation_id: schema for schema in _copied(batch.changes)}
        if batch.ends_transaction:
            self._commit(batch.cursor)
        return verdicts

    def _ensure_transaction(self) -> None:
        if self._is_in_transaction:
            return
        self.session.execute("begin")
        self.session.execute("set constraints all deferred")
        self._is_in_transaction = True
        self._copied.clear()
        self._writer.begin()

    def _commit(self, cursor: str) -> None:
        for schema in self._copied.values():
            self._source.complete(schema)
        for sequence, (value, is_descending) in self._writer.passed.items():
            values = {"sequence": sequence, "value": value, "is_descending": is_descending}
            self.session.execute(statement("sink/forward_sequence"), values)
        progress.advance(self._target, self.session, cursor)
        failpoints.reach("postgres_sink.applied")
        try:
            self.session.execute("commit")
        except psycopg.errors.IntegrityError as error:  # deferred, of an earlier part of it
            remedy = "let the role set session_replication_role, or remove the row"
            raise SinkRefused(self._target.sink, reason_of(error), remedy) from error
        self._is_in_transaction = False
        failpoints.reach("postgres_sink.committed")

    # --- groups -------------------------------------------------------------------------------

    def _applied(self, changes: Sequence[Numbered]) -> dict[int, Verdict]:
        """Apply changes in order, in groups as large as the target accepts."""
        verdicts: dict[int, Verdict] = {}
        failed = HeldKeys()
        waiting = [(list(changes), True)]
        while waiting:
            numbered, is_deferred = waiting.pop()
            group: list[Numbered] = []
            for index, change in numbered:
                if failed.holds(change):
                    verdicts[index] = NotNow(BEHIND, is_behind=True)
                    failed.hold(change)
                else:
                    group.append((index, change))
            try:
                self._attempt([change for _, change in group], is_deferred=is_deferred)
            except RowRefused as refusal:
                if len(group) == 1:
                    [(index, change)] = group
                    verdicts[index] = Refused(str(refusal))
                    failed.hold(change)
                else:
                    waiting += self._smaller(group, is_deferred=is_deferred)
        return verdicts

    def _smaller(
        self, group: list[Numbered], *, is_deferred: bool
    ) -> list[tuple[list[Numbered], bool]]:
        """The parts of a group that failed, the first one last."""
        is_one_transaction = group[0][1].commit_lsn == group[-1][1].commit_lsn
        if self._keeps_order and is_deferred and is_one_transaction:
            # A deferred constraint fails at the end, and does not say for which change.
            return [(group, False)]
        middle = split(group)
        return [(group[middle:], is_deferred), (group[:middle], is_deferred)]

    def _attempt(self, changes: Sequence[Change], *, is_deferred: bool) -> None:
        """
        Apply a group in a savepoint.

        Raises:
            RowRefused: nothing of it is applied.
        """
        if not changes:
            return
        before, passed = self._tables.state.copy(), dict(self._writer.passed)
        self.session.execute("savepoint pgstream")
        try:
            self._run(changes, is_deferred=is_deferred)
        except (psycopg.Error, RowsDiffer, NoKey, KeyChanged, Replaced) as error:
            if isinstance(error, psycopg.Error) and failure_of(error) is not Failure.ROW:
                raise self._whole(changes, error) from error
            self.session.execute("rollback to savepoint pgstream")
            self._tables.state, self._writer.passed = before, passed
            if isinstance(error, psycopg.Error) and self._is_cured(error):
                self._attempt(changes, is_deferred=is_deferred)
                return
            raise RowRefused(_reason(error)) from error
        self.session.execute("release savepoint pgstream")

    def _is_cured(self, error: psycopg.Error) -> bool:
        """
        Whether a partition was missing, and is there now; asked once while the sink is open.

        Raises:
            SinkUnreachable: labels were added to enums; a transaction that began before cannot use
                them, so it is applied again.
        """
        is_partition = (
            isinstance(error, psycopg.errors.CheckViolation) and not error.diag.constraint_name
        )
        is_label = isinstance(error, psycopg.errors.InvalidTextRepresentation)
        if self._has_asked or not (is_partition or is_label):
            return False
        self._has_asked = True
        if is_partition:
            return self._source.create_missing()
        if not self._source.labels():
            return False
        self.session.execute("rollback")
        count = self._source.add_labels()
        raise SinkUnreachable(self._target.sink, f"{count} labels were added to its enums")

    def _run(self, changes: Sequence[Change], *, is_deferred: bool) -> None:
        if self._keeps_order and not is_deferred:
            self.session.execute("set constraints all immediate")
        for step in steps(changes, keeps_order=self._keeps_order):
            match step:
                case WriteRows():
                    self._write(step)
                case EmptyTables():
                    self._empty(step)
                case AlterTable(change):
                    self._alter(change)
        if self._keeps_order:
            self._check_deferred()

    def _check_deferred(self) -> None:
        self.session.execute("set constraints all immediate")
        self.session.execute("set constraints all deferred")

    def _write(self, step: WriteRows) -> None:
        since = _position(step.changes[0])
        schema = self._tables.newest(step.schema, since)
        changes = step.changes
        if schema is not step.schema:
            changes = [in_version(change, schema) for change in changes]
        prepared = self._prepared(schema, step.changes[0])
        if prepared is None:
            return
        table, is_ours = prepared
        if step.changes[0].op == Op.READ:
            if not is_ours:
                self._require_empty(table)
        elif self._tables.incomplete(schema):
            self._source.complete(schema)
        try:
            for net in fold(changes):
                self._writer.apply(net, table, schema.key)
                if net.left_out:
                    logger.warning(
                        _LEFT_OUT, self._target.sink, net.left_out, *[schema.full_name] * 3
                    )
        except IdentityDiffers as error:
            raise self._identity(table, error.column) from error

    def _alter(self, change: Change) -> None:
        """Let a table that the sink has written to follow the source's."""
        schema = self._tables.newest(Names().schema(change), _position(change))
        if self._tables.has(schema):
            self._prepared(schema, change)

    def _prepared(self, schema: TableSchema, first: Change) -> tuple[TargetTable, bool] | None:
        """
        The table in the version of a change, and whether the sink has written to it before.

        `None` if the table has ended, and its changes come late.

        Raises:
            Replaced: it has, and they do not.
        """
        since = _position(first)
        if self._keeps_order and self._tables.is_altered_next(schema):
            self._check_deferred()  # no table is altered while a check of it is due
        try:
            schema = self._takeover.make_way(schema, since, is_copy=first.op in (Op.COPY, Op.READ))
        except Replaced:
            if not self._comes_late:
                raise
            logger.info("%s: %s has ended, and is left out", self._target.sink, schema.full_name)
            return None
        is_ours = self._tables.has(schema)
        table = self._tables.prepared(schema, since)
        self._takeover.settle()
        return table, is_ours

    def _identity(self, table: TargetTable, column: str) -> TargetSchemaDiffers:
        name = sql.Identifier(column)
        fix = sql.SQL("alter table {} alter column {} set generated by default").format(
            table.identifier, name
        )
        reason = f"column {column!r} is generated always, and an update sets it"
        return TargetSchemaDiffers(
            self._target.sink, table.full_name, reason, fix.as_string(self.session)
        )

    def _empty(self, step: EmptyTables) -> None:
        """Empty the tables of a truncate; of a copy, those that the sink has written to before."""
        tables: list[TargetTable] = []
        for change in step.changes:
            if change.schema is None:
                continue
            schema = self._tables.newest(Names().schema(change), _position(change))
            prepared = self._prepared(schema, change)
            if prepared is None:
                continue
            table, is_ours = prepared
            if change.op == Op.TRUNCATE or (is_ours and self._has_rows(table)):
                tables.append(table)
            elif not is_ours:
                self._require_empty(table)
        if tables:
            empty(self._target, self.session, tables)

    def _require_empty(self, table: TargetTable) -> None:
        """The first copy into a table must not mix its rows with those of somebody else."""
        if self._target.on_conflict == "error" and self._has_rows(table):
            reason = f"table {table.full_name!r} has rows that are not of this sink"
            owner = progress.other_owner(self._target, self.session, table.table_oid)
            if owner is not None:
                remedy = "give each sink a database of its own, or `exclude` the table from one"
                raise SinkRefused(self._target.sink, f"{reason} but of {owner}", remedy)
            name = table.identifier.as_string(self.session)
            remedy = f"run in the target: truncate {name}; or set on_conflict: nothing or update"
            raise SinkRefused(self._target.sink, reason, remedy)

    def _has_rows(self, table: TargetTable) -> bool:
        """TRUNCATE locks a table for readers until the copy ends, so an empty one is left alone."""
        query = sql.SQL("select from {} limit 1").format(table.reference)
        return bool(self.session.execute(query, prepare=False).rowcount)

    def _whole(self, changes: Sequence[Change], error: psycopg.Error) -> SinkError | psycopg.Error:
        """An error that is not of a row, with the tables that were written."""
        if failure_of(error) is Failure.RIGHTS:
            refused = (error.diag.message_primary or "").rpartition(" ")[2]
            places = {(c.namespace, c.relation) for c in changes if c.relation == refused}
            table = ", ".join(sql.Identifier(*place).as_string(None) for place in sorted(places))
            return sink_error(self._target, self.session, error, table)
        if failure_of(error) is not Failure.SCHEMA:
            return error
        names = sorted({full_name(change.namespace, change.relation) for change in changes})
        fix = "the statement that restores what the message names"
        if isinstance(error, psycopg.errors.InvalidColumnReference):  # ON CONFLICT has no index
            fix = "; ".join(sorted({_key_statement(change) for change in changes}))
        return TargetSchemaDiffers(self._target.sink, ", ".join(names), reason_of(error), fix)


def _position(change: Change) -> Position:
    return change.epoch, int(change.commit_lsn), change.ordinal


def _key_statement(change: Change) -> str:
    key = () if change.schema is None else change.schema.key
    added = sql.SQL("alter table {} add primary key ({})").format(
        sql.Identifier(change.namespace, change.relation),
        sql.SQL(", ").join(map(sql.Identifier, key)),
    )
    return added.as_string(None)


def _copied(changes: Sequence[Change]) -> list[TableSchema]:
    """The tables whose copy ends with this batch."""
    names = Names()
    schemas = {
        change.relation_id: names.schema(change)
        for change in changes
        if change.op in (Op.READ, Op.COPY) and change.schema is not None
    }
    return list(schemas.values())


def _reason(error: Exception) -> str:
    if isinstance(error, psycopg.Error):
        return reason_of(error)
    if isinstance(error, NoKey):
        return "it came without the key of its row"
    if isinstance(error, Replaced):
        return "its table was dropped or renamed on the source, and another one has the name"
    if isinstance(error, KeyChanged):
        return "the table has another key since this change"
    return "the target has no row, or several, with the key or values that this change is about"
