"""
What the private servers share: a process under a supervisor, its folder, its log and its port.

A subclass defines what is started, how it ends, and when it is ready. The servers listen on
127.0.0.1 only. A supervisor runs between our process and the server, so that no server outlives us
when we are killed.
"""

from __future__ import annotations

import os
import signal
import subprocess
from abc import ABC, abstractmethod
from collections.abc import Iterable
from pathlib import Path
from typing import Final, Self

from pgstream_dagster.embedded.processes import tail
from pgstream_dagster.errors import ServerNotStarted


class Server(ABC):
    """
    One server, at most one process of it at a time.

    Data and port survive `stop`, `kill` and `restart`.
    """

    def __init__(self, name: str, folder: Path) -> None:
        self.name: Final = name
        """The name in messages."""
        self.folder: Final = folder
        """Settings, log and data, or a link to the data."""
        self._port: int | None = None
        self._supervisor: subprocess.Popen[bytes] | None = None
        self._pid: int | None = None

    @property
    def port(self) -> int:
        """The port on 127.0.0.1; the same after a restart."""
        if self._port is None:
            raise RuntimeError("not started")
        return self._port

    @property
    def pid(self) -> int | None:
        """The process that leads the server's group, while it runs."""
        return self._pid

    @property
    def running(self) -> bool:
        """Whether the server was started and has not ended."""
        return self._supervisor is not None and self._supervisor.poll() is None

    def log(self) -> str:
        """Everything the server wrote."""
        path = self.folder / "log"
        return path.read_text(encoding="utf-8", errors="replace") if path.is_file() else ""

    def start(self) -> Self:
        """
        Start the server, on its former data if there are any; it is ready when this returns.

        Raises:
            ServerNotStarted: it ended, or makes no progress; with the end of its log.
            JarsMissing: its files cannot be fetched.
            JavaMissing: it needs a Java, and no suitable one is installed.
        """
        if self.running:
            return self
        explanation = ""
        for port in self._ports():
            before = len(self.log())
            self._supervisor = self._launch(port)
            reason = self._wait_until_ready(port, self._supervisor)
            if reason is None:
                self._port = port
                return self
            written = self.log()[before:]
            explanation = f"{reason}\n{tail(written)}\n{self._hidden_reason()}"
            self._end()
            if not self._is_port_taken(port, written):
                break
            explanation = f"port {port} is taken by another process"
        raise ServerNotStarted(self.name, explanation.strip())

    @abstractmethod
    def stop(self, *, timeout_seconds: float = 60) -> None:
        """
        Stop the server and wait for its end; a no-op when it does not run.

        Raises:
            TimeoutError: it still runs after `timeout_seconds`.
        """

    @abstractmethod
    def kill(self) -> None:
        """End every process of the server with SIGKILL, as the OOM killer or a crash would."""

    @abstractmethod
    def close(self) -> None:
        """End the server; a temporary folder is removed."""

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *raised: object) -> None:
        self.close()

    @abstractmethod
    def _ports(self) -> Iterable[int]:
        """The ports to try, in order."""

    @abstractmethod
    def _launch(self, port: int) -> subprocess.Popen[bytes]:
        """Start the server on `port`, under a supervisor."""

    @abstractmethod
    def _wait_until_ready(self, port: int, process: subprocess.Popen[bytes]) -> str | None:
        """Set `_pid`, wait until the server is ready; the reason why it is not, or `None`."""

    @abstractmethod
    def _is_port_taken(self, port: int, written: str) -> bool:
        """Whether a start failed because another process has the port; `written`: its log."""

    @abstractmethod
    def _end(self) -> None:
        """End a server that did not become ready, or that is closed."""

    def _hidden_reason(self) -> str:
        """Why a start failed, where the server keeps that out of its log."""
        return ""

    def _terminate(self, number: signal.Signals, stop: str, timeout_seconds: float) -> None:
        """Send a signal to the server, if it runs, and wait for its end; `stop` names the kind."""
        if self._supervisor is None or self._pid is None or not self.running:
            return
        os.kill(self._pid, number)
        try:
            self._supervisor.wait(timeout_seconds)
        except subprocess.TimeoutExpired:
            waited = f"{timeout_seconds:.0f} s after a {stop}"
            raise TimeoutError(f"{self.name} still runs {waited}") from None

    def _forget(self) -> None:
        """Wait for the supervisor, whose server has ended, and close what we hold of it."""
        if self._supervisor is not None:
            self._supervisor.wait()
            if self._supervisor.stdout is not None:
                self._supervisor.stdout.close()
        self._supervisor = self._pid = None
