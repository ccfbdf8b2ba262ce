"""
A sink whose target is RabbitMQ.

Delivered means: the server has confirmed the message, which is persistent, for all queues that it
was routed to. Messages without a queue are returned (`mandatory`) and become dead letters. After an
outage a batch comes again, and its messages may be there twice, with the same `message_id`.

A message is refused if no queue takes it, for its size, or because only its metadata names an
exchange that does not exist or is not permitted. A server that closes the channel does not say for
which message; those that it has not confirmed are then sent one by one.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import Final

import pika
from pika.exceptions import AMQPError
from pika.spec import BasicProperties

from pgstream_dagster.config.rabbitmq import RabbitConfig
from pgstream_dagster.errors import SinkRefused, SinkUnreachable
from pgstream_dagster.readers.change import ChangeBatch
from pgstream_dagster.settings import required
from pgstream_dagster.sinks.base import NotNow, Refused, Verdict, Verdicts
from pgstream_dagster.sinks.message import Message, Messages
from pgstream_dagster.sinks.rabbitmq.failures import OF_PLACE, PRECONDITION_FAILED, named
from pgstream_dagster.sinks.rabbitmq.session import (
    ChannelGone,
    Nacked,
    Outcome,
    Post,
    Session,
    Unroutable,
)
from pgstream_dagster.sinks.waves import Waves

AT_ONCE: Final = 500
"""Messages that are sent before their confirms are waited for."""

LONGEST_NAME: Final = 255
"""Bytes of an exchange's name or a routing key (AMQP 0-9-1, short strings)."""


class RabbitSink:
    """Delivers messages to RabbitMQ; see the module for what it promises."""

    keeps_cursor = False

    def __init__(
        self, config: RabbitConfig, *, pipeline: str, sink: str, environment: Mapping[str, str]
    ) -> None:
        self._config, self._sink, self._section = config, sink, f"sinks.{sink}.rabbitmq"
        self._messages: Final = Messages(pipeline)
        self._parameters: Final = _parameters(config, sink, environment)
        self._session: Session | None = None

    def open(self) -> None:
        """Connect, and declare what the configuration says; raises as `Sink.open`."""
        self.close()
        try:
            self._session = Session(self._parameters, self._config.timeout_seconds)
            self._session.connect()
            if self._config.declare:
                self._session.declare(self._config)
        except (AMQPError, OSError) as error:
            self.close()
            raise named(self._sink, error) from error

    def deliver(self, batch: ChangeBatch) -> Verdicts:
        """Publish the messages and wait until the server has confirmed them."""

        def send(posts: Mapping[int, tuple[Message, Post]]) -> Mapping[int, Verdict]:
            batch.require(self._config.timeout_seconds)
            return self._send(posts)

        items = map(self._post, self._messages.of_changes(batch.changes))
        waves = Waves(batch.changes, most=AT_ONCE)
        try:
            return waves.deliver(items, lambda item: len(item[1].body), send)
        except (AMQPError, OSError) as error:
            self.close()
            raise named(self._sink, error) from error

    def close(self) -> None:
        """End the connection; what is not confirmed comes again."""
        session, self._session = self._session, None
        if session is not None:
            with suppress(AMQPError, OSError):
                session.close()

    # --- where a message goes -------------------------------------------------------------------

    def _post(self, message: Message | Refused) -> tuple[Message, Post] | Refused:
        if isinstance(message, Refused):
            return message
        exchange, routing_key = self._route(message)
        for name in (exchange, routing_key):
            if isinstance(name, Refused):
                return name
            if len(name.encode()) > LONGEST_NAME:
                return Refused(f"its exchange or routing key has over {LONGEST_NAME} bytes")
        properties = BasicProperties(
            content_type="application/json",
            delivery_mode=pika.DeliveryMode.Persistent.value,
            message_id=message.id,
            headers=message.headers(),
        )
        return message, Post(str(exchange), str(routing_key), message.body, properties)

    def _route(self, message: Message) -> tuple[str | Refused, str | Refused]:
        """The exchange and routing key; a queue has its own key at the default exchange."""
        has_exchange = self._config.exchange is not None or "exchange" in message.route
        if "queue" in message.route or not has_exchange:
            name = self._config.queue
            if name is None and "queue" not in message.route:
                return message.place("exchange", None, f"{self._section}.exchange"), ""
            return "", message.place("queue", name, f"{self._section}.queue")
        exchange = message.place("exchange", self._config.exchange, f"{self._section}.exchange")
        if "routing_key" not in message.route:
            return exchange, self._config.routing_key or ""
        return exchange, message.place("routing_key", None, f"{self._section}.routing_key")

    # --- one wave -------------------------------------------------------------------------------

    def _send(self, posts: Mapping[int, tuple[Message, Post]]) -> Mapping[int, Verdict]:
        if self._session is None:
            raise SinkUnreachable(self._sink, "not connected")
        outcomes = self._session.publish({index: post for index, (_, post) in posts.items()})
        gone = [index for index, out in outcomes.items() if isinstance(out, ChannelGone)]
        if gone:
            self._session.open_channel()
        if gone and len(posts) > 1:
            alone = (self._send({index: posts[index]}) for index in sorted(gone))
            verdicts = {index: verdict for sent in alone for index, verdict in sent.items()}
            others = {i: self._verdict(*posts[i], o) for i, o in outcomes.items() if i not in gone}
            return others | verdicts
        return {index: self._verdict(*posts[index], out) for index, out in outcomes.items()}

    def _verdict(self, message: Message, post: Post, outcome: Outcome) -> Verdict:
        """
        Why a message was not delivered.

        Raises:
            SinkRefused: the exchange of the pipeline file does not exist or is not permitted.
        """
        place = f"exchange {post.exchange!r} with routing key {post.routing_key!r}"
        if isinstance(outcome, Unroutable):
            return Refused(f"{place}: no queue takes it ({outcome.text})")
        if isinstance(outcome, Nacked):
            # A full queue of the configuration is an outage; that of one event holds up no other.
            is_own = not message.route.keys() & {"exchange", "routing_key", "queue"}
            return NotNow(f"{place}: the server could not take it", is_away=is_own)
        error = outcome.error
        if error.reply_code == PRECONDITION_FAILED:
            return Refused(f"{len(post.body):,} bytes to {place}: {error.reply_text}")
        if error.reply_code in OF_PLACE and message.route.keys() & {"exchange", "queue"}:
            return Refused(error.reply_text)
        raise named(self._sink, error) from error


def _parameters(
    config: RabbitConfig, sink: str, environment: Mapping[str, str]
) -> pika.URLParameters:
    """
    How to connect.

    Raises:
        MissingSetting, SinkRefused: no address, or none of RabbitMQ.
    """
    url = required(environment, config.url_from, f"the address of sink {sink!r}")
    try:
        if not url.startswith(("amqp://", "amqps://")):
            raise ValueError
        parameters = pika.URLParameters(url)
    except (ValueError, TypeError):
        # Without its cause, whose text may have a part of the address.
        reason = f"the variable {config.url_from} has no address of RabbitMQ"
        raise SinkRefused(sink, reason, "give it as amqp://user:password@host:5672/vhost") from None
    parameters.heartbeat = 0
    parameters.connection_attempts = 1
    parameters.socket_timeout = parameters.stack_timeout = config.timeout_seconds
    parameters.blocked_connection_timeout = config.timeout_seconds
    return parameters
