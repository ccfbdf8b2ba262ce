"""Postgres in a container: where the embedded binaries do not run and Docker answers."""

from __future__ import annotations

import socket
from typing import Self

from docker.errors import DockerException
from testcontainers.community.postgres import PostgresContainer as Container

from pgstream_dagster.embedded.postgres import SETTINGS, THROW_AWAY_SETTINGS, StopMode

DOCKER_SIGNALS: dict[StopMode, str] = {
    "smart": "SIGTERM",
    "fast": "SIGINT",
    "immediate": "SIGQUIT",
}


class PostgresContainer:
    """
    A container of one major; with the port it was given first, also after a restart.

    Raises:
        RuntimeError: Docker does not answer.
    """

    def __init__(self, major: int) -> None:
        self.major = major
        self.settings: dict[str, str] = {}
        self._port = free_port()
        self._container: Container | None = None

    @property
    def dsn(self) -> str:
        return self.dsn_of("postgres")

    def dsn_of(self, database: str) -> str:
        host = self._started().get_container_host_ip()
        return f"host={host} port={self._port} user=postgres dbname={database} password=test"

    def log(self) -> str:
        out, err = self._started().get_logs()
        return (out + err).decode(errors="replace")

    def start(self) -> Self:
        if self._container is None:
            try:
                self._container = self._created().start()
            except DockerException as error:
                raise RuntimeError("Docker does not answer") from error
        else:
            self._container.get_wrapped_container().start()
            self._container._connect()  # the same wait for readiness as at the first start
        return self

    def stop(self, mode: StopMode = "fast", *, timeout_seconds: float = 60) -> None:
        wrapped = self._started().get_wrapped_container()
        wrapped.kill(signal=DOCKER_SIGNALS[mode])
        wrapped.wait(timeout=timeout_seconds)

    def kill(self) -> None:
        wrapped = self._started().get_wrapped_container()
        wrapped.kill()
        wrapped.wait(timeout=60)

    def restart(self, mode: StopMode = "fast") -> None:
        if self.settings:
            raise RuntimeError("a container keeps the settings of its first start: alter system")
        self.stop(mode)
        self.start()

    def close(self) -> None:
        if self._container is not None:
            self._container.stop()

    def _created(self) -> Container:
        container = Container(
            f"postgres:{self.major}", username="postgres", password="test", dbname="postgres"
        )
        return container.with_bind_ports(5432, self._port).with_command(self._command())

    def _started(self) -> Container:
        if self._container is None:
            raise RuntimeError("not started")
        return self._container

    def _command(self) -> str:
        settings = {**SETTINGS, **THROW_AWAY_SETTINGS, **self.settings, "listen_addresses": "*"}
        settings.pop("unix_socket_directories")  # the image's start script connects there
        settings.pop("log_line_prefix")  # blanks; the command is split at them
        return "postgres " + " ".join(f"-c {name}={value}" for name, value in settings.items())


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
