"""The keys of a Kafka sink: brokers, topics, keys, messages, security."""

from __future__ import annotations

import re
from string import Formatter
from typing import Annotated, Final, Literal, Self

from pydantic import AfterValidator, Field, model_validator

from pgstream_dagster.config.section import Section, Variable

PLACEHOLDERS: Final = ("pipeline", "namespace", "relation")
"""What a topic's template may contain in braces."""

KEYS: Final = ("primary_key", "table", "schema")
"""The keys of records that need no code of the user's."""

DATABASE: Final = "postgres"
"""In Debezium's `source.db`, unless the file says which."""

BATCH_BYTES: Final = 1_000_000
"""Under the default limit of brokers (`message.max.bytes`: 1,048,588), which counts a batch."""

LARGEST_BYTES: Final = 64 << 20
"""Under the 100 MB (`socket.request.max.bytes`) past which a broker ends the connection."""

DELIVERY_SECONDS: Final = 30.0
"""A broker that restarts is back before; what lasts longer is an outage and reported as one."""

TRANSACTION_SECONDS: Final = 60.0
"""A broker's own default limit is 15 minutes (`transaction.max.timeout.ms`)."""


SHORTEST_TRANSACTION_SECONDS: Final = 11
"""librdkafka wants more than one request may take, which is 10 seconds."""


def _template(text: str) -> str:
    try:
        parts = list(Formatter().parse(text))
    except ValueError as error:
        raise ValueError(f"is no template: {error}") from error
    for literal, name, form, conversion in parts:
        if re.search(r"[^A-Za-z0-9._-]", literal):
            raise ValueError("may have letters, digits, '.', '_' and '-' outside of braces")
        if name is not None and (name not in PLACEHOLDERS or form or conversion):
            allowed = ", ".join(f"{{{placeholder}}}" for placeholder in PLACEHOLDERS)
            raise ValueError(f"has {{{name}}}, which is not one of {allowed}")
    if text in {"", ".", ".."}:
        raise ValueError("must name a topic")
    return text


def is_function(text: str) -> bool:
    """Whether a text names a function, as `package.module:function`; no template has a colon."""
    return re.fullmatch(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*", text) is not None


def _topic(text: str) -> str:
    return text if is_function(text) else _template(text)


def _key(text: str) -> str:
    if text in KEYS or is_function(text):
        return text
    raise ValueError(f"must be {', '.join(KEYS)}, or a function as 'package.module:function'")


def _function(text: str) -> str:
    if not is_function(text):
        raise ValueError("must be a function as 'package.module:function'")
    return text


Template = Annotated[str, AfterValidator(_template)]
Topic = Annotated[str, AfterValidator(_topic)]
KeyStrategy = Annotated[str, AfterValidator(_key)]
Function = Annotated[str, AfterValidator(_function)]


class TlsConfig(Section):
    """TLS to the brokers; with a certificate of its own, the brokers know the sink by it."""

    ca: str | None = Field(
        default=None, description="A file of certificates by which brokers are known (PEM)."
    )
    certificate: str | None = Field(
        default=None, description="A file with the sink's own certificate (PEM), for mutual TLS."
    )
    key: str | None = Field(default=None, description="A file with its private key (PEM).")
    key_password: Variable | None = Field(
        default=None, description="The variable with the password of the private key."
    )
    verify_hostname: bool = Field(
        default=True, description="Whether the broker's certificate must have its host name."
    )

    @model_validator(mode="after")
    def _pair(self) -> TlsConfig:
        if (self.certificate is None) != (self.key is None):
            raise ValueError("'certificate' and 'key' belong together")
        return self


class SaslConfig(Section):
    """A login at the brokers."""

    mechanism: Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER"] = Field(
        description="How the sink proves who it is."
    )
    username: str | None = Field(
        default=None, description="The user; the client's id with OAUTHBEARER."
    )
    password: Variable | None = Field(
        default=None,
        description="The variable with the password; with the client's secret for OAUTHBEARER.",
    )
    token_url: str | None = Field(
        default=None, description="Where OAUTHBEARER fetches tokens (OpenID Connect)."
    )
    scope: str | None = Field(default=None, description="The scope asked for with OAUTHBEARER.")

    @model_validator(mode="after")
    def _complete(self) -> SaslConfig:
        if self.username is None or self.password is None:
            raise ValueError("needs 'username' and 'password' (the name of a variable)")
        if (self.mechanism == "OAUTHBEARER") != (self.token_url is not None):
            raise ValueError("'token_url' belongs to OAUTHBEARER, which needs it")
        return self


class TopicsConfig(Section):
    """How topics are made that do not exist."""

    partitions: int = Field(
        default=1,
        ge=1,
        le=100_000,
        description="Partitions of a new topic; the changes of a key stay in order in one.",
    )
    replication: int | None = Field(
        default=None, ge=1, le=100, description="Replicas of a new topic; the broker's default."
    )
    cleanup_policy: Literal["delete", "compact", "compact,delete"] = Field(
        default="delete", description="What the broker removes from the topic (`cleanup.policy`)."
    )
    settings: dict[str, str] = Field(
        default_factory=dict, description="Further settings of the topic, such as `retention.ms`."
    )


class BrokersConfig(Section):
    """How brokers are reached."""

    bootstrap_servers: str | None = Field(
        default=None, min_length=1, description="Brokers to begin with: `host:port,host:port`."
    )
    bootstrap_servers_from: Variable | None = Field(
        default=None, description="The variable with them, in place of `bootstrap_servers`."
    )
    tls: TlsConfig | None = Field(default=None, description="TLS to the brokers.")
    sasl: SaslConfig | None = Field(default=None, description="A login at the brokers.")

    @model_validator(mode="after")
    def _named_once(self) -> Self:
        if (self.bootstrap_servers is None) == (self.bootstrap_servers_from is None):
            raise ValueError("needs either 'bootstrap_servers' or 'bootstrap_servers_from'")
        return self


class KafkaConfig(BrokersConfig):
    """Changes as records of Kafka topics."""

    topic: Topic = Field(
        default="{pipeline}.{namespace}.{relation}",
        description="The topic of a change, from `{pipeline}`, `{namespace}` and `{relation}`, or a"
        " function of yours (`package.module:function`), which gets a `Change`.",
    )
    create: TopicsConfig | None = Field(
        default=None, description="Makes topics that do not exist; without it they must exist."
    )
    key: KeyStrategy = Field(
        default="primary_key",
        description="The key of records: `primary_key`, `table`, `schema`, or a function of yours"
        " (`package.module:function`), which gets a `Change`.",
    )
    identity: Function | None = Field(
        default=None,
        description="A function of yours for the header `pgstream.identity`: what the row is known"
        " by elsewhere.",
    )
    version: Function | None = Field(
        default=None,
        description="A function of yours for the header `pgstream.version`: what orders the row's"
        " versions elsewhere.",
    )
    envelope: Literal["pgstream", "debezium"] = Field(
        default="pgstream", description="The form of records: ours, or that of Debezium."
    )
    database: str = Field(
        default=DATABASE,
        min_length=1,
        description="The name of the database in Debezium's `source.db`.",
    )
    decimals: Literal["string", "double"] = Field(
        default="string", description="Debezium's `decimal.handling.mode`."
    )
    tombstones: bool | None = Field(
        default=None,
        description="Whether a record without a value follows a deleted key; unless given, it does"
        " with Debezium's form and in compacted topics that the sink makes.",
    )
    exactly_once: bool = Field(
        default=False,
        description="Delivers in transactions that carry the progress: a consumer with"
        " `read_committed` sees every change once.",
    )
    progress_topic: Template = Field(
        default="pgstream.progress.{pipeline}",
        description="With `exactly_once`, the topic for the progress; the sink's name is added.",
    )
    transaction_seconds: float = Field(
        default=TRANSACTION_SECONDS,
        ge=SHORTEST_TRANSACTION_SECONDS,
        le=900,
        description="Seconds after which the brokers abort the transaction of a sink that is gone.",
    )
    compression: Literal["none", "gzip", "snappy", "lz4", "zstd"] = Field(
        default="lz4", description="How batches are compressed."
    )
    batch_bytes: int = Field(
        default=BATCH_BYTES,
        ge=1_000,
        le=LARGEST_BYTES,
        description="Bytes of a batch before compression, at most the brokers' limit of one"
        " (`max.message.bytes`). A larger record is sent alone.",
    )
    largest_bytes: int = Field(
        default=LARGEST_BYTES,
        ge=1_000,
        le=1_000_000_000,
        description="Bytes of the largest record that is sent at all; what is larger, or what the"
        " broker finds too large, becomes a dead letter.",
    )
    delivery_seconds: float = Field(
        default=DELIVERY_SECONDS,
        ge=1,
        le=3600,
        description="Seconds after which brokers that do not acknowledge count as unreachable.",
    )
    schemas_topic: Template | None = Field(
        default=None,
        description="A topic for the columns and types of tables, from `{pipeline}`; made if it is"
        " missing. A pipeline that has Kafka as its source needs it.",
    )

    @property
    def has_tombstones(self) -> bool:
        """Whether a record without a value follows a deleted key."""
        if self.tombstones is not None:
            return self.tombstones
        is_compacted = self.create is not None and "compact" in self.create.cleanup_policy
        return self.envelope == "debezium" or is_compacted

    @model_validator(mode="after")
    def _consistent(self) -> KafkaConfig:
        if self.envelope == "debezium" and self.schemas_topic is not None:
            raise ValueError("'schemas_topic' goes with 'envelope: pgstream'")
        if self.schemas_topic is not None:
            self._require_whole_order()
        if self.envelope == "debezium" and self.key != "primary_key":
            raise ValueError("'envelope: debezium' has Debezium's keys: 'key' must be primary_key")
        if self.has_tombstones and self.key != "primary_key":
            raise ValueError("'tombstones' need 'key: primary_key': others stand for many rows")
        for name in ("progress_topic", "schemas_topic"):
            if re.search(r"\{(namespace|relation)\}", getattr(self, name) or ""):
                raise ValueError(f"'{name}' may have {{pipeline}} only: it is one per sink")
        if self.exactly_once and self.delivery_seconds > self.transaction_seconds:
            raise ValueError("'delivery_seconds' must not be more than 'transaction_seconds'")
        return self

    def _require_whole_order(self) -> None:
        """Readers of the topics must know their order, and find every change."""
        for name in ("topic", "key"):
            if is_function(getattr(self, name)):
                raise ValueError(f"'schemas_topic' does not go with a function for '{name}'")
        if self.create is not None and "compact" in self.create.cleanup_policy:
            raise ValueError(
                "'schemas_topic' does not go with compacted topics: a pipeline that reads them"
                " would miss changes"
            )
