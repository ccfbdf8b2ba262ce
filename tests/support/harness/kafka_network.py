"""A Kafka whose clients come through a network that can be broken."""

from __future__ import annotations

from pgstream_dagster.embedded.kafka import Kafka
from tests.support.harness.tcp_proxy import TcpProxy


class KafkaBehindANetwork(Kafka):
    """
    A broker that sends clients which begin at `network_servers` through `network`, always.

    `servers` leads to it directly, as its own connections do.
    """

    network: TcpProxy

    @property
    def network_servers(self) -> str:
        return f"127.0.0.1:{self.network.port}"

    def close(self) -> None:
        super().close()
        if hasattr(self, "network"):
            self.network.__exit__(None, None, None)

    def _properties(self, port: int) -> dict[str, str]:
        if hasattr(self, "network"):  # the first port was taken
            self.network.__exit__(None, None, None)
        self.network = TcpProxy("127.0.0.1", port + 2).__enter__()
        properties = super()._properties(port)
        shown = properties["advertised.listeners"]
        through = shown.replace(f"localhost:{port + 2}", self.network_servers)
        assert through != shown
        return properties | {"advertised.listeners": through}
