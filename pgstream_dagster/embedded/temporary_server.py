"""A private server whose data are temporary: one process group, ended by SIGKILL at the latest."""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import subprocess
import time
from abc import abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

from pgstream_dagster.embedded.folders import temporary_folder
from pgstream_dagster.embedded.processes import (
    free_ports,
    is_free,
    members,
    supervised,
    why_not_ready,
)
from pgstream_dagster.embedded.server import Server

FREE_PORTS_TRIED: Final = 5


class TemporaryServer(Server):
    """
    A server in a folder that is removed by `close` or when our process ends, however it ends.

    It answers with the name of its cluster, which distinguishes it from another server that answers
    on the same port.
    """

    def __init__(self, name: str, cluster: str, ports: range, *, ports_used: int = 1) -> None:
        super().__init__(name, temporary_folder(f"pgstream-{name}-"))
        self.cluster: Final = cluster
        self._range, self._ports_used = ports, ports_used  # from the first port on

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

    @abstractmethod
    def answered_by(self, port: int) -> str | None:
        """The cluster that answers on `port`; `None` while none is ready."""

    def _supervised(
        self,
        *commands: Sequence[str],
        environment: Mapping[str, str] | None = None,
        user: pwd.struct_passwd | None = None,
        folder: Path | None = None,
    ) -> subprocess.Popen[bytes]:
        """Run commands as `supervised` does; without an environment, one that names no setting."""
        basic = {"PATH": os.defpath, "LC_ALL": "C.UTF-8", "HOME": str(self.folder)}
        return supervised(
            commands,
            signals=[signal.SIGKILL],
            log=self.folder / "log",
            remove=self.folder,
            environment=basic if environment is None else environment,
            user=user,
            folder=folder,
        )

    def _ports(self) -> Iterable[int]:
        return free_ports(self._range, FREE_PORTS_TRIED) if self._port is None else [self._port]

    def _is_port_taken(self, port: int, written: str) -> bool:
        del written
        return not all(is_free(port + offset) for offset in range(self._ports_used))

    def _end(self) -> None:
        self.kill()

    def _wait_until_ready(self, port: int, process: subprocess.Popen[bytes]) -> str | None:
        started = process.stdout.readline() if process.stdout else b""
        self._pid = int(started or 0) or None
        clusters: list[str] = []

        def is_served() -> bool:
            cluster = self.answered_by(port)
            clusters.extend([] if cluster is None else [cluster])
            return cluster is not None

        reason = why_not_ready(self.name, process, self.folder / "log", is_served)
        if reason is None and clusters[-1] != self.cluster:
            return "another server answers on its port"
        return reason
