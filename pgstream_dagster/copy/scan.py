"""
The scan of one table: a Spark job whose tasks read page ranges and write Parquet files.

Every task opens its own session, pins it to the snapshot, and decodes with the code of the stream.
A task's files count only when the driver commits them: no commit names those of failed, repeated
or killed tasks, and VACUUM removes them.
"""

from __future__ import annotations

import secrets
import select
import time
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

import psycopg
import pyarrow as pa
from psycopg import pq, sql
from psycopg.errors import (
    InvalidSchemaName,
    UndefinedColumn,
    UndefinedTable,
    error_from_result,
)
from pyspark import Accumulator
from pyspark.sql import SparkSession

from pgstream_dagster.changelog.land import of_size
from pgstream_dagster.copy import copy_plan
from pgstream_dagster.copy.copy_plan import Leaf, PageRange, ScanTask, TextColumn
from pgstream_dagster.delta import jvm, parquet
from pgstream_dagster.delta.parquet import DataFile
from pgstream_dagster.delta.task_errors import last_line
from pgstream_dagster.errors import CopyFailed, PgstreamError, RowTooLarge, TableRewritten
from pgstream_dagster.failpoints import reach
from pgstream_dagster.memory import MemoryBound, needed_for
from pgstream_dagster.modifiers.rows import LogModifiers
from pgstream_dagster.modifiers.rules import Rules
from pgstream_dagster.schema.changes import first_read_ordinal
from pgstream_dagster.schema.layout import CHANGES
from pgstream_dagster.schema.table import TableSchema
from pgstream_dagster.source.connect import connect, named_errors
from pgstream_dagster.source.interrupt import Session, interruptible
from pgstream_dagster.source.publication import PublishedTable
from pgstream_dagster.source.query import query
from pgstream_dagster.source.snapshot import Snapshot, own_table_locks, pinned
from pgstream_dagster.stop import Stop
from pgstream_dagster.wire.copy_rows import decode_copy

BATCH_ROWS: Final = 8_192
"""Rows decoded at once: enough that the cost per batch is small, few enough for the CPU cache."""

BATCH_BYTES: Final = 16 << 20
"""The same for large rows; a single row may be larger."""

GROUP_ROWS: Final = parquet.ROW_GROUP_ROWS
GROUP_BYTES: Final = 64 << 20
"""What a task gathers before it writes: it bounds the task's memory."""

FILE_BYTES: Final = 128 << 20
"""A task begins another file past this size; `optimize` makes files of that size, too."""

POLL_SECONDS: Final = 0.25


@dataclass(frozen=True, slots=True)
class ScanPlan:
    """
    What one scan reads, decided once in the driver.

    `name` is the application name of its sessions. The query selects the columns of the schema, in
    their order. `rules` are those that the schema is modified by.
    """

    name: str
    snapshot: Snapshot
    schema: TableSchema
    columns: tuple[TextColumn, ...]
    row_filter: str | None
    tasks: tuple[ScanTask, ...]
    estimated_rows: int
    memory: MemoryBound
    rules: Rules


@dataclass(frozen=True, slots=True)
class ScanProgress:
    """How far a scan is; `rows` counts what tasks have read, `estimated_rows` is the catalog's."""

    table: str
    rows: int
    estimated_rows: int
    tasks_done: int
    tasks: int


OnProgress: TypeAlias = Callable[[ScanProgress], None]


def plan(
    catalog: Session,
    table: PublishedTable,
    schema: TableSchema,
    snapshot: Snapshot,
    *,
    ranges: int,
    memory: MemoryBound = MemoryBound(),  # noqa: B008 - frozen
    rules: Rules = Rules(),  # noqa: B008 - frozen
) -> ScanPlan:
    """
    How to read every row of `table` that `snapshot` shows, in at most `ranges` tasks.

    `catalog` is a session outside of the snapshot; a `Guard` holds the table. `schema` is the
    table's own. `memory` bounds the largest row of a task; `rules` modify rows before they are
    written.

    Raises:
        SinkError: the rules do not fit the table.
    """
    columns = [(column.name, column.type_oid) for column in schema.columns]
    with LogModifiers(rules) as modifiers:
        modified = modifiers.schema(schema)
    return ScanPlan(
        name=f"pgstream copy {secrets.token_hex(4)}",
        snapshot=snapshot,
        schema=modified,
        columns=copy_plan.text_columns(columns, _text_forms(catalog, schema)),
        row_filter=table.row_filter,
        tasks=copy_plan.divide(_leaves(catalog, table), at_most=ranges),
        estimated_rows=table.estimated_rows,
        memory=memory,
        rules=rules,
    )


def run(
    spark: Callable[[], SparkSession],
    dsn: str,
    planned: ScanPlan,
    folder: str,
    *,
    on_progress: OnProgress = lambda _: None,
    stop: Stop | None = None,
) -> list[DataFile]:
    """
    Read what was planned into synced files of `read` changes in `folder` (an address).

    A small table, which is one task, is read here: `spark` is only called for a larger one.
    `on_progress` is called from this thread.

    Raises:
        SnapshotLost: the snapshot is no longer exported.
        AccessRefused: the role may not read the table, or a policy hides rows of it.
        TableRewritten: a name of the table is, or was meanwhile, that of another one.
        CopyFailed: a task ended with an error.
        RowTooLarge: a row does not fit into the plan's memory (in Spark's tasks: a CopyFailed that
            says so).
        Cancelled: `stop` was set; no task continues, and no session of theirs.
    """
    stop = stop or Stop()
    _require_readable(dsn, planned)
    work = _Work(dsn, folder, planned)
    with closing(_Meter(work, on_progress)) as meter:
        is_small = len(planned.tasks) == 1
        files = _run_here(work, meter, stop) if is_small else _run(spark(), work, meter, stop)
        meter.report(len(planned.tasks), sum(file.rows for file in files))
        return files


def _text_forms(catalog: Session, schema: TableSchema) -> dict[int, str | None]:
    """The types whose cast to text is not their output function, with that function."""
    types = list({column.type_oid for column in schema.columns})
    return dict(query(catalog, "source/copy_text_forms", types=types))


def _leaves(catalog: Session, table: PublishedTable) -> list[Leaf]:
    """Where the rows are; the root alone where the role may read only that."""
    rows = query(catalog, "source/copy_leaves", relation=table.relation_id)
    if table.kind == "p" and not all(readable for *_, readable in rows):
        return [Leaf(table.relation_id, table.namespace, table.name, 0, with_partitions=True)]
    return [Leaf(oid, namespace, name, pages) for oid, namespace, name, pages, _ in rows]


def _require_readable(dsn: str, planned: ScanPlan) -> None:
    """Plan the query of every leaf once, so that a missing privilege shows before Spark starts."""
    leaves = {pages.leaf: pages for task in planned.tasks for pages in task.ranges}
    with closing(pinned(dsn, planned.snapshot.name)) as session:
        for leaf, pages in leaves.items():
            select = copy_plan.select(planned.columns, pages, planned.row_filter)
            table = sql.Identifier(leaf.namespace, leaf.name).as_string(None)
            with _as_locked(planned), named_errors(session, table):
                session.execute(sql.SQL("explain {}").format(select))


@contextmanager
def _as_locked(planned: ScanPlan) -> Generator[None]:
    """
    The names of tables and columns are those that the guard has locked.

    Its lock keeps the table's name and columns. It does not keep its schema's name, so a name may
    lead nowhere, or to a table that was made since.

    Raises:
        TableRewritten: a name leads nowhere.
    """
    try:
        yield
    except (UndefinedTable, UndefinedColumn, InvalidSchemaName) as error:
        raise TableRewritten(planned.schema.full_name) from error


def _require_read(session: Session, pages: PageRange, planned: ScanPlan) -> None:
    """
    Ensure that the session has read this leaf, and no other table of its name.

    Raises:
        TableRewritten: another one.
    """
    if pages.leaf.relation_id not in own_table_locks(session):
        raise TableRewritten(planned.schema.full_name)


# --- the job, in the driver -------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Work:
    """What travels to the executors."""

    dsn: str = field(repr=False)
    folder: str
    plan: ScanPlan


class _Meter:
    """Reports the progress of one job."""

    def __init__(self, work: _Work, on_progress: OnProgress) -> None:
        self._dsn, self._plan, self._on_progress = work.dsn, work.plan, on_progress
        self._session: Session | None = None  # opened by the first query: most tables are small
        self._reached = self._rows = 0

    def close(self) -> None:
        """End its session."""
        if self._session is not None:
            self._session.close()

    def report(self, tasks_done: int, rows_done: int) -> None:
        """Report the rows of ended tasks, and what the server has sent to running ones."""
        for _ in range(self._reached, tasks_done):
            reach("copy.task")
        self._reached = max(self._reached, tasks_done)
        planned = self._plan
        tasks = len(planned.tasks)
        rows = rows_done if tasks_done == tasks else rows_done + self._sent()
        # The server no longer shows a COPY that has ended, while its task may still be writing.
        self._rows = max(self._rows, rows)
        name, estimated = planned.schema.full_name, planned.estimated_rows
        self._on_progress(ScanProgress(name, self._rows, estimated, tasks_done, tasks))

    def _sent(self) -> int:
        if self._session is None:
            self._session = connect(self._dsn)
        [(rows,)] = query(self._session, "source/copy_progress", application_name=self._plan.name)
        return rows


def _run(spark: SparkSession, work: _Work, meter: _Meter, stop: Stop) -> list[DataFile]:
    """Run the tasks; report while they run; leave none behind when interrupted."""
    context, planned = spark.sparkContext, work.plan
    done, rows = context.accumulator(0), context.accumulator(0)
    tasks = context.parallelize(planned.tasks, len(planned.tasks))

    def job() -> list[DataFile]:
        context.setJobDescription(f"copy {planned.schema.full_name}")
        return tasks.flatMap(lambda task: _counted(work, task, done, rows)).collect()

    with stop.interrupts(lambda: _end_sessions(work)):
        running = jvm.run_job(
            context,
            planned.name,
            job,
            stop=stop,
            poll=lambda: meter.report(done.value, rows.value),
            poll_seconds=POLL_SECONDS,
        )
        return _result(running, work)


def _end_sessions(work: _Work) -> None:
    """End the tasks' sessions: a query that waits in the server does not notice a dead client."""
    with suppress(PgstreamError), closing(connect(work.dsn)) as session:
        query(session, "source/end_sessions", application_name=work.plan.name)


def _run_here(work: _Work, meter: _Meter, stop: Stop) -> list[DataFile]:
    """The only task in this process: Spark's start would cost half a minute of CPU."""
    [task] = work.plan.tasks
    with ThreadPoolExecutor(1, thread_name_prefix="pgstream-copy") as pool:
        running = pool.submit(_read, work, task, stop)
        while not wait([running], POLL_SECONDS).done:
            meter.report(tasks_done=0, rows_done=0)
    return _result(running, work)


def _result(running: Future[list[DataFile]], work: _Work) -> list[DataFile]:
    """
    The files, or an error that says what to do.

    Spark hands a task's error over as text. So the server is queried whether it was the snapshot.
    """
    try:
        return running.result()
    except PgstreamError:  # of a task that ran here
        raise
    except Exception as error:
        pinned(work.dsn, work.plan.snapshot.name).close()
        table = work.plan.schema.full_name
        if last_line(error, _REWRITTEN).startswith(_REWRITTEN):
            raise TableRewritten(table) from error
        raise CopyFailed(table, _reason(error)) from error


_REWRITTEN: Final = f"{TableRewritten.__module__}.{TableRewritten.__qualname__}"


def _reason(error: Exception) -> str:
    """The message of a task's error, without details that could quote a row."""
    if isinstance(error, psycopg.Error):  # of a task that ran here
        return error.diag.message_primary or type(error).__name__
    return last_line(error, "pgstream_dagster.", "psycopg.").rpartition("errors.")[2]


# --- a task, in an executor -------------------------------------------------------------------


def _read(work: _Work, task: ScanTask, stop: Stop | None = None) -> list[DataFile]:
    """Read the ranges of one task, in their order, into synced files of its own."""
    files = list(_files(_changes(work, task, stop), work.folder))
    parquet.sync(*files)
    return files


def _counted(
    work: _Work, task: ScanTask, done: Accumulator[int], rows: Accumulator[int]
) -> list[DataFile]:
    """The same, counted by the driver."""
    files = _read(work, task)
    rows.add(sum(file.rows for file in files))
    done.add(1)
    return files


def _changes(work: _Work, task: ScanTask, stop: Stop | None = None) -> Iterator[pa.Table]:
    """The rows of a task as changes, their ordinals counted on."""
    ordinal = first_read_ordinal(task.number)
    planned, snapshot = work.plan, work.plan.snapshot
    with (
        closing(pinned(work.dsn, snapshot.name, application_name=planned.name)) as session,
        interruptible(session.pgconn, stop),
        LogModifiers(planned.rules) as modifiers,
    ):
        for pages in task.ranges:
            select = copy_plan.copy_statement(planned.columns, pages, planned.row_filter)
            for rows in _batches(session, select, planned):
                changes = decode_copy(
                    rows,
                    planned.schema,
                    epoch=planned.schema.epoch,
                    consistent_point=snapshot.consistent_point,
                    first_ordinal=ordinal,
                    taken_at_us=snapshot.taken_at_us,
                )
                ordinal += changes.num_rows
                yield modifiers.rows(changes, [planned.schema])
            _require_read(session, pages, planned)


def _batches(session: Session, query: sql.Composed, planned: ScanPlan) -> Iterator[list[bytes]]:
    """The CopyData of one COPY, in batches; each is whole rows."""
    most, table = planned.memory.row_bytes, planned.schema.full_name
    with _as_locked(planned), named_errors(session), _copying(session, query) as pgconn:
        wait, get_copy_data = _waits_for(pgconn), pgconn.get_copy_data
        batch: list[bytes] = []
        size = 0
        while True:  # once a row: what it does not look up is a tenth of its cost
            length, row = get_copy_data(1)
            if length > 0:
                if length > most:
                    raise RowTooLarge(table, length, needed_for(length))
                batch.append(bytes(row))  # gives libpq's buffer back at once: 1.5 times as fast
                size += length
                if size >= BATCH_BYTES or len(batch) >= BATCH_ROWS:
                    yield batch
                    batch, size = [], 0
            elif length == 0:
                wait()
            else:
                break
        if batch:
            yield batch


@contextmanager
def _copying(session: Session, query: sql.Composed) -> Generator[pq.abc.PGconn]:
    """
    Run a COPY TO on libpq itself, which hands rows over without Python objects in between.

    When the block ends early, the session is in the middle of the COPY and no longer usable.
    """
    pgconn = session.pgconn
    started = pgconn.exec_(query.as_bytes(session))
    if started.status != pq.ExecStatus.COPY_OUT:
        raise error_from_result(started)
    yield pgconn
    wait = _waits_for(pgconn)
    while True:
        while pgconn.is_busy():
            wait()
        if (result := pgconn.get_result()) is None:
            return
        if result.status != pq.ExecStatus.COMMAND_OK:
            raise error_from_result(result)


def _waits_for(pgconn: pq.abc.PGconn) -> Callable[[], None]:
    """
    A function that waits until the server has sent more.

    libpq's own wait holds the interpreter's lock: every thread of the process would stop until a
    server that is slow, or gone, sends something.
    """
    readable = select.poll()
    readable.register(pgconn.socket, select.POLLIN)

    def wait() -> None:
        readable.poll()
        pgconn.consume_input()

    return wait


def _files(changes: Iterator[pa.Table], folder: str) -> Iterator[DataFile]:
    """Write changes in row groups into files of bounded size; no file when there are none."""
    groups = of_size(changes, GROUP_ROWS, GROUP_BYTES)
    for first in groups:
        with parquet.FileWriter(folder, CHANGES) as file:
            file.write(_landed_now(first))
            while file.size < FILE_BYTES and (more := next(groups, None)) is not None:
                file.write(_landed_now(more))
        yield file.written()


def _landed_now(changes: pa.Table) -> pa.Table:
    """`changes` with `landed_at`; the commit follows when the other tasks have ended."""
    at = CHANGES.get_field_index("landed_at")
    now: Any = pa.scalar(time.time_ns() // 1000, pa.int64()).cast(CHANGES.field(at).type)
    return changes.set_column(at, CHANGES.field(at), pa.repeat(now, changes.num_rows))
