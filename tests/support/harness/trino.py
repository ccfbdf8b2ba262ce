"""
A private Trino of one node from an unpacked server, with the Delta Lake connector alone.

Its catalog `lake` finds tables in a Hive metastore. Queries go over Trino's own protocol.

Source:
    https://trino.io/docs/476/develop/client-protocol.html
"""

from __future__ import annotations

import base64
import json
import secrets
import subprocess
import urllib.request
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any, Final

import pyarrow as pa

from pgstream_dagster.embedded.temporary_server import TemporaryServer

PORTS: Final = range(13_000, 13_990)

OPTIONS: Final = (
    *("-Xmx2G", "-XX:TieredStopAtLevel=1", "-XX:-UsePerfData", "-Dfile.encoding=UTF-8"),
    *("-Djdk.attach.allowAttachSelf=true", "--add-modules=jdk.incubator.vector"),
)


HEADERS: Final = {
    "X-Trino-User": "test",
    "X-Trino-Time-Zone": "UTC",
    # Without it the protocol rounds every time to milliseconds, whatever its type.
    "X-Trino-Client-Capabilities": "PARAMETRIC_DATETIME",
}


class QueryFailed(Exception):
    """What Trino says of a query that it cannot answer."""


@dataclass(frozen=True)
class Column:
    """A column of a result; `type_` as Trino's protocol describes it."""

    name: str
    type_: Mapping[str, Any]


class Trino(TemporaryServer):
    """A server that reads the Delta tables that a metastore names."""

    def __init__(self, installed: Path, java_home: Path, metastore: str) -> None:
        super().__init__("trino", f"trino_{secrets.token_hex(4)}", PORTS)
        self._installed, self._java_home, self._metastore = installed, java_home, metastore

    def query(self, statement: str) -> pa.Table:
        """
        The rows of a statement, with names in lower case as Trino has them.

        Raises:
            QueryFailed
        """
        answer = self._asked("/v1/statement", statement)
        columns, rows = list[Column](), list[Sequence[Any]]()
        while True:
            if error := answer.get("error"):
                raise QueryFailed(error["message"])
            columns = [Column(c["name"], c["typeSignature"]) for c in answer.get("columns", [])]
            rows += answer.get("data", [])
            if "nextUri" not in answer:
                return _table(columns, rows)
            answer = self._asked(answer["nextUri"].partition(f":{self.port}")[2])

    def _asked(self, path: str, body: str | None = None, port: int | None = None) -> Any:
        request = urllib.request.Request(
            f"http://127.0.0.1:{port or self.port}{path}",
            data=None if body is None else body.encode(),
            headers=HEADERS,
        )
        with urllib.request.urlopen(request, timeout=120) as response:
            return json.load(response)

    def answered_by(self, port: int) -> str | None:
        """The environment of the server that is there, once it takes queries."""
        with suppress(OSError, ValueError):
            info = self._asked("/v1/info", port=port)
            return None if info["starting"] else str(info["environment"])
        return None

    def _launch(self, port: int) -> subprocess.Popen[bytes]:
        self._configure(port)
        java = [str(self._java_home / "bin" / "java"), *OPTIONS]
        java += [f"-Djava.io.tmpdir={self.folder}", f"-Dconfig={self.folder}/config.properties"]
        java += ["-cp", f"{self._installed}/lib/*", "io.trino.server.TrinoServer"]
        return self._supervised(java, folder=self.folder)

    def _configure(self, port: int) -> None:
        catalogs, plugins = self.folder / "catalog", self.folder / "plugin"
        for folder in (catalogs, plugins):
            folder.mkdir(exist_ok=True)
        with suppress(FileExistsError):
            (plugins / "delta-lake").symlink_to(self._installed / "plugin" / "delta-lake")
        settings = {
            "coordinator": "true",
            "node-scheduler.include-coordinator": "true",
            "http-server.http.port": str(port),
            "discovery.uri": f"http://127.0.0.1:{port}",
            "node.environment": self.cluster,
            "node.internal-address": "127.0.0.1",
            "catalog.config-dir": str(catalogs),
            "plugin.dir": str(plugins),
            "query.max-memory": "500MB",
            "query.max-memory-per-node": "400MB",
        }
        lake = {
            "connector.name": "delta_lake",
            "hive.metastore.uri": self._metastore,
            "fs.hadoop.enabled": "true",  # for tables in a local folder
        }
        _write(self.folder / "config.properties", settings)
        _write(catalogs / "lake.properties", lake)


def _write(file: Path, settings: Mapping[str, str]) -> None:
    lines = (f"{name}={value}\n" for name, value in settings.items())
    file.write_text("".join(lines), encoding="utf-8")


def _table(columns: Sequence[Column], rows: Sequence[Sequence[Any]]) -> pa.Table:
    values = [[_value(c.type_, row[n]) for row in rows] for n, c in enumerate(columns)]
    arrays = [pa.array(v, _arrow(c.type_)) for v, c in zip(values, columns, strict=True)]
    return pa.table(arrays, names=[column.name for column in columns])


def _inner(type_: Mapping[str, Any]) -> list[Any]:
    """The arguments of a type: types, numbers, or fields of a row."""
    return [argument["value"] for argument in type_["arguments"]]


_SIMPLE: Final = {
    "boolean": pa.bool_(),
    "tinyint": pa.int8(),
    "smallint": pa.int16(),
    "integer": pa.int32(),
    "bigint": pa.int64(),
    "real": pa.float32(),
    "double": pa.float64(),
    "varchar": pa.string(),
    "varbinary": pa.binary(),
    "date": pa.date32(),
    "timestamp": pa.timestamp("us"),
    "timestamp with time zone": pa.timestamp("us", "UTC"),
}


def _arrow(type_: Mapping[str, Any]) -> pa.DataType:
    name, inner = type_["rawType"], _inner(type_)
    if name == "decimal":
        return pa.decimal128(*inner)
    if name == "array":
        return pa.list_(_arrow(inner[0]))
    if name == "map":
        return pa.map_(*map(_arrow, inner))
    if name == "row":
        return pa.struct([(f["fieldName"]["name"], _arrow(f["typeSignature"])) for f in inner])
    return _SIMPLE[name]


def _value(type_: Mapping[str, Any], value: Any) -> Any:
    """A value of the protocol's JSON as Python has it."""
    if value is None:
        return None
    name, inner = type_["rawType"], _inner(type_)
    if name == "array":
        return [_value(inner[0], item) for item in value]
    if name == "map":
        return [(_value(inner[0], key), _value(inner[1], item)) for key, item in value.items()]
    if name == "row":
        names = [field["fieldName"]["name"] for field in inner]
        types = [field["typeSignature"] for field in inner]
        return dict(zip(names, map(_value, types, value), strict=True))
    read = _READ.get(name)
    return value if read is None else read(value)


_READ: Final[Mapping[str, Any]] = {
    "real": float,  # NaN and infinities are texts
    "double": float,
    "decimal": Decimal,
    "varbinary": base64.b64decode,
    "date": date.fromisoformat,
    "timestamp": datetime.fromisoformat,
    "timestamp with time zone": lambda text: datetime.fromisoformat(text.replace(" UTC", "+00:00")),
}
