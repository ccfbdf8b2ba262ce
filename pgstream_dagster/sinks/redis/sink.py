"""
A sink whose target is Redis: entries of streams, or values of keys.

Delivered means: the server has executed the command, and keeps it as its own persistence does. A
stream has its messages in their order. A message that comes again, after a crash or an outage, is
not added to its stream again within `deduplicate_seconds` (see `streams`); a key just gets the same
value again.

A message is refused for its size, or because only its metadata names a place that is of another
type or not permitted. Of streams all that is known before anything of the batch is sent; keys do
not depend on each other, so one that is not permitted holds up no other.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, Final

from redis import Redis
from redis.backoff import NoBackoff
from redis.exceptions import NoPermissionError, RedisError, ResponseError
from redis.retry import Retry

from pgstream_dagster.config.redis import RedisConfig
from pgstream_dagster.errors import SinkRefused
from pgstream_dagster.readers.change import ChangeBatch
from pgstream_dagster.settings import required
from pgstream_dagster.sinks.base import Refused, Verdict, Verdicts, deliver_items
from pgstream_dagster.sinks.message import Message, Messages
from pgstream_dagster.sinks.redis.failures import named
from pgstream_dagster.sinks.redis.streams import Streams, chunks

SIZE_LIMIT: Final = "proto-max-bulk-len"
LARGEST_BYTES: Final = 512 << 20
"""The server's default of that setting; it ends the connection of a client that sends more."""


class RedisSink:
    """Delivers messages to Redis; see the module for what it promises."""

    keeps_cursor = False

    def __init__(
        self, config: RedisConfig, *, pipeline: str, sink: str, environment: Mapping[str, str]
    ) -> None:
        self._config, self._sink, self._section = config, sink, f"sinks.{sink}.redis"
        self._messages: Final = Messages(pipeline)
        self._client: Final = _client(config, sink, environment)
        self._streams: Final = Streams(self._client, config, f"{pipeline}.{sink}")
        self._largest_bytes = LARGEST_BYTES
        self._has_delivered = False

    def open(self) -> None:
        """Connect and learn the server's limit of a value; raises as `Sink.open`."""
        self._has_delivered = False
        try:
            self._client.ping()
            self._largest_bytes = self._limit()
        except RedisError as error:
            raise named(self._sink, error) from error

    def deliver(self, batch: ChangeBatch) -> Verdicts:
        """Send the messages, with as few round trips as their sizes allow."""
        messages = list(self._messages.of_changes(batch.changes))
        placed = list[tuple[int, str, Message]]()
        try:
            unfit = self._unfit(batch, messages)

            def place(item: tuple[int, Message | Refused]) -> Refused | None:
                index, message = item
                name = self._place(message, unfit)
                if isinstance(message, Refused) or isinstance(name, Refused):
                    return name if isinstance(name, Refused) else None
                placed.append((index, name, message))
                return None

            verdicts = dict(deliver_items(batch.changes, enumerate(messages), place))
            for chunk in chunks(placed):
                batch.require(self._config.timeout_seconds)
                verdicts |= self._send(chunk)
        except RedisError as error:
            raise named(self._sink, error) from error
        self._has_delivered = True
        return verdicts

    def close(self) -> None:
        """Close the connection."""
        with suppress(RedisError, OSError):
            self._client.close()

    # --- where messages go ----------------------------------------------------------------------

    def _place(self, message: Message | Refused, unfit: Mapping[str, str]) -> str | Refused:
        """The stream or key of a message, or why it is not sent."""
        if isinstance(message, Refused):
            return message
        if (size := len(message.body)) > self._largest_bytes:
            limit = f"the server's {SIZE_LIMIT} ({self._largest_bytes:,})"
            return Refused(f"a message of {size:,} bytes is larger than {limit}")
        name = self._named(message)
        return Refused(unfit[name]) if isinstance(name, str) and name in unfit else name

    def _named(self, message: Message) -> str | Refused:
        if self._config.key_prefix is None:
            return message.place("stream", self._config.stream, f"{self._section}.stream")
        default = self._config.key_prefix + message.id
        return message.place("key", default, f"{self._section}.key_prefix")

    def _unfit(
        self, batch: ChangeBatch, messages: Sequence[Message | Refused]
    ) -> Mapping[str, str]:
        """
        The streams that only metadata names and that take no message.

        Raises:
            SinkRefused: the stream of the pipeline file takes none.
        """
        names = {self._named(message) for message in messages if isinstance(message, Message)}
        streams = sorted(name for name in names if isinstance(name, str))
        if self._config.key_prefix is not None or not streams:
            return {}
        batch.require(self._config.timeout_seconds)
        unfit = self._streams.unfit(streams)
        if (default := self._config.stream) is not None and default in unfit:
            remedy = f"name another stream in {self._section}, or give the user the right"
            raise SinkRefused(self._sink, unfit[default], remedy)
        return unfit

    # --- one request ----------------------------------------------------------------------------

    def _send(self, chunk: Sequence[tuple[int, str, Message]]) -> dict[int, Verdict]:
        if self._config.key_prefix is not None:
            return self._set(chunk)
        placed = ((name, message) for _, name, message in chunk)
        self._streams.add(placed, forgets=self._has_delivered)
        return {}

    def _set(self, chunk: Sequence[tuple[int, str, Message]]) -> dict[int, Verdict]:
        """Set keys; one that is not permitted is refused if its message named it."""
        pipe = self._client.pipeline(transaction=False)
        for _, name, message in chunk:
            pipe.set(name, message.body, ex=self._config.ttl_seconds)
        verdicts: dict[int, Verdict] = {}
        answers: Sequence[Any] = pipe.execute(raise_on_error=False)
        for (index, name, message), answer in zip(chunk, answers, strict=True):
            if isinstance(answer, NoPermissionError) and "key" in message.route:
                verdicts[index] = Refused(f"key {name!r}: {answer}")
            elif isinstance(answer, Exception):
                raise answer
        return verdicts

    def _limit(self) -> int:
        """The largest value that the server takes; its default without the right to ask."""
        try:
            settings: Any = self._client.config_get(SIZE_LIMIT)
        except ResponseError:  # no right, or a service without the command
            return LARGEST_BYTES
        return int(settings.get(SIZE_LIMIT, LARGEST_BYTES))


def _client(config: RedisConfig, sink: str, environment: Mapping[str, str]) -> Redis:
    """
    A client of one connection. It repeats no command by itself: what was sent may have been done.

    Raises:
        MissingSetting, SinkRefused: no address, or none of Redis.
    """
    url = required(environment, config.url_from, f"the address of sink {sink!r}")
    try:
        return Redis.from_url(
            url,
            socket_timeout=config.timeout_seconds,
            socket_connect_timeout=config.timeout_seconds,
            retry=Retry(NoBackoff(), 0),
        )
    except ValueError:
        # Without its cause, whose text may have a part of the address.
        reason = f"the variable {config.url_from} has no address of Redis"
        raise SinkRefused(sink, reason, "give it as redis://user:password@host:6379/0") from None
