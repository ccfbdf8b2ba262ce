"""
A private Hive metastore from PySpark's jars, with its data in a database of its own (Derby).

Its tables are visible to any client on this machine. Making its schema takes most of a start.
"""

from __future__ import annotations

import secrets
import socket
import subprocess
from contextlib import suppress
from pathlib import Path
from typing import Final

import pyspark

from pgstream_dagster.embedded.temporary_server import TemporaryServer
from pgstream_dagster.runtime.java import java_home

PORTS: Final = range(12_000, 12_990)

OPTIONS: Final = ("-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-XX:-UsePerfData")


class HiveMetastore(TemporaryServer):
    """A metastore that any process of this machine may write to."""

    def __init__(self) -> None:
        super().__init__("metastore", f"metastore-{secrets.token_hex(4)}", PORTS)

    @property
    def uri(self) -> str:
        """Its address: `hive.metastore.uris`."""
        return f"thrift://127.0.0.1:{self.port}"

    def _launch(self, port: int) -> subprocess.Popen[bytes]:
        jars = Path(str(pyspark.__file__)).parent / "jars"
        settings = {
            "javax.jdo.option.ConnectionURL": f"jdbc:derby:{self.folder}/data;create=true",
            "datanucleus.schema.autoCreateAll": "true",
            "hive.metastore.schema.verification": "false",
            "hive.metastore.warehouse.dir": f"file:{self.folder}/warehouse",
            "hive.async.log.enabled": "false",  # its library is not among the jars
        }
        java = [str(java_home() / "bin" / "java"), *OPTIONS, f"-Djava.io.tmpdir={self.folder}"]
        java += [f"-Dderby.stream.error.file={self.folder}/derby.log", "-cp", f"{jars}/*"]
        java += ["org.apache.hadoop.hive.metastore.HiveMetaStore", "-p", str(port)]
        for name, value in settings.items():
            java += ["-hiveconf", f"{name}={value}"]
        return self._supervised(java, folder=self.folder)

    def answered_by(self, port: int) -> str | None:
        """Itself, once it listens: it was given a port that was free."""
        with suppress(OSError), socket.create_connection(("127.0.0.1", port), 1.0):
            return self.cluster
        return None
