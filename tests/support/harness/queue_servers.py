"""
Private servers of queues: each on a free port of 127.0.0.1, its data in a temporary folder.

Redis is the one that a Debian package installs (`.ci/packages`).
"""

from __future__ import annotations

import os
import secrets
import shutil
import signal
import subprocess
from collections.abc import Sequence
from contextlib import suppress
from typing import Final

import redis

from pgstream_dagster.embedded.processes import supervised
from pgstream_dagster.embedded.temporary_server import TemporaryServer
from pgstream_dagster.errors import ServerNotStarted

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
        return supervised(
            [self.command(port)],
            signals=[signal.SIGKILL],
            log=self.folder / "log",
            remove=self.folder,
            environment=basic | self.environment(port),
            user=None,
        )


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
