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
import subprocess
from abc import abstractmethod
from collections.abc import Mapping
from typing import Any, Final

from pgstream_dagster.embedded.temporary_server import TemporaryServer

PORTS: Final = range(7200, 9300)
"""Below 9300, where OpenSearch's runner stops searching and the transport ports begin."""

HEAP: Final = "384m"
"""For tens of thousands of small documents; with 256m OpenSearch 2 rejects requests (429)."""

SETTINGS: Final = {
    "network.host": "127.0.0.1",
    # Otherwise a disk that is nearly full makes every index read-only.
    "cluster.routing.allocation.disk.threshold_enabled": "false",
}


class SearchNode(TemporaryServer):
    """
    One node that is a cluster of its own: settings, data, and the server while it runs.

    The data is removed by `close` or when our process ends, however it ends.
    """

    def __init__(self, name: str, settings: Mapping[str, str] | None, heap: str) -> None:
        super().__init__(name, f"pgstream-{secrets.token_hex(4)}", PORTS)
        # `name`: engine and major, as the group of its files in the lock: `opensearch-3`
        self.settings: Final = dict(settings or {})
        """Override ours; read at every start."""
        self.heap: Final = heap

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

    def yaml(self, settings: Mapping[str, str]) -> str:
        """The server's settings file: `self.settings` override `settings`, which override ours."""
        merged = {**SETTINGS, **settings, **self.settings}
        # Every JSON string is a YAML string, so values need no further quoting.
        return "".join(f"{name}: {json.dumps(value)}\n" for name, value in merged.items())

    def _launch(self, port: int) -> subprocess.Popen[bytes]:
        self.prepare(port)
        return self._supervised(self.command(port), environment=self.environment, user=self.user)

    def answered_by(self, port: int) -> str | None:
        """The name of the cluster, once all primary shards are allocated (status yellow)."""
        health = _health(port)
        is_ready = health.get("status") in ("yellow", "green")
        return health.get("cluster_name", "") if is_ready else None


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
