"""
Every error the package raises on purpose.

A leaf is named by the fact, has that fact's values as attributes, builds its own message and says
in `retry` what helps. Messages read `what: the fact with values; consequence or remedy`, never
hold row values, passwords or connection strings, and name the command that fixes what a person
must fix. `docs/errors.md` has a line for each (a test holds the two together).
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from enum import Enum
from typing import Any, ClassVar

from pgstream_dagster.lsn import Lsn


class Retry(Enum):
    """What helps against an error."""

    LATER = "later"  # the same call may succeed by itself: connection, timeout
    AFTER_FIX = "after a fix"  # a person must act; the message says how
    NEVER = "never"  # damaged bytes or our own bug


class PgstreamError(Exception):
    """The root: everything this package raises on purpose is one of these."""

    retry: ClassVar[Retry] = Retry.NEVER

    @property
    def facts(self) -> dict[str, Any]:
        """The error's values by name, for metadata and JSON; positions as text."""
        values = vars(self).items()
        return {name: str(v) if isinstance(v, Lsn) else v for name, v in values}


class SourceError(PgstreamError):
    """The Postgres we read, or the way to it."""


class SchemaError(PgstreamError):
    """A relation whose shape we cannot follow."""


class ChangelogError(PgstreamError):
    """The lake: the log and the tables beside it."""


class SearchError(PgstreamError):
    """The search cluster, or an index in it."""


class SinkError(PgstreamError):
    """A sink's target, or its place in the log."""


class ConfigError(PgstreamError):
    """The pipeline file or the environment."""

    retry = Retry.AFTER_FIX


# --- protocol ---------------------------------------------------------------------------------


class ProtocolError(SourceError):
    """Bytes from Postgres that the manual does not allow: damaged, or a version we do not know."""

    def __init__(self, fact: str) -> None:
        self.fact = fact
        super().__init__(fact)


# --- connection -------------------------------------------------------------------------------


class ConnectionLost(SourceError):
    """The connection broke, or the server went away; reconnecting is safe."""

    retry = Retry.LATER

    def __init__(self, server: str, reason: str) -> None:
        self.server, self.reason = server, reason
        super().__init__(f"lost the connection to {server}: {reason}")


class TableRenamed(SourceError):
    """A table has another name than its rows were last described with; a reconnect helps."""

    retry = Retry.LATER

    def __init__(self, former: str, name: str) -> None:
        self.former, self.name = former, name
        super().__init__(
            f"table {former!r} was renamed to {name!r}; Postgres may report that on a new"
            " connection only"
        )


class Unreachable(SourceError):
    """No connection could be made: address, network, or the server is not up."""

    retry = Retry.LATER

    def __init__(self, server: str, reason: str) -> None:
        self.server, self.reason = server, reason
        super().__init__(
            f"cannot reach {server}: {reason};"
            " check the server and PGSTREAM_DSN (or PGHOST, PGPORT)"
        )


class QueryCancelled(SourceError):
    """The server ended a query of pgstream: an administrator did, or a time limit of the server."""

    retry = Retry.LATER

    def __init__(self, server: str, reason: str) -> None:
        self.server, self.reason = server, reason
        super().__init__(f"{server} cancelled a query: {reason}; pgstream sends it again later")


class LocksHeld(SourceError):
    """A lock that we need is held, or would have been waited for in a circle."""

    retry = Retry.LATER

    def __init__(self, server: str, reason: str) -> None:
        self.server, self.reason = server, reason
        super().__init__(
            f"no lock from {server}: {reason}; a stream asks for it again, a command has to be"
            " repeated"
        )


class SourceExhausted(SourceError):
    """The source is out of memory, disk space or connections."""

    retry = Retry.LATER

    def __init__(self, server: str, reason: str) -> None:
        self.server, self.reason = server, reason
        super().__init__(
            f"{server} is out of a resource: {reason}; make room there, it is tried again later"
        )


class ReadOnlyServer(SourceError):
    """The server takes no writes: a standby, or a primary that was just demoted."""

    retry = Retry.LATER

    def __init__(self, server: str, reason: str) -> None:
        self.server, self.reason = server, reason
        super().__init__(
            f"{server} is read-only: {reason}; PGSTREAM_DSN must reach the primary"
            " (with several hosts: target_session_attrs=read-write)"
        )


class AccessRefused(SourceError):
    """The server answered, and refused the role, its password, its database or a right."""

    retry = Retry.AFTER_FIX

    def __init__(self, server: str, reason: str, remedy: str) -> None:
        self.server, self.reason, self.remedy = server, reason, remedy
        super().__init__(f"{server} refused: {reason}; {remedy}")


class SpoolFailed(SourceError):
    """A large transaction could not be kept on the local disk; Postgres sends it again."""

    retry = Retry.LATER

    def __init__(self, folder: str, reason: str) -> None:
        self.folder, self.reason = folder, reason
        super().__init__(
            f"cannot keep a large transaction in {folder!r}: {reason}; nothing is lost, Postgres"
            " sends it again: free space there, or name another folder in PGSTREAM_STATE"
        )


class RowTooLarge(SourceError):
    """A row (or a logical message) does not fit into the memory that the pipeline may take."""

    retry = Retry.AFTER_FIX

    def __init__(self, table: str | None, size_bytes: int, needed_bytes: int) -> None:
        self.table, self.size_bytes, self.needed_bytes = table, size_bytes, needed_bytes
        what = "a logical message" if table is None else f"a row of table {table!r}"
        super().__init__(
            f"{what} has {size_bytes:,} bytes, too many for capture.memory_bytes;"
            " nothing is lost: where the machine has the memory, set in the pipeline file"
            f" capture.memory_bytes: {needed_bytes}, and start again"
        )


class DescriptorsExhausted(SourceError):
    """The process has as many files and connections open as it may."""

    retry = Retry.LATER

    def __init__(self, limit: int) -> None:
        self.limit = limit
        super().__init__(
            f"no file descriptor is free (limit {limit:,}); nothing is lost, it is tried again:"
            " raise the limit (ulimit -n, or LimitNOFILE of the service) and start again"
        )


class PreflightFailed(SourceError):
    """What must hold on the source does not; every finding names the statement that fixes it."""

    retry = Retry.AFTER_FIX

    def __init__(self, findings: Sequence[str]) -> None:
        self.findings = list(findings)
        super().__init__(
            f"the source is not ready, {len(self.findings)} problem(s):\n"
            + "\n".join(f"  - {finding}" for finding in self.findings)
        )


# --- slot, publication, identity --------------------------------------------------------------


class SlotMissing(SourceError):
    """The slot of the pipeline is gone: changes since the watermark may be gone with it."""

    retry = Retry.AFTER_FIX

    def __init__(self, slot: str) -> None:
        self.slot = slot
        super().__init__(
            f"slot {slot!r} does not exist: changes after the watermark may be lost;"
            " run 'pgstream resnapshot'"
        )


class SlotLost(SourceError):
    """Postgres removed WAL that the slot still needed."""

    retry = Retry.AFTER_FIX

    def __init__(self, slot: str, confirmed_lsn: Lsn, reason: str) -> None:
        self.slot, self.confirmed_lsn, self.reason = slot, confirmed_lsn, reason
        super().__init__(
            f"slot {slot!r} is lost: Postgres removed WAL after {confirmed_lsn} ({reason});"
            " raise max_slot_wal_keep_size or idle_replication_slot_timeout,"
            " then run 'pgstream resnapshot'"
        )


class SlotAhead(SourceError):
    """The slot was confirmed past the watermark: it was recreated or moved by another program."""

    retry = Retry.AFTER_FIX

    def __init__(self, slot: str, confirmed_lsn: Lsn, watermark: Lsn) -> None:
        self.slot, self.confirmed_lsn, self.watermark = slot, confirmed_lsn, watermark
        super().__init__(
            f"slot {slot!r} was confirmed up to {confirmed_lsn}, past the watermark {watermark}: it"
            " was recreated or advanced, and the changes in between are lost;"
            " run 'pgstream resnapshot'"
        )


class SlotInUse(SourceError):
    """Another process reads the slot."""

    retry = Retry.LATER

    def __init__(self, slot: str, active_pid: int, timeout_seconds: float | None = None) -> None:
        self.slot, self.active_pid, self.timeout_seconds = slot, active_pid, timeout_seconds
        never = " (wal_sender_timeout is 0: the server never ends it)"
        super().__init__(
            f"slot {slot!r} is in use by server process {active_pid}: another stream of this"
            f" pipeline runs, or its client vanished{never if timeout_seconds == 0 else ''}; stop"
            f" it, or end the server process with select pg_terminate_backend({active_pid})"
        )


class StreamRunning(SourceError):
    """A stream of the pipeline has not ended, though it may have no connection now."""

    retry = Retry.AFTER_FIX

    def __init__(self, pipeline: str, pid: int, host: str, silent_seconds: float | None) -> None:
        """`silent_seconds`: after which it counts as ended, where its process cannot be seen."""
        self.pipeline, self.pid, self.host = pipeline, pid, host
        unseen = f"; it counts as ended {silent_seconds} s after its last heartbeat"
        super().__init__(
            f"process {pid} on {host!r} streams pipeline {pipeline!r}, or waits to connect again:"
            f" stop it first{'' if silent_seconds is None else unseen}"
        )


class SlotForeign(SourceError):
    """A slot of the configured name exists and is not one we could have made."""

    retry = Retry.AFTER_FIX

    def __init__(self, slot: str, fact: str) -> None:
        self.slot, self.fact = slot, fact
        super().__init__(
            f"slot {slot!r} is not ours: {fact}; correct PGSTREAM_LAKE if it is this pipeline's,"
            " choose another 'slot' in pgstream.yaml, or drop it, with the changes it keeps, by"
            f" select pg_drop_replication_slot('{slot}')"
        )


class ReplicationFailed(SourceError):
    """The server ended the stream for a reason we have no better name for."""

    retry = Retry.AFTER_FIX

    def __init__(self, slot: str, sqlstate: str, reason: str) -> None:
        self.slot, self.sqlstate, self.reason = slot, sqlstate, reason
        super().__init__(
            f"the server ended the stream of slot {slot!r}: {reason} (SQLSTATE {sqlstate});"
            " see the server's log, then run 'pgstream stream' again: nothing is lost; if the same"
            " ends it again, run 'pgstream resnapshot', which copies every table"
        )


class PartsUndecodable(SourceError):
    """The server failed while it may have sent parts of a large transaction before its commit."""

    retry = Retry.LATER

    def __init__(self, slot: str, reason: str) -> None:
        self.slot, self.reason = slot, reason
        super().__init__(
            f"the server ended the stream of slot {slot!r}: {reason} (SQLSTATE XX000); large"
            " transactions are now sent whole, in case it cannot decode one before its commit:"
            " nothing is lost"
        )


class PublicationMissing(SourceError):
    """The publication is gone: Postgres would end every stream that reads through it."""

    retry = Retry.AFTER_FIX

    def __init__(self, publication: str) -> None:
        self.publication = publication
        super().__init__(
            f"publication {publication!r} does not exist, or did not when the next change was made:"
            " to make it again does not help; run 'pgstream resnapshot', which makes it, continues"
            " from a new slot and copies every table"
        )


class PublicationIncomplete(SourceError):
    """The publication does not publish all that happens to its tables: changes are being lost."""

    retry = Retry.AFTER_FIX

    def __init__(self, publication: str, what: str, statement: str) -> None:
        self.publication, self.what, self.statement = publication, what, statement
        super().__init__(
            f"publication {publication!r} does not publish {what}: changes are missing in the log"
            f" until it does; run {statement} and start the stream, which copies every table again"
        )


class NoTables(SourceError):
    """No table of the database can be published, or none matches."""

    retry = Retry.AFTER_FIX

    def __init__(self, publication: str, patterns: Sequence[str]) -> None:
        self.publication, self.patterns = publication, list(patterns)
        super().__init__(
            f"publication {publication!r} would be empty: no ordinary or partitioned table matches"
            f" {', '.join(patterns)};"
            " check 'source.tables' in pgstream.yaml and the database's name"
        )


class OtherSystem(SourceError):
    """The server is not the one this pipeline was set up with."""

    retry = Retry.AFTER_FIX

    def __init__(self, what: str, expected: str, actual: str) -> None:
        self.what, self.expected, self.actual = what, expected, actual
        super().__init__(
            f"the source is another one: {what} is {actual}, this pipeline was set up with"
            f" {expected}; check PGSTREAM_DSN, or run 'pgstream resnapshot' to start from the new"
            " source"
        )


class TimelineForked(SourceError):
    """The server was promoted or restored from a point before what the log holds."""

    retry = Retry.AFTER_FIX

    def __init__(self, timeline: int, forked_at: Lsn, watermark: Lsn) -> None:
        self.timeline, self.forked_at, self.watermark = timeline, forked_at, watermark
        super().__init__(
            f"timeline {timeline} forked at {forked_at}, before {watermark}, up to which the log"
            " holds what was committed: this server never had some of it;"
            " run 'pgstream resnapshot'"
        )


class SourceBehind(SourceError):
    """The server's WAL ends before the watermark: it was put back to an earlier state."""

    retry = Retry.AFTER_FIX

    def __init__(self, wal_lsn: Lsn, watermark: Lsn) -> None:
        self.wal_lsn, self.watermark = wal_lsn, watermark
        super().__init__(
            f"the source's WAL ends at {wal_lsn}, before {watermark}, up to which the log holds"
            " what was committed: the server was put back to an earlier state; run 'pgstream"
            " resnapshot' (it is refused until then), or let PGSTREAM_DSN name the right server"
        )


class SourceRestored(SourceError):
    """
    What the source sends again is not what the log holds of it: it was put back and wrote on.

    `landed` and `sent` each say which transaction: commit LSN, xid and time.
    """

    retry = Retry.AFTER_FIX

    def __init__(self, landed: str, sent: str, watermark: Lsn) -> None:
        self.landed, self.sent, self.watermark = landed, sent, watermark
        super().__init__(
            f"the source was put back to an earlier state and has written on: up to {watermark} the"
            f" log ends with {landed}, and the source has {sent}; nothing of it was landed or"
            " confirmed; run 'pgstream resnapshot' (it is refused until then), or let PGSTREAM_DSN"
            " name the right server"
        )


class StandbyBehind(SourceError):
    """A standby answers, and has not replayed what the log holds: it may yet."""

    retry = Retry.LATER

    def __init__(self, server: str, replayed: Lsn, watermark: Lsn) -> None:
        self.server, self.replayed, self.watermark = server, replayed, watermark
        super().__init__(
            f"{server} is a standby that has replayed up to {replayed}, and the log holds"
            f" everything up to {watermark}; nothing is lost: it is tried again, until that server"
            " has caught up or PGSTREAM_DSN leads to the primary"
        )


class NotSetUp(SourceError):
    """The log knows no pipeline of this name, or `teardown` has dropped its slot."""

    retry = Retry.AFTER_FIX

    def __init__(self, pipeline: str, lake: str) -> None:
        self.pipeline, self.lake = pipeline, lake
        super().__init__(
            f"pipeline {pipeline!r} is not set up in the lake {lake!r}; run 'pgstream setup'"
        )


class SetUpOtherwise(ConfigError):
    """The pipeline file names another slot or publication than the pipeline was set up with."""

    def __init__(self, pipeline: str, what: str, expected: str, actual: str) -> None:
        self.pipeline, self.what, self.expected, self.actual = pipeline, what, expected, actual
        super().__init__(
            f"{what}: {actual!r}, and pipeline {pipeline!r} was set up with {expected!r}; put that"
            " back, or run 'pgstream teardown' and set up a pipeline of another name"
        )


# --- outbox -----------------------------------------------------------------------------------


class OutboxMissing(SourceError):
    """The source has no outbox."""

    retry = Retry.AFTER_FIX

    def __init__(self, server: str) -> None:
        self.server = server
        super().__init__(f"{server} has no outbox; run 'pgstream outbox install'")


class OutboxOutdated(SourceError):
    """The outbox on the source is of an older version than this pgstream needs."""

    retry = Retry.AFTER_FIX

    def __init__(self, server: str, version: int, needed: int) -> None:
        self.server, self.version, self.needed = server, version, needed
        super().__init__(
            f"the outbox of {server} has version {version}, this pgstream needs {needed};"
            " run 'pgstream outbox upgrade'"
        )


class OutboxNewer(SourceError):
    """The outbox on the source is of a newer version than this pgstream knows."""

    retry = Retry.AFTER_FIX

    def __init__(self, server: str, version: int, supported: int) -> None:
        self.server, self.version, self.supported = server, version, supported
        super().__init__(
            f"the outbox of {server} has version {version}, this pgstream supports {supported};"
            " upgrade pgstream"
        )


class OutboxOccupied(SourceError):
    """Schema pgstream of the source has tables of another product where the outbox has its own."""

    retry = Retry.AFTER_FIX

    def __init__(self, server: str, tables: Sequence[str]) -> None:
        self.server, self.tables = server, list(tables)
        super().__init__(
            f"{', '.join(tables)} of {server} are not of this outbox, such as those of"
            " postgres-stream; move its subscriptions as in"
            " docs/guides/coming-from-postgres-stream.md, then install"
        )


class SubscriptionsUnreadable(SourceError):
    """A file, or a database, has no subscriptions of postgres-stream that can be read."""

    retry = Retry.AFTER_FIX

    def __init__(self, origin: str, reason: str) -> None:
        self.origin, self.reason = origin, reason
        super().__init__(
            f"{origin} has no subscriptions of postgres-stream: {reason};"
            " give a JSON or CSV file of its table, or the connection string of its database"
        )


# --- copy -------------------------------------------------------------------------------------


class TableRewritten(SourceError):
    """The table was rewritten after the snapshot: a scan would see nothing of it."""

    retry = Retry.LATER

    def __init__(self, table: str) -> None:
        self.table = table
        super().__init__(
            f"table {table!r} was rewritten while it waited for its copy; it is copied from a new"
            " snapshot"
        )


def transactions_of(pids: Collection[int]) -> str:
    """Whose transactions: 0 stands for a prepared one, which has no server process."""
    processes = [f"server process {pid}" for pid in pids if pid]
    prepared = ["a prepared transaction, see pg_prepared_xacts"] if 0 in pids else []
    return ", ".join([*processes, *prepared])


class TableLocked(SourceError):
    """
    Another transaction holds the table exclusively, so it cannot be read.

    Shape:
        held_by: server processes; 0 stands for a prepared transaction.
    """

    retry = Retry.LATER

    def __init__(self, table: str, waited_seconds: float, held_by: Sequence[int]) -> None:
        self.table, self.waited_seconds, self.held_by = table, waited_seconds, list(held_by)
        holders = f" by {transactions_of(held_by)}" if held_by else ""
        super().__init__(
            f"table {table!r} was locked exclusively{holders} for more than"
            f" {waited_seconds:.0f} s; it can be read once the lock is released"
        )


class CopyFailed(SourceError):
    """A task of a copy ended with an error; nothing of that copy is in the log."""

    retry = Retry.LATER

    def __init__(self, table: str, reason: str) -> None:
        self.table, self.reason = table, reason
        super().__init__(f"the copy of table {table!r} failed: {reason}; nothing of it was kept")


class CopyRunning(SourceError):
    """Another process copies tables of this pipeline."""

    retry = Retry.LATER

    def __init__(self, pipeline: str, pid: int | None) -> None:
        self.pipeline, self.pid = pipeline, pid
        super().__init__(
            f"another process copies tables of pipeline {pipeline!r}; wait until it has ended"
            + (f"; if it hangs, run select pg_terminate_backend({pid})" if pid else "")
        )


class CopiesDue(SourceError):
    """A stream reached its end while tables wait for a copy; all that was committed is landed."""

    retry = Retry.LATER

    def __init__(self, reason: str) -> None:
        self.reason = reason
        super().__init__(
            f"all that was committed is landed, but not every table that is due for a copy is"
            f" copied: {reason}; run the stream again once that has ended"
        )


class SnapshotLost(SourceError):
    """The exported snapshot is gone: the session that exported it ended."""

    retry = Retry.LATER

    def __init__(self, snapshot: str) -> None:
        self.snapshot = snapshot
        super().__init__(
            f"snapshot {snapshot!r} is gone: the session that exported it ended; the tables left"
            " are copied from a new snapshot"
        )


class NoSuchTable(SourceError):
    """A named table is not in the publication."""

    retry = Retry.AFTER_FIX

    def __init__(self, table: str, publication: str) -> None:
        self.table, self.publication = table, publication
        super().__init__(
            f"table {table!r} is not in publication {publication!r}; 'pgstream status' lists those"
            " that are"
        )


# --- schema -----------------------------------------------------------------------------------


class RelationGone(SchemaError):
    """The catalog no longer knows a relation: it was dropped."""

    retry = Retry.LATER

    def __init__(self, relation_id: int) -> None:
        self.relation_id = relation_id
        super().__init__(
            f"the relation with oid {relation_id} was dropped; its changes stay in the log"
        )


class UnknownSchema(SchemaError):
    """A change names a schema version that schema_log does not hold."""

    def __init__(self, schema_id: int, relation: str) -> None:
        self.schema_id, self.relation = schema_id, relation
        super().__init__(
            f"table {relation!r}: the log has changes of schema version {schema_id}, which"
            " schema_log does not hold; restore the lake's 'schema_log' table from its backup"
        )


# --- lake -------------------------------------------------------------------------------------


class WriterReplaced(ChangelogError):
    """The log's watermark is not the one this writer left: another writer took over."""

    retry = Retry.AFTER_FIX

    def __init__(self, app: str, expected: Lsn | None, actual: Lsn | None) -> None:
        self.app, self.expected, self.actual = app, expected, actual
        ours, stored = ("none" if lsn is None else lsn for lsn in (expected, actual))
        super().__init__(
            f"{app!r}: the log's watermark is {stored}, this writer left it at {ours}: another"
            " writer took over, or the lake is another one or an earlier copy of it; this writer"
            " ends without writing: run one stream of a pipeline, on the newest lake"
        )


class CopyOvertaken(ChangelogError):
    """A copy of the same relation from a later (or the same) point is in the log already."""

    def __init__(self, table: str, consistent_point: Lsn, newest: Lsn) -> None:
        self.table, self.consistent_point, self.newest = table, consistent_point, newest
        super().__init__(
            f"table {table!r}: its copy from {consistent_point} is not needed, the log holds one"
            f" from {newest}"
        )


class CopySchemaMissing(ChangelogError):
    """The ledger has a copy of a table whose version schema_log does not hold."""

    retry = Retry.AFTER_FIX

    def __init__(self, table: str, consistent_point: Lsn) -> None:
        self.table, self.consistent_point = table, consistent_point
        super().__init__(
            f"table {table!r}: schema_log has no version for its copy at {consistent_point}, which"
            " the ledger lists: it is older than the ledger; restore both tables of the lake from"
            " the same backup"
        )


class LogDamaged(ChangelogError):
    """An entry of the Delta log that was confirmed cannot be read, or is missing."""

    retry = Retry.AFTER_FIX

    def __init__(self, path: str, fact: str) -> None:
        self.path, self.fact = path, fact
        super().__init__(f"the lake is damaged at {path!r}: {fact}; restore it from its backup")


class LakeTaken(ChangelogError):
    """The lake belongs to a pipeline of another name."""

    retry = Retry.AFTER_FIX

    def __init__(self, lake: str, owner: str, pipeline: str) -> None:
        self.lake, self.owner, self.pipeline = lake, owner, pipeline
        super().__init__(
            f"the lake {lake!r} is that of pipeline {owner!r}, not of {pipeline!r}: every pipeline"
            " has a lake of its own; check PGSTREAM_LAKE and 'pipeline' in pgstream.yaml"
        )


class FolderTaken(ConfigError):
    """The folder for a demo holds what no demo has made."""

    def __init__(self, folder: str) -> None:
        self.folder = folder
        super().__init__(
            f"the folder {folder!r} is neither empty nor a demo's own, and nothing in it was"
            " touched: name another one with --folder"
        )


class StateTaken(ConfigError):
    """The state folder belongs to a pipeline of the same name with another lake."""

    def __init__(self, file: str, pipeline: str, owner: str, lake: str) -> None:
        self.file, self.pipeline, self.owner, self.lake = file, pipeline, owner, lake
        super().__init__(
            f"the state folder is that of a pipeline {pipeline!r} with the lake {owner!r}, not"
            f" {lake!r}: set PGSTREAM_STATE to a folder of its own; if the lake was moved, remove"
            f" {file!r}"
        )


class TableMissing(ChangelogError):
    """A table of the lake is not there: no `setup` has made it."""

    retry = Retry.AFTER_FIX

    def __init__(self, table: str) -> None:
        self.table = table
        super().__init__(f"the lake has no table at {table!r}; run 'pgstream setup'")


class NotInLog(ChangelogError):
    """The log cannot give the rows of a table."""

    retry = Retry.AFTER_FIX

    def __init__(self, table: str) -> None:
        self.table = table
        super().__init__(
            f"the log has no complete copy of a table {table!r}; 'pgstream status' lists the"
            " tables, and those that wait for a copy"
        )


class NoSchemaHistory(ChangelogError):
    """The log of schemas has no table of a name; `renamed_to` is what it is called by now."""

    retry = Retry.AFTER_FIX

    def __init__(self, table: str, renamed_to: str | None) -> None:
        self.table, self.renamed_to = table, renamed_to
        remedy = "'pgstream status' lists the tables that are captured"
        if renamed_to is not None:
            remedy = f"it was renamed: 'pgstream schema history {renamed_to}' has its versions, too"
        super().__init__(f"schema_log has no version of a table {table!r}; {remedy}")


class BeforeHistory(ChangelogError):
    """A position before the first version of a table."""

    retry = Retry.AFTER_FIX

    def __init__(self, table: str, position: Lsn, first: Lsn) -> None:
        self.table, self.position, self.first = table, position, first
        super().__init__(
            f"table {table!r}: schema_log has no version at {position}, the first one of this epoch"
            f" begins at {first}; give that position or a later one, or a number that 'pgstream"
            f" schema history' prints"
        )


class NoSuchVersion(ConfigError):
    """What was written is neither a position nor the number of a version of a table."""

    def __init__(self, table: str, written: str, count: int) -> None:
        self.table, self.written, self.count = table, written, count
        super().__init__(
            f"table {table!r}: {written!r} is no version; give a number from 1 to {count:,}, as"
            " 'pgstream schema history' prints them, or a position such as '16/B374D848'"
        )


class NoTypedTables(ConfigError):
    """The pipeline file asks for no typed tables."""

    def __init__(self, pipeline: str) -> None:
        self.pipeline = pipeline
        super().__init__(
            f"pipeline {pipeline!r} has no typed tables; add a section 'tables:' to its file"
        )


class NoTypedTable(ChangelogError):
    """A table of the source has no typed table, or none yet."""

    retry = Retry.AFTER_FIX

    def __init__(self, table: str, existing: Sequence[str]) -> None:
        self.table, self.existing = table, list(existing)
        super().__init__(
            f"there is no typed table of {table!r}; there are: {', '.join(existing) or 'none'};"
            " 'pgstream tables merge' makes those of tables that have a copy in the log"
        )


class NotClustered(ChangelogError):
    """A typed table cannot be clustered by the columns that the pipeline file names."""

    retry = Retry.AFTER_FIX

    def __init__(self, table: str, columns: Sequence[str], reason: str) -> None:
        self.table, self.columns, self.reason = table, list(columns), reason
        super().__init__(
            f"the typed table of {table!r} cannot be clustered by {', '.join(columns)}: {reason};"
            f" correct 'cluster' of {table} under 'tables.types' in the pipeline file, then"
            " 'pgstream optimize'"
        )


class TypedTableHeld(ChangelogError):
    """A typed table cannot be written again: changes of its columns wait for an approval."""

    retry = Retry.AFTER_FIX

    def __init__(self, table: str) -> None:
        self.table = table
        super().__init__(
            f"changes of the columns of {table!r} wait for an approval, so its typed table is not"
            f" written again; 'pgstream tables approve {table}', then 'pgstream tables merge'"
        )


class NothingHeld(ChangelogError):
    """An approval is for a typed table that does not wait for one."""

    retry = Retry.AFTER_FIX

    def __init__(self, table: str, waiting: Sequence[str]) -> None:
        self.table, self.waiting = table, list(waiting)
        super().__init__(
            f"no change of the columns of {table!r} waits for an approval; waiting:"
            f" {', '.join(waiting) or 'none'}; 'pgstream tables pending' prints them"
        )


class ApprovalOutdated(ChangelogError):
    """A table has changed further since the versions that are to be approved."""

    retry = Retry.AFTER_FIX

    def __init__(self, table: str, versions: str, waiting: str) -> None:
        self.table, self.versions, self.waiting = table, versions, waiting
        super().__init__(
            f"versions {versions!r} of {table!r} are not those that wait, {waiting!r}; nothing is"
            " approved; 'pgstream tables pending' prints the changes"
        )


class TableFeaturesKept(ChangelogError):
    """A typed table on an object store has features of Delta that it shall not have."""

    retry = Retry.AFTER_FIX

    def __init__(self, table: str, features: Sequence[str]) -> None:
        self.table, self.features = table, list(features)
        super().__init__(
            f"typed table {table!r} was made with {' and '.join(features)}, which no commit takes"
            " back; remove its folder, then run 'pgstream tables merge'"
        )


class TypedNameTaken(ConfigError):
    """Two tables of the source would have one typed table."""

    def __init__(self, name: str, tables: Sequence[str]) -> None:
        self.name, self.tables = name, list(tables)
        super().__init__(
            f"typed table {name!r} would have the rows of {' and '.join(tables)}; let tables.name"
            " distinguish them, or exclude one"
        )


class HistoryNeedsKey(ConfigError):
    """A history is asked for of a table whose rows cannot be distinguished."""

    def __init__(self, table: str) -> None:
        self.table = table
        super().__init__(
            f"table {table!r} has no key, so its rows have no history; add a primary key, or run"
            f" 'alter table {table} replica identity using index ...', or take it out of"
            " tables.history (tables.types)"
        )


class HistoryNameTaken(ConfigError):
    """A history would have the name of a typed table."""

    def __init__(self, name: str, table: str) -> None:
        self.name, self.table = name, table
        super().__init__(
            f"the history of {table} would be named {name!r}, as a typed table is; choose another"
            " tables.history_name, or exclude one"
        )


class BeforeFirstCopy(ChangelogError):
    """A table was asked for as it was before its first copy."""

    retry = Retry.AFTER_FIX

    def __init__(self, table: str, asked: str, first: Lsn, copied_at: str) -> None:
        self.table, self.asked, self.first, self.copied_at = table, asked, first, copied_at
        super().__init__(
            f"table {table!r}: the log has no rows of it at {asked}, they begin with its first copy"
            f" at {first}, made at {copied_at}; give that position or time, or a later one"
        )


class AsOfGap(ChangelogError):
    """A table was asked for as it was while changes are missing in the log."""

    retry = Retry.AFTER_FIX

    def __init__(self, table: str, asked: str, gap: Lsn, copy: Lsn | None) -> None:
        self.table, self.asked, self.gap, self.copy = table, asked, gap, copy
        remedy = f"give an earlier position, or {copy} or a later one"
        if copy is None:
            remedy = "give an earlier position"
        super().__init__(
            f"table {table!r}: its rows at {asked} are not known, changes from {gap} on are missing"
            f" in the log; {remedy}"
        )


class NotYetInLog(ChangelogError):
    """A table was asked for as it is at a position that the log has not reached."""

    retry = Retry.LATER

    def __init__(self, table: str, asked: Lsn, watermark: Lsn) -> None:
        self.table, self.asked, self.watermark = table, asked, watermark
        super().__init__(
            f"table {table!r}: the log is at {watermark} and has not reached {asked}; wait for"
            " 'pgstream stream', or give an earlier position"
        )


class NoSuchMoment(ConfigError):
    """What was written is neither a position nor a time with a zone."""

    def __init__(self, written: str) -> None:
        self.written = written
        super().__init__(
            f"{written!r} is neither a position such as 16/B374D848 nor a time with a zone such as"
            " 2026-01-31T12:00:00Z"
        )


class MergeOvertaken(ChangelogError):
    """Another process has merged changes into the typed tables meanwhile; nothing is doubled."""

    retry = Retry.LATER

    def __init__(self, table: str) -> None:
        self.table = table
        super().__init__(
            f"another process merges changes into {table!r}; run one at a time: what is left is"
            " merged next time"
        )


class MetastoreUnavailable(ChangelogError):
    """The metastore gives no answer; the tables are merged."""

    retry = Retry.LATER

    def __init__(self, uri: str, reason: str) -> None:
        self.uri, self.reason = uri, reason
        super().__init__(
            f"cannot register typed tables in the metastore {uri}: {reason}; they are merged, and"
            " the next merge tries again"
        )


class MetastoreRefused(ChangelogError):
    """The metastore answers that it does not register a typed table, which is merged."""

    retry = Retry.LATER

    def __init__(self, name: str, table: str, reason: str) -> None:
        self.name, self.table, self.reason = name, table, reason
        super().__init__(
            f"typed table {table!r} is merged, but the metastore refuses to register it as"
            f" {name!r}: {reason}; the next merge tries again"
        )


class MetastoreNameTaken(ChangelogError):
    """A typed table cannot have its name in the metastore: another table has it."""

    retry = Retry.AFTER_FIX

    def __init__(self, name: str, table: str, holder: str) -> None:
        self.name, self.table, self.holder = name, table, holder
        super().__init__(
            f"typed table {table!r} is merged, but not registered as {name!r} in the metastore,"
            f" which is the name of {holder}; give it another one under tables.metastore.names, or"
            " drop that table there"
        )


class TypedRebuildDiffers(ChangelogError):
    """A typed table that was written again differs from the fold of the log; it stays as it was."""

    retry = Retry.LATER

    def __init__(self, table: str, expected: int, written: int) -> None:
        self.table, self.expected, self.written = table, expected, written
        super().__init__(
            f"{table!r} was written again with {written:,} rows, which are not the {expected:,}"
            " rows of the change log; the table stays as it was: check the lake's disk, then run"
            " 'pgstream tables merge --rebuild' again"
        )


class CommitFailed(ChangelogError):
    """A commit to the lake failed on the way; whether it is there shows when the log is read."""

    retry = Retry.LATER

    def __init__(self, table: str, reason: str) -> None:
        self.table, self.reason = table, reason
        super().__init__(
            f"cannot commit to {table!r}: {reason}; nothing is lost, and the stream tries again by"
            " itself; if this stays, check the lake's disk, its store and the rights there"
        )


class LakeFull(ChangelogError):
    """The lake's file system has no room."""

    retry = Retry.LATER

    def __init__(self, folder: str) -> None:
        self.folder = folder
        super().__init__(
            f"the disk of {folder!r} is full; nothing is lost, Postgres keeps what is not landed:"
            " make room; a stream then continues by itself, a command has to be repeated"
        )


class LakeRefused(ChangelogError):
    """The lake's file system is read-only, or its folder is not ours to write."""

    retry = Retry.LATER

    def __init__(self, folder: str, reason: str) -> None:
        self.folder, self.reason = folder, reason
        super().__init__(
            f"cannot write to {folder!r}: {reason}; nothing is lost, Postgres keeps what is not"
            " landed: make it writable; a stream then continues by itself, a command has to be"
            " repeated"
        )


class LakeAway(ChangelogError):
    """The lake that the stream has written to is not there: unmounted, or moved."""

    retry = Retry.LATER

    def __init__(self, folder: str) -> None:
        self.folder = folder
        super().__init__(
            f"the lake is not at {folder!r} any more; nothing is lost, Postgres keeps what is not"
            " landed: mount it again or put it back, or correct PGSTREAM_LAKE; do not run"
            " 'pgstream setup', which is for a new lake"
        )


class FilesAway(ChangelogError):
    """Files that the log lists are not there."""

    retry = Retry.LATER

    def __init__(self, files: Sequence[str]) -> None:
        self.files = tuple(files)
        super().__init__(
            f"some of {len(files)} files are missing ({files[0]!r}, ...): mount the lake, or put"
            " back what was removed; a process continues by itself, a command has to be repeated"
        )


class LogGone(ChangelogError):
    """A reader stands where the log keeps no entries or files any more."""

    retry = Retry.LATER

    def __init__(self, table: str, version: int) -> None:
        self.table, self.version = table, version
        super().__init__(
            f"{table!r} no longer has version {version}: log cleanup or VACUUM took it;"
            " the reader replays from its position instead"
        )


class JarsMissing(ChangelogError):
    """A jar could not be fetched, or has another checksum than the lock says."""

    retry = Retry.LATER

    def __init__(self, jar: str, reason: str) -> None:
        self.jar, self.reason = jar, reason
        super().__init__(
            f"cannot fetch {jar!r}: {reason}; set PGSTREAM_MAVEN_URL to a mirror that has it"
        )


class JavaMissing(ChangelogError):
    """No Java that fits was found."""

    retry = Retry.AFTER_FIX

    def __init__(self, minimum: int, below: int | None, candidates: str) -> None:
        self.minimum, self.below, self.candidates = minimum, below, candidates
        required = f"{minimum} or later" if below is None else f"{minimum} to {below - 1}"
        super().__init__(
            f"no Java {required} ({candidates}); set JAVA_HOME,"
            " or install 'pgstream-dagster[embedded]'"
        )


class JvmEnded(ChangelogError):
    """The JVM of this process is gone: killed, or out of memory."""

    retry = Retry.LATER

    def __init__(self, exit_code: int) -> None:
        self.exit_code = exit_code
        super().__init__(
            f"the JVM of this process ended (exit code {exit_code}; -9: killed, as for lack of"
            " memory); run the command again, it continues from what is in the log"
        )


class NotReconciled(ChangelogError):
    """The source and the fold of the log differ."""

    def __init__(self, tables: Sequence[str]) -> None:
        self.tables = list(tables)
        super().__init__(
            f"source and log differ in {', '.join(self.tables)}; keep the lake for the report, then"
            f" run 'pgstream snapshot {' '.join(self.tables)}'"
        )


class TypedNotReconciled(ChangelogError):
    """Source, log and typed tables are not known to be equal."""

    def __init__(self, tables: Sequence[str]) -> None:
        self.tables = list(tables)
        which = f"{', '.join(self.tables)} differ, or were not compared"
        if not self.tables:
            which = "there are none, so nothing was compared"
        super().__init__(
            f"typed tables: {which}; 'pgstream reconcile --tables' says how, and what repairs them"
        )


class WatermarkBehind(ChangelogError):
    """The log did not reach a position in time: no stream runs, or it is far behind."""

    retry = Retry.LATER

    def __init__(self, target: Lsn, watermark: Lsn, waited_seconds: float) -> None:
        self.target, self.watermark, self.waited_seconds = target, watermark, waited_seconds
        super().__init__(
            f"the log is at {watermark}, not yet at {target}, and has not moved for"
            f" {waited_seconds:.0f} s; is 'pgstream stream' running?"
        )


# --- search -----------------------------------------------------------------------------------


class SearchUnreachable(SearchError):
    """The search cluster gives no answer, or says that it is too busy; waiting helps."""

    retry = Retry.LATER

    def __init__(self, url: str, reason: str) -> None:
        self.url, self.reason = url, reason
        super().__init__(
            f"no answer from the search cluster at {url}: {reason}; check it and"
            " PGSTREAM_SEARCH_URL (PGSTREAM_SEARCH_CA for TLS)"
        )


class SearchRefused(SearchError):
    """The search cluster refused the credentials, or what they asked for."""

    retry = Retry.AFTER_FIX

    def __init__(self, url: str, reason: str) -> None:
        self.url, self.reason = url, reason
        super().__init__(
            f"the search cluster at {url} refused a request: {reason}; check"
            " PGSTREAM_SEARCH_USER and PGSTREAM_SEARCH_PASSWORD, or PGSTREAM_SEARCH_API_KEY"
        )


class SearchFailed(SearchError):
    """The search cluster gave an answer that no request of pgstream should get."""

    retry = Retry.AFTER_FIX

    def __init__(self, url: str, status: int, reason: str) -> None:
        self.url, self.status, self.reason = url, status, reason
        super().__init__(f"the search cluster at {url} answered {status}: {reason}")


class AliasTaken(SearchError):
    """An index's alias is something else's name already."""

    retry = Retry.AFTER_FIX

    def __init__(self, alias: str, indices: str) -> None:
        self.alias, self.indices = alias, indices
        super().__init__(
            f"alias {alias!r} is the name, or an alias, of {indices}, which pgstream has not made;"
            " remove it there, or choose another alias in pgstream.yaml"
        )


class PromotionOvertaken(SearchError):
    """An alias was moved by another while this process was about to."""

    retry = Retry.AFTER_FIX

    def __init__(self, alias: str, index: str, reason: str) -> None:
        self.alias, self.index, self.reason = alias, index, reason
        super().__init__(
            f"alias {alias!r} was moved by another before it could be moved to {index}: {reason};"
            f" see 'pgstream index status', then 'pgstream reindex {alias}'"
        )


class GenerationHeld(SearchError):
    """Another process writes to this generation."""

    retry = Retry.LATER

    def __init__(self, index: str, holder: str) -> None:
        self.index, self.holder = index, holder
        super().__init__(
            f"{index} is written by another process ({holder}); stop that one, or wait: it counts"
            " as dead after 20 s of silence"
        )


class LeaseLost(SearchError):
    """Another process has become the writer of this generation; this one has stopped writing."""

    retry = Retry.LATER

    def __init__(self, index: str) -> None:
        self.index = index
        super().__init__(f"{index} was taken over by another process, or retired")


class IndexRefuses(SearchError):
    """An index takes no document at all: the index is at fault, not they."""

    retry = Retry.AFTER_FIX

    def __init__(self, index: str, documents: int, kind: str, reason: str) -> None:
        self.index, self.documents, self.kind, self.reason = index, documents, kind, reason
        super().__init__(
            f"{index} refused {documents:,} documents, first with {kind}: {reason}; fix the index"
            " or the mapping in pgstream.yaml, then start again or 'pgstream reindex'"
        )


class IndexGone(SearchError):
    """The index of a generation was deleted by another program."""

    retry = Retry.AFTER_FIX

    def __init__(self, index: str) -> None:
        self.index = index
        super().__init__(f"{index} does not exist any more; run 'pgstream reindex'")


class NoSuchAlias(SearchError):
    """The pipeline file has no such index."""

    retry = Retry.AFTER_FIX

    def __init__(self, alias: str, aliases: Sequence[str]) -> None:
        self.alias, self.aliases = alias, list(aliases)
        listed = ", ".join(self.aliases) or "none"
        super().__init__(f"pgstream.yaml has no index {alias!r} under 'search'; it has {listed}")


class NotIndexable(SearchError):
    """An index of the pipeline file does not fit its table."""

    retry = Retry.AFTER_FIX

    def __init__(self, alias: str, table: str, reason: str) -> None:
        self.alias, self.table, self.reason = alias, table, reason
        super().__init__(f"index {alias!r} of table {table}: {reason}")


class NotCopied(SearchError):
    """The table of an index has no copy in the log yet, or a gap since its copy."""

    retry = Retry.LATER

    def __init__(self, alias: str, table: str) -> None:
        self.alias, self.table = alias, table
        super().__init__(
            f"index {alias!r}: table {table} has no whole copy in the log yet; the stream copies"
            " it by itself, see 'pgstream status'"
        )


class BuildFailed(SearchError):
    """Spark could not fill a new generation, or not compare it; the alias stays where it was."""

    retry = Retry.LATER

    def __init__(self, index: str, reason: str) -> None:
        self.index, self.reason = index, reason
        super().__init__(f"Spark's job on {index} failed, its alias stays where it is: {reason}")


class IndexDiffers(SearchError):
    """A new generation is not what the log says; the alias stays where it was."""

    def __init__(self, index: str, differences: int, sample: Sequence[str]) -> None:
        self.index, self.differences, self.sample = index, differences, list(sample)
        super().__init__(
            f"{index} differs from the log in {differences:,} document(s), such as"
            f" {', '.join(self.sample)}; the alias was not moved, and the index is kept"
        )


class NothingKept(SearchError):
    """There is no former generation to go back to."""

    retry = Retry.AFTER_FIX

    def __init__(self, alias: str, reason: str) -> None:
        self.alias, self.reason = alias, reason
        super().__init__(
            f"alias {alias!r} cannot go back: {reason}; 'pgstream reindex {alias}' builds again"
        )


# --- embedded ---------------------------------------------------------------------------------


class ServerNotStarted(PgstreamError):
    """An embedded server ended while it started, or was not ready in time."""

    retry = Retry.AFTER_FIX

    def __init__(self, server: str, log: str) -> None:
        self.server, self.log = server, log
        super().__init__(f"embedded {server} did not start; the end of its log:\n{log}")


class ExtraMissing(PgstreamError):
    """A package that only some commands need is not installed."""

    retry = Retry.AFTER_FIX

    def __init__(self, package: str, extra: str) -> None:
        self.package, self.extra = package, extra
        super().__init__(
            f"package {package!r} is not installed; run pip install 'pgstream-dagster[{extra}]'"
        )


class LaunchFailed(PgstreamError):
    """Dagster did not take a run."""

    retry = Retry.AFTER_FIX

    def __init__(self, job: str, reason: str) -> None:
        self.job, self.reason = job, reason
        super().__init__(
            f"Dagster did not launch job {job!r}: {reason}; run it in the folder of workspace.yaml,"
            f" or try 'dagster job launch -j {job}'"
        )


class ProcessEnded(PgstreamError):
    """A process that a demo started failed, or ended before it should have."""

    retry = Retry.AFTER_FIX

    def __init__(self, process: str, log: str) -> None:
        self.process, self.log = process, log
        super().__init__(f"{process!r} ended; the end of its log:\n{log}")


# --- queries ----------------------------------------------------------------------------------


class SqlNeedsFolder(ConfigError):
    """The lake of a query is on an object store."""

    def __init__(self, lake: str) -> None:
        self.lake = lake
        super().__init__(
            f"lake {lake!r} is not a folder, and 'pgstream sql' reads folders only; query its"
            " tables with a reader of docs/reference/readers.md"
        )


class SqlInvalid(ConfigError):
    """The query engine refuses a statement, or it fails."""

    def __init__(self, message: str) -> None:
        self.message = message
        super().__init__(f"the query is not possible: {message}")


class SqlNotAllowed(ConfigError):
    """A statement would do something else than read the lake's tables."""

    def __init__(self, what: str) -> None:
        self.what = what
        super().__init__(
            f"a query may only read tables of the lake: {what}; write one SELECT, and run"
            " 'pgstream sql' without one to list the tables"
        )


class SqlUnknownName(ConfigError):
    """A query names a table that is not in the lake."""

    def __init__(self, name: str, existing: Sequence[str]) -> None:
        self.name, self.existing = name, list(existing)
        super().__init__(
            f"there is no table {name!r} in the lake; there are: {', '.join(existing)}"
        )


# --- sinks -------------------------------------------------------------------------------------


class NoSuchSink(SinkError):
    """The pipeline file has no such sink."""

    retry = Retry.AFTER_FIX

    def __init__(self, sink: str, sinks: Sequence[str]) -> None:
        self.sink, self.sinks = sink, list(sinks)
        listed = ", ".join(self.sinks) or "none"
        super().__init__(f"pgstream.yaml has no sink {sink!r} under 'sinks'; it has {listed}")


class NoSuchSubscription(SinkError):
    """A webhook sink has no such subscription, or none at all, that has started."""

    retry = Retry.AFTER_FIX

    def __init__(self, sink: str, subscriptions: Sequence[str]) -> None:
        self.sink, self.subscriptions = sink, list(subscriptions)
        name, _, subscription = sink.partition(".")
        which = f"no subscription {subscription!r}" if subscription else "no subscription"
        listed = ", ".join(self.subscriptions) or "none"
        super().__init__(f"sink {name!r} has {which} that has started; those that have: {listed}")


class InvalidPosition(ConfigError):
    """A start or an end is no position of the log."""

    def __init__(self, text: str) -> None:
        self.text = text
        super().__init__(
            f"{text!r} is no position of the log: want 'start', 'now', an LSN such as 0/1A2B3C8, a"
            " time such as 2026-03-01T12:00:00+00:00, or the id of an event of the outbox"
        )


class NoSuchEvent(ConfigError):
    """The log has no event of the outbox with an id."""

    def __init__(self, event_id: str) -> None:
        self.event_id = event_id
        super().__init__(
            f"the log has no event {event_id}: it was never committed, is of another table than"
            " pgstream.events, or has not landed yet ('pgstream status' shows how far the log is)"
        )


class InvalidPattern(ConfigError):
    """A name given for tables is no pattern."""

    def __init__(self, problem: str) -> None:
        self.problem = problem
        super().__init__(problem)


class ReplayRefused(SinkError):
    """Former changes cannot be delivered once more, or late, to a target that keeps rows."""

    retry = Retry.AFTER_FIX

    def __init__(self, sink: str) -> None:
        self.sink = sink
        super().__init__(
            f"sink {sink!r} writes rows, and earlier changes would set them to earlier values;"
            f" 'pgstream sink reset {sink} --from start' writes all of them again, up to now"
        )


class SinkPaused(SinkError):
    """A person has paused a sink or a subscription, so it delivers nothing that is asked for."""

    retry = Retry.AFTER_FIX

    def __init__(self, sink: str, paused: str) -> None:
        """`paused` is the sink itself, or the whole sink of which it is a subscription."""
        self.sink, self.paused = sink, paused
        why = "" if paused == sink else f", as all of {paused!r} is"
        super().__init__(
            f"sink {sink!r} is paused and delivers nothing{why}; run"
            f" 'pgstream sink resume {paused}' first"
        )


class SinkFailed(SinkError):
    """A sink ended by an error that pgstream has no name for; the others continue."""

    retry = Retry.NEVER

    def __init__(self, sink: str, kind: str, place: str) -> None:
        self.sink, self.kind, self.place = sink, kind, place
        super().__init__(
            f"sink {sink!r} ended by an error of pgstream, {kind} in {place}; its changes wait in"
            " the log. Please report it with the log of the process, and start 'pgstream sink run'"
            " again"
        )


class SinkUnreachable(SinkError):
    """A sink's target does not answer, or not now; changes wait in the log."""

    retry = Retry.LATER

    def __init__(self, sink: str, reason: str) -> None:
        self.sink, self.reason = sink, reason
        super().__init__(f"sink {sink!r} cannot deliver now: {reason}; its changes wait in the log")


class SinkRefused(SinkError):
    """A sink's target refuses us for a reason that a person must remove."""

    retry = Retry.AFTER_FIX

    def __init__(self, sink: str, reason: str, remedy: str) -> None:
        self.sink, self.reason, self.remedy = sink, reason, remedy
        super().__init__(f"sink {sink!r}: {reason}; {remedy}. Its changes wait in the log")


class SinkHeld(SinkError):
    """Another process delivers for the sink."""

    retry = Retry.LATER

    def __init__(self, sink: str, holder: str) -> None:
        self.sink, self.holder = sink, holder
        super().__init__(f"process {holder} delivers for sink {sink!r}; this process waits for it")


class SinkLost(SinkError):
    """Another process has taken over the sink, or a person has reset it."""

    retry = Retry.LATER

    def __init__(self, sink: str) -> None:
        self.sink = sink
        super().__init__(f"sink {sink!r} was taken over by another process, or reset")


class OtherLog(SinkError):
    """
    What a sink has delivered came from another change log than the one it reads.

    It is in log `former` at `delivered`; `log`, `watermark` and `lake` are of the one it reads.
    """

    retry = Retry.AFTER_FIX

    def __init__(
        self, sink: str, former: str, delivered: Lsn, log: str, watermark: Lsn, lake: str
    ) -> None:
        self.sink, self.former, self.delivered = sink, former, delivered
        self.log, self.watermark, self.lake = log, watermark, lake
        name = sink.partition(".")[0]
        super().__init__(
            f"sink {sink!r} has delivered change log {former} up to {delivered}, and lake {lake!r}"
            f" has another one, {log}, which reaches {watermark}; nothing is delivered. If the lake"
            f" was made again, run 'pgstream sink reset {name} --from start'; else let"
            " PGSTREAM_LAKE name the former one"
        )


class ProgressMissing(SinkError):
    """
    A target that keeps the progress has none of a sink that has delivered: it was made again.

    `delivered` is how far the sink was.
    """

    retry = Retry.AFTER_FIX

    def __init__(self, sink: str, delivered: Lsn) -> None:
        self.sink, self.delivered = sink, delivered
        name = sink.partition(".")[0]
        super().__init__(
            f"sink {sink!r} has delivered up to {delivered}, and its target has no progress of it:"
            " the target was made again, or is another one; nothing is delivered. Run"
            f" 'pgstream sink reset {name} --from start', which begins with all rows; topics that"
            f" have what was delivered continue with '--from {delivered}'"
        )


class LogBehind(SinkError):
    """
    What a sink has delivered is not in the change log: the lake was restored to an earlier state.

    It is at `delivered` of epoch `delivered_epoch`. The log is in `epoch` and has no changes
    between `after` and `until`; `until` is `None` if `after` is where it ends.
    """

    retry = Retry.AFTER_FIX

    def __init__(
        self,
        sink: str,
        delivered: tuple[int, Lsn],
        epoch: int,
        after: Lsn,
        until: Lsn | None = None,
    ) -> None:
        self.sink, (self.delivered_epoch, self.delivered) = sink, delivered
        self.epoch, self.after, self.until = epoch, after, until
        name = sink.partition(".")[0]
        reach = (
            f"reaches {after} of epoch {epoch}"
            if until is None
            else f"lacks what was committed between {after} and {until}"
        )
        super().__init__(
            f"sink {sink!r} has delivered epoch {self.delivered_epoch} up to {self.delivered}, and"
            f" the change log {reach}, as after a restore of the lake from an earlier backup;"
            " nothing is delivered. Where the stream reports SlotAhead, run 'pgstream resnapshot';"
            f" then run 'pgstream sink reset {name} --from start'"
        )


class TargetSchemaDiffers(SinkError):
    """A table of a sink's target cannot take what the log has of it."""

    retry = Retry.AFTER_FIX

    def __init__(self, sink: str, table: str, reason: str, statement: str) -> None:
        self.sink, self.table, self.reason, self.statement = sink, table, reason, statement
        super().__init__(
            f"sink {sink!r} cannot write to table {table!r}: {reason}; its changes wait in the log."
            f" Run in the target, adapted where needed: {statement}"
        )


class NotComparable(SinkError):
    """A sink's target cannot be compared with the log."""

    retry = Retry.AFTER_FIX

    def __init__(self, sink: str, reason: str, remedy: str) -> None:
        self.sink, self.reason, self.remedy = sink, reason, remedy
        super().__init__(f"sink {sink!r} cannot be compared with the log: {reason}; {remedy}")


class TooManyRefused(SinkError):
    """A target refused many changes in a row: something is wrong with all of them."""

    retry = Retry.AFTER_FIX

    def __init__(self, sink: str, count: int) -> None:
        self.sink, self.count = sink, count
        super().__init__(
            f"the target of sink {sink!r} refused {count:,} changes in a row, and the sink waits;"
            f" 'pgstream sink letters {sink}' shows why. Remove the cause, then run 'pgstream sink"
            f" redrive {sink}': it delivers them again, and the sink continues"
        )


class TooManyLetters(SinkError):
    """A sink has as many open dead letters as it may have, and needs another one."""

    retry = Retry.AFTER_FIX

    def __init__(self, sink: str, count: int) -> None:
        self.sink, self.count = sink, count
        super().__init__(
            f"sink {sink!r} has {count:,} open dead letters and keeps no more, so it waits;"
            f" 'pgstream sink letters {sink}' shows why. Remove the cause, then run 'pgstream sink"
            f" redrive {sink}': it delivers them again, and the sink continues"
        )


class NoSuchModifier(SinkError):
    """The pipeline file has no such modifier."""

    retry = Retry.AFTER_FIX

    def __init__(self, modifier: str, modifiers: Sequence[str]) -> None:
        self.modifier, self.modifiers = modifier, list(modifiers)
        listed = ", ".join(self.modifiers) or "none"
        super().__init__(
            f"pgstream.yaml has no modifier {modifier!r} under 'modifiers'; it has {listed}"
        )


class RulesRefused(SinkError):
    """The rules of a modifier do not fit a table; nothing of the table is let through."""

    retry = Retry.AFTER_FIX

    def __init__(self, modifier: str, table: str, problems: Sequence[str]) -> None:
        self.modifier, self.table, self.problems = modifier, table, list(problems)
        listed = "; ".join(self.problems)
        super().__init__(
            f"modifier {modifier!r} does not fit table {table!r}: {listed}; correct its rules in"
            " pgstream.yaml, 'pgstream rules check' shows all of them"
        )


class TransformFailed(SinkError):
    """A value could not be transformed; the value is in no message."""

    retry = Retry.AFTER_FIX

    def __init__(self, modifier: str, column: str, transformer: str, reason: str) -> None:
        self.modifier, self.column, self.transformer = modifier, column, transformer
        self.reason = reason
        super().__init__(
            f"modifier {modifier!r}: transformer {transformer!r} fails on {column!r}: {reason};"
            " correct the rule, or say with 'on_error' what happens to such values"
        )


class TransformerAway(SinkError):
    """The server that a transformer asks does not answer."""

    retry = Retry.LATER

    def __init__(self, modifier: str, transformer: str, reason: str) -> None:
        self.modifier, self.transformer, self.reason = modifier, transformer, reason
        super().__init__(
            f"modifier {modifier!r}: the server of transformer {transformer!r} gives {reason};"
            " changes wait until it answers"
        )


class NewColumn(SinkError):
    """A table has a column that no rule names, and the policy for such columns is to stop."""

    retry = Retry.AFTER_FIX

    def __init__(self, modifier: str, table: str, columns: Sequence[str]) -> None:
        self.modifier, self.table, self.columns = modifier, table, list(columns)
        listed = ", ".join(map(repr, self.columns))
        super().__init__(
            f"modifier {modifier!r} has no rule for {listed} of table {table!r}: nothing of the"
            " table is let through; add a rule for each, '{}' to let it pass, or change"
            " 'new_columns'"
        )


class SinkPackageFailed(SinkError):
    """The sink of another package raised an error of its own, or broke the contract of sinks."""

    retry = Retry.AFTER_FIX

    def __init__(self, sink: str, package: str, reason: str) -> None:
        self.sink, self.package, self.reason = sink, package, reason
        super().__init__(
            f"sink {sink!r}: package {package} failed: {reason}; its changes wait in the log."
            " Correct the package, or what its error is about"
        )


class SubscriptionDisabled(SinkRefused):
    """A webhook's subscriber failed for too long, or wants no more calls."""

    def __init__(self, subscription: str, reason: str) -> None:
        super().__init__(
            subscription,
            f"the subscription is disabled: {reason}",
            "correct the subscriber, then subscribe again (POST /webhooks/subscribe), or start the"
            " sink again if the subscription is in pgstream.yaml",
        )


class PrivateAddress(SinkError):
    """A webhook's host has a private address, and those are not allowed."""

    retry = Retry.AFTER_FIX

    def __init__(self, host: str, address: str) -> None:
        self.host, self.address = host, address
        super().__init__(
            f"{host} has the address {address}, which is not one of the internet; if calls may go"
            " there, set allow_private_addresses"
        )


# --- a Kafka source ---------------------------------------------------------------------------


class NotForKafka(ConfigError):
    """An operation that needs a Postgres source, on a pipeline whose source is Kafka."""

    def __init__(self, pipeline: str, operation: str) -> None:
        self.pipeline, self.operation = pipeline, operation
        super().__init__(
            f"pipeline {pipeline!r} reads from Kafka, and {operation!r} is for a Postgres source;"
            " run it for the pipeline that writes the topics"
        )


class BrokerUnreachable(SourceError):
    """The Kafka brokers of a source do not answer, or not now; records wait in their topics."""

    retry = Retry.LATER

    def __init__(self, reason: str) -> None:
        self.reason = reason
        super().__init__(f"the Kafka brokers of the source cannot be read now: {reason}")


class BrokerRefused(SourceError):
    """The Kafka brokers of a source refuse us for a reason that a person must remove."""

    retry = Retry.AFTER_FIX

    def __init__(self, reason: str, remedy: str) -> None:
        self.reason, self.remedy = reason, remedy
        super().__init__(f"the Kafka brokers of the source: {reason}; {remedy}")


class InvalidRecord(SourceError):
    """A record of a source's topic cannot be landed."""

    retry = Retry.AFTER_FIX

    def __init__(self, topic: str, partition: int, offset: int, reason: str, remedy: str) -> None:
        self.topic, self.partition, self.offset = topic, partition, offset
        self.reason, self.remedy = reason, remedy
        super().__init__(
            f"the record at offset {offset} of topic {topic!r}, partition {partition}: {reason};"
            f" {remedy}, or pass such records with 'on_invalid: dead_letter' of source.kafka"
        )


class TopicCompacted(SourceError):
    """A topic of a source is compacted, so changes that were not landed may be removed from it."""

    retry = Retry.AFTER_FIX

    def __init__(self, topic: str) -> None:
        self.topic = topic
        super().__init__(
            f"topic {topic!r} is compacted: Kafka removes deletes and large values from it that are"
            " not sent again; run: kafka-configs.sh --bootstrap-server <server> --alter --topic"
            f" {topic} --add-config cleanup.policy=delete; or, if it may have been compacted"
            " already, write a new topic"
        )


class TopicChanged(SourceError):
    """A topic of a source has other partitions than when reading it began."""

    retry = Retry.AFTER_FIX

    def __init__(self, topic: str, what: str) -> None:
        self.topic, self.what = topic, what
        super().__init__(
            f"topic {topic!r} {what} since the log began to read it: later changes of a row are in"
            " another place, in no order with those before; nothing of them is landed. Have the"
            " sink write new topics (other values of its 'topic' and 'schemas_topic'), and read"
            " them into a new lake"
        )


class RecordsGone(SourceError):
    """Records that were not landed are no longer in their topic."""

    retry = Retry.AFTER_FIX

    def __init__(self, topic: str, partition: int, offset: int) -> None:
        self.topic, self.partition, self.offset = topic, partition, offset
        super().__init__(
            f"topic {topic!r}, partition {partition} no longer has the records from offset {offset}"
            " on, and they are not in the log: begin again in a new lake, from a topic that has"
            " every row, and give the topic a longer retention.ms"
        )


# --- configuration ----------------------------------------------------------------------------


class InvalidPipeline(ConfigError):
    """The pipeline file is wrong; all its problems at once, each with its path."""

    def __init__(self, path: str, problems: Sequence[str]) -> None:
        self.path, self.problems = path, list(problems)
        super().__init__(
            f"{path}: {len(self.problems)} problem(s):\n"
            + "\n".join(f"  - {problem}" for problem in self.problems)
        )


class InvalidDsn(ConfigError):
    """The connection string cannot be read; it is not repeated, it may hold a password."""

    def __init__(self) -> None:
        super().__init__(
            "PGSTREAM_DSN is no connection string: neither 'key=value ...' nor 'postgresql://...';"
            " quote values with blanks ('...') and percent-encode special characters of a URL"
        )


class MissingSetting(ConfigError):
    """A setting of the environment is not there."""

    def __init__(self, variable: str, meaning: str) -> None:
        self.variable, self.meaning = variable, meaning
        super().__init__(f"{variable} is not set: {meaning}; put it into the environment or .env")


class InvalidSetting(ConfigError):
    """A setting of the environment has a value we cannot use; an empty `value` is not shown."""

    def __init__(self, variable: str, value: str, expected: str) -> None:
        self.variable, self.value, self.expected = variable, value, expected
        fact = f"is {value!r}" if value else "(not shown) is wrong"
        super().__init__(
            f"{variable} {fact}: want {expected}; change it in the environment or .env"
        )


class SeveralProblems(ConfigError):
    """More than one thing is wrong with the pipeline file and the environment."""

    def __init__(self, problems: Sequence[ConfigError]) -> None:
        self.problems = [str(problem) for problem in problems]
        listed = (problem.replace("\n", "\n    ") for problem in self.problems)
        super().__init__(
            f"{len(self.problems)} settings are wrong:\n"
            + "\n".join(f"  - {problem}" for problem in listed)
        )
