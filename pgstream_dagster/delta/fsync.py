"""
Durable means synced: a power cut must not take what Postgres is allowed to forget.

No writer of Delta or Parquet calls fsync on a local disk; these functions do, afterwards. On Linux
an fsync through any descriptor writes what any process wrote to the file. A new name is durable
once its folder is synced, too. Object stores are durable when a write returns: nothing is done.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path


def sync(path: Path) -> None:
    """The bytes of a file, or the names in a folder, are on disk when this returns."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sync_files(paths: Iterable[Path]) -> None:
    """The files' bytes and names are on disk when this returns; one sync for each folder."""
    folders: set[Path] = set()
    for path in paths:
        sync(path)
        folders.add(path.parent)
    for folder in folders:
        sync(folder)


def make_folder(path: Path) -> None:
    """Create the folder and its missing parents, with durable names."""
    missing = [folder for folder in (path, *path.parents) if not folder.exists()]
    path.mkdir(parents=True, exist_ok=True)
    for folder in missing:
        sync(folder.parent)
