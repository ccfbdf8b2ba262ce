"""The keys of a sink: which changes it receives, from where on, and how failures are handled."""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

from pydantic import ConfigDict, Field, PlainValidator, model_validator

from pgstream_dagster.config import plugins
from pgstream_dagster.config.documents import DocumentsConfig
from pgstream_dagster.config.kafka import KafkaConfig
from pgstream_dagster.config.nats import NatsConfig
from pgstream_dagster.config.outbox_sink import EVENTS_TABLE, OutboxSinkConfig
from pgstream_dagster.config.postgres_sink import PostgresSinkConfig
from pgstream_dagster.config.queues import QueueConfig
from pgstream_dagster.config.rabbitmq import RabbitConfig
from pgstream_dagster.config.redis import RedisConfig
from pgstream_dagster.config.section import Pattern, Section
from pgstream_dagster.config.sqs import SqsConfig
from pgstream_dagster.config.webhook import WebhookConfig

FIRST_RETRY_SECONDS: Final = 0.5
LONGEST_RETRY_SECONDS: Final = 30.0

RETRY_ATTEMPTS: Final = 8
"""With the default policy about a minute: longer outages are the target's, not one change's."""

MAX_QUEUE_BYTES: Final = 64 << 20
"""As much as a batch needs to cost little per change."""


Operation = Literal["read", "insert", "update", "delete", "truncate", "ddl"]
"""An operation that a sink can choose."""

OF_ROWS: Final[tuple[Operation, ...]] = ("read", "insert", "update", "delete", "truncate")


class RetryConfig(Section):
    """What happens to a change that a target does not accept now."""

    policy: Literal["exponential", "constant", "none"] = Field(
        default="exponential",
        description="How the time between attempts grows; `exponential` has jitter.",
    )
    first_seconds: float = Field(
        default=FIRST_RETRY_SECONDS,
        ge=0.01,
        le=3600,
        description="Seconds before the second attempt.",
    )
    longest_seconds: float = Field(
        default=LONGEST_RETRY_SECONDS,
        ge=0.01,
        le=86_400,
        description="The longest time between two attempts, in seconds.",
    )
    attempts: int = Field(
        default=RETRY_ATTEMPTS,
        ge=1,
        le=1_000_000,
        description="Attempts after which a change becomes a dead letter. A target that cannot be"
        " reached at all is tried again without a limit.",
    )


class StdoutConfig(Section):
    """Changes as lines of JSON on the standard output of the process."""


class FilesConfig(Section):
    """Changes as lines of JSON in files of a folder."""

    folder: str = Field(min_length=1, description="The folder; it is made if it is missing.")
    rotate_bytes: int = Field(
        default=128 << 20,
        ge=1 << 10,
        le=1 << 40,
        description="Bytes after which another file begins.",
    )


def _installed(value: object) -> plugins.Installed:
    return plugins.read(value, list(SinkConfig.model_fields), TARGETS)


class SinkConfig(Section):
    """
    One sink: a target, the changes it receives, and how its failures are handled.

    A key that is none of its fields names a sink of an installed package.
    """

    model_config = ConfigDict(extra="allow")
    __pydantic_extra__: dict[  # pyright: ignore[reportIncompatibleVariableOverride]
        str, Annotated[plugins.Installed, PlainValidator(_installed)]
    ]

    stdout: StdoutConfig | None = Field(
        default=None, description="Write changes to the standard output."
    )
    files: FilesConfig | None = Field(
        default=None, description="Write changes to files of lines of JSON."
    )
    kafka: KafkaConfig | None = Field(default=None, description="Write changes to Kafka.")
    postgres: PostgresSinkConfig | None = Field(
        default=None, description="Write rows to the tables of another Postgres database."
    )
    webhook: WebhookConfig | None = Field(
        default=None, description="Post changes to HTTP endpoints that subscribed to them."
    )
    redis: RedisConfig | None = Field(
        default=None, description="Write messages to Redis streams, or to keys."
    )
    rabbitmq: RabbitConfig | None = Field(
        default=None, description="Write messages to exchanges or queues of RabbitMQ."
    )
    nats: NatsConfig | None = Field(
        default=None, description="Write messages to streams of NATS JetStream."
    )
    sqs: SqsConfig | None = Field(
        default=None, description="Write messages to queues of Amazon SQS."
    )
    documents: DocumentsConfig | None = Field(
        default=None,
        description="Write messages as documents of OpenSearch or Elasticsearch, one for each event"
        " or change; `search` is for rows as documents.",
    )
    outbox: OutboxSinkConfig | None = Field(
        default=None,
        description="Deliver the events of a stream of the outbox, instead of the changes of"
        " tables.",
    )
    tables: Annotated[tuple[Pattern, ...], Field(min_length=1, strict=False)] = Field(
        default=("*.*",), description="Patterns of the tables whose changes the sink receives."
    )
    exclude: Annotated[tuple[Pattern, ...], Field(strict=False)] = Field(
        default=(), description="Patterns of tables that stay out, whatever `tables` says."
    )
    schema_only: Annotated[tuple[Pattern, ...], Field(strict=False)] = Field(
        default=(),
        description="Patterns of tables without rows: a sink `postgres` makes them when it starts,"
        " other sinks receive nothing of them. The name of one table under `tables` goes over a"
        " pattern here; `exclude` goes over both.",
    )
    operations: Annotated[tuple[Operation, ...], Field(min_length=1, strict=False)] = Field(
        default=OF_ROWS,
        description="The operations that the sink receives; `read` is a copied row, `ddl` a command"
        " that changed a table. Without this key, a sink `kafka` with our envelope receives `ddl`,"
        " too.",
    )
    modifiers: Annotated[tuple[str, ...], Field(strict=False)] = Field(
        default=(),
        description="Names of modifiers, in the order in which changes pass through them.",
    )
    start: Literal["copy", "now"] = Field(
        default="copy",
        description="`copy`: the rows of each table's copy first, then every change after it;"
        " `now`: the changes after the sink's first start.",
    )
    copies: Literal["differences", "rows"] = Field(
        default="differences",
        description="What a sink receives of a table that is copied again: the differences to what"
        " it received before, or a `copy` marker and all rows.",
    )
    retry: RetryConfig = Field(
        default_factory=RetryConfig, description="How a change that fails is tried again."
    )
    on_failure: Literal["hold", "skip"] = Field(
        default="hold",
        description="Whether later changes of a key wait behind one that became a dead letter"
        " (`hold`: they become dead letters too, and `redrive` delivers them in order) or are"
        " delivered (`skip`).",
    )
    max_queue_bytes: int = Field(
        default=MAX_QUEUE_BYTES,
        ge=1 << 20,
        le=16 << 30,
        description="Bytes of changes that the sink holds in memory at most; a single larger change"
        " is held alone.",
    )

    @property
    def target(self) -> str:
        """The key of the target: `stdout`, `files`... or the name of an installed sink."""
        return self._given()[0]

    @property
    def installed(self) -> plugins.Installed | None:
        """The target, if it is a sink of an installed package."""
        return next(iter(self.__pydantic_extra__.values()), None)

    def _given(self) -> list[str]:
        own = [name for name in TARGETS if getattr(self, name) is not None]
        return [*own, *self.__pydantic_extra__]

    @model_validator(mode="before")
    @classmethod
    def _others(cls, content: Any) -> Any:
        """Keys that are none of ours, with their names: `_installed` reads them."""
        if not isinstance(content, dict):
            return content
        return {
            key: plugins.Unread(key, value)
            if isinstance(key, str) and key not in cls.model_fields
            else value
            for key, value in content.items()
        }

    @model_validator(mode="after")
    def _one_target(self) -> SinkConfig:
        given = self._given()
        if len(given) != 1:
            kinds = ", ".join([*TARGETS, *plugins.installed_kinds()])
            named = " and ".join(given) or "none"
            raise ValueError(f"must have one target of {kinds}; it has {named}")
        return self

    @model_validator(mode="after")
    def _events_alone(self) -> SinkConfig:
        """A sink of the outbox reads the table of events; the model is frozen for all others."""
        if self.outbox is None:
            return self
        for name in OF_TABLES:
            if name in self.model_fields_set:
                raise ValueError(
                    f"`{name}` does not go with `outbox`, whose events are as they were written:"
                    " select and shape them in the subscription"
                )
        object.__setattr__(self, "tables", (EVENTS_TABLE,))
        object.__setattr__(self, "operations", ("read", "insert"))
        return self

    @model_validator(mode="after")
    def _kafka_with_ddl(self) -> SinkConfig:
        is_ours = self.kafka is not None and self.kafka.envelope == "pgstream"
        if is_ours and self.outbox is None and "operations" not in self.model_fields_set:
            object.__setattr__(self, "operations", (*OF_ROWS, "ddl"))
        return self

    @model_validator(mode="after")
    def _changes_have_a_place(self) -> SinkConfig:
        queue = getattr(self, self.target, None)
        if isinstance(queue, QueueConfig) and self.outbox is None and not queue.has_place:
            keys = " or ".join(f"`{name}`" for name in queue.places)
            raise ValueError(
                f"`{self.target}` needs {keys}: only events of the outbox name their own place"
            )
        return self

    @model_validator(mode="after")
    def _rows_after_markers(self) -> SinkConfig:
        if self.copies == "rows" and "read" not in self.operations:
            raise ValueError(
                "`copies: rows` needs `read` among its operations: the marker of a copy"
                " says that all rows follow"
            )
        return self


OF_TABLES: Final = ("tables", "exclude", "schema_only", "operations", "modifiers", "copies")
"""The keys that say what a sink receives of tables."""

TARGETS: Final = (
    "stdout",
    "files",
    "kafka",
    "postgres",
    "webhook",
    "redis",
    "rabbitmq",
    "nats",
    "sqs",
    "documents",
)
"""The keys of ours of which a sink has exactly one, unless it has that of an installed sink."""
