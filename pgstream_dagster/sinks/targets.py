"""
From the definition of a sink to its readers of the log: one, or one per subscription of a webhook.

Each reader has a name, under which its progress is stored: the sink's, or `sink.subscription`.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from pgstream_dagster import settings
from pgstream_dagster.config.sinks import SinkConfig
from pgstream_dagster.errors import ExtraMissing
from pgstream_dagster.modifiers import Modifiers
from pgstream_dagster.modifiers.rules import Rules
from pgstream_dagster.pipeline import OpenPipeline, Pipeline
from pgstream_dagster.sinks.base import Sink
from pgstream_dagster.sinks.envelope import Envelope
from pgstream_dagster.sinks.lines import FilesSink, Render, StdoutSink
from pgstream_dagster.sinks.message import lines

if TYPE_CHECKING:
    from pgstream_dagster.sinks.postgres.target import Target
    from pgstream_dagster.sinks.webhook.subscription import Subscription

Make: TypeAlias = Callable[[], Sink]


class Targets(Protocol):
    """The readers of one sink as they are now; `close` ends what they share."""

    def readers(self) -> Mapping[str, Make]:
        """Name -> what makes its target. Raises where they cannot be known now."""
        ...

    def is_over(self, reader: str) -> bool:
        """Whether a reader that has started is of a subscription that was removed since."""
        ...

    def close(self) -> None:
        """Release what the readers share."""
        ...


def targets(
    pipeline: Pipeline,
    name: str,
    environment: Mapping[str, str],
    stop: threading.Event,
    *,
    serves: bool = True,
) -> Targets:
    """
    The readers of a sink of the pipeline file; `serves`: with the subscription server.

    Raises:
        MissingSetting, InvalidSetting: a variable that the file names.
        SinkRefused: the subscription server cannot listen.
    """
    config = pipeline.config.sink(name)
    if config.webhook is not None:
        webhook = WebhookTargets(pipeline, name, config, environment, stop)
        if serves:
            webhook.serve()
        return webhook
    return SingleTarget(name, partial(target, pipeline, name, config, environment))


def target(
    pipeline: Pipeline, name: str, config: SinkConfig, environment: Mapping[str, str]
) -> Sink:
    """The target of a sink that is no webhook, not opened yet."""
    if config.kafka is not None:
        from pgstream_dagster.sinks.kafka.sink import KafkaSink

        return KafkaSink(
            config.kafka,
            pipeline=pipeline.name,
            sink=name,
            environment=environment,
            is_outbox=config.outbox is not None,
        )
    if (queue := _queue(pipeline, name, config, environment)) is not None:
        return queue
    if config.postgres is not None:
        from pgstream_dagster.sinks.postgres.sink import PostgresSink

        return PostgresSink(postgres_target(pipeline, name, config, environment))
    if config.installed is not None:
        from pgstream_dagster.sinks.package import package_sink

        return package_sink(pipeline.name, name, config.installed, environment)
    if config.files is not None:
        return FilesSink(name, config.files, _lines(pipeline, config))
    return StdoutSink(name, _lines(pipeline, config))


def _queue(
    pipeline: Pipeline, name: str, config: SinkConfig, environment: Mapping[str, str]
) -> Sink | None:
    """
    The target of a sink that is a queue.

    Raises:
        ExtraMissing: the library of its client is not installed.
    """
    made: dict[str, Any] = {"pipeline": pipeline.name, "sink": name, "environment": environment}
    if config.redis is not None:
        with _extra("redis", "redis"):
            from pgstream_dagster.sinks.redis.sink import RedisSink

        return RedisSink(config.redis, **made)
    if config.rabbitmq is not None:
        with _extra("pika", "rabbitmq"):
            from pgstream_dagster.sinks.rabbitmq.sink import RabbitSink

        return RabbitSink(config.rabbitmq, **made)
    if config.nats is not None:
        with _extra("nats", "nats"):
            from pgstream_dagster.sinks.nats.sink import NatsSink

        return NatsSink(config.nats, **made)
    if config.sqs is not None:
        with _extra("boto3", "sqs"):
            from pgstream_dagster.sinks.sqs.sink import SqsSink

        return SqsSink(config.sqs, **made)
    if config.documents is not None:
        from pgstream_dagster.sinks.documents.sink import DocumentsSink

        return DocumentsSink(config.documents, **made)
    return None


@contextmanager
def _extra(package: str, extra: str) -> Generator[None]:
    """While a module is imported that needs a package which only an extra installs."""
    try:
        yield
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != package:
            raise
        raise ExtraMissing(package, extra) from error


def _lines(pipeline: Pipeline, config: SinkConfig) -> Render:
    """What renders a line of a change, or of an event."""
    return Envelope(pipeline.name).of_changes if config.outbox is None else lines


def modifiers(
    opened: OpenPipeline, config: SinkConfig, environment: Mapping[str, str]
) -> Modifiers | None:
    """
    What changes the columns of a sink's changes; `None`: nothing does.

    Raises:
        NoSuchModifier, InvalidSetting
    """
    return modifiers_of(opened, config, environment)() if config.modifiers else None


def modifiers_of(
    opened: OpenPipeline, config: SinkConfig, environment: Mapping[str, str]
) -> Callable[[], Modifiers]:
    """
    What makes the modifiers of a sink; it can be sent to other processes.

    Raises:
        InvalidSetting
    """
    return partial(
        Modifiers,
        opened.pipeline.config.modifiers,
        config.modifiers,
        settings.modifier_key(environment),
        dict(environment),
        opened.schema_log.named_versions(),
    )


def fingerprint(pipeline: Pipeline, config: SinkConfig, environment: Mapping[str, str]) -> str:
    """
    The same as long as a sink's modifiers give the same results; empty if it has none.

    Raises:
        MissingSetting, InvalidSetting: a secret that they need.
    """
    return Rules.read(pipeline.config, config.modifiers, environment).fingerprint


class SingleTarget:
    """The one reader of a sink."""

    def __init__(self, name: str, make: Make) -> None:
        self._readers = {name: make}

    def readers(self) -> Mapping[str, Make]:
        """The sink itself."""
        return self._readers

    def is_over(self, reader: str) -> bool:  # noqa: ARG002 - as the protocol has it
        """Never: what the file says decides."""
        return False

    def close(self) -> None:
        """Nothing is shared."""


class WebhookTargets:
    """A reader per subscription, and the server that writes them."""

    def __init__(
        self,
        pipeline: Pipeline,
        name: str,
        config: SinkConfig,
        environment: Mapping[str, str],
        stop: threading.Event,
    ) -> None:
        from pgstream_dagster.sinks.webhook.endpoints import Credentials
        from pgstream_dagster.sinks.webhook.subscriptions import (
            CachedSubscriptions,
            SubscriptionTable,
            of_file,
        )

        assert config.webhook is not None
        self._name, self._config, self._stop = name, config.webhook, stop
        self._is_outbox = config.outbox is not None
        self._credentials = Credentials.read(config.webhook, environment)
        self._envelope = Envelope(pipeline.name)
        self._table = SubscriptionTable(pipeline.dsn)
        listed = of_file(config.webhook.subscriptions)
        read = (lambda: listed) if listed else self._table.subscriptions
        self._cache = CachedSubscriptions(read, config.webhook.refresh_seconds)
        self._is_own = bool(listed)
        self._stack = ExitStack()

    def serve(self) -> None:
        """Start the subscription server, if the file asks for one."""
        from pgstream_dagster.sinks.webhook.endpoints import subscription_server

        server = subscription_server(self._name, self._config, self._credentials, self)
        if server is not None:
            self._stack.enter_context(server)

    def readers(self) -> Mapping[str, Make]:
        """Those that are not disabled."""
        return {
            f"{self._name}.{subscription.name}": partial(self._make, subscription)
            for subscription in self._cache.active()
        }

    def is_over(self, reader: str) -> bool:
        """Whether the table has no such subscription any more; one that is disabled is there."""
        name, _, subscription = reader.partition(".")
        if self._is_own or name != self._name or not subscription:
            return False
        return subscription not in {entry.name for entry in self._cache.all()}

    def close(self) -> None:
        """End the server."""
        self._stack.close()

    # --- what the server asks for ---------------------------------------------------------------

    def subscribe(self, subscription: Subscription) -> bool:
        """Add or replace a row of the table."""
        changed = self._table.subscribe(subscription)
        self._cache.forget()
        return changed

    def unsubscribe(self, subscription: Subscription) -> bool:
        """Remove a row of the table."""
        changed = self._table.unsubscribe(subscription)
        self._cache.forget()
        return changed

    def subscriptions(self) -> list[Subscription]:
        """Every row, read now."""
        return self._table.subscriptions()

    def _make(self, subscription: Subscription) -> Sink:
        from pgstream_dagster.sinks.webhook.endpoints import webhook_sink

        return webhook_sink(
            *(self._config, self._credentials, subscription, self._envelope),
            is_outbox=self._is_outbox,
            on_disabled=self._disabled,
            stop=self._stop,
        )

    def _disabled(self, subscription: Subscription, reason: str) -> None:
        if not self._is_own:
            self._table.disable(subscription, reason)
            self._cache.forget()


def postgres_target(
    pipeline: Pipeline, name: str, config: SinkConfig, environment: Mapping[str, str]
) -> Target:
    """The target of a sink of type `postgres`; raises `MissingSetting`."""
    from pgstream_dagster.sinks.postgres.target import target_of

    assert config.postgres is not None
    meaning = f"the connection string of sink {name!r}"
    dsn = settings.required(environment, config.postgres.dsn_variable, meaning)
    return target_of(pipeline, name, config, dsn)
