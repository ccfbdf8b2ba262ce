"""A search engine in a container: where the embedded one does not run and Docker answers."""

from __future__ import annotations

from typing import Self

import requests
from docker.errors import DockerException
from testcontainers.core.container import DockerContainer

from pgstream_dagster.embedded import processes, search_node
from tests.support.plugins import elasticsearch
from tests.support.plugins.container import free_port
from tests.support.plugins.wait import until

IMAGES = {
    "opensearch-3": "opensearchproject/opensearch:3",
    "opensearch-2": "opensearchproject/opensearch:2",
    "elasticsearch-9": "elasticsearch:9.3.2",
}

HEAP = "-Xms512m -Xmx512m"

ENVIRONMENTS = {
    "opensearch": {"DISABLE_SECURITY_PLUGIN": "true", "OPENSEARCH_JAVA_OPTS": HEAP},
    "elasticsearch": {**elasticsearch.SETTINGS, "ES_JAVA_OPTS": HEAP},
}
"""The images take settings as variables of their environment."""


class SearchContainer:
    """
    A container of one engine; with the port it was given first, also after a restart.

    Raises:
        RuntimeError: Docker does not answer.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.settings: dict[str, str] = {}
        self._port = free_port()
        self._container: DockerContainer | None = None

    @property
    def url(self) -> str:
        return f"http://{self._started().get_container_host_ip()}:{self._port}"

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
        until(self._is_ready, seconds=processes.SILENT_SECONDS, every=0.2)
        return self

    def stop(self, *, timeout_seconds: float = 60) -> None:
        self._started().get_wrapped_container().stop(timeout=int(timeout_seconds))

    def kill(self) -> None:
        wrapped = self._started().get_wrapped_container()
        wrapped.kill()
        wrapped.wait(timeout=60)

    def restart(self) -> None:
        if self.settings:
            raise RuntimeError("a container keeps the settings of its first start")
        self.stop()
        self.start()

    def close(self) -> None:
        if self._container is not None:
            self._container.stop()

    def _is_ready(self) -> bool:
        try:
            health = requests.get(f"{self.url}/_cluster/health", timeout=10).json()
        except (requests.RequestException, ValueError):
            return False
        return health.get("status") in ("yellow", "green")

    def _created(self) -> DockerContainer:
        engine = self.name.partition("-")[0]
        variables = {
            **search_node.SETTINGS,
            "network.host": "0.0.0.0",
            "discovery.type": "single-node",
            **ENVIRONMENTS[engine],
            **self.settings,
        }
        container = DockerContainer(IMAGES[self.name]).with_bind_ports(9200, self._port)
        for name, value in variables.items():
            container.with_env(name, value)
        return container

    def _started(self) -> DockerContainer:
        if self._container is None:
            raise RuntimeError("not started")
        return self._container
