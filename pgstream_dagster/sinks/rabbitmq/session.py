"""
One connection and channel with confirms, used by one thread: it runs only while it is waited for.

There are no heartbeats: nothing would answer them between two batches. What does not answer in time
while it is waited for counts as gone.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import pika
from pika.adapters.select_connection import IOLoop
from pika.adapters.utils.connection_workflow import AMQPConnectorException
from pika.exceptions import ChannelClosedByBroker
from pika.spec import Basic, BasicProperties

from pgstream_dagster.config.rabbitmq import RabbitConfig


@dataclass(frozen=True, slots=True)
class Post:
    """A message with its exchange and routing key."""

    exchange: str
    routing_key: str
    body: bytes
    properties: BasicProperties


@dataclass(frozen=True, slots=True)
class Unroutable:
    """No queue takes the message: the server returned it."""

    text: str


class Nacked:
    """The server could not take the message, such as a queue that is full."""


class ChannelGone:
    """The server closed the channel before it confirmed the message."""

    def __init__(self, error: ChannelClosedByBroker) -> None:
        self.error = error


Outcome = Unroutable | Nacked | ChannelGone
"""Why a message was not confirmed."""


class Session:
    """An open connection; any failure of it is raised by what waits next."""

    def __init__(self, parameters: pika.URLParameters, seconds: float) -> None:
        """`connect` is next, and `close` the last, whatever fails."""
        self._seconds: Final = seconds
        # The client logs each failure five times, before it raises it.
        logging.getLogger("pika").setLevel(logging.CRITICAL)
        self._loop: Final = IOLoop()
        self._failure: BaseException | None = None
        self._channel: Any = None
        self._closed: ChannelClosedByBroker | None = None
        self._unconfirmed: dict[int, int] = {}  # delivery tag -> index
        self._returned: dict[str, str] = {}  # message id -> why
        self._outcomes: dict[int, Outcome] = {}
        self._indices: dict[int, str] = {}  # index -> message id
        self._tag = 0
        self._connection: Final[Any] = pika.SelectConnection(
            parameters,
            on_open_callback=lambda _connection: self._loop.stop(),
            on_open_error_callback=self._failed,
            on_close_callback=self._failed,
            custom_ioloop=self._loop,
        )

    def connect(self) -> None:
        """Wait for the connection; raises what the client does, and `TimeoutError`."""
        self._wait(lambda: bool(self._connection.is_open))
        self.open_channel()

    def open_channel(self) -> None:
        """Open a channel with confirms, the first or one after the server has closed it."""
        self._channel, self._closed, self._tag = None, None, 0
        self._connection.channel(on_open_callback=self._opened)
        self._wait(lambda: self._channel is not None)

    def declare(self, config: RabbitConfig) -> None:
        """
        Declare the exchange or queue of the configuration.

        Raises:
            ChannelClosedByBroker: there is one of the name that was declared otherwise.
        """
        done: list[object] = []

        def declared(frame: object) -> None:
            done.append(frame)
            self._loop.stop()

        if config.exchange is not None:
            kind = config.exchange_type
            self._channel.exchange_declare(config.exchange, kind, durable=True, callback=declared)
        else:
            self._channel.queue_declare(config.queue, durable=True, callback=declared)
        self._wait(lambda: bool(done) or self._closed is not None)
        if self._closed is not None:
            raise self._closed

    def publish(self, posts: Mapping[int, Post]) -> Mapping[int, Outcome]:
        """
        Publish messages in order and wait for their confirms.

        Shape:
            result: of those that were not confirmed, why not. If the channel is gone, open another.
        """
        self._unconfirmed, self._returned, self._outcomes, self._indices = {}, {}, {}, {}
        for index, post in posts.items():
            self._tag += 1
            self._unconfirmed[self._tag] = index
            self._indices[index] = post.properties.message_id or ""
            self._channel.basic_publish(
                post.exchange, post.routing_key, post.body, post.properties, mandatory=True
            )
        self._wait(lambda: not self._unconfirmed or self._closed is not None)
        if self._closed is not None:
            confirmed = posts.keys() - set(self._unconfirmed.values())
            gone = ChannelGone(self._closed)
            return self._outcomes | {i: gone for i in posts if i not in confirmed}
        return self._outcomes

    def close(self) -> None:
        """End the connection; raises what the client does."""
        try:
            if not (self._connection.is_closed or self._connection.is_closing):
                self._connection.close()
                self._run_until(lambda: bool(self._connection.is_closed))
        finally:
            # Once more, for what the client does after it has called us: it closes the socket.
            self._loop.add_callback(self._loop.stop)
            self._loop.start()
            self._loop.close()

    # --- what the client calls --------------------------------------------------------------------

    def _opened(self, channel: Any) -> None:
        channel.add_on_close_callback(self._channel_closed)
        channel.add_on_return_callback(self._return)
        channel.confirm_delivery(self._confirmed)
        self._channel = channel
        self._loop.stop()

    def _channel_closed(self, _channel: Any, reason: BaseException) -> None:
        if isinstance(reason, ChannelClosedByBroker):
            self._closed = reason
        elif self._failure is None:
            self._failure = reason
        self._loop.stop()

    def _failed(self, _connection: Any, reason: BaseException) -> None:
        self._failure = _innermost(reason)
        self._loop.stop()

    def _return(
        self, _channel: Any, method: Any, properties: BasicProperties, _body: bytes
    ) -> None:
        self._returned[properties.message_id or ""] = method.reply_text

    def _confirmed(self, frame: Any) -> None:
        """One confirm may be of all messages up to its tag; a return comes before its confirm."""
        last = frame.method.delivery_tag
        tags = [last]
        if frame.method.multiple:
            tags = [tag for tag in self._unconfirmed if last in {0, tag} or tag < last]
        for tag in tags:
            index = self._unconfirmed.pop(tag, None)
            if index is None:
                continue
            if isinstance(frame.method, Basic.Nack):
                self._outcomes[index] = Nacked()
            elif (text := self._returned.pop(self._indices[index], None)) is not None:
                self._outcomes[index] = Unroutable(text)
        if not self._unconfirmed:
            self._loop.stop()

    # --- waiting ----------------------------------------------------------------------------------

    def _wait(self, is_over: Callable[[], bool]) -> None:
        self._run_until(lambda: is_over() or self._failure is not None)
        if self._failure is not None:
            raise self._failure
        if not is_over():
            raise TimeoutError(f"no answer within {self._seconds:g} s")

    def _run_until(self, is_over: Callable[[], bool]) -> None:
        deadline = time.monotonic() + self._seconds
        while not is_over() and (left := deadline - time.monotonic()) > 0:
            timer = self._loop.call_later(left, self._loop.stop)
            self._loop.start()
            self._loop.remove_timeout(timer)


def _innermost(reason: BaseException) -> BaseException:
    """What is behind the errors of the client's attempts to connect, the last one first."""
    while isinstance(reason, AMQPConnectorException):
        attempts = getattr(reason, "exceptions", ()) or (getattr(reason, "exception", None),)
        if attempts[-1] is None:
            return TimeoutError(str(reason) or type(reason).__name__)
        reason = attempts[-1]
    return reason
