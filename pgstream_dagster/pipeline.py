"""The pipeline that every operation works on: its file, its source, its lake."""

from __future__ import annotations

import os
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Self, TypeVar

from pgstream_dagster import settings
from pgstream_dagster.changelog.lake import Lake
from pgstream_dagster.config import PipelineConfig, load
from pgstream_dagster.errors import (
    ConfigError,
    LakeAway,
    NotForKafka,
    NotSetUp,
    SeveralProblems,
)
from pgstream_dagster.memory import MemoryBound
from pgstream_dagster.runtime.java import JvmSettings
from pgstream_dagster.search_settings import SearchSettings

if TYPE_CHECKING:
    from py4j.java_gateway import JavaGateway

    from pgstream_dagster.changelog.ledger import Ledger, PipelineIdentity
    from pgstream_dagster.changelog.log import ChangeLog
    from pgstream_dagster.changelog.schema_log import SchemaLog
    from pgstream_dagster.lsn import Lsn
    from pgstream_dagster.modifiers.rules import Rules
    from pgstream_dagster.schema.table import TableSchema


T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Pipeline:
    """
    One pipeline, nothing opened yet.

    `state` is a local folder for what may be lost: large transactions, heartbeats, its owner.
    `dsn` and `environment` hold secrets: they are never printed. `environment` has the variables
    that the file names, those of this process by default. `dsn` is empty where the source is Kafka.
    """

    config: PipelineConfig
    dsn: str
    lake: Lake
    jvm: JvmSettings
    state: Path
    search: SearchSettings | None = None
    environment: Mapping[str, str] = field(default_factory=lambda: dict(os.environ))

    @classmethod
    def from_file(
        cls,
        file: str | os.PathLike[str] = settings.PIPELINE_FILE,
        environment: Mapping[str, str] = os.environ,
    ) -> Self:
        """
        The pipeline that a file and an environment describe; opens nothing.

        Does not read a `.env` file: `settings.with_dotenv` lays its content over an environment.

        Raises:
            ConfigError: everything that is wrong with either, at once.
        """
        problems: list[ConfigError] = []

        def part(read: Callable[[], T]) -> T | None:
            try:
                return read()
            except ConfigError as problem:
                problems.append(problem)
                return None

        config = part(lambda: load(file))
        is_postgres = config is None or config.source.kafka is None
        dsn = part(lambda: settings.dsn(environment) if is_postgres else "")
        root = part(lambda: settings.lake_root(environment))
        jvm = part(lambda: settings.jvm_settings(environment))
        search = part(lambda: settings.search_settings(environment))
        if problems or config is None or dsn is None or root is None or jvm is None:
            raise problems[0] if len(problems) == 1 else SeveralProblems(problems)
        state = settings.state_folder(environment)
        return cls(config, dsn, Lake(root), jvm, state, search, dict(environment))

    def __repr__(self) -> str:
        return f"Pipeline({self.config.pipeline!r}, lake={self.lake.root!r})"

    @property
    def name(self) -> str:
        """The pipeline's name: the app of its transaction ids, and part of its slot's name."""
        return self.config.pipeline

    def source_rules(self) -> Rules:
        """
        The modifiers of `source.modifiers`, before the log.

        Raises:
            MissingSetting, InvalidSetting: a secret of theirs; raised before anything is written.
        """
        return self._rules(self.config.source.modifiers)

    def index_rules(self, alias: str) -> Rules:
        """The modifiers of an index. Raises as `source_rules`, and `NoSuchAlias`."""
        return self._rules(self.config.index(alias).modifiers)

    def _rules(self, names: Sequence[str]) -> Rules:
        from pgstream_dagster.modifiers.rules import Rules

        return Rules.read(self.config, names, self.environment)

    def require_postgres(self, operation: str) -> None:
        """Raises `NotForKafka` if the source is Kafka."""
        if self.config.source.kafka is not None:
            raise NotForKafka(self.name, operation)

    def require_set_up(self) -> None:
        """
        Refuse a lake that no `setup` has created; needs no JVM.

        Raises:
            LakeAway: a stream has run with it before.
            NotSetUp
        """
        if self.lake.is_made:
            return
        if self.heartbeat_file.exists():
            raise LakeAway(self.lake.root)
        raise NotSetUp(self.name, self.lake.root)

    def gateway(self) -> JavaGateway:
        """The JVM of this process. Raises `NotSetUp`, and starts none, before `setup`."""
        self.require_set_up()
        from pgstream_dagster.delta import jvm

        return jvm.gateway(self.jvm)

    @contextmanager
    def open(self) -> Generator[OpenPipeline]:
        """
        The tables of the lake, closed with the block; each is read at its first use.

        Raises:
            NotSetUp: `setup` was never run for this pipeline and lake.
        """
        gateway = self.gateway()
        from pgstream_dagster.changelog.ledger import Ledger
        from pgstream_dagster.changelog.log import ChangeLog
        from pgstream_dagster.changelog.schema_log import SchemaLog

        with (
            closing(Ledger(self.lake, gateway)) as ledger,
            closing(SchemaLog(self.lake, gateway)) as schema_log,
            closing(ChangeLog(self.lake, self.name, gateway)) as log,
        ):
            identity = ledger.identity(self.name)
            if identity is None:
                raise NotSetUp(self.name, self.lake.root)
            yield OpenPipeline(self, identity, gateway, ledger, schema_log, log)

    @property
    def memory(self) -> MemoryBound:
        """The memory for what is between the source and a commit."""
        return MemoryBound(self.config.capture.memory_bytes)

    @property
    def heartbeat_file(self) -> Path:
        """Where the stream reports that it is alive, and how far it is."""
        return self.state / f"{self.name}.stream.json"

    @property
    def indexer_heartbeat_file(self) -> Path:
        """Where the live indexer does."""
        return self.state / f"{self.name}.index.json"

    @property
    def sinks_heartbeat_file(self) -> Path:
        """Where the process that delivers to the sinks does."""
        return self.state / f"{self.name}.sinks.json"


@dataclass(frozen=True, slots=True)
class OpenPipeline:
    """A pipeline that is set up; `identity` is its source as recorded when it was opened."""

    pipeline: Pipeline
    identity: PipelineIdentity
    gateway: JavaGateway
    ledger: Ledger
    schema_log: SchemaLog
    log: ChangeLog

    @property
    def epoch(self) -> int:
        """The newest incarnation of the source."""
        return self.identity.epoch

    @property
    def log_id(self) -> str:
        """What distinguishes the change log from that of every other lake."""
        return self.log.log_id

    def copied_relations(self) -> dict[int, tuple[Lsn, list[TableSchema]]]:
        """
        The relations whose newest copy is in the log, by oid.

        Shape:
            values: the copy's consistent point, and every version of the relation, oldest first.
        """
        landed = self.watermark() or 0
        versions: dict[int, list[TableSchema]] = {}
        for version in self.schema_log.all():
            if version.epoch == self.epoch:
                versions.setdefault(version.relation_id, []).append(version)
        return {
            oid: (copy.consistent_point, versions[oid])
            for oid, copy in self.ledger.copies(self.epoch).items()
            if oid in versions and copy.consistent_point <= landed
        }

    def copies_at(self, position: Lsn) -> dict[int, Lsn]:
        """The consistent point of the newest copy of each relation at or below a position."""
        described = {v.relation_id for v in self.schema_log.all() if v.epoch == self.epoch}
        points = self.ledger.consistent_points(self.epoch)
        before = [(r, point) for point, r in points if r in described and point <= position]
        return dict(before)  # in their order: the last one counts

    def watermark(self) -> Lsn | None:
        """The position that the log has reached; `None` before a slot was created."""
        return self.log.watermark(self.epoch)

    def require_watermark(self) -> Lsn:
        """The position that the log has reached. Raises `NotSetUp` before a slot was created."""
        watermark = self.watermark()
        if watermark is None:
            raise NotSetUp(self.pipeline.name, self.pipeline.lake.root)
        return watermark
