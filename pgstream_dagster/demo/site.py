"""
An installation that Dagster runs in: its home, the pipeline file, and its environment.

Dagster runs as a process, as a user would start it. A supervisor ends all of its processes when our
process is killed.
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
from typing import Final, Self

from dotenv import set_key

from pgstream_dagster import settings
from pgstream_dagster.demo.printing import Echo, Waiting
from pgstream_dagster.demo.receiver import HOST
from pgstream_dagster.demo.targets import Targets
from pgstream_dagster.embedded.processes import free_ports, is_free, members, supervised, tail
from pgstream_dagster.errors import ProcessEnded, ServerNotStarted
from pgstream_dagster.runtime.java import with_options

DEFINITIONS: Final = "pgstream_dagster.definitions"
PACKAGE: Final = Path(__file__).parent

PORT: Final = 3000
"""Dagster's own default."""

OTHER_PORTS: Final = range(3001, 3100)

HEAP: Final = "512m"
"""Less than the 1 GB that real tables need: there are only a few thousand rows."""

JAVA: Final = (
    "-XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=128m"
    # In newer Javas a full collection returns free memory, and so does the C library.
    " -XX:+UseG1GC -XX:MinHeapFreeRatio=5 -XX:MaxHeapFreeRatio=20"
    " -XX:+IgnoreUnrecognizedVMOptions -XX:TrimNativeHeapInterval=60000"
)
"""Two of the JVMs run all the time and do little: small memory matters more than speed."""

ARENAS: Final = "2"
"""Of malloc: with eight per core, processes of many threads keep the memory they free."""

NOT_OURS: Final = ("PGSTREAM_", "DAGSTER_")
"""The settings of another pipeline in the shell must not lead this one to it, or to its alerts."""

KEPT: Final = ("PGSTREAM_CACHE", "PGSTREAM_MAVEN_URL")

POLL_SECONDS: Final = 0.1
END_SECONDS: Final = 60.0
"""For a stream to land and confirm what is complete; what takes longer is killed."""


@dataclass(frozen=True, slots=True)
class Site:
    """The folder of an installation, and the environment of its processes."""

    folder: Path
    is_kept: bool
    variables: Mapping[str, str]


def make(
    folder: Path,
    environment: Mapping[str, str],
    dsn: str,
    search_url: str,
    targets: Targets,
    *,
    is_kept: bool,
) -> Site:
    """
    Write the files of a site into a new folder; `environment`: ours.

    Its `.env` has the variables of the site, so that commands in the folder are about it.
    """
    home, file = folder / "home", folder / "pgstream.yaml"
    home.mkdir(parents=True)
    shutil.copyfile(PACKAGE / "dagster.yaml", home / "dagster.yaml")
    targets.write_pipeline(PACKAGE / "dev.yaml", file)
    inherited = {
        name: value
        for name, value in environment.items()
        if name in KEPT or not name.startswith(NOT_OURS)
    }
    ours = {
        **targets.variables,
        "DAGSTER_HOME": str(home),
        settings.CONFIG: str(file),
        settings.DSN: dsn,
        settings.LAKE: str(folder / "lake"),
        settings.STATE: str(folder / "state"),
        settings.SEARCH_URL: search_url,
        settings.HEAP: HEAP,
        "JDK_JAVA_OPTIONS": with_options(environment, JAVA),
        "MALLOC_ARENA_MAX": ARENAS,
    }
    _write_dotenv(folder / ".env", ours)
    return Site(folder, is_kept, {**inherited, **ours})


def _write_dotenv(file: Path, variables: Mapping[str, str]) -> None:
    file.touch(mode=0o600)  # it has secrets
    for name, value in variables.items():
        set_key(file, name, value)


def port_for(requested: int | None) -> int:
    """
    The port for the UI: the requested one, else a free one.

    Raises:
        ServerNotStarted: the requested port is taken.
    """
    if requested is None:
        return PORT if is_free(PORT) else next(free_ports(OTHER_PORTS, 1))
    if not is_free(requested):
        raise ServerNotStarted("Dagster", f"port {requested} is taken by another process")
    return requested


class Command:
    """A command of Dagster; it and all it starts are ended at the end of the `with` block."""

    def __init__(self, site: Site, name: str, *arguments: str) -> None:
        self._site, self._arguments = site, arguments
        self.name: Final = name
        self._log: Final = site.folder / f"{name}.log"

    def __enter__(self) -> Self:
        # The supervisor resets SIGINT to its default: a Dagster that inherits an ignored SIGINT
        # cannot be ended, not even by SIGTERM.
        self._supervisor = supervised(
            [[sys.executable, "-m", "dagster", *self._arguments]],
            signals=[signal.SIGINT, signal.SIGKILL],
            log=self._log,
            remove=None if self._site.is_kept else self._site.folder,
            environment=self._site.variables,
            user=None,
            folder=self._site.folder,  # whose .env it reads
        )
        assert self._supervisor.stdout is not None
        self._pid = int(self._supervisor.stdout.readline())
        return self

    def __exit__(self, *raised: object) -> None:
        """End the whole process group; the runs in it land what is complete."""
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
        """The exit status; `None` while it runs."""
        return self._supervisor.poll()

    @property
    def log_tail(self) -> str:
        """The end of its log."""
        return tail(self._log.read_text(encoding="utf-8", errors="replace"))

    def require_running(self) -> None:
        """
        Check that it still runs.

        Raises:
            ProcessEnded: it ended, with the end of its log.
        """
        if self.status is not None:
            raise ProcessEnded(self.name, self.log_tail)

    def _is_gone(self, seconds: float) -> bool:
        deadline = time.monotonic() + seconds
        while members(self._pid):
            if time.monotonic() > deadline:
                return False
            time.sleep(POLL_SECONDS)
        return True


def execute(site: Site, job: str, stop: threading.Event, echo: Echo) -> None:
    """
    Run a job to its end, recorded in the site's home; a stop ends it.

    Raises:
        ProcessEnded: it failed.
    """
    waiting = Waiting(f"job {job!r} to end", echo)
    with Command(site, job, "job", "execute", "-m", DEFINITIONS, "-j", job) as command:
        while command.status is None and not stop.wait(POLL_SECONDS):
            waiting.report()
        if command.status:
            raise ProcessEnded(job, command.log_tail)


def served(site: Site, port: int) -> Command:
    """Webserver, daemon and code server; sensors launch the runs."""
    where = ("-h", HOST, "-p", str(port))
    return Command(site, "dagster", "dev", "-m", DEFINITIONS, *where)


def wait_for_answer(dagster: Command, port: int, stop: threading.Event, echo: Echo) -> None:
    """
    Wait until the UI answers, or a stop; as long as Dagster runs.

    Raises:
        ProcessEnded: it ended, with the end of its log.
    """
    waiting = Waiting("Dagster to answer", echo)
    while not answers(port) and not stop.wait(POLL_SECONDS):
        dagster.require_running()
        waiting.report()


def answers(port: int) -> bool:
    """Whether a Dagster's UI is up."""
    connection = http.client.HTTPConnection(HOST, port, timeout=10)
    try:
        connection.request("GET", "/server_info")
        return connection.getresponse().status == http.client.OK
    except (OSError, http.client.HTTPException):
        return False  # not up yet
    finally:
        connection.close()
