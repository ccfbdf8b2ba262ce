"""The folder that a demo leaves to look at: begun again by each run, and no other files."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Final

from pgstream_dagster.errors import FolderTaken

MARKER: Final = ".pgstream-demo"
"""A folder with this file is a demo's own."""

MADE: Final = ("home", "lake", "state", "dagster.log", "setup.log", "pgstream.yaml")
"""All that a demo ever makes there; no more is removed."""


def begin(folder: Path) -> None:
    """
    Make a folder, or remove what a former demo made in it.

    Raises:
        FolderTaken: it is neither empty nor a demo's own; nothing was touched.
    """
    folder.mkdir(parents=True, exist_ok=True)
    marker = folder / MARKER
    if not marker.is_file() and any(folder.iterdir()):
        raise FolderTaken(str(folder))
    marker.touch()
    for name in MADE:
        path = folder / name
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)
