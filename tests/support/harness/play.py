"""
Random histories against the product: `python -m tests.support.harness.play --count 20 --seed 1`.

One process, one JVM, one server; the histories of one kind of publication share a database and a
pipeline, a handful at a time. A history that fails is printed with its seed, which repeats it.
"""

from __future__ import annotations

import argparse
import shutil
import signal
import sys
import tempfile
import threading
import time
import traceback
from collections import Counter
from collections.abc import Sequence
from contextlib import closing, nullcontext, suppress
from pathlib import Path
from random import Random
from typing import Any, Final, Self

import psycopg

from pgstream_dagster.capture.stream import stream
from pgstream_dagster.changelog.lake import Lake
from pgstream_dagster.changelog.land import Landed
from pgstream_dagster.config import CaptureConfig, PipelineConfig, SourceConfig
from pgstream_dagster.embedded.postgres import Postgres
from pgstream_dagster.errors import PgstreamError, PublicationMissing, Retry, WriterReplaced
from pgstream_dagster.lsn import Lsn
from pgstream_dagster.pipeline import Pipeline
from pgstream_dagster.upkeep.resnapshot import resnapshot
from pgstream_dagster.upkeep.setup import setup
from tests.support.harness import histories, oracle, rows, runner, second_slot
from tests.support.harness.histories import Event, Kind, Step, Transaction, Wait
from tests.support.plugins.wait import crowding, until
from tests.support.reference.change import Change

CAPTURE: Final = CaptureConfig(flush_seconds=0.1, idle_advance_seconds=1, catalog_check_seconds=1)

PER_DATABASE: Final = 6
"""Histories that share one: setting up costs seconds, and every table of all is looked at."""

QUIET_SECONDS: Final = 25.0
"""Without a landing or a copy although the log is not the source: then nothing will come. A copy
that failed is tried again after 10 seconds."""

STOP_SECONDS: Final = 60.0
"""For a stream to end that was asked to."""

Session = psycopg.Connection[Any]


class Killed(BaseException):
    """The stream ends here, after a commit and before Postgres is told of it."""


class HistoryFailed(AssertionError):
    """A history that the product did not get right."""


class Stream:
    """The stream of one pipeline in a thread, started and ended as a history wants it."""

    def __init__(self, pipeline: Pipeline) -> None:
        self._pipeline = pipeline
        self._thread: threading.Thread | None = None
        self._stop = threading.Event()
        self._is_dying = False
        self.watermark = Lsn(0)
        self.errors: list[PgstreamError] = []
        """By name, while the source was not fit to be streamed."""
        self._unexpected: BaseException | None = None

    @property
    def is_running(self) -> bool:
        return self._thread is not None and self._thread.is_alive()

    def start(self) -> None:
        """If it does not run."""
        self.check()
        if self.is_running:
            return
        self._stop, self._is_dying = threading.Event(), False
        self._thread = threading.Thread(target=self._run, name="stream", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Ask it to end, and wait for that."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join(STOP_SECONDS)
            if self._thread.is_alive():
                raise HistoryFailed(f"the stream has not ended {STOP_SECONDS:.0f} s after a stop")
        self.check()

    def kill(self) -> None:
        """End it at its next commit; one that commits nothing is stopped."""
        self._is_dying = True
        if self._thread is not None:
            self._thread.join(2)
        self.stop()

    def check(self) -> None:
        """Raise what may not end a stream."""
        if self._unexpected is not None:
            raise self._unexpected

    def _run(self) -> None:
        try:
            stream(self._pipeline, stop=self._stop, report=self._report)
        except Killed:
            pass
        except PgstreamError as error:
            if error.retry is Retry.NEVER or isinstance(error, WriterReplaced):
                self._unexpected = error
            self.errors.append(error)
        except BaseException as error:  # noqa: BLE001 - raised by `check`
            self._unexpected = error

    def _report(self, landed: Landed) -> None:
        self.watermark = landed.watermark
        if self._is_dying:
            raise Killed


class Bed:
    """A database with a pipeline of one kind of publication, and the second slot."""

    def __init__(self, server: Postgres, kind: Kind, name: str, folder: Path) -> None:
        self.kind, self.dsn, self.played = kind, server.dsn_of(name), 0
        with closing(_connected(server.dsn)) as connection:
            connection.execute(f"create database {name} template template0")  # type: ignore[arg-type]
            connection.execute(
                f"alter database {name} set logical_decoding_work_mem = '64kB'"  # type: ignore[arg-type]
            )
        self.slot = second_slot.SecondSlot(self.dsn)
        self._session = _connected(self.dsn)
        self._names, self._schemas = dict[second_slot.Name, Lsn](), dict[str | None, int]()
        scope = "for all tables" if kind == "all" else ""
        self._execute(
            "create table first (id int primary key)",
            f"create publication {histories.PUBLICATION} {scope} with ({histories.COMPLETE})",
            *(
                []
                if kind == "all"
                else [f"alter publication {histories.PUBLICATION} add table first"]
            ),
        )
        source = SourceConfig(publication=histories.PUBLICATION)
        config = PipelineConfig(pipeline=f"p_{name}", capture=CAPTURE, source=source)
        self.pipeline = Pipeline(
            config, self.dsn, Lake(str(folder / name / "lake")), runner.JVM, folder / name / "state"
        )
        self.pipeline.state.mkdir(parents=True)
        setup(self.pipeline)
        self.since = self.watermark
        self._files: dict[str, list[Change]] = {}
        self.stream = Stream(self.pipeline)

    @property
    def watermark(self) -> Lsn:
        return oracle.watermarks(runner.change_log(self.pipeline), runner.app(self.pipeline))[-1]

    def close(self) -> None:
        """End the stream and drop the slots, which a server has few of; it goes as a whole."""
        with suppress(HistoryFailed, PgstreamError):
            self.stream.stop()
        until(self._drop_slots, seconds=STOP_SECONDS)
        self._session.close()

    def _drop_slots(self) -> bool:
        """Whether none is left; one stays in use for a moment after its connection."""
        with _connected(self.dsn) as connection:
            mine = "from pg_replication_slots where database = current_database()"
            drop = f"select pg_drop_replication_slot(slot_name) {mine} and not active"
            connection.execute(drop)  # type: ignore[arg-type]
            return not connection.execute(f"select {mine}").fetchall()  # type: ignore[arg-type]

    # --- one history ------------------------------------------------------------------------------

    def play(self, seed: int) -> Counter[str]:
        """Play and compare; how often what happened."""
        self.played += 1
        namespace, by = histories.schema_of(seed), Random(f"tables {seed}")
        path = [namespace, *(f"{namespace}_{end}" for end in "bx"), "public"]
        self._execute(f"set search_path to {', '.join(path)}", *PINS)
        counts: Counter[str] = Counter()
        if by.random() < 0.5:  # the tables are there before the stream, or it sees them made
            self.stream.stop()
        else:
            self.stream.start()
        self._execute(*histories.creation(seed, by))
        self._publish(namespace)
        self.stream.start()
        if by.random() < 0.4:  # else the first changes come before the copies
            self._settle(namespace)
        for step in histories.history(seed):
            self._perform(step, counts)
        self._restore(namespace)
        self.stream.start()
        self._settle(namespace)
        counts.update(f"ended with {type(error).__name__}" for error in self.stream.errors)
        self.stream.errors.clear()
        return counts

    def _perform(self, step: Step, counts: Counter[str]) -> None:
        self.stream.check()
        match step:
            case Wait(seconds):
                time.sleep(seconds)
            case Event.STOP:
                self.stream.stop()
            case Event.START:
                self.stream.start()
            case Event.KILL:
                self.stream.kill()
            case Event.RECONNECT:
                self._session.execute(
                    "select pg_terminate_backend(active_pid) from pg_replication_slots"
                    " where active and database = current_database()"
                )
            case Transaction():
                self._transaction(step, counts)

    def _transaction(self, step: Transaction, counts: Counter[str]) -> None:
        if len(step.statements) == 1 and not step.is_rolled_back:
            try:
                self._execute(step.statements[0])
                counts["statements"] += 1
            except psycopg.Error:
                counts["refused"] += 1
            return
        with (
            suppress(psycopg.Error),
            self._session.transaction(force_rollback=step.is_rolled_back),
        ):
            for statement in step.statements:
                is_guarded = step.is_guarded and not _is_savepoint(statement)
                try:
                    with self._session.transaction() if is_guarded else nullcontext():
                        self._execute(statement)
                    counts["statements"] += 1
                except psycopg.Error:
                    counts["refused"] += 1
                    if not is_guarded:
                        raise

    def _publish(self, namespace: str) -> None:
        """Add the history's tables."""
        name = histories.PUBLICATION
        if self.kind == "schemas":
            self._execute(
                f"alter publication {name} add tables in schema {namespace}, {namespace}_b"
            )
        elif self.kind == "list":
            self._execute(f"alter publication {name} add table t, k, v, p, target, spare")

    def _restore(self, namespace: str) -> None:
        """Publish everything again, with an identity, and change a row of each table."""
        name = histories.PUBLICATION
        attempts = [
            f"create publication {name} for all tables",
            f"alter publication {name} set ({histories.COMPLETE})",
            f"alter schema {namespace}_x rename to {namespace}",
        ]
        if self.kind == "schemas":
            attempts += [
                f"alter publication {name} add tables in schema {namespace}",
                f"alter publication {name} add tables in schema {namespace}_b",
            ]
        self._attempt(*(attempts if self.kind == "all" else attempts[1:]))
        for oid, table in self._tables(namespace).items():
            full = f"alter table {table} replica identity full"
            with_key = f"select 1 from pg_index where indrelid = {oid} and indisprimary"
            if not self._session.execute(with_key).fetchall():  # type: ignore[arg-type]
                self._attempt(full)
            self._attempt(f"alter table {table} set logged")
            if self.kind == "list":
                self._attempt(f"alter publication {name} add table {table}")
            [(column,)] = self._session.execute(
                "select quote_ident(attname) from pg_attribute where attrelid = %s and attnum > 0"
                " and not attisdropped order by attnum limit 1",
                [oid],
            ).fetchall()
            touch = (
                f"update {table} set {column} = {column} where (tableoid, ctid) ="
                f" (select tableoid, ctid from {table} limit 1)"
            )
            try:
                self._execute(touch)
            except psycopg.Error:
                self._attempt(f"alter table {table} replica identity default", touch)

    def _attempt(self, *statements: str) -> None:
        for statement in statements:
            with suppress(psycopg.Error):
                self._execute(statement)

    def _execute(self, *statements: str) -> None:
        for statement in statements:
            self._session.execute(statement)  # type: ignore[arg-type]
            if statement.startswith(("create", "alter")):
                self._note_names()

    def _note_names(self) -> None:
        """What tables are called; Postgres may use a name long after, even if it was undone."""
        rows = self._session.execute(
            "select c.oid::int8, n.oid::int8, n.nspname::text, c.relname::text,"
            " pg_current_wal_insert_lsn()::text"
            " from pg_class c join pg_namespace n on n.oid = c.relnamespace"
            " where c.relkind in ('r', 'p') and n.nspname ~ '^(h|public)'"
        ).fetchall()
        for oid, schema_id, namespace, name, lsn in rows:
            self._names.setdefault((oid, namespace, name), Lsn.parse(lsn))
            if self._session.info.server_version < 160_000:
                self._schemas[namespace] = schema_id

    # --- comparison -------------------------------------------------------------------------------

    def _settle(self, namespace: str) -> None:
        """Wait until the log is the source: landed, every copy made that is due, and equal."""
        target = runner.flushed(self.dsn)
        self._execute("select pg_logical_emit_message(true, 'pgstream', '')")
        log, error_count = runner.change_log(self.pipeline), len(self.stream.errors)
        newest, compared, since, difference = -1, None, time.monotonic(), "nothing landed"
        while True:
            error_count = self._repair(error_count)
            self.stream.start()
            versions = [entry.version for entry in oracle.entries(log, after=newest) if entry.added]
            if versions:
                newest, since = versions[-1], time.monotonic()
            if self.watermark >= target and newest != compared:
                compared = newest
                if not (difference := self._differences(namespace) or self._unlike_the_slot()):
                    return
            if time.monotonic() - since > QUIET_SECONDS * crowding():
                errors = [str(error) for error in self.stream.errors[-2:]]
                raise HistoryFailed(
                    f"{difference}\nwatermark {self.watermark}, target {target}; {errors}"
                )
            time.sleep(0.3)

    def _repair(self, error_count: int) -> int:
        """
        Do what the error asks for when changes were made while there was no publication.

        The publication is back, so the second of two streams that end for want of it began when it
        was, and no later one gets past these changes.
        """
        errors = self.stream.errors[error_count:]
        if self.stream.is_running or sum(isinstance(e, PublicationMissing) for e in errors) < 2:
            return error_count
        resnapshot(self.pipeline)
        return len(self.stream.errors)

    def _unlike_the_slot(self) -> str:
        """
        How the log is not what the second slot saw; empty: it is.

        A copy that is due may yet come after the log is the source: a TRUNCATE made them equal.
        """
        report = second_slot.differences(
            self.slot.read(),
            second_slot.of_log(runner.change_log(self.pipeline), self._read),
            [*self._tables("")],
            self.since,
            second_slot.Names(self._names, self._schemas),
        )
        return "\n".join(report[: second_slot.SHOWN])

    def _read(self, log: Path, file: str) -> list[Change]:
        """A file of the log never changes, and the log is read again and again."""
        if file not in self._files:
            self._files[file] = list(oracle.rows(log, file))
        return self._files[file]

    def _tables(self, namespace: str) -> dict[int, str]:
        """Oid to name, as SQL has it, of the tables that are published by themselves."""
        tables = self._session.execute(
            "select c.oid::int8, format('%%I.%%I', n.nspname, c.relname) from pg_class c"
            " join pg_namespace n on n.oid = c.relnamespace"
            " where c.relkind in ('r', 'p') and not c.relispartition"
            " and (n.nspname = %(namespace)s or n.nspname like %(below)s)"
            " order by c.oid",
            {"namespace": namespace, "below": f"{namespace}\\_%" if namespace else "h%"},
        ).fetchall()
        return dict(tables)

    def _differences(self, namespace: str) -> str:
        """How the fold of the log is not the source; empty: it is."""
        lake = self.pipeline.lake
        folded = rows.of_log(
            oracle.folder_of(lake.change_log), oracle.folder_of(lake.schema_log), read=self._read
        )
        report = []
        for oid, table in self._tables(namespace).items():
            source, log = rows.of_table(self.dsn, oid), folded.get(oid, Counter())
            missing, extra = source - log, log - source
            if missing or extra:
                report.append(
                    f"{table}: {missing.total()} of {source.total()} rows are missing, e.g."
                    f" {rows._shown(missing)}; {extra.total()} are too many, e.g."
                    f" {rows._shown(extra)}"
                )
        return "\n".join(report)


PINS: Final = (
    "set timezone to 'UTC'",
    "set lock_timeout to '2s'",
    "set client_min_messages to error",
)


def _connected(dsn: str) -> Session:
    return psycopg.connect(dsn, autocommit=True)


def _is_savepoint(statement: str) -> bool:
    return statement.startswith(("savepoint", "release", "rollback"))


# --- many histories -------------------------------------------------------------------------------


class Player:
    """Plays histories by seed; use as a context manager."""

    def __init__(self, major: int, folder: Path) -> None:
        self.major = major
        self._server, self._folder = Postgres(major), folder
        self._beds: dict[Kind, Bed] = {}
        self._made = 0

    def __enter__(self) -> Self:
        self._server.start()
        return self

    def __exit__(self, *raised: object) -> None:
        for bed in self._beds.values():
            bed.close()
        self._server.close()

    def play(self, seed: int) -> Counter[str]:
        """One history; a database in which one failed is not used again."""
        kind = histories.kind_of(seed)
        bed = self._beds.get(kind)
        if bed is None or bed.played >= PER_DATABASE:
            if bed is not None:
                bed.stream.stop()
                bed.close()
            self._made += 1
            bed = self._beds[kind] = Bed(self._server, kind, f"bed_{self._made}", self._folder)
        try:
            return bed.play(seed)
        except BaseException:
            del self._beds[kind]
            bed.close()
            raise


def main(arguments: Sequence[str] | None = None) -> int:
    """Play, print each that fails; 1 when any did."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=20)
    parser.add_argument("--seed", type=int, default=1, help="of the first; the others follow")
    parser.add_argument("--major", type=int, default=15)
    parser.add_argument("--show", action="store_true", help="print the histories, play none")
    given = parser.parse_args(arguments)
    seeds = range(given.seed, given.seed + given.count)
    if given.show:
        for seed in seeds:
            print(f"-- history {seed}\n{histories.show(histories.history(seed))}")
        return 0
    folder = Path(tempfile.mkdtemp(prefix="pgstream-histories-"))
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # else the server would stay
    failed, counts, began = list[int](), Counter[str](), time.monotonic()
    with Player(given.major, folder) as player:
        for seed in seeds:
            start = time.monotonic()
            try:
                counts += (events := player.play(seed))
                print(
                    f"history {seed}: equal, {time.monotonic() - start:.1f} s, {dict(events)}",
                    flush=True,
                )
            except Exception as error:  # noqa: BLE001 - every seed is played
                failed.append(seed)
                print(failure(seed, given.major, error), flush=True)
    seconds = time.monotonic() - began
    print(f"{given.count - len(failed)} of {given.count} equal in {seconds:.0f} s; {dict(counts)}")
    print(f"failed: {failed}" if failed else "", flush=True)
    shutil.rmtree(folder, ignore_errors=True)
    return bool(failed)


def failure(seed: int, major: int, error: BaseException) -> str:
    """What a person needs to look into it."""
    trace = (
        ""
        if isinstance(error, HistoryFailed)
        else f"\n{''.join(traceback.format_exception(error))}"
    )
    return (
        f"history {seed} FAILED on Postgres {major}, publication {histories.kind_of(seed)}: {error}"
        f"{trace}\nits steps:\n{histories.show(histories.history(seed))}\n"
        f"repeat it: make histories COUNT=1 SEED={seed} ARGS='--major {major}'"
    )


if __name__ == "__main__":
    sys.exit(main())
