"""
One connection, served by a thread of its own: it answers the server also between two batches.

The client does not connect again by itself: what is under way fails at once, and the sink is opened
again.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Coroutine, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from nats.aio.client import Client
from nats.errors import Error
from nats.js import JetStreamContext

T = TypeVar("T")

GRACE_SECONDS: Final = 5.0
"""On top of the client's own limit, which comes first."""

ERRORS_KEPT: Final = 1_000
"""More than one call of `publish` can have."""


@dataclass(frozen=True, slots=True)
class Post:
    """A message with its subject."""

    subject: str
    body: bytes
    headers: Mapping[str, str]

    @property
    def size_bytes(self) -> int:
        """What the server counts: the body, and the headers as they are sent."""
        lines = sum(
            len(name.encode()) + len(text.encode()) + 4 for name, text in self.headers.items()
        )
        return len(self.body) + len("NATS/1.0\r\n\r\n") + lines


class Session:
    """An open connection to one of the servers."""

    def __init__(self, seconds: float) -> None:
        """`connect` is next, and `close` the last, whatever fails."""
        self._seconds: Final = seconds
        self._loop: Final = asyncio.new_event_loop()
        self._thread: Final = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._errors: list[str] = []
        self._client: Client | None = None
        self._stream: JetStreamContext | None = None
        self._closed: asyncio.Future[None] | None = None
        # The client logs a failed attempt with its traceback, before it raises it.
        logging.getLogger("nats").setLevel(logging.CRITICAL)
        self._thread.start()

    def connect(self, servers: list[str]) -> None:
        """Connect to one of the servers; raises what the client does, `OSError`, `TimeoutError`."""
        self._run(self._connect(servers))

    @property
    def largest_bytes(self) -> int:
        """The server's limit of a message."""
        return 0 if self._client is None else self._client.max_payload

    def errors(self) -> list[str]:
        """What the server said lately, beside its answers."""
        return list(self._errors)

    def publish(self, posts: Mapping[int, Post], stream: str | None) -> Mapping[int, Exception]:
        """
        Publish messages in order and wait for their acknowledgements; why some have none.

        `errors` are those since its begin.

        Raises:
            Error, TimeoutError: the connection ended.
        """
        self._errors.clear()
        return self._run(self._publish(posts, stream))

    def close(self) -> None:
        """End connection and thread; raises what the client does."""
        try:
            if self._client is not None:
                self._run(self._end(self._client))
        finally:
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop.close()

    # --- on the thread --------------------------------------------------------------------------

    async def _connect(self, servers: list[str]) -> None:
        self._closed = self._loop.create_future()
        self._client = Client()
        await self._client.connect(
            servers,
            name="pgstream",
            connect_timeout=max(1, round(self._seconds)),
            allow_reconnect=False,
            max_reconnect_attempts=1,
            error_cb=self._heard,
            closed_cb=self._ended,
        )
        self._stream = self._client.jetstream(timeout=self._seconds)

    async def _end(self, client: Client) -> None:
        await client.close()
        await asyncio.sleep(
            0
        )  # the socket is closed by the loop, after the client has asked for it

    async def _publish(
        self, posts: Mapping[int, Post], stream: str | None
    ) -> Mapping[int, Exception]:
        assert self._closed is not None
        tasks = {index: asyncio.ensure_future(self._send(p, stream)) for index, p in posts.items()}
        answered = asyncio.ensure_future(asyncio.gather(*tasks.values(), return_exceptions=True))
        await asyncio.wait([answered, self._closed], return_when=asyncio.FIRST_COMPLETED)
        if not answered.done():
            answered.cancel()
            with suppress(asyncio.CancelledError):
                await answered
            raise Error(", ".join(self._errors[-1:]) or "the connection ended")
        results = zip(tasks, answered.result(), strict=True)
        return {index: result for index, result in results if isinstance(result, Exception)}

    async def _send(self, post: Post, stream: str | None) -> None:
        assert self._stream is not None
        await self._stream.publish(
            post.subject,
            post.body,
            timeout=self._seconds,
            stream=stream,
            headers=dict(post.headers),
        )

    async def _heard(self, error: Exception) -> None:
        self._errors.append(str(error) or type(error).__name__)
        del self._errors[:-ERRORS_KEPT]

    async def _ended(self) -> None:
        if self._closed is not None and not self._closed.done():
            self._closed.set_result(None)

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        running = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return running.result(self._seconds + GRACE_SECONDS)
        except TimeoutError:
            running.cancel()
            raise
