"""The keys of the pipeline file: what to capture, where to, how much at a time."""

from __future__ import annotations

import re
from typing import Annotated, Any, Final, Literal

from pydantic import AfterValidator, Field, model_validator

from pgstream_dagster.config.kafka_source import KafkaSourceConfig
from pgstream_dagster.config.modifiers import ModifierConfig
from pgstream_dagster.config.outbox import OutboxConfig
from pgstream_dagster.config.outbox_sink import EVENTS_TABLE
from pgstream_dagster.config.section import Alias, Identifier, Pattern, Section, SinkName, TableName
from pgstream_dagster.config.sinks import SinkConfig
from pgstream_dagster.config.tables import TablesConfig
from pgstream_dagster.errors import NoSuchAlias, NoSuchSink
from pgstream_dagster.patterns import TablePattern

FLUSH_SECONDS: Final = 0.5
"""A commit costs about 35 ms and one small file; with two a second changes land within a second."""

FLUSH_ROWS: Final = 65_536
"""Larger commits measured no faster."""

FLUSH_BYTES: Final = 16 << 20
"""As many wide rows as make a file of a few MB compressed."""

MEMORY_BYTES: Final = 1 << 30
"""As much as the heap of the JVM beside it; only a row of more than 40 MB makes use of it."""

IDLE_ADVANCE_SECONDS: Final = 60.0
"""An empty commit a minute lets Postgres drop the WAL of other databases and tables."""

CATALOG_CHECK_SECONDS: Final = 60.0
"""How long a rewrite or a new partition may stay unseen; the look costs milliseconds."""

COPY_RANGES: Final = 8
"""Tasks per large table: past the cores of one machine they only add connections."""

COPY_PARALLEL: Final = 2
"""Tables copied at the same time, each with its own tasks and connections."""

KEEP_GENERATIONS: Final = 1
"""One former index behind an alias is a quick way back; it costs its disk."""

PREFIX: Final = "pgstream_"
"""Of slot and publication where the file names none."""

MAX_PIPELINE: Final = 40
"""Leaves room for the prefix, and for what a temporary slot adds to the slot's name."""

MAX_SLOT: Final = 52
"""Leaves room for what a temporary slot adds to the name."""


def _has_events(pattern: str) -> bool:
    return TablePattern.parse(pattern).matches(*EVENTS_TABLE.split("."))


def _slot_name(text: str) -> str:
    if not re.fullmatch(rf"[a-z0-9_]{{1,{MAX_SLOT}}}", text):
        raise ValueError(f"must be 1 to {MAX_SLOT} lower-case letters, digits or _")
    return text


def _pipeline_name(text: str) -> str:
    if not re.fullmatch(rf"[a-z][a-z0-9_]{{0,{MAX_PIPELINE - 1}}}", text):
        raise ValueError(
            f"must be 1 to {MAX_PIPELINE} lower-case letters, digits or _, beginning with a letter"
        )
    return text


class SourceConfig(Section):
    """What is read."""

    slot: Annotated[str, AfterValidator(_slot_name)] = Field(
        default="",
        validate_default=False,
        description="Replication slot on the source; made by `setup`, dropped by `teardown`."
        " Without it: `pgstream_` and the pipeline's name.",
    )
    publication: Identifier = Field(
        default="",
        validate_default=False,
        description="Publication on the source. One that exists already is used as it is and"
        " never changed or dropped. Without it: `pgstream_` and the pipeline's name.",
    )
    tables: Literal["all"] | Annotated[tuple[Pattern, ...], Field(min_length=1, strict=False)] = (
        Field(
            default="all",
            description="`all`, or a list of patterns such as `public.orders` or `shop.*`"
            " (`*` any text, `?` one character, no namespace: `public`). With `all` new tables"
            " join by themselves where `setup` could make the publication FOR ALL TABLES (a"
            " superuser, every table with a replica identity, nothing excluded); otherwise at the"
            " next `setup`.",
        )
    )
    exclude: Annotated[tuple[Pattern, ...], Field(strict=False)] = Field(
        default=(),
        description="Patterns of tables that stay out, whatever `tables` says; `all` then becomes"
        " a list, which `setup` brings up to date.",
    )
    modifiers: Annotated[tuple[str, ...], Field(strict=False)] = Field(
        default=(),
        description="Names of modifiers, in the order in which rows pass through them before they"
        " are stored: the log, and all that is made from it, never has what they take away.",
    )
    schema_triggers: bool = Field(
        default=True,
        description="Whether `setup` installs event triggers on the source, where the role may:"
        " they report DDL in order with the changes of rows.",
    )
    kafka: KafkaSourceConfig | None = Field(
        default=None,
        description="Kafka topics in place of Postgres; the other keys of `source` are not for it.",
    )


class CaptureConfig(Section):
    """How the stream lands changes."""

    flush_seconds: float = Field(
        default=FLUSH_SECONDS,
        ge=0.01,
        le=3600,
        description="Seconds between commits while changes arrive; the first change after a quiet"
        " time is committed at once.",
    )
    flush_rows: int = Field(
        default=FLUSH_ROWS,
        ge=1,
        le=10_000_000,
        description="Changes after which a commit is made earlier.",
    )
    flush_bytes: int = Field(
        default=FLUSH_BYTES,
        ge=1 << 10,
        le=1 << 30,
        description="Bytes of decoded changes after which a commit is made earlier.",
    )
    memory_bytes: int = Field(
        default=MEMORY_BYTES,
        ge=128 << 20,
        le=64 << 30,
        description="Bytes that the stream's process may hold between its connection and the"
        " commit, above the 170 MB it holds when idle; the JVM and copies come on top. Batches are"
        " small and large transactions wait on the local disk, so only large rows need it. A row"
        " takes up to 8 times its size: one that does not fit is left out with a warning, and its"
        " table (a `gap`) until a copy fits. Received it is all the same, which takes twice its"
        " size for a moment. A copy refuses such rows (`RowTooLarge`).",
    )
    idle_advance_seconds: float = Field(
        default=IDLE_ADVANCE_SECONDS,
        ge=1,
        le=86_400,
        description="Seconds between the empty commits that move the slot forward while nothing"
        " published changes.",
    )
    catalog_check_seconds: float = Field(
        default=CATALOG_CHECK_SECONDS,
        ge=1,
        le=86_400,
        description="Seconds between looks at the catalog for tables that were added or rewritten"
        " and partitions that were attached or detached.",
    )
    messages: bool = Field(
        default=False,
        description="Whether transactional logical messages (pg_logical_emit_message) are landed,"
        " as rows of op message. Large transactions then wait on the server until they commit.",
    )


class CopyConfig(Section):
    """How tables are copied."""

    ranges: int = Field(
        default=COPY_RANGES,
        ge=1,
        le=1024,
        description="Tasks per table at most; a small table gets fewer. Each has a connection.",
    )
    parallel: int = Field(
        default=COPY_PARALLEL, ge=1, le=64, description="Tables copied at the same time."
    )


class IndexConfig(Section):
    """One search index, as its readers know it: an alias over one table's rows."""

    table: TableName = Field(
        description="The table whose rows are the documents, as namespace.name."
    )
    id: Annotated[tuple[Identifier, ...], Field(min_length=1, strict=False)] | None = Field(
        default=None,
        description="Columns whose values make a document's id: for a table without a key, which"
        " needs REPLICA IDENTITY FULL then, and rows that differ in them. Without it: the key.",
    )
    columns: Annotated[tuple[Identifier, ...], Field(min_length=1, strict=False)] | None = Field(
        default=None,
        description="The columns to index; without it all of them, those added later too.",
    )
    modifiers: Annotated[tuple[str, ...], Field(strict=False)] = Field(
        default=(),
        description="Names of modifiers, in the order in which rows pass through them on their way"
        " to the index.",
    )
    mapping: dict[str, dict[str, Any]] = Field(
        default_factory=dict,
        description="Column to the mapping that its field gets in place of the standard one, such"
        " as `{type: ip}`.",
    )
    settings: dict[str, Any] = Field(
        default_factory=dict,
        description="Settings of the index as the search engine takes them: shards, replicas,"
        " analysis.",
    )
    keep: int = Field(
        default=KEEP_GENERATIONS,
        ge=0,
        le=100,
        description="How many former generations stay behind the live one, for `rollback`.",
    )
    reindex: Literal["auto", "manual"] = Field(
        default="auto",
        description="`auto`: what the live index cannot follow (a copy of its table, a retyped"
        " column, other settings here) starts a re-index by itself; `manual`: it waits for"
        " `pgstream reindex`.",
    )

    def documents(self) -> str:
        """What the index and its documents are made of; another text asks for another index."""
        return self.model_dump_json(include={"id", "columns", "mapping", "settings"})


class PipelineConfig(Section):
    """One pipeline: one source database into one change log."""

    pipeline: Annotated[str, AfterValidator(_pipeline_name)] = Field(
        description="The pipeline's name; part of the names of its slot and publication, and of"
        " the watermark in the log, so it cannot change later."
    )
    source: SourceConfig = Field(
        default_factory=SourceConfig, description="What is read from Postgres."
    )
    capture: CaptureConfig = Field(
        default_factory=CaptureConfig, description="How the stream lands changes."
    )
    copying: CopyConfig = Field(
        default_factory=CopyConfig, alias="copy", description="How tables are copied."
    )

    search: dict[Alias, IndexConfig] = Field(
        default_factory=dict,
        description="Search indices: an alias each, over the rows of one table.",
    )
    modifiers: dict[SinkName, ModifierConfig] = Field(
        default_factory=dict,
        description="What happens to the columns of rows, by name: they are transformed or left"
        " out. Source, indices and sinks name the modifiers that they need.",
    )
    sinks: dict[SinkName, SinkConfig] = Field(
        default_factory=dict, description="Targets that receive the changes of the log, by name."
    )
    tables: TablesConfig | None = Field(
        default=None,
        description="Typed tables of the lake, which `pgstream tables` keeps. Without it there are"
        " none.",
    )
    outbox: OutboxConfig | None = Field(
        default=None,
        description="The daily partitions of the outbox on the source, where there is one.",
    )

    @model_validator(mode="after")
    def _events_are_read(self) -> PipelineConfig:
        """A list of tables has that of the events when a sink delivers them."""
        tables, exclude = self.source.tables, self.source.exclude
        if not self.outbox_streams or self.source.kafka is not None:
            return self
        if any(map(_has_events, exclude)):
            raise ValueError(
                f"source.exclude leaves out {EVENTS_TABLE}, whose events a sink delivers: make its"
                " patterns narrower"
            )
        if tables != "all" and not any(map(_has_events, tables)):
            source = self.source.model_copy(update={"tables": (*tables, EVENTS_TABLE)})
            object.__setattr__(self, "source", source)
        return self

    @model_validator(mode="after")
    def _names(self) -> PipelineConfig:
        """Fill in the slot and the publication; the model is frozen for everybody else."""
        if self.source.kafka is not None:
            return self
        name = PREFIX + self.pipeline
        source = self.source.model_copy(
            update={
                "slot": self.source.slot or name,
                "publication": self.source.publication or name,
            }
        )
        object.__setattr__(self, "source", source)
        return self

    @property
    def outbox_streams(self) -> dict[str, int]:
        """The sinks that deliver events of the outbox, and of which stream."""
        return {name: sink.outbox.stream for name, sink in self.sinks.items() if sink.outbox}

    def sink(self, name: str) -> SinkConfig:
        """
        The sink of this name, or the one that a reader `sink.subscription` belongs to.

        Raises:
            NoSuchSink
        """
        sink = name.partition(".")[0]
        if sink not in self.sinks:
            raise NoSuchSink(name, sorted(self.sinks))
        return self.sinks[sink]

    def index(self, alias: str) -> IndexConfig:
        """
        The index behind an alias.

        Raises:
            NoSuchAlias
        """
        if alias not in self.search:
            raise NoSuchAlias(alias, sorted(self.search))
        return self.search[alias]
