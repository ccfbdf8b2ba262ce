"""
A Delta table of the lake: durable compare-and-set commits, one at a time.

Every commit is made through Delta Kernel without its retries: on a conflict the table is loaded
again, the caller's condition is checked again, and only then is the commit retried. Nothing is
assumed to be "already there". Everything that a commit needs to survive a power cut is synced
before it returns; the checksum and the checkpoint follow in the background.

One thread at a time uses a `DeltaTable`; any number of them, in any number of processes, may open
the same table.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, TypeAlias

import pyarrow as pa
from py4j.java_gateway import JavaGateway

from pgstream_dagster.delta import fsync, parquet, uri
from pgstream_dagster.delta.commit_lock import CommitLock
from pgstream_dagster.delta.entries import (
    LAST_CHECKPOINT,
    LOG_FOLDER,
    AddedFile,
    Entry,
    checksum_name,
    entry_name,
    parse,
)
from pgstream_dagster.delta.jvm import Java
from pgstream_dagster.delta.kernel import NO_IDS, Commit, Conflict, kernel
from pgstream_dagster.delta.parquet import DataFile
from pgstream_dagster.delta.post_commit import PostCommit, PostCommitTask
from pgstream_dagster.delta.recovery import aside, recover
from pgstream_dagster.errors import LogDamaged

FULL_CHECKSUM: Final = "CHECKSUM_FULL"
SIMPLE_CHECKSUM: Final = "CHECKSUM_SIMPLE"

FULL_CHECKSUMS: Final = 20
"""After so many in a row, commits have come too fast for any to be finished: wait for them once."""

TransactionIds: TypeAlias = Callable[[str], "int | None"]
"""App id -> the transaction version it last committed with, as of the newest commit."""

Condition: TypeAlias = Callable[[TransactionIds], None]
"""Raises if a commit must not be made; called under the commit lock, on the newest version."""


@dataclass(frozen=True, slots=True)
class TableSpec:
    """What a table is created with."""

    columns: pa.Schema
    cluster_by: Sequence[str] = ()
    properties: Mapping[str, str] = field(default_factory=dict[str, str])


def create(table: str, spec: TableSpec, gateway: JavaGateway) -> None:
    """
    Create the table unless it exists; idempotent, and safe when two processes do it at once.

    Raises:
        LogDamaged: it exists, and is damaged.
    """
    log = _log_folder(table)
    if log is not None:
        fsync.make_folder(log)
    with CommitLock(gateway, log).held():
        if log is not None:
            recover(log)
        try:
            kernel(gateway).create(table, spec.columns, spec.cluster_by, spec.properties)
        except Conflict:
            return
        if log is not None:
            fsync.sync_files([log / entry_name(0)])


class DeltaTable:
    """One table, as of the newest version this object has seen."""

    def __init__(
        self,
        table: str,
        gateway: JavaGateway,
        *,
        after_post_commit: Callable[[], None] | None = None,
    ) -> None:
        """
        Open the table at its URI; repair the damage of a power cut.

        Raises:
            TableMissing, LogDamaged.
        """
        self.uri = table
        self._log = _log_folder(table)
        self._kernel = kernel(gateway)
        self._writer = secrets.token_hex(8)  # identifies the commits of this object
        self._lock = CommitLock(gateway, self._log)
        self._post_commit = PostCommit(table, after_post_commit)
        self._ids: dict[str, int | None] = {}
        self._full_checksums = 0  # so many commits in a row requested one
        self._full_checksum_at = -1  # the last version that got one
        if self._log is not None and os.access(self._log, os.W_OK):  # else read it as it is
            with self._lock.held():
                recover(self._log)
        self._load()

    @property
    def version(self) -> int:
        """The loaded version."""
        return self._version

    @property
    def post_commit_failures(self) -> int:
        """How many checksums and checkpoints could not be written."""
        return self._post_commit.failures

    @property
    def table_id(self) -> str:
        """The id that the table was created with; a copy of its files has the same."""
        return self._kernel.table_id(self._snapshot)

    def refresh(self) -> None:
        """Load the newest version."""
        if self._log is None or self._has_moved(self._log):
            self._load()

    def transaction_id(self, app: str) -> int | None:
        """The transaction version `app` last committed with, as of the loaded version."""
        if app not in self._ids:
            self._ids[app] = self._kernel.transaction_id(self._snapshot, app)
        return self._ids[app]

    def files(self) -> list[AddedFile]:
        """The files of the loaded version."""
        return self._kernel.files(self._snapshot)

    def read(self, columns: pa.Schema) -> pa.Table:
        """Every row, for small tables; files in the order of their names."""
        names = sorted(file.name for file in self.files())
        return parquet.read((uri.child(self.uri, name) for name in names), columns)

    def append(
        self,
        files: Sequence[DataFile],
        *,
        transaction_id: tuple[str, int] | None = None,
        more_ids: Mapping[str, int] = NO_IDS,
        condition: Condition | None = None,
        written: Callable[[], None] | None = None,
    ) -> int:
        """
        Add synced files in one commit, durable when this returns; the commit's version.

        Shape:
            transaction_id: app id and version to store with the commit.
            more_ids: further ones.
            condition: raises if the commit must not be made on the newest version.
            written: called when the commit is in the log and not yet synced.

        Raises:
            CommitFailed: the commit may or may not exist; check with `refresh` and `made_since`.
        """
        for file in files:
            uri.name_in(self.uri, file.path)

        def attempt() -> Commit:
            if condition is not None:
                condition(self.transaction_id)
            snapshot = self._snapshot
            return self._kernel.append(
                self.uri, snapshot, files, self._writer, transaction_id, more_ids
            )

        version = self._commit(attempt, written)
        if transaction_id is not None:
            app, number = transaction_id
            self._ids[app] = number
        self._ids.update(more_ids)
        return version

    def rewrite(self, removed: Sequence[AddedFile], added: Sequence[DataFile]) -> int | None:
        """
        Replace files by synced others that hold the same rows, in one commit.

        `removed` must be of the loaded version. `None`, and no commit, if another writer has
        rewritten one of them meanwhile.
        """
        planned, names = self._version, {file.name for file in removed}
        rewriting = self._kernel.rewriting(self.uri, removed, added)  # slow for long lists

        def attempt() -> Commit:
            if not names.isdisjoint(self._removed_since(planned)):
                raise _Overtaken
            return self._kernel.rewrite(self.uri, self._snapshot, rewriting)

        try:
            return self._commit(attempt, None)
        except _Overtaken:
            return None

    def close(self) -> None:
        """Wait for the checksums and checkpoints of its commits."""
        self._post_commit.close()

    def _commit(self, attempt: Callable[[], Commit], written: Callable[[], None] | None) -> int:
        self._leave_full_checksums()
        with self._lock.held():
            commit = self._attempts(attempt)
            if written is not None:
                written()
            if self._log is not None:
                fsync.sync_files([self._log / entry_name(commit.version)])
        self._after(commit)
        return commit.version

    def _attempts(self, attempt: Callable[[], Commit]) -> Commit:
        if self._log is not None and self._has_moved(self._log):
            self._load()
        while True:
            try:
                return attempt()
            except Conflict:
                self._load()

    def _after(self, commit: Commit) -> None:
        """Continue from the commit."""
        if commit.snapshot is None:
            self._load()
        else:
            self._snapshot, self._version = commit.snapshot, commit.version
        is_full = any(kind == FULL_CHECKSUM for kind, _ in commit.post_commit_hooks)
        self._full_checksums = self._full_checksums + 1 if is_full else 0
        tasks = [self._task(commit.version, *hook) for hook in commit.post_commit_hooks]
        self._post_commit.submit(commit.version, tasks)

    def _leave_full_checksums(self) -> None:
        """
        Load the table again from a version that has a checksum.

        On top of a version without one (of another writer, whose checksum did not exist yet),
        Kernel computes a full one after every commit, which takes 100 ms and grows with the table.
        """
        if self._full_checksums >= FULL_CHECKSUMS:
            self._post_commit.wait()
        if self._full_checksums and self._full_checksum_at == self._version:
            self._load()

    def _task(self, version: int, kind: str, hook: Java) -> PostCommitTask:
        def run() -> None:
            hook.threadSafeInvoke(self._kernel.engine)
            self._sync_post_commit(version)
            if kind == FULL_CHECKSUM:
                self._full_checksum_at = version

        return PostCommitTask(kind, run, is_replaceable=kind in (FULL_CHECKSUM, SIMPLE_CHECKSUM))

    def _sync_post_commit(self, version: int) -> None:
        if self._log is None:
            return
        names = [checksum_name(version), f"{version:020d}.checkpoint.parquet", LAST_CHECKPOINT]
        fsync.sync_files(path for name in names if (path := self._log / name).exists())

    def _load(self) -> None:
        self._ids.clear()
        before = getattr(self, "_version", None)
        snapshot = self._kernel.load(self.uri)
        version = int(snapshot.getVersion())
        if self._log is not None and before is not None:
            self._sync_others(self._log, range(before + 1, version + 1))
        self._snapshot: Java = snapshot
        self._version = version
        self._full_checksums = 0

    def _sync_others(self, log: Path, versions: range) -> None:
        """Sync commits of other writers: one may have been killed before it synced its own."""
        fsync.sync_files(path for v in versions if (path := log / entry_name(v)).exists())

    def _has_moved(self, log: Path) -> bool:
        """
        Whether the loaded version is not the newest.

        Also true when its own entry is gone: log cleanup removes it long after newer ones exist.
        """
        newest, next_one = entry_name(self._version), entry_name(self._version + 1)
        return (log / next_one).exists() or not (log / newest).exists()

    def require_whole(self) -> None:
        """
        Check for a lost commit, when a position shows that there was one after the newest.

        Raises:
            LogDamaged: the entry after the newest was torn: it had been confirmed.
        """
        torn = None if self._log is None else aside(self._log, self._version + 1)
        if torn is not None and torn.exists():
            raise LogDamaged(str(torn), "the entry is cut off, and was whole when it was confirmed")

    def made_since(self, version: int, transaction_id: tuple[str, int]) -> bool:
        """Whether this object has stored the transaction id in a commit after `version`."""
        app, number = transaction_id
        return any(
            entry.writer == self._writer and entry.transactions.get(app) == number
            for entry in self._entries_since(version)
        )

    def _removed_since(self, version: int) -> Iterable[str]:
        """The files that commits after `version`, up to the loaded one, have removed."""
        for entry in self._entries_since(version):
            yield from entry.removed

    def _entries_since(self, version: int) -> Iterable[Entry]:
        filesystem, log = uri.filesystem(uri.child(self.uri, LOG_FOLDER))
        for later in range(version + 1, self._version + 1):
            with filesystem.open_input_stream(f"{log}/{entry_name(later)}") as stream:
                entry = parse(later, stream.read())
            if entry is None:
                raise LogDamaged(entry_name(later), "the entry is cut off")
            yield entry


class _Overtaken(Exception):
    """Another writer has rewritten a file that was to be rewritten."""


def _log_folder(table: str) -> Path | None:
    path = uri.local(table)
    return None if path is None else path / LOG_FOLDER
