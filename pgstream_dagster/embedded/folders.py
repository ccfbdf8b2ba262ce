"""
Where the files of embedded servers are, so that the user who runs a server can reach them.

Servers that refuse to run as root run as `nobody`, who cannot enter root's home and cache. What
such a closed folder should contain is kept in a substitute among the temporary files instead.
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

NOTE: Final = "stands-for"
"""The file in a substitute folder with the path of the closed folder."""


def server_user() -> pwd.struct_passwd | None:
    """The user that runs a server when we are root, since servers refuse to run as root."""
    return pwd.getpwnam("nobody") if os.geteuid() == 0 else None


def give_to_server(path: Path) -> None:
    """Make the server's user the owner of a file or folder."""
    user = server_user()
    if user is not None:
        os.chown(path, user.pw_uid, user.pw_gid)


def can_enter(folder: Path) -> bool:
    """Whether the server's user can enter `folder`; `nobody` has the rights of others."""
    return server_user() is None or all(
        parent.stat().st_mode & 0o001 for parent in (folder, *folder.resolve().parents)
    )


def reachable(folder: Path) -> Path:
    """`folder`, created if missing, or its substitute among the temporary files if it is closed."""
    folder.mkdir(parents=True, exist_ok=True)
    if can_enter(folder):
        return folder
    parent = _roots_folder()
    _remove_orphans(parent)
    substitute = parent / hashlib.sha256(str(folder).encode()).hexdigest()[:16]
    substitute.mkdir(exist_ok=True)
    substitute.chmod(0o711)
    (substitute / NOTE).write_text(str(folder), encoding="utf-8")
    return substitute


def temporary_folder(prefix: str) -> Path:
    """A new folder that the server's user can enter but not list; the caller removes it."""
    base = tempfile.gettempdir() if can_enter(Path(tempfile.gettempdir())) else _roots_folder()
    folder = Path(tempfile.mkdtemp(prefix=prefix, dir=base))
    if server_user() is not None:
        folder.chmod(0o711)
    return folder


def unpacked(archive: Path, kind: str, unpack: Callable[[Path, Path], None]) -> Path:
    """
    The folder that `unpack(archive, folder)` fills, once per cache; the server's user can enter it.

    Idempotent, also among concurrent processes.
    """
    shelf = reachable(cache_folder() / kind)
    target = shelf / archive.stem
    with (shelf / f".{archive.stem}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not target.is_dir():
            unfinished = shelf / f".{archive.stem}"
            shutil.rmtree(unfinished, ignore_errors=True)
            unpack(archive, unfinished)
            for path in (unfinished, *unfinished.rglob("*")):
                if path.is_dir():
                    path.chmod(0o755)  # independent of our umask
            unfinished.rename(target)
    return target


def _remove_orphans(parent: Path) -> None:
    """Remove the substitutes of folders that no longer exist."""
    for note in parent.glob(f"*/{NOTE}"):
        if not Path(note.read_text(encoding="utf-8")).exists():
            shutil.rmtree(note.parent, ignore_errors=True)


def _roots_folder() -> Path:
    """A folder of ours that every user can enter, for the substitutes of root's folders."""
    for base in map(Path, (tempfile.gettempdir(), "/var/tmp", "/tmp")):  # noqa: S108
        if base.is_dir() and can_enter(base):
            folder = base / "pgstream-embedded"
            folder.mkdir(exist_ok=True)
            status = folder.lstat()
            if stat.S_ISDIR(status.st_mode) and status.st_uid == os.geteuid():
                folder.chmod(0o711)
                return folder
    raise ServerNotStarted("server", "no temporary folder that user 'nobody' can enter")
