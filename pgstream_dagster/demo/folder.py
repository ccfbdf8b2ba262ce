"""The folder of a demo: each run clears it, but removes only files that demos create."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Final

from pgstream_dagster.errors import FolderTaken

MARKER: Final = ".pgstream-demo"
"""A folder with this file belongs to a demo."""

MADE: Final = ("home", "lake", "state", "dagster.log", "setup.log", "pgstream.yaml", ".env")
"""Everything that demos create there; nothing else is removed."""


def begin(folder: Path) -> None:
    """
    Create a folder, or remove what a former demo created in it.

    Raises:
        FolderTaken: it is neither empty nor of a demo; nothing was changed.
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
