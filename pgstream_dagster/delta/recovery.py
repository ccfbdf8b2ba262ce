"""
Repair of a Delta log after a power cut, when a table is opened; runs under the commit lock.

Everything confirmed was synced, so what a power cut has torn was never confirmed: the newest entry
(and only that one), checkpoints, checksums. Checkpoints and checksums are removed. The entry is set
aside: a disk that has lost synced data looks the same, and then the source may be ahead of the log.
An older entry that is torn or missing is damage, and so is the newest one if it has a checksum,
which is written only after the entry was synced. Local file systems only: an object store never
shows half an object.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable
from pathlib import Path
from typing import Final

import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import fs

from pgstream_dagster.delta import fsync
from pgstream_dagster.delta.entries import (
    LAST_CHECKPOINT,
    checksum_name,
    entry_name,
    parse,
    version_of_checkpoint,
    version_of_entry,
)
from pgstream_dagster.errors import LogDamaged

logger: Final = logging.getLogger(__name__)


def recover(log: Path) -> None:
    """
    Repair a log so that every reader reads the same of it, with its newest entries on disk.

    Idempotent; the caller holds the commit lock, so no entry is being written. A process that was
    killed may have left an entry unsynced, so the entries to build upon are synced.

    Raises:
        LogDamaged: an entry that was confirmed is torn or missing.
    """
    names = [path.name for path in log.iterdir()]
    entries = sorted(v for v in map(version_of_entry, names) if v is not None)
    if not entries:
        return
    whole = _checkpoints(log, names)
    after = [v for v in entries if v > whole]
    is_torn = bool(after) and not _is_whole(log, after[-1])
    kept = after[:-1] if is_torn else after
    _no_holes(log, whole, kept)  # before anything is removed: damage stays as it was
    if is_torn:
        _set_aside(log, after[-1])
    _checksums(log, kept)
    fsync.sync_files(log / entry_name(v) for v in kept)
    fsync.sync(log)


def aside(log: Path, version: int) -> Path:
    """The file that a torn entry of this version is moved to; its name hides it from readers."""
    return log / f".{entry_name(version)}.torn"


def _set_aside(log: Path, version: int) -> None:
    entry = log / entry_name(version)
    if (log / checksum_name(version)).exists():
        raise LogDamaged(str(entry), "the entry is cut off, and was whole when it was confirmed")
    logger.warning("%s: a torn entry, set aside as %s", entry, aside(log, version).name)
    entry.replace(aside(log, version))
    (log / f".{entry.name}.crc").unlink(missing_ok=True)


def _checkpoints(log: Path, names: Iterable[str]) -> int:
    """The version of the newest readable checkpoint (-1: none); newer ones are removed."""
    checkpoints = [(v, name) for name in names if (v := version_of_checkpoint(name)) is not None]
    newest = -1
    for version, name in sorted(checkpoints, reverse=True):
        if is_readable(log / name):
            newest = version
            break
        _remove(log, name, "checkpoint")
    _pointer(log)
    return newest


def _pointer(log: Path) -> None:
    """Remove `_last_checkpoint` unless it names a checkpoint that exists."""
    try:
        version = json.loads((log / LAST_CHECKPOINT).read_bytes())["version"]
    except FileNotFoundError:
        return
    except (ValueError, KeyError, TypeError):
        version = -1
    if not any(log.glob(f"{version:020d}.checkpoint.*")):
        _remove(log, LAST_CHECKPOINT, "pointer")


def _no_holes(log: Path, checkpoint: int, versions: list[int]) -> None:
    for expected, version in enumerate(versions, start=checkpoint + 1):
        if version != expected:
            raise LogDamaged(str(log / entry_name(expected)), "the entry is missing")
        if not _is_whole(log, version):
            raise LogDamaged(str(log / entry_name(version)), "the entry is cut off")


def _checksums(log: Path, versions: Iterable[int]) -> None:
    for version in versions:
        path = log / checksum_name(version)
        try:
            json.loads(path.read_bytes())
        except FileNotFoundError:
            continue
        except ValueError:
            _remove(log, path.name, "checksum")


def _is_whole(log: Path, version: int) -> bool:
    return parse(version, (log / entry_name(version)).read_bytes()) is not None


def is_readable(checkpoint: str | Path, filesystem: fs.FileSystem | None = None) -> bool:
    """Whether all of it can be read: a power cut may keep the footer and lose a block before it."""
    try:
        with pq.ParquetFile(checkpoint, filesystem=filesystem) as file:
            for _ in file.iter_batches():
                pass
    except (pa.ArrowException, OSError):
        return False
    return True


def _remove(log: Path, name: str, what: str) -> None:
    """Remove a torn file and the checksum file that Hadoop may have written for it."""
    path = log / name
    if path.exists():
        logger.warning("%s: removed a torn %s that was never confirmed", path, what)
        path.unlink()
    (log / f".{name}.crc").unlink(missing_ok=True)
