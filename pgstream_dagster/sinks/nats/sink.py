"""
A sink whose target is NATS JetStream.

Delivered means: the stream that has the subject has acknowledged the message, and keeps it on as
many servers as it has replicas. A message that comes again, after a crash or an outage, has the
same `Nats-Msg-Id`; the stream drops it within its window of duplicates (two minutes by default).

A message is refused for its size, for a subject that NATS does not take, or because only its
metadata names a subject that no stream has or that is not permitted.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from contextlib import suppress
from typing import Final
from urllib.parse import urlsplit

from nats.errors import Error
from nats.js.errors import APIError, NoStreamResponseError

from pgstream_dagster.config.nats import NatsConfig
from pgstream_dagster.errors import SinkError, SinkRefused, SinkUnreachable
from pgstream_dagster.readers.change import ChangeBatch
from pgstream_dagster.settings import required
from pgstream_dagster.sinks.base import NotNow, Refused, Verdict, Verdicts
from pgstream_dagster.sinks.message import Message, Messages
from pgstream_dagster.sinks.nats.session import Post, Session
from pgstream_dagster.sinks.waves import Waves

AT_ONCE: Final = 500
"""Messages that are sent before their acknowledgements are waited for."""

CONTROL: Final = ("$", "_INBOX.")
"""Subjects by which NATS is administered, and answers: no message may be published there."""

SUBJECT: Final = re.compile(r"[^\s.*>]+(\.[^\s.*>]+)*")
"""Tokens with dots between them; `*` and `>` are for subscribers."""

SCHEMES: Final = frozenset({"nats", "tls", "ws", "wss"})

WRONG_STREAM: Final = 10_060
TOO_LARGE: Final = 10_054
STORE_FAILED: Final = 10_077
"""JetStream's error codes; the last one is of a stream that is full."""


class NatsSink:
    """Delivers messages to streams; see the module for what it promises."""

    keeps_cursor = False

    def __init__(
        self, config: NatsConfig, *, pipeline: str, sink: str, environment: Mapping[str, str]
    ) -> None:
        self._config, self._sink, self._section = config, sink, f"sinks.{sink}.nats"
        self._messages: Final = Messages(pipeline)
        self._servers: Final = _servers(config, sink, environment)
        self._session: Session | None = None

    def open(self) -> None:
        """Connect; raises as `Sink.open`."""
        self.close()
        session = self._session = Session(self._config.timeout_seconds)
        try:
            session.connect(self._servers)
        except (Error, OSError, TimeoutError) as error:
            reasons = [*session.errors(), str(error)]
            self.close()
            raise self._unconnected(reasons) from error

    def deliver(self, batch: ChangeBatch) -> Verdicts:
        """Publish the messages and wait for their acknowledgements."""

        def send(posts: Mapping[int, tuple[Message, Post]]) -> Mapping[int, Verdict]:
            batch.require(self._config.timeout_seconds)
            return self._send(posts)

        items = map(self._post, self._messages.of_changes(batch.changes))
        try:
            return Waves(batch.changes, most=AT_ONCE).deliver(
                items, lambda i: i[1].size_bytes, send
            )
        except (Error, OSError, TimeoutError) as error:
            self.close()
            raise SinkUnreachable(self._sink, _text(error)) from error

    def close(self) -> None:
        """End the connection; what is not acknowledged comes again."""
        session, self._session = self._session, None
        if session is not None:
            with suppress(Error, OSError, TimeoutError):
                session.close()

    # --- where a message goes -------------------------------------------------------------------

    @property
    def _connected(self) -> Session:
        if self._session is None:
            raise SinkUnreachable(self._sink, "not connected")
        return self._session

    def _post(self, message: Message | Refused) -> tuple[Message, Post] | Refused:
        if isinstance(message, Refused):
            return message
        key = "topic" if "topic" in message.route and "subject" not in message.route else "subject"
        subject = message.place(key, self._config.subject, f"{self._section}.subject")
        if isinstance(subject, Refused):
            return subject
        is_subject = SUBJECT.fullmatch(subject) is not None and subject.isprintable()
        if not is_subject or subject.startswith(CONTROL):
            return Refused(f"{subject!r} is no subject that a message can be published to")
        post = Post(subject, message.body, message.headers() | {"Nats-Msg-Id": message.id})
        if post.size_bytes > (most := self._connected.largest_bytes):
            size = f"{post.size_bytes:,} bytes with its headers"
            return Refused(
                f"a message of {size} is larger than the server's max_payload ({most:,})"
            )
        return message, post

    # --- one wave -------------------------------------------------------------------------------

    def _send(self, posts: Mapping[int, tuple[Message, Post]]) -> Mapping[int, Verdict]:
        session = self._connected
        sent = {index: post for index, (_, post) in posts.items()}
        failures = session.publish(sent, self._config.stream)
        return {index: self._verdict(*posts[index], error) for index, error in failures.items()}

    def _verdict(self, message: Message, post: Post, error: Exception) -> Verdict:
        """
        Why a message was not delivered.

        Raises:
            SinkRefused: the subject of the pipeline file has no stream, or is not permitted.
            SinkUnreachable: no answer.
        """
        is_own = not message.route.keys() & {"subject", "topic"}
        if (reason := self._misplaced(post, error)) is not None:
            if not is_own:
                return Refused(reason)
            remedy = f"correct {self._section}, create the stream, or give the user the right"
            raise SinkRefused(self._sink, reason, remedy) from error
        if not isinstance(error, APIError):
            raise SinkUnreachable(self._sink, _text(error)) from error
        reason = f"subject {post.subject!r}: {error.description}"
        if error.err_code == TOO_LARGE:
            return Refused(f"{len(post.body):,} bytes to {reason}")
        # A full stream of the configuration is an outage; that of one event holds up no other.
        return NotNow(reason, is_away=is_own)

    def _misplaced(self, post: Post, error: Exception) -> str | None:
        """Why no message of the subject can be delivered."""
        if isinstance(error, NoStreamResponseError):
            return f"subject {post.subject!r} is of no stream"
        if isinstance(error, APIError) and error.err_code == WRONG_STREAM:
            return f"subject {post.subject!r} is not of stream {self._config.stream!r}"
        if isinstance(error, TimeoutError):  # a right that is missing is not said in an answer
            quoted = post.subject.replace("\\", "\\\\").replace('"', '\\"')
            denied = f'publish to "{quoted}"'.lower()
            return next((t for t in self._connected.errors() if denied in t.lower()), None)
        return None

    def _unconnected(self, reasons: list[str]) -> SinkError:
        login = next((text for text in reasons if "authorization violation" in text.lower()), None)
        if login is None:
            return SinkUnreachable(self._sink, next(filter(None, reasons), "no answer"))
        remedy = f"check the variable that {self._section}.url_from names"
        return SinkRefused(self._sink, login, remedy)


def _servers(config: NatsConfig, sink: str, environment: Mapping[str, str]) -> list[str]:
    """
    The addresses to connect to.

    Raises:
        MissingSetting, SinkRefused: none, or one of something else.
    """
    url = required(environment, config.url_from, f"the address of sink {sink!r}")
    servers = [part.strip() for part in url.split(",")]
    if not all(_is_server(server) for server in servers):
        reason = f"the variable {config.url_from} has no address of NATS"
        raise SinkRefused(sink, reason, "give it as nats://user:password@host:4222")
    return servers


def _is_server(url: str) -> bool:
    try:
        parts = urlsplit(url)
        return parts.scheme in SCHEMES and bool(parts.hostname) and (parts.port or 1) > 0
    except ValueError:  # a port that is no number
        return False


def _text(error: BaseException) -> str:
    return str(error) or type(error).__name__
