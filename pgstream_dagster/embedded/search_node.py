"""
A private search engine of one node: its process, its port and its throw-away data.

`opensearch.py` says what is started and with which files; all else is here.
Listens on 127.0.0.1 only, without users or TLS. A supervisor stands between us and the server, so
nothing is left behind when our process is killed.
"""

from __future__ import annotations

import http.client
import json
import os
import pwd
import secrets
import shutil
import signal
import subprocess
import time
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from contextlib import suppress
from types import TracebackType
from typing import Any, Final, Self

from pgstream_dagster.embedded.folders import temporary_folder
from pgstream_dagster.embedded.processes import (
    free_ports,
    is_free,
    members,
    supervised,
    tail,
    why_not_ready,
)
from pgstream_dagster.errors import ServerNotStarted

PORTS: Final = range(7200, 9300)
"""Below 9300, where OpenSearch's runner ends its search and the ports of nodes among them begin."""

FREE_PORTS_TRIED: Final = 5

HEAP: Final = "384m"
"""For tens of thousands of small documents. With 256m OpenSearch 2 refused requests (429)."""

SETTINGS: Final = {
    "network.host": "127.0.0.1",
    # A disk that is nearly full would make every index read-only.
    "cluster.routing.allocation.disk.threshold_enabled": "false",
}


class SearchNode(ABC):
    """
    One node that is a cluster of its own: settings, data, and the server while it runs.

    Data and port stay over `stop`, `kill` and `restart`; they go with `close` or with our process,
    however that ends.
    """

    def __init__(self, name: str, settings: Mapping[str, str] | None, heap: str) -> None:
        self.name: Final = name
        """Engine and major, as the group of its files is named in the lock: `opensearch-3`."""
        self.settings: Final = dict(settings or {})
        """Written over ours, read at every start."""
        self.heap: Final = heap
        self.folder: Final = temporary_folder(f"pgstream-{name}-")
        """Settings, log and data."""
        self.cluster: Final = f"pgstream-{secrets.token_hex(4)}"
        """Tells this server from another one that answers on the same port."""
        self._port: int | None = None
        self._supervisor: subprocess.Popen[bytes] | None = None
        self._pid: int | None = None

    @abstractmethod
    def prepare(self, port: int) -> None:
        """Write the files that a start on `port` reads."""

    @abstractmethod
    def command(self, port: int) -> list[str]:
        """What starts the server on `port`."""

    def untold(self) -> str:
        """Why a start failed, where the server keeps that out of its log."""
        return ""

    @property
    def environment(self) -> dict[str, str]:
        """All that the server sees of ours."""
        return {"PATH": os.defpath, "LC_ALL": "C.UTF-8", "HOME": str(self.folder)}

    @property
    def user(self) -> pwd.struct_passwd | None:
        """Who runs the server, if not we."""
        return None

    @property
    def url(self) -> str:
        """Where the server answers while it runs; the same after a restart."""
        if self._port is None:
            raise RuntimeError("not started")
        return f"http://127.0.0.1:{self._port}"

    @property
    def pid(self) -> int | None:
        """The process that leads the server's group, while it runs."""
        return self._pid

    @property
    def running(self) -> bool:
        """Whether the server was started and has not ended."""
        return self._supervisor is not None and self._supervisor.poll() is None

    def log(self) -> str:
        """All that the server wrote."""
        path = self.folder / "log"
        return path.read_text(encoding="utf-8", errors="replace") if path.is_file() else ""

    def start(self) -> Self:
        """
        Start the server, on its former data if there are any; all of them are there on return.

        Raises:
            ServerNotStarted: it ended, or stands still; with the end of its log.
            JarsMissing: its files cannot be fetched.
            JavaMissing: no Java that is new enough.
        """
        if self.running:
            return self
        said = ""
        for port in self._ports():
            before = len(self.log())
            self.prepare(port)
            self._supervisor = self._launch(port)
            reason = self._why_not_ready(port, self._supervisor)
            if reason is None:
                self._port = port
                return self
            self.kill()
            said = f"{reason}\n{tail(self.log()[before:])}\n{self.untold()}"
            if is_free(port):
                break
            said = f"port {port} is taken by another process"
        raise ServerNotStarted(self.name, said.strip())

    def stop(self, *, timeout_seconds: float = 60) -> None:
        """
        Stop the server and wait for its end; does nothing when it does not run.

        Raises:
            TimeoutError: it still runs after `timeout_seconds`.
        """
        if self._supervisor is None or self._pid is None:
            return
        if self.running:
            os.kill(self._pid, signal.SIGTERM)
            try:
                self._supervisor.wait(timeout_seconds)
            except subprocess.TimeoutExpired:
                raise TimeoutError(
                    f"{self.name} still runs {timeout_seconds:.0f} s after a stop"
                ) from None
        self.kill()

    def kill(self) -> None:
        """End every process of the server with SIGKILL, as the OOM killer or a crash would."""
        if self._pid is not None:
            with suppress(ProcessLookupError):
                os.killpg(self._pid, signal.SIGKILL)
        if self._supervisor is not None:
            self._supervisor.wait()
            if self._supervisor.stdout is not None:
                self._supervisor.stdout.close()
        while self._pid is not None and members(self._pid):
            time.sleep(0.01)
        self._supervisor = self._pid = None

    def restart(self) -> None:
        """Stop, then start on the same data and port."""
        self.stop()
        self.start()

    def close(self) -> None:
        """End the server; its data are removed."""
        self.kill()
        shutil.rmtree(self.folder, ignore_errors=True)

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def yaml(self, settings: Mapping[str, str]) -> str:
        """The settings of `self` over `settings` over ours, as the server's file holds them."""
        every = {**SETTINGS, **settings, **self.settings}
        # JSON's strings are YAML's too: nothing in a value needs another thought.
        return "".join(f"{name}: {json.dumps(value)}\n" for name, value in every.items())

    def _ports(self) -> Iterable[int]:
        return free_ports(PORTS, FREE_PORTS_TRIED) if self._port is None else [self._port]

    def _launch(self, port: int) -> subprocess.Popen[bytes]:
        return supervised(
            [self.command(port)],
            signals=[signal.SIGKILL],
            log=self.folder / "log",
            remove=self.folder,
            environment=self.environment,
            user=self.user,
        )

    def _why_not_ready(self, port: int, process: subprocess.Popen[bytes]) -> str | None:
        """Wait until every shard that can be served is."""
        started = process.stdout.readline() if process.stdout else b""
        self._pid = int(started or 0) or None
        served_by: list[str] = []

        def is_served() -> bool:
            health = _health(port)
            if health.get("status") in ("yellow", "green"):
                served_by.append(health.get("cluster_name", ""))
            return bool(served_by)

        reason = why_not_ready(self.name, process, self.folder / "log", is_served)
        if reason is None and served_by[-1] != self.cluster:
            return "another server answers on its port"
        return reason


def _health(port: int) -> dict[str, Any]:
    """What the server on `port` says of its cluster; nothing while it says nothing."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    try:
        connection.request("GET", "/_cluster/health")
        answer = json.loads(connection.getresponse().read())
    except (OSError, http.client.HTTPException, ValueError):
        return {}  # not up yet
    finally:
        connection.close()
    return answer if isinstance(answer, dict) else {}
