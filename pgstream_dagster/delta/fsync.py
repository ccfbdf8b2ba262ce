"""
Durable means synced: what Postgres may forget, a power cut must not take.

No writer of Delta or Parquet calls fsync on a local disk; these do, after it. On Linux an fsync
through any descriptor writes what any process wrote to the file. A new name is durable once its
folder is synced, too. Object stores are durable when a write returns: there, nothing is done.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path


def sync_file(path: Path) -> None:
    """The file's bytes are on disk when this returns; `sync_folder` does its name."""
    _sync(path, os.O_RDONLY)


def sync_folder(path: Path) -> None:
    """The names in the folder (made, renamed, removed) are on disk when this returns."""
    _sync(path, os.O_RDONLY | os.O_DIRECTORY)


def sync_files(paths: Iterable[Path]) -> None:
    """Files and their names; one sync for each folder."""
    folders: set[Path] = set()
    for path in paths:
        sync_file(path)
        folders.add(path.parent)
    for folder in folders:
        sync_folder(folder)


def make_folder(path: Path) -> None:
    """The folder, and those above it that were missing, with durable names."""
    missing = [folder for folder in (path, *path.parents) if not folder.exists()]
    path.mkdir(parents=True, exist_ok=True)
    for folder in missing:
        sync_folder(folder.parent)


def _sync(path: Path, flags: int) -> None:
    descriptor = os.open(path, flags)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
