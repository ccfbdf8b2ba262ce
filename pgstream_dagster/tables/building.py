"""
A typed table that is written again beside itself, verified there, and swapped in by one commit.

Spark writes the rows into a folder of their own that begins with the log of the table. So the
commit that it makes there is the table's next one: once the rows of that version have been compared
with those that it shall have, the files move into the table's folder, and then the commit does.
Readers never see rows that were not compared. On a local file system only.
"""

from __future__ import annotations

import os
import secrets
import shutil
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Final, NamedTuple

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T

from pgstream_dagster.changelog.fold import entries
from pgstream_dagster.delta import fsync, uri
from pgstream_dagster.delta.entries import (
    LAST_CHECKPOINT,
    LOG_FOLDER,
    checksum_name,
    entry_name,
    parse,
    version_of_checkpoint,
    version_of_log_file,
)
from pgstream_dagster.tables.columns import quoted

FOLDER: Final = "_building"
"""Beside the tables; no table has such a name."""

_LOW: Final = (1 << 32) - 1


class Fingerprint(NamedTuple):
    """Of the rows of a table, in any order: their number and sums of their hashes."""

    rows: int
    low: int | None
    high: int | None


def remove_unfinished(tables: str) -> None:
    """Remove what rebuilds left that were killed; the caller has the turn, so none runs."""
    folder = uri.local(tables)
    if folder is not None:
        shutil.rmtree(folder / FOLDER, ignore_errors=True)


@contextmanager
def beside(table: Path, *, is_new: bool = False) -> Generator[Path]:
    """
    A folder with the log of a table and nothing else, which is removed in the end.

    `is_new`: not even the log, for a table that begins again.
    """
    place = table.parent / FOLDER / table.name
    # A name of its own: Spark would go on from the versions that it has seen under another's.
    folder = place / secrets.token_hex(8)
    folder.mkdir(parents=True)
    if not is_new:
        _copy_log(table / LOG_FOLDER, folder / LOG_FOLDER)
    try:
        yield folder
    finally:
        shutil.rmtree(place, ignore_errors=True)


def swap(folder: Path, table: Path, version: int) -> None:
    """
    Make the commit of a version in `folder` the next one of the table; durable with its files.

    Raises:
        FileExistsError: the table has gone on; it stays as it is.
    """
    moved = list[Path]()
    for name in _added(folder / LOG_FOLDER / entry_name(version), version):
        source, target = folder / name, table / name
        fsync.make_folder(target.parent)
        source.replace(target)
        moved.append(target)
    fsync.sync_files(moved)
    log = table / LOG_FOLDER
    os.link(folder / LOG_FOLDER / entry_name(version), log / entry_name(version))
    checksum = folder / LOG_FOLDER / checksum_name(version)
    if checksum.exists():
        shutil.copy(checksum, log / checksum.name)
    fsync.sync_files([log / entry_name(version)])


def fingerprint(rows: DataFrame) -> Fingerprint:
    """That of rows; a job."""
    [row] = rows.select(_hash(rows).alias("hash")).select(*_sums()).collect()
    return Fingerprint(*row)


def _added(entry: Path, version: int) -> list[str]:
    commit = parse(version, entry.read_bytes())
    assert commit is not None, f"{entry} is not complete"
    return [file.name for file in commit.added]


def _hash(rows: DataFrame) -> Column:
    parts = [_hashable(F.col(quoted(field.name)), field.dataType) for field in rows.schema.fields]
    return F.xxhash64(*parts)


def _sums() -> list[Column]:
    return [
        F.count(F.lit(1)).alias("rows"),
        F.sum(F.col("hash").bitwiseAND(F.lit(_LOW))).alias("low"),
        F.sum(F.shiftrightunsigned("hash", 32)).alias("high"),
    ]


def _hashable(value: Column, type_: T.DataType) -> Column:
    """A value that can be hashed, and is NULL only if the value is: hashes pass over NULL."""
    match type_:
        case T.MapType():
            value = F.to_json(entries(value))
        case T.VariantType() | T.ArrayType() | T.StructType():
            value = F.to_json(F.struct(value))
        case _:
            pass
    return F.struct(value.isNull(), value)


def _copy_log(log: Path, copy: Path) -> None:
    """The files of a log that its newest version is read from; entries are never changed."""
    copy.mkdir()
    if not log.exists():
        return
    checkpoints = (version_of_checkpoint(path.name) for path in log.iterdir())
    newest = max((version for version in checkpoints if version is not None), default=0)
    for path in log.iterdir():
        if (version := version_of_log_file(path.name)) is not None and version >= newest:
            os.link(path, copy / path.name)
    if (log / LAST_CHECKPOINT).exists():
        shutil.copy(log / LAST_CHECKPOINT, copy)
