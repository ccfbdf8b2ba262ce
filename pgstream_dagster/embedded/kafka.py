"""
A private Kafka 4 of one node, broker and controller in one JVM, from the jars of a registry.

Needs no installation; runs as any user, including root.
"""

from __future__ import annotations

import secrets
import subprocess
from base64 import urlsafe_b64encode
from collections.abc import Mapping
from contextlib import suppress
from typing import Final, Literal

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from pgstream_dagster.embedded.temporary_server import TemporaryServer
from pgstream_dagster.runtime.jars import fetch
from pgstream_dagster.runtime.java import java_home

JAVA_NEEDED: Final = 17

PORTS: Final = range(9400, 9990, 3)
"""The first of three: for clients, for the controller, for clients that prove who they are."""

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


class Kafka(TemporaryServer):
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
        cluster = urlsafe_b64encode(secrets.token_bytes(16)).decode().rstrip("=")
        super().__init__("kafka-4", cluster, PORTS, ports_used=3)
        self.settings: Final = dict(settings or {})
        """Override ours; read at every start."""
        self.secure: Final[Protocol] = secure
        self.heap: Final = heap

    @property
    def servers(self) -> str:
        """Where clients begin: `bootstrap.servers`."""
        return f"127.0.0.1:{self.port}"

    @property
    def secure_servers(self) -> str:
        """Where clients begin that speak the secure protocol."""
        return f"localhost:{self.port + 2}"

    def _launch(self, port: int) -> subprocess.Popen[bytes]:
        properties = self.folder / "server.properties"
        lines = (f"{name}={value}\n" for name, value in self._properties(port).items())
        properties.write_text("".join(lines), encoding="utf-8")
        java = [str(java_home(JAVA_NEEDED) / "bin" / "java"), f"-Xmx{self.heap}", *JVM_OPTIONS]
        java += [f"-Djava.io.tmpdir={self.folder}", "-cp", ":".join(map(str, fetch(self.name)))]
        format_data = [*java, "kafka.tools.StorageTool", "format", "--standalone"]
        format_data += ["--ignore-formatted", f"--cluster-id={self.cluster}", "-c", str(properties)]
        return self._supervised(format_data, [*java, "kafka.Kafka", str(properties)])

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

    def answered_by(self, port: int) -> str | None:
        """The id of the cluster whose metadata a client gets."""
        client = AdminClient({"bootstrap.servers": f"127.0.0.1:{port}", "log_level": 0})
        with suppress(KafkaException):
            return str(client.list_topics(timeout=ANSWER_SECONDS).cluster_id)
        return None
