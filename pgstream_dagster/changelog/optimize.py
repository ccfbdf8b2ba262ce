"""
Few large files instead of many small ones, while landing and readers continue.

Spark's own OPTIMIZE would have to hold the commit lock while it runs. So the rows are rewritten
here, without the lock: Spark sorts the rows of some small files into files of 128 MB, and one
short commit replaces the former by the latter (`dataChange=false`: readers that follow the log see
nothing new in it). Landing only adds files, so no commit of a landing touches the replaced files.
If another rewrite has replaced one of them meanwhile, nothing is committed.

The replaced files stay until `vacuum` and `clean_log`, which remove nothing before everything newer
is on disk.
"""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any, Final

import pyarrow as pa
from py4j.java_gateway import JavaGateway
from pyarrow import fs
from pyspark.sql import SparkSession

from pgstream_dagster.changelog.log_files import read_files
from pgstream_dagster.changelog.table_specs import LOG_RETENTION_DAYS
from pgstream_dagster.delta import parquet, uri
from pgstream_dagster.delta.delta_table import DeltaTable
from pgstream_dagster.delta.entries import (
    LOG_FOLDER,
    AddedFile,
    version_of_checkpoint,
    version_of_log_file,
)
from pgstream_dagster.delta.jvm import OPTIMIZED_FILE_BYTES
from pgstream_dagster.delta.parquet import DataFile
from pgstream_dagster.delta.recovery import is_readable
from pgstream_dagster.errors import LogDamaged
from pgstream_dagster.schema import layout

SMALL_SHARE: Final = 0.5
"""Of the target size: larger files are left alone, or each run would write them again."""

STEP_FILES: Final = 4_000
"""Files replaced by one commit: its entry of about 1 MB is written while landing waits."""

STEP_BYTES: Final = 2 << 30
"""Rewritten by one Spark job and one commit: the most work that a crash can waste."""

WORTH_FILES: Final = 8
"""A step of fewer small files would cost more than it saves."""

ORDER: Final = (*layout.CLUSTER_BY, "ordinal")
"""The rows' order: the history of a relation is together, in the order of its positions."""

TEMPORARY_SECONDS: Final = 86_400
"""A log entry's temporary file older than this was left by a killed process."""

DAY_SECONDS: Final = 86_400


@dataclass(frozen=True, slots=True)
class Optimized:
    """What one run has done."""

    steps: int = 0
    removed_files: int = 0
    added_files: int = 0
    rows: int = 0
    bytes: int = 0

    def with_step(self, removed: Sequence[AddedFile], added: Sequence[DataFile]) -> Optimized:
        """With one more step."""
        return Optimized(
            self.steps + 1,
            self.removed_files + len(removed),
            self.added_files + len(added),
            self.rows + sum(file.rows for file in added),
            self.bytes + sum(file.size for file in added),
        )


Report = Callable[[Optimized], None]
"""Called after every step."""


def optimize(
    change_log: str,
    spark: SparkSession,
    gateway: JavaGateway,
    *,
    target_bytes: int = OPTIMIZED_FILE_BYTES,
    report: Report = lambda _: None,
) -> Optimized:
    """
    Rewrite the small files of the change log into large ones, step by step.

    At every moment the table has every row exactly once. Each step is one commit. If the run ends
    within a step, the files written by it belong to no commit, and a later VACUUM removes them.
    """
    table = DeltaTable(change_log, gateway)
    try:
        done = Optimized()
        for step in steps(table.files(), target_bytes):
            added = _rewritten(change_log, spark, step, target_bytes)
            if table.rewrite(step, added) is None:
                return done  # another `optimize` runs and does the rest
            done = done.with_step(step, added)
            report(done)
        return done
    finally:
        table.close()


def steps(files: Iterable[AddedFile], target_bytes: int) -> list[list[AddedFile]]:
    """
    Which files to rewrite together, the oldest changes first.

    Only small files, in steps of limited size; a step of too few files is left out.
    """
    small = [file for file in files if file.size < target_bytes * SMALL_SHARE]
    planned: list[list[AddedFile]] = [[]]
    size = 0
    for file in sorted(small, key=_first_lsn):
        if len(planned[-1]) == STEP_FILES or size + file.size > STEP_BYTES:
            planned.append([])
            size = 0
        planned[-1].append(file)
        size += file.size
    return [step for step in planned if len(step) >= WORTH_FILES]


def vacuum(table: str, spark: SparkSession) -> None:
    """Remove files unreferenced for a week; syncs first, so that newer files are on disk."""
    _sync_everything(table)
    spark.sql(f"vacuum delta.`{table}`")


def clean_log(table: str, *, now: float | None = None, days: int = LOG_RETENTION_DAYS) -> int:
    """
    Remove log entries and checkpoints that are older than the retention; how many.

    Everything removed is older than a checkpoint that is itself older than the retention, can be
    read and is on disk: every version since that checkpoint can still be opened.
    """
    _sync_everything(table)
    filesystem, log = uri.filesystem(uri.child(table, LOG_FOLDER))
    now = time.time() if now is None else now
    listed = filesystem.get_file_info(fs.FileSelector(log))
    keep_from = _oldest_needed(filesystem, listed, now - days * DAY_SECONDS)
    expired = [file for file in listed if _is_expired(file, keep_from, now)]
    for file in expired:
        filesystem.delete_file(file.path)
    return len(expired)


def _oldest_needed(filesystem: fs.FileSystem, listed: Iterable[Any], before: float) -> int:
    """The version of the newest checkpoint that was written `before`; 0 without one."""
    checkpoints = [
        (version, file.path)
        for file in listed
        if (version := version_of_checkpoint(file.base_name)) is not None
        and file.mtime_ns < before * 1e9
    ]
    for version, path in sorted(checkpoints, reverse=True):
        if is_readable(path, filesystem):
            return version
    return 0


def _is_expired(file: Any, keep_from: int, now: float) -> bool:
    version = version_of_log_file(file.base_name)
    if version is not None:
        return version < keep_from
    is_temporary = file.base_name.startswith(".") and file.base_name.endswith(".tmp")
    return is_temporary and file.mtime_ns < (now - TEMPORARY_SECONDS) * 1e9


def _first_lsn(file: AddedFile) -> int:
    bounds = json.loads(file.stats_json).get("minValues", {}) if file.stats_json else {}
    return int(bounds.get("commit_lsn", 0))


def _rewritten(
    table: str, spark: SparkSession, files: Sequence[AddedFile], target_bytes: int
) -> list[DataFile]:
    """The rows of `files` in few sorted files, synced and in no commit."""
    sources = [uri.child(table, file.name) for file in files]
    partitions = math.ceil(sum(file.size for file in files) / target_bytes)
    rows = (
        read_files(spark, sources)
        .repartitionByRange(partitions, *ORDER)
        .sortWithinPartitions(*ORDER)
    )
    write = partial(_write, table=table, target_bytes=target_bytes)
    written = rows.mapInArrow(write, "path string, rows bigint, size bigint, stats_json string")
    added = [DataFile(**row.asDict()) for row in written.collect()]
    parquet.sync(*added)
    _check(table, files, added)
    return added


def _write(
    batches: Iterator[pa.RecordBatch], *, table: str, target_bytes: int
) -> Iterator[pa.RecordBatch]:
    """Write sorted rows to files of about the target size; runs in a Spark task."""
    file: parquet.FileWriter | None = None
    for batch in batches:
        rows = pa.Table.from_batches([batch]).cast(layout.CHANGES)
        if rows.num_rows:
            file = file or parquet.FileWriter(table, layout.CHANGES)
            file.write(rows)
        if file is not None and file.size >= target_bytes:
            yield _written(file)
            file = None
    if file is not None:
        yield _written(file)


def _written(file: parquet.FileWriter) -> pa.RecordBatch:
    file.close()
    written = file.written()
    parquet.sync(written)
    return pa.RecordBatch.from_pylist([asdict(written)])


def _check(table: str, removed: Sequence[AddedFile], added: Sequence[DataFile]) -> None:
    """Raise unless the new files have as many rows as the log counts in the old ones."""
    before = sum(json.loads(file.stats_json)["numRecords"] for file in removed)
    after = sum(file.rows for file in added)
    if before != after:
        raise LogDamaged(table, f"files to rewrite hold {after:,} rows, the log says {before:,}")


def _sync_everything(table: str) -> None:
    if uri.local(table) is not None:
        os.sync()
