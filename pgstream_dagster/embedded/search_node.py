"""
A private search engine of one node: its process, its port and its temporary data.

`opensearch.py` defines what is started and with which files. The node has no users and no TLS.
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
from abc import abstractmethod
from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import Any, Final

from pgstream_dagster.embedded.folders import temporary_folder
from pgstream_dagster.embedded.processes import (
    free_ports,
    is_free,
    members,
    supervised,
    why_not_ready,
)
from pgstream_dagster.embedded.server import Server

PORTS: Final = range(7200, 9300)
"""Below 9300, where OpenSearch's runner stops searching and the transport ports begin."""

FREE_PORTS_TRIED: Final = 5

HEAP: Final = "384m"
"""For tens of thousands of small documents; with 256m OpenSearch 2 rejects requests (429)."""

SETTINGS: Final = {
    "network.host": "127.0.0.1",
    # Otherwise a disk that is nearly full makes every index read-only.
    "cluster.routing.allocation.disk.threshold_enabled": "false",
}


class SearchNode(Server):
    """
    One node that is a cluster of its own: settings, data, and the server while it runs.

    The data is removed by `close` or when our process ends, however it ends.
    """

    def __init__(self, name: str, settings: Mapping[str, str] | None, heap: str) -> None:
        super().__init__(name, temporary_folder(f"pgstream-{name}-"))
        # `name`: engine and major, as the group of its files in the lock: `opensearch-3`
        self.settings: Final = dict(settings or {})
        """Override ours; read at every start."""
        self.heap: Final = heap
        self.cluster: Final = f"pgstream-{secrets.token_hex(4)}"
        """Distinguishes this server from another one that answers on the same port."""

    @abstractmethod
    def prepare(self, port: int) -> None:
        """Write the files that a start on `port` reads."""

    @abstractmethod
    def command(self, port: int) -> list[str]:
        """The command that starts the server on `port`."""

    @property
    def environment(self) -> dict[str, str]:
        """All environment variables of the server."""
        return {"PATH": os.defpath, "LC_ALL": "C.UTF-8", "HOME": str(self.folder)}

    @property
    def user(self) -> pwd.struct_passwd | None:
        """The user that runs the server; `None`: ours."""
        return None

    @property
    def url(self) -> str:
        """Where the server answers while it runs; the same after a restart."""
        return f"http://127.0.0.1:{self.port}"

    def stop(self, *, timeout_seconds: float = 60) -> None:
        """
        Stop the server and wait for its end; a no-op when it does not run.

        Raises:
            TimeoutError: it still runs after `timeout_seconds`.
        """
        self._terminate(signal.SIGTERM, "stop", timeout_seconds)
        self.kill()

    def kill(self) -> None:
        """End every process of the server with SIGKILL, as the OOM killer or a crash would."""
        if self._pid is not None:
            with suppress(ProcessLookupError):
                os.killpg(self._pid, signal.SIGKILL)
            while members(self._pid):
                time.sleep(0.01)
        self._forget()

    def restart(self) -> None:
        """Stop, then start on the same data and port."""
        self.stop()
        self.start()

    def close(self) -> None:
        """End the server and remove its data."""
        self.kill()
        shutil.rmtree(self.folder, ignore_errors=True)

    def yaml(self, settings: Mapping[str, str]) -> str:
        """The server's settings file: `self.settings` override `settings`, which override ours."""
        merged = {**SETTINGS, **settings, **self.settings}
        # Every JSON string is a YAML string, so values need no further quoting.
        return "".join(f"{name}: {json.dumps(value)}\n" for name, value in merged.items())

    def _ports(self) -> Iterable[int]:
        return free_ports(PORTS, FREE_PORTS_TRIED) if self._port is None else [self._port]

    def _launch(self, port: int) -> subprocess.Popen[bytes]:
        self.prepare(port)
        return supervised(
            [self.command(port)],
            signals=[signal.SIGKILL],
            log=self.folder / "log",
            remove=self.folder,
            environment=self.environment,
            user=self.user,
        )

    def _is_port_taken(self, port: int, written: str) -> bool:
        del written
        return not is_free(port)

    def _end(self) -> None:
        self.kill()

    def _wait_until_ready(self, port: int, process: subprocess.Popen[bytes]) -> str | None:
        """Wait until all primary shards are allocated (status yellow)."""
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
    """The cluster health that the server on `port` reports; empty while it does not answer."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    try:
        connection.request("GET", "/_cluster/health")
        answer = json.loads(connection.getresponse().read())
    except (OSError, http.client.HTTPException, ValueError):
        return {}  # not up yet
    finally:
        connection.close()
    return answer if isinstance(answer, dict) else {}
