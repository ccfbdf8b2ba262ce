"""
A place to run Dagster in: its home, the pipeline file, the environment that leads to the servers.

Dagster is started as a user starts it, as a process. A supervisor stands between, so that nothing
of it stays when our process is killed.
"""

from __future__ import annotations

import http.client
import os
import shutil
import signal
import sys
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from pgstream_dagster import settings
from pgstream_dagster.demo.printing import Say, Waiting
from pgstream_dagster.embedded.processes import free_ports, is_free, members, supervised, tail
from pgstream_dagster.errors import ProcessEnded, ServerNotStarted

DEFINITIONS: Final = "pgstream_dagster.definitions"
PACKAGE: Final = Path(__file__).parent

HOST: Final = "127.0.0.1"
PORT: Final = 3000
"""Dagster's own default: where people look."""

OTHER_PORTS: Final = range(3001, 3100)

HEAP: Final = "512m"
"""Below the 1 GB that real tables want: a few thousand rows."""

JAVA: Final = (
    "-XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=128m"
    # A full collection returns what is free, and the C library what it keeps, in newer Javas.
    " -XX:+UseG1GC -XX:MinHeapFreeRatio=5 -XX:MaxHeapFreeRatio=20"
    " -XX:+IgnoreUnrecognizedVMOptions -XX:TrimNativeHeapInterval=60000"
)
"""Two of the JVMs stay, and do little: small is worth more than fast."""

ARENAS: Final = "2"
"""Of malloc: with eight per core a JVM or a server of many threads keeps what it frees."""

NOT_OURS: Final = ("PGSTREAM_", "DAGSTER_")
"""What a shell says for a pipeline of its own must not lead this one there, or post its alerts."""

KEPT: Final = ("PGSTREAM_CACHE", "PGSTREAM_MAVEN_URL")

POLL_SECONDS: Final = 0.1
END_SECONDS: Final = 60.0
"""A stream lands and confirms what is complete; what lasts longer is killed."""


@dataclass(frozen=True, slots=True)
class Site:
    """The folder of an installation, and what its processes are told."""

    folder: Path
    is_kept: bool
    variables: Mapping[str, str]


def make(
    folder: Path, given: Mapping[str, str], dsn: str, search_url: str, *, is_kept: bool
) -> Site:
    """Write the files of a site into a folder that was begun; `given`: our environment."""
    home, file = folder / "home", folder / "pgstream.yaml"
    home.mkdir(parents=True)
    shutil.copyfile(PACKAGE / "dagster.yaml", home / "dagster.yaml")
    shutil.copyfile(PACKAGE / "dev.yaml", file)
    others = {
        name: said for name, said in given.items() if name in KEPT or not name.startswith(NOT_OURS)
    }
    ours = {
        "DAGSTER_HOME": str(home),
        settings.CONFIG: str(file),
        settings.DSN: dsn,
        settings.LAKE: str(folder / "lake"),
        settings.STATE: str(folder / "state"),
        settings.SEARCH_URL: search_url,
        settings.HEAP: HEAP,
        "JDK_JAVA_OPTIONS": f"{given.get('JDK_JAVA_OPTIONS', '')} {JAVA}".strip(),
        "MALLOC_ARENA_MAX": ARENAS,
    }
    return Site(folder, is_kept, {**others, **ours})


def port_for(wanted: int | None) -> int:
    """
    Where the UI is to listen.

    Raises:
        ServerNotStarted: the port that was asked for is taken.
    """
    if wanted is None:
        return PORT if is_free(PORT) else next(free_ports(OTHER_PORTS, 1))
    if not is_free(wanted):
        raise ServerNotStarted("Dagster", f"port {wanted} is taken by another process")
    return wanted


class Command:
    """A command of Dagster; it and all that it starts are ended at the end of the `with` block."""

    def __init__(self, site: Site, name: str, *arguments: str) -> None:
        self._site, self._arguments = site, arguments
        self.name: Final = name
        self._log: Final = site.folder / f"{name}.log"

    def __enter__(self) -> Self:
        # Under a supervisor SIGINT does what it does by default, whatever it does to us: Dagster
        # that inherits an ignored SIGINT cannot be ended, not even by SIGTERM.
        self._supervisor = supervised(
            [[sys.executable, "-m", "dagster", *self._arguments]],
            signals=[signal.SIGINT, signal.SIGKILL],
            log=self._log,
            remove=None if self._site.is_kept else self._site.folder,
            environment=self._site.variables,
            user=None,
        )
        assert self._supervisor.stdout is not None
        self._pid = int(self._supervisor.stdout.readline())
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """End the whole group: the runs are in it, and land what is complete."""
        for number in (signal.SIGINT, signal.SIGKILL):
            with suppress(ProcessLookupError):
                os.killpg(self._pid, number)
            if self._is_gone(END_SECONDS):
                break
        self._supervisor.wait()
        if self._supervisor.stdout is not None:
            self._supervisor.stdout.close()

    @property
    def status(self) -> int | None:
        """0 when it ended well; `None` while it runs."""
        return self._supervisor.poll()

    @property
    def said(self) -> str:
        """The end of its log."""
        return tail(self._log.read_text(encoding="utf-8", errors="replace"))

    def require_running(self) -> None:
        """
        Nothing, while it runs.

        Raises:
            ProcessEnded
        """
        if self.status is not None:
            raise ProcessEnded(self.name, self.said)

    def _is_gone(self, seconds: float) -> bool:
        deadline = time.monotonic() + seconds
        while members(self._pid):
            if time.monotonic() > deadline:
                return False
            time.sleep(POLL_SECONDS)
        return True


def execute(site: Site, job: str, stop: threading.Event, say: Say) -> None:
    """
    Run a job to its end, recorded in the site's home; when stopped, it is ended.

    Raises:
        ProcessEnded: it failed.
    """
    waiting = Waiting(f"job {job!r} to end", say)
    with Command(site, job, "job", "execute", "-m", DEFINITIONS, "-j", job) as command:
        while command.status is None and not stop.wait(POLL_SECONDS):
            waiting.look()
        if command.status:
            raise ProcessEnded(job, command.said)


def served(site: Site, port: int) -> Command:
    """Webserver, daemon and code server; the sensors launch the runs."""
    where = ("-h", HOST, "-p", str(port))
    return Command(site, "dagster", "dev", "-m", DEFINITIONS, *where)


def wait_for_answer(dagster: Command, port: int, stop: threading.Event, say: Say) -> None:
    """
    Until the UI answers, or we are stopped; as long as Dagster runs.

    Raises:
        ProcessEnded: it ended, with the end of its log.
    """
    waiting = Waiting("Dagster to answer", say)
    while not _answers(port) and not stop.wait(POLL_SECONDS):
        dagster.require_running()
        waiting.look()


def _answers(port: int) -> bool:
    connection = http.client.HTTPConnection(HOST, port, timeout=10)
    try:
        connection.request("GET", "/server_info")
        return connection.getresponse().status == http.client.OK
    except (OSError, http.client.HTTPException):
        return False  # not up yet
    finally:
        connection.close()
