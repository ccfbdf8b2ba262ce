"""
Following the change log entry by entry: rows are available a few milliseconds after their commit.

Reads the Delta log's entries and the files they add, without a JVM. The transaction id identifies a
commit: a landing, a copy, or one without changes for this reader (optimize, other pipelines). On an
object store entries are polled less often; nothing else differs.

An entry is visible a moment before it is on disk. After a power cut, a reader may therefore have
seen a commit that was never confirmed; the same transactions are then landed again, at the same
positions.
"""

from __future__ import annotations

import json
import re
import time
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

import pyarrow as pa
from pyarrow import fs

from pgstream_dagster.changelog.lake import Lake
from pgstream_dagster.changelog.log import copy_app, landing_app
from pgstream_dagster.delta import parquet, uri
from pgstream_dagster.delta.entries import (
    LAST_CHECKPOINT,
    LOG_FOLDER,
    Entry,
    entry_name,
    parse,
    version_of_entry,
)
from pgstream_dagster.errors import LogGone
from pgstream_dagster.lsn import Lsn
from pgstream_dagster.schema import layout

LOCAL_POLL_SECONDS: Final = 0.005
"""Between polls for the next entry: a poll costs microseconds on a local file system."""

REMOTE_POLL_SECONDS: Final = 0.5
"""On an object store a poll is a paid request of 10-50 ms."""

POLL_COMMITS: Final = 1_000
"""At most this many per call, so that a reader far behind stores its progress now and then."""


class Kind(StrEnum):
    """What a commit is to a reader of one pipeline and epoch."""

    LANDING = "landing"
    COPY = "copy"
    OTHER = "other"


@dataclass(frozen=True, slots=True)
class LogCommit:
    """
    One commit of the change log.

    `watermark` is set for a landing, `relation_id` and `consistent_point` for a copy; `files` are
    the URIs of the added files, in order.
    """

    version: int
    kind: Kind
    watermark: Lsn | None = None
    relation_id: int | None = None
    consistent_point: Lsn | None = None
    files: tuple[str, ...] = ()


class Tail:
    """The commits of one pipeline's epoch; one thread uses it."""

    def __init__(self, lake: Lake, pipeline: str, epoch: int) -> None:
        self._table = lake.change_log
        self._landing = landing_app(pipeline, epoch)
        self._copy = re.compile(re.escape(copy_app(pipeline, epoch, 0)[:-1]) + r"(\d+)")
        self._filesystem, self._log = uri.filesystem(uri.child(self._table, LOG_FOLDER))
        is_local = uri.local(self._table) is not None
        self._poll_seconds = LOCAL_POLL_SECONDS if is_local else REMOTE_POLL_SECONDS
        self._next = 0  # the version after the last one that `poll` gave

    def newest_version(self) -> int:
        """The newest version there is; -1 without any."""
        version = self._checkpoint()
        if not self._exists(version):  # no checkpoint yet, or its pointer was torn: list all
            listed = self._filesystem.get_file_info(fs.FileSelector(self._log, recursive=False))
            versions = (version_of_entry(file.base_name) for file in listed)
            version = max((v for v in versions if v is not None), default=-1)
        while self._exists(version + 1):
            version += 1
        return version

    def version_of(self, watermark: Lsn) -> int:
        """
        The version to start after for a reader that has read every landing up to `watermark`.

        It is that of the last landing at or below it; -1 when there is none.

        Raises:
            LogGone: its entry was cleaned up.
        """
        for version in range(self.newest_version(), -1, -1):
            entry = self._entry(version)
            if entry is None:
                raise LogGone(self._table, version)
            if entry.transactions.get(self._landing, watermark + 1) <= watermark:
                return version
        return -1

    def poll(self, after_version: int) -> list[LogCommit]:
        """
        The commits after a version, in order; empty when there are none yet.

        Raises:
            LogGone: the entries that follow were cleaned up.
        """
        commits: list[LogCommit] = []
        while len(commits) < POLL_COMMITS:
            version = after_version + 1 + len(commits)
            entry = self._entry(version)
            if entry is None:
                if not commits and self._is_gone(after_version):
                    raise LogGone(self._table, version)
                break
            commits.append(self._commit(entry))
        self._next = after_version + 1 + len(commits)
        return commits

    def read(self, commit: LogCommit) -> pa.Table:
        """
        The rows of a commit, columns of `layout.CHANGES`, in the order of their positions.

        Raises:
            LogGone: `optimize` rewrote its files and VACUUM removed them.
        """
        try:
            return parquet.read(commit.files, layout.CHANGES)
        except FileNotFoundError as error:
            raise LogGone(self._table, commit.version) from error

    def wait(self, timeout: float) -> bool:
        """Wait up to `timeout` seconds for a commit that `poll` has not returned; if there is."""
        end = time.monotonic() + timeout
        while not self._exists(self._next):
            left = end - time.monotonic()
            if left <= 0:
                return False
            time.sleep(min(left, self._poll_seconds))
        return True

    def _commit(self, entry: Entry) -> LogCommit:
        files = tuple(uri.child(self._table, file.name) for file in entry.added)
        watermark = entry.transactions.get(self._landing)
        if watermark is not None:
            return LogCommit(entry.version, Kind.LANDING, watermark=Lsn(watermark), files=files)
        for app, number in entry.transactions.items():
            if copied := self._copy.fullmatch(app):
                oid, point = int(copied[1]), Lsn(number)
                return LogCommit(entry.version, Kind.COPY, None, oid, point, files)
        return LogCommit(entry.version, Kind.OTHER)

    def _is_gone(self, version: int) -> bool:
        """Whether entries after `version` were cleaned up: the log keeps its newest ones only."""
        return not self._exists(version) if version >= 0 else self.newest_version() > version

    def _entry(self, version: int) -> Entry | None:
        """The entry; `None` when it does not exist, or is torn and about to be removed."""
        try:
            return parse(version, self._bytes(entry_name(version)))
        except FileNotFoundError:
            return None

    def _checkpoint(self) -> int:
        """The version of the last checkpoint, where the search for the newest begins; else 0."""
        try:
            return int(json.loads(self._bytes(LAST_CHECKPOINT))["version"])
        except (FileNotFoundError, ValueError, KeyError):
            return 0

    def _bytes(self, name: str) -> bytes:
        with self._filesystem.open_input_stream(f"{self._log}/{name}") as stream:
            return stream.read()

    def _exists(self, version: int) -> bool:
        return self._filesystem.get_file_info(f"{self._log}/{entry_name(version)}").is_file
