"""
Change the rows of a typed table without a Spark job: Arrow finds and writes rows, Kernel commits.

The rows that end are marked in deletion vectors, the new ones are one file, and both are in one
commit with the position. A file without remaining rows is removed; the rest of a tiny one, and of
many small ones, is written into the new file. Nothing of it is seen before the commit, and the
commit is never repeated: it must be the next version after the one that was read.
"""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from typing import Any, Final
from urllib.parse import unquote

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from py4j.java_gateway import JavaGateway

from pgstream_dagster.delta import fsync, uri
from pgstream_dagster.delta.deletion_vectors import NONE, DeletionVectors, RowNumbers
from pgstream_dagster.delta.entries import LAST_CHECKPOINT, LOG_FOLDER, checksum_name, entry_name
from pgstream_dagster.delta.jvm import Java
from pgstream_dagster.delta.kernel import Commit, Conflict, kernel
from pgstream_dagster.delta.parquet import ROW_GROUP_ROWS
from pgstream_dagster.delta.post_commit import PostCommit, PostCommitTask
from pgstream_dagster.delta.statistics import statistics
from pgstream_dagster.errors import MergeOvertaken
from pgstream_dagster.failpoints import reach
from pgstream_dagster.tables.locate import Finder, named, opened
from pgstream_dagster.tables.physical import in_file

SMALL_BYTES: Final = 4 << 20
SMALL_FILES: Final = 16
"""So many files of at most so many bytes are written again as one: a reader opens each file. A row
is written again once per 16 merges, until its file is larger."""

TINY_BYTES: Final = 1 << 20
"""A file of at most so many bytes in which rows end is written again: that takes less time than a
deletion vector, for the next reader, too."""


@dataclass(frozen=True, slots=True)
class Change:
    """
    What to make of a table.

    Shape:
        rows: the new rows, as Spark gives them to Arrow.
        fields: column name -> field in the files.
        keys: finds the rows that end; `None`: rows are only added.
        ids: transaction ids of the commit.
        adds: the files of the version that is changed, as `add` actions.
    """

    rows: pa.Table
    fields: Mapping[str, pa.Field]
    keys: Finder | None
    ids: Mapping[str, int]
    adds: Sequence[Mapping[str, Any]]


@dataclass(frozen=True, slots=True)
class _File:
    """A data file of the table; `ending`: rows that are there and shall not be."""

    add: Mapping[str, Any]
    path: str
    deleted: RowNumbers  # read only where rows end
    ending: RowNumbers

    @property
    def rows(self) -> int:
        """All, deleted ones too."""
        rows = _row_count(self.add)
        return _rows_in(self.path) if rows is None else rows

    @property
    def deleted_count(self) -> int:
        return _deleted_count(self.add)

    @property
    def rest(self) -> int:
        """How many rows it keeps."""
        return self.rows - self.deleted_count - len(self.ending)


def row_count(adds: Sequence[Mapping[str, Any]]) -> int | None:
    """The rows of a table by its statistics; `None` if a file has none."""
    counts = [_row_count(add) for add in adds]
    if any(count is None for count in counts):
        return None
    return sum(count or 0 for count in counts) - sum(map(_deleted_count, adds))


def change(gateway: JavaGateway, table: str, snapshot: Java, planned: Change) -> int:
    """
    Make the change on top of `snapshot`, durable when this returns; how many rows there are then.

    On a local file system the caller holds the commit lock.

    Raises:
        MergeOvertaken: `snapshot` is not the newest version any more; nothing is changed.
    """
    delta = kernel(gateway)
    actions = _ids(planned.ids)
    with closing(DeletionVectors(gateway, table, delta.hadoop)) as vectors:
        files = [_searched(add, table, vectors, planned) for add in planned.adds]
        small = _worth_joining(files)
        marked = [file for file in files if len(file.ending) and file not in small]
        written = _new_file(table, vectors, planned, small, actions)
        written += _marks(vectors, marked, actions)
    _sync(written)
    reach("tables.written")
    try:
        commit = delta.rewrite(table, snapshot, delta.changing(actions))
    except Conflict as error:
        raise MergeOvertaken(table) from error
    _after(gateway, table, commit)
    return sum(file.rest for file in files) + planned.rows.num_rows


# --- what ends ----------------------------------------------------------------------------------


def _searched(
    add: Mapping[str, Any], table: str, vectors: DeletionVectors, planned: Change
) -> _File:
    path = uri.child(table, unquote(add["path"]))
    touched = NONE if planned.keys is None else planned.keys.rows_of(path, planned.fields)
    deleted = vectors.read(add.get("deletionVector")) if len(touched) else NONE
    return _File(add, path, deleted, np.setdiff1d(touched, deleted, assume_unique=True))


def _worth_joining(files: Sequence[_File]) -> list[_File]:
    """The files whose rows are written again, as one."""
    small = [file for file in files if file.add["size"] <= SMALL_BYTES]
    if len(small) >= SMALL_FILES:
        return small
    return [file for file in small if len(file.ending) and file.add["size"] <= TINY_BYTES]


def _marks(
    vectors: DeletionVectors, files: Sequence[_File], actions: list[dict[str, Any]]
) -> list[str]:
    """Add the actions that end rows of these files; the URIs of what was written for it."""
    kept = [file for file in files if file.rest]
    marks, written = vectors.write([_union(f.deleted, f.ending) for f in kept])
    actions += [_remove(file) for file in files]
    actions += [_add(file, mark) for file, mark in zip(kept, marks, strict=True)]
    return written


def _union(rows: RowNumbers, others: RowNumbers) -> RowNumbers:
    """Rows that are in either of two, which have none in common."""
    return np.sort(np.concatenate([rows, others]), kind="stable")


# --- what begins --------------------------------------------------------------------------------


def _new_file(
    table: str,
    vectors: DeletionVectors,
    planned: Change,
    small: Sequence[_File],
    actions: list[dict[str, Any]],
) -> list[str]:
    """Write new rows, and the rest of the small files, as one; the URIs of what was written."""
    actions += [_remove(file) for file in small]
    rest = [in_file(_rest(file, vectors, planned.fields), planned.fields) for file in small]
    rows = pa.concat_tables([in_file(planned.rows, planned.fields), *rest])
    if not rows.num_rows:
        return []
    name = f"{uuid.uuid4()}.parquet"
    path = uri.child(table, name)
    size = _write(rows, path)
    actions.append(
        {
            "add": {
                "path": name,
                "partitionValues": {},
                "size": size,
                "modificationTime": _now_ms(),
                "dataChange": True,
                "stats": json.dumps(statistics(rows)),
            }
        }
    )
    return [path]


def _rest(file: _File, vectors: DeletionVectors, fields: Mapping[str, pa.Field]) -> pa.Table:
    """The rows that a file keeps, under the names of the table."""
    with opened(file.path) as source:
        names = [f.name for f in fields.values() if f.name in source.schema_arrow.names]
        rows = named(source.read(names, use_threads=False), fields)
    stays = np.ones(rows.num_rows, np.bool_)
    stays[vectors.read(file.add.get("deletionVector"))] = False
    stays[file.ending] = False
    return rows.filter(pa.array(stays))


def _write(rows: pa.Table, path: str) -> int:
    """Write a file as Spark does; its bytes."""
    filesystem, there = uri.filesystem(path)
    with filesystem.open_output_stream(there) as stream:
        pq.write_table(
            rows,
            stream,
            row_group_size=ROW_GROUP_ROWS,
            compression="zstd",
            compression_level=1,
            store_schema=False,
            store_decimal_as_integer=True,
        )
        return stream.tell()


# --- actions ------------------------------------------------------------------------------------


def _ids(ids: Mapping[str, int]) -> list[dict[str, Any]]:
    now_ms = _now_ms()
    return [
        {"txn": {"appId": app, "version": int(number), "lastUpdated": now_ms}}
        for app, number in ids.items()
    ]


def _remove(file: _File) -> dict[str, Any]:
    described = ("path", "size", "partitionValues", "deletionVector", "tags")
    kept = {name: file.add[name] for name in described if file.add.get(name) is not None}
    times = {"deletionTimestamp": _now_ms(), "dataChange": True, "extendedFileMetadata": True}
    return {"remove": {**kept, **times}}


def _add(file: _File, mark: Mapping[str, Any]) -> dict[str, Any]:
    """The file with a deletion vector: its bounds are those of more rows than it has."""
    stats = json.loads(file.add.get("stats") or "{}")
    loose = {**stats, "numRecords": file.rows, "tightBounds": False}
    changed = {"deletionVector": mark, "dataChange": True, "stats": json.dumps(loose)}
    return {"add": {**file.add, **changed}}


def _row_count(add: Mapping[str, Any]) -> int | None:
    return json.loads(add.get("stats") or "{}").get("numRecords")


def _rows_in(path: str) -> int:
    filesystem, there = uri.filesystem(path)
    return pq.read_metadata(there, filesystem=filesystem).num_rows


def _deleted_count(add: Mapping[str, Any]) -> int:
    return (add.get("deletionVector") or {}).get("cardinality", 0)


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


# --- durable ------------------------------------------------------------------------------------


def _after(gateway: JavaGateway, table: str, commit: Commit) -> None:
    """Sync the commit; then write its checksum, and a checkpoint when one is due."""
    log = uri.child(table, LOG_FOLDER)
    _sync([uri.child(log, entry_name(commit.version))])
    checkpoint = f"{commit.version:020d}.checkpoint.parquet"
    names = [checksum_name(commit.version), checkpoint, LAST_CHECKPOINT]

    def run(hook: Java) -> None:
        hook.threadSafeInvoke(kernel(gateway).engine)
        _sync([uri.child(log, name) for name in names])

    post_commit = PostCommit(table)
    tasks = [PostCommitTask(k, partial(run, hook)) for k, hook in commit.post_commit_hooks]
    post_commit.submit(commit.version, tasks)
    post_commit.close()


def _sync(files: Sequence[str]) -> None:
    """Those of these files that are on a local disk are durable when this returns."""
    paths = [path for file in files if (path := uri.local(file)) is not None]
    fsync.sync_files(path for path in paths if path.exists())
