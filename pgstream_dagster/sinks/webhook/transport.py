"""
One POST: bytes and headers go in, an `Answer` or the reason why there is none comes out.

A transport of httpx over a pool of httpcore whose connections `addresses` guards. httpx's client
is not between: it keeps the cookies of answers, logs URLs, parses every `Location` (and raises what
a hostile one makes it raise), turns a POST into a GET, and takes proxies, which resolve names
themselves, and `.netrc` from the environment.
"""

from __future__ import annotations

import logging
import ssl
import threading
import time
from collections.abc import Generator, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import cache
from typing import Final
from urllib.parse import urljoin

import httpcore
import httpx

from pgstream_dagster.sinks.webhook.addresses import (
    Deadline,
    GuardedBackend,
    IsAllowed,
    Resolve,
    is_public,
    resolved,
)
from pgstream_dagster.sinks.webhook.redaction import Redaction
from pgstream_dagster.sinks.webhook.subscription import origin, problem_of

KEEPALIVE_SECONDS: Final = 4.0
"""Below the 5 s after which many servers close an idle connection."""

EXCERPT_LENGTH: Final = 500
"""Characters of an answer's body: enough for an error message, too little to fill a table."""

READ_BYTES: Final = 65_536
"""Read of an answer, so that its connection can be used again; after a longer one it is closed."""

OF_ALL: Final = {"user-agent": "pgstream-dagster", "accept-encoding": "identity"}

KEEPS_METHOD: Final = frozenset({307, 308})
"""After other redirects a client sends GET, which delivers nothing."""


@dataclass(frozen=True, slots=True)
class Answer:
    """A response, with the beginning of its body, unless that says nothing (2xx)."""

    status: int
    headers: Mapping[str, str]
    excerpt: str


@cache
def system_tls() -> ssl.SSLContext:
    """The authorities that the system trusts (or SSL_CERT_FILE): 1 MB, so one for all."""
    return ssl.create_default_context()


class Poster:
    """Posts to one URL; several threads may use it."""

    def __init__(
        self,
        url: str,
        *,
        timeout_seconds: float,
        connections: int = 1,
        redirects: int = 0,
        is_allowed: IsAllowed = is_public,
        resolve: Resolve = resolved,
        verify: ssl.SSLContext | None = None,
    ) -> None:
        self._url = url
        self.timeout_seconds = timeout_seconds
        self._redirects = redirects
        self._deadline = Deadline()
        backend = GuardedBackend(self._deadline, is_allowed, resolve)
        pool = httpcore.ConnectionPool(
            ssl_context=verify or system_tls(),
            max_connections=connections,
            keepalive_expiry=KEEPALIVE_SECONDS,
            network_backend=backend,
        )
        self._transport = _PoolTransport(pool)

    def post(
        self,
        body: bytes,
        headers: Mapping[str, str],
        own: Mapping[str, str],
        redaction: Redaction,
        *,
        url: str | None = None,
    ) -> Answer:
        """
        Post the body; `own` are headers that only the host of the URL receives.

        `url` is another one than this object's, if it is given.

        `redaction` is what must not be in the answer's excerpt.

        Raises:
            PrivateAddress: the host's address is not allowed.
            httpx.TransportError: no answer, or none in time.
        """
        self._deadline.at = time.monotonic() + self.timeout_seconds
        try:
            with _quiet():
                return self._following(url or self._url, body, headers, own, redaction)
        finally:
            self._deadline.at = None

    def _following(
        self,
        first: str,
        body: bytes,
        headers: Mapping[str, str],
        own: Mapping[str, str],
        redaction: Redaction,
    ) -> Answer:
        url, left = first, self._redirects
        while True:
            more = own if origin(url) == origin(first) else {}
            redaction = redaction.with_url(url)
            answer = self._post_once(url, body, {**headers, **more}, redaction)
            target = _target(url, answer) if left else None
            if target is None:
                return answer
            url, left = target, left - 1

    def _post_once(
        self, url: str, body: bytes, headers: Mapping[str, str], redaction: Redaction
    ) -> Answer:
        request = httpx.Request("POST", url, headers={**OF_ALL, **headers}, content=body)
        content = b""
        with closing(self._transport.handle_request(request)) as response:
            for piece in response.iter_raw():
                content += piece
                if len(content) > READ_BYTES:
                    break
        text = "" if response.is_success else content.decode("utf-8", "replace")
        is_whole = len(content) <= READ_BYTES
        excerpt = redaction.excerpt(text, EXCERPT_LENGTH, is_whole=is_whole)
        return Answer(response.status_code, response.headers, excerpt)

    def close(self) -> None:
        """Close the connections."""
        self._transport.close()


def _target(url: str, answer: Answer) -> str | None:
    """Where a redirect leads; `None`: it is none that is followed."""
    if answer.status not in KEEPS_METHOD or "location" not in answer.headers:
        return None
    try:
        target = urljoin(url, answer.headers["location"])
    except ValueError:
        return None
    is_downgrade = url.startswith("https:") and not target.startswith("https:")
    return None if is_downgrade or problem_of(target, allow_private=True) else target


class _PoolTransport(httpx.BaseTransport):
    """httpcore's pool as httpx's transport: httpx's own has no parameter for the backend."""

    def __init__(self, pool: httpcore.ConnectionPool) -> None:
        self._pool = pool

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        """Send it; errors are httpx's."""
        assert isinstance(request.stream, httpx.SyncByteStream)
        url = request.url
        with _httpx_errors():
            response = self._pool.handle_request(
                httpcore.Request(
                    method=request.method,
                    url=httpcore.URL(
                        scheme=url.raw_scheme, host=url.raw_host, port=url.port, target=url.raw_path
                    ),
                    headers=request.headers.raw,
                    content=request.stream,
                    extensions=request.extensions,
                )
            )
        return httpx.Response(
            response.status, headers=response.headers, stream=_PoolStream(response)
        )

    def close(self) -> None:
        """Close all connections."""
        self._pool.close()


class _PoolStream(httpx.SyncByteStream):
    def __init__(self, response: httpcore.Response) -> None:
        self._response = response

    def __iter__(self) -> Iterator[bytes]:
        with _httpx_errors():
            yield from self._response.iter_stream()

    def close(self) -> None:
        self._response.close()


@contextmanager
def _httpx_errors() -> Generator[None]:
    try:
        yield
    except (httpcore.ConnectError, httpcore.ConnectTimeout, httpcore.PoolTimeout) as error:
        raise httpx.ConnectError(str(error)) from error  # nothing was sent
    except httpcore.TimeoutException as error:
        raise httpx.ReadTimeout(str(error)) from error
    except (httpcore.NetworkError, httpcore.ProtocolError) as error:
        raise httpx.ReadError(str(error)) from error


# --- silence ------------------------------------------------------------------------------------


class _InCall(threading.local):
    is_on = False


_in_call: Final = _InCall()


@contextmanager
def _quiet() -> Generator[None]:
    _in_call.is_on = True
    try:
        yield
    finally:
        _in_call.is_on = False


def _is_not_ours(_record: logging.LogRecord) -> bool:
    return not _in_call.is_on


# httpcore logs the headers of answers. Only our calls are silenced, and no other of this process.
for _name in ("httpcore.connection", "httpcore.http11"):
    logging.getLogger(_name).addFilter(_is_not_ours)
