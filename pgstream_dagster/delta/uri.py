"""
URIs of tables and files: the one place that makes them.

Kernel, Spark and pyarrow must use the same name for a file: one of them logs a URI without its
scheme as another name, and every row counts twice after the next rewrite. So a table is
`file:/absolute/path` (Hadoop's form, not percent-encoded) or the URI of an object store, and its
log names files relative to it.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pyarrow import fs

_SCHEME: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:")  # two letters or more: not a drive
_LOCAL: Final = "file:"


def absolute(place: str | Path) -> str:
    """The URI of a folder that a user gave as a path, or as a URI with its scheme."""
    text = str(place)
    if _SCHEME.match(text) and not text.startswith(_LOCAL):
        return text.rstrip("/")
    path = Path(re.sub(r"^file:(//)?(?=/)", "", text)).expanduser()
    return _LOCAL + str(path.absolute())


def child(folder: str, name: str) -> str:
    """The URI of `name` in `folder`."""
    return f"{folder}/{name}"


def name_in(table: str, file: str) -> str:
    """The name of `file` as the log of `table` has it. Raises `ValueError` for a file elsewhere."""
    prefix = child(table, "")
    if not file.startswith(prefix):
        raise ValueError(f"{file!r} is not in the table {table!r}")
    return file.removeprefix(prefix)


def local(uri: str) -> Path | None:
    """The path of a URI on a local file system; `None` on an object store."""
    return Path(uri.removeprefix(_LOCAL)) if uri.startswith(_LOCAL) else None


def filesystem(uri: str) -> tuple[fs.FileSystem, str]:
    """The file system that opens a URI from Python, and the path to open there."""
    from pyarrow import fs

    path = local(uri)
    if path is not None:
        return fs.LocalFileSystem(), str(path)
    return fs.FileSystem.from_uri(uri)
