"""
A private Kafka 4 of one node, broker and controller in one JVM, from the jars of a registry.

Needs no installation; runs as any user, including root.
"""

from __future__ import annotations

import os
import secrets
import shutil
import signal
import subprocess
import time
from base64 import urlsafe_b64encode
from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import Final, Literal

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from pgstream_dagster.embedded.folders import temporary_folder
from pgstream_dagster.embedded.processes import (
    free_ports,
    is_free,
    members,
    supervised,
    why_not_ready,
)
from pgstream_dagster.embedded.server import Server
from pgstream_dagster.runtime.jars import fetch
from pgstream_dagster.runtime.java import java_home

JAVA_NEEDED: Final = 17

PORTS: Final = range(9400, 9990, 3)
"""The first of three: for clients, for the controller, for clients that prove who they are."""

FREE_PORTS_TRIED: Final = 5

HEAP: Final = "256m"

JVM_OPTIONS: Final = (
    "-XX:+UseSerialGC",
    "-XX:TieredStopAtLevel=1",  # starts in half the time
    "-XX:ReservedCodeCacheSize=128m",
    "-XX:-UsePerfData",  # its temporary file would survive a SIGKILL
    "-XX:+ExitOnOutOfMemoryError",
    "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",
)

SETTINGS: Final = {
    "process.roles": "broker,controller",
    "node.id": "1",
    "controller.listener.names": "CONTROLLER",
    "inter.broker.listener.name": "PLAINTEXT",
    "auto.create.topics.enable": "false",  # a topic that nobody asked for hides a wrong name
    "offsets.topic.num.partitions": "1",
    "offsets.topic.replication.factor": "1",
    "transaction.state.log.num.partitions": "1",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "share.coordinator.state.topic.num.partitions": "1",
    "share.coordinator.state.topic.replication.factor": "1",
    "share.coordinator.state.topic.min.isr": "1",
    "group.initial.rebalance.delay.ms": "0",
    "log.cleaner.dedupe.buffer.size": "16777216",
}

ANSWER_SECONDS: Final = 1.0

Protocol = Literal["PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"]


class Kafka(Server):
    """
    A cluster of one node; its data is removed by `close` or when our process ends.

    With a `secure` protocol, a second listener speaks it; `settings` must say how.
    """

    def __init__(
        self,
        settings: Mapping[str, str] | None = None,
        *,
        secure: Protocol = "PLAINTEXT",
        heap: str = HEAP,
    ) -> None:
        super().__init__("kafka-4", temporary_folder("pgstream-kafka-4-"))
        self.settings: Final = dict(settings or {})
        """Override ours; read at every start."""
        self.secure: Final[Protocol] = secure
        self.heap: Final = heap
        self.cluster: Final = urlsafe_b64encode(secrets.token_bytes(16)).decode().rstrip("=")
        """Distinguishes this server from another one that answers on the same port."""

    @property
    def servers(self) -> str:
        """Where clients begin: `bootstrap.servers`."""
        return f"127.0.0.1:{self.port}"

    @property
    def secure_servers(self) -> str:
        """Where clients begin that speak the secure protocol."""
        return f"localhost:{self.port + 2}"

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

    def close(self) -> None:
        """End the server and remove its data."""
        self.kill()
        shutil.rmtree(self.folder, ignore_errors=True)

    def _ports(self) -> Iterable[int]:
        return free_ports(PORTS, FREE_PORTS_TRIED) if self._port is None else [self._port]

    def _launch(self, port: int) -> subprocess.Popen[bytes]:
        properties = self.folder / "server.properties"
        lines = (f"{name}={value}\n" for name, value in self._properties(port).items())
        properties.write_text("".join(lines), encoding="utf-8")
        java = [str(java_home(JAVA_NEEDED) / "bin" / "java"), f"-Xmx{self.heap}", *JVM_OPTIONS]
        java += [f"-Djava.io.tmpdir={self.folder}", "-cp", ":".join(map(str, fetch(self.name)))]
        format_data = [*java, "kafka.tools.StorageTool", "format", "--standalone"]
        format_data += ["--ignore-formatted", f"--cluster-id={self.cluster}", "-c", str(properties)]
        return supervised(
            [format_data, [*java, "kafka.Kafka", str(properties)]],
            signals=[signal.SIGKILL],
            log=self.folder / "log",
            remove=self.folder,
            environment={"PATH": os.defpath, "LC_ALL": "C.UTF-8", "HOME": str(self.folder)},
            user=None,
        )

    def _properties(self, port: int) -> dict[str, str]:
        addresses = {"PLAINTEXT": port, "CONTROLLER": port + 1, "SECURE": port + 2}
        listeners = ",".join(f"{name}://127.0.0.1:{at}" for name, at in addresses.items())
        return {
            **SETTINGS,
            "controller.quorum.bootstrap.servers": f"127.0.0.1:{port + 1}",
            "listeners": listeners,
            "advertised.listeners": listeners.replace("SECURE://127.0.0.1", "SECURE://localhost"),
            "listener.security.protocol.map": "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT,"
            f"SECURE:{self.secure}",
            "log.dirs": str(self.folder / "data"),
            **self.settings,
        }

    def _is_port_taken(self, port: int, written: str) -> bool:
        del written
        return not all(is_free(port + offset) for offset in range(3))

    def _end(self) -> None:
        self.kill()

    def _wait_until_ready(self, port: int, process: subprocess.Popen[bytes]) -> str | None:
        """Wait until a client gets the metadata of the cluster."""
        started = process.stdout.readline() if process.stdout else b""
        self._pid = int(started or 0) or None
        client = AdminClient({"bootstrap.servers": f"127.0.0.1:{port}", "log_level": 0})
        answered_by: list[str] = []

        def is_served() -> bool:
            with suppress(KafkaException):
                answered_by.append(str(client.list_topics(timeout=ANSWER_SECONDS).cluster_id))
            return bool(answered_by)

        reason = why_not_ready(self.name, process, self.folder / "log", is_served)
        if reason is None and answered_by[-1] != self.cluster:
            return "another server answers on its port"
        return reason
