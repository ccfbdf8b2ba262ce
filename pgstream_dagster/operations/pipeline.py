"""What every operation is given: the pipeline file, the way to the source, the lake."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from pgstream_dagster.changelog.address import Lake
from pgstream_dagster.config import PipelineConfig
from pgstream_dagster.errors import NotSetUp
from pgstream_dagster.runtime.java import JvmSettings
from pgstream_dagster.search.settings import SearchSettings

if TYPE_CHECKING:
    from py4j.java_gateway import JavaGateway


@dataclass(frozen=True, slots=True)
class Pipeline:
    """
    One pipeline, nothing opened yet.

    `state` is a local folder for what may be lost: large transactions, heartbeats, whose it is.
    `dsn` holds secrets: it is never printed.
    """

    config: PipelineConfig
    dsn: str
    lake: Lake
    jvm: JvmSettings
    state: Path
    search: SearchSettings | None = None

    def __repr__(self) -> str:
        return f"Pipeline({self.config.pipeline!r}, lake={self.lake.root!r})"

    @property
    def name(self) -> str:
        """The pipeline's name: the app of its transaction ids, and part of its slot's name."""
        return self.config.pipeline

    def require_set_up(self) -> None:
        """Refuse a lake that no `setup` has made; told without a JVM. Raises `NotSetUp`."""
        if not self.lake.is_made:
            raise NotSetUp(self.name, self.lake.root)

    def gateway(self) -> JavaGateway:
        """The JVM of this process, once there is something to open. Raises `NotSetUp`."""
        self.require_set_up()
        from pgstream_dagster.changelog import jvm

        return jvm.gateway(self.jvm)

    @property
    def sign_of_life(self) -> Path:
        """Where the stream says that it lives, and how far it is."""
        return self.state / f"{self.name}.stream.json"

    @property
    def indexer_sign_of_life(self) -> Path:
        """The same of the live indexer."""
        return self.state / f"{self.name}.index.json"
