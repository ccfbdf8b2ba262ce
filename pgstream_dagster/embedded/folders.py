"""
Where the files of embedded servers are, so that the user who runs a server gets to them.

Servers that refuse to run as root run as `nobody` then, to whom root's home and cache are closed:
what such a folder should hold stands in a folder of ours among the temporary files instead.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import pwd
import shutil
import stat
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Final

from pgstream_dagster.errors import ServerNotStarted
from pgstream_dagster.runtime.jars import cache_folder

STANDS_FOR: Final = "stands-for"
"""In a folder that stands in for a closed one: the path of that one."""


def server_user() -> pwd.struct_passwd | None:
    """The user that runs a server when we are root, as which it refuses to run."""
    return pwd.getpwnam("nobody") if os.geteuid() == 0 else None


def give_to_server(path: Path) -> None:
    """Make a file or folder the server's own."""
    user = server_user()
    if user is not None:
        os.chown(path, user.pw_uid, user.pw_gid)


def can_enter(folder: Path) -> bool:
    """Whether the server's user gets to `folder`; `nobody` has the rights of everybody else."""
    return server_user() is None or all(
        parent.stat().st_mode & 0o001 for parent in (folder, *folder.resolve().parents)
    )


def reachable(folder: Path) -> Path:
    """`folder`, made if need be, or its stand-in among the temporary files if it is closed."""
    folder.mkdir(parents=True, exist_ok=True)
    if can_enter(folder):
        return folder
    shelf = _roots_folder()
    _remove_orphans(shelf)
    stand_in = shelf / hashlib.sha256(str(folder).encode()).hexdigest()[:16]
    stand_in.mkdir(exist_ok=True)
    stand_in.chmod(0o711)
    (stand_in / STANDS_FOR).write_text(str(folder), encoding="utf-8")
    return stand_in


def temporary_folder(prefix: str) -> Path:
    """A new folder that the server's user can enter, not list; the caller removes it."""
    base = tempfile.gettempdir() if can_enter(Path(tempfile.gettempdir())) else _roots_folder()
    folder = Path(tempfile.mkdtemp(prefix=prefix, dir=base))
    if server_user() is not None:
        folder.chmod(0o711)
    return folder


def unpacked(archive: Path, shelf_name: str, unpack: Callable[[Path, Path], None]) -> Path:
    """
    The folder that `unpack(archive, folder)` fills, once per cache; the server's user gets in.

    Idempotent, and safe among processes that do it at once.
    """
    shelf = reachable(cache_folder() / shelf_name)
    target = shelf / archive.stem
    with (shelf / f".{archive.stem}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not target.is_dir():
            unfinished = shelf / f".{archive.stem}"
            shutil.rmtree(unfinished, ignore_errors=True)
            unpack(archive, unfinished)
            for inside in (unfinished, *(path for path in unfinished.rglob("*") if path.is_dir())):
                inside.chmod(0o755)  # whatever our umask is
            unfinished.rename(target)
    return target


def _remove_orphans(shelf: Path) -> None:
    """Remove the stand-ins of folders that are gone: nothing leads to them any more."""
    for note in shelf.glob(f"*/{STANDS_FOR}"):
        if not Path(note.read_text(encoding="utf-8")).exists():
            shutil.rmtree(note.parent, ignore_errors=True)


def _roots_folder() -> Path:
    """A folder of ours where everybody may pass: root's home and cache are closed to `nobody`."""
    for base in map(Path, (tempfile.gettempdir(), "/var/tmp", "/tmp")):  # noqa: S108
        if base.is_dir() and can_enter(base):
            folder = base / "pgstream-embedded"
            folder.mkdir(exist_ok=True)
            found = folder.lstat()
            if stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid():
                folder.chmod(0o711)
                return folder
    raise ServerNotStarted("server", "no temporary folder that user 'nobody' can enter")
