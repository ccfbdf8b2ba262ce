"""
The subscription server: pgstream's `subscribe` and `unsubscribe`, a list, and a test call.

Every request but those for the documentation carries a bearer token. Bodies are pgstream's; a key
that is unknown is refused, since a misspelt `table` would subscribe to everything.
"""

from __future__ import annotations

import hmac
import logging
import socket
import threading
from collections.abc import Awaitable, Callable, Mapping, Sequence
from importlib import metadata
from types import TracebackType
from typing import Final, Protocol, Self

import msgspec
import uvicorn
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, Response
from starlette.routing import Route

from pgstream_dagster.errors import SinkRefused, SourceError
from pgstream_dagster.sinks.webhook import openapi
from pgstream_dagster.sinks.webhook.answers import Outcome
from pgstream_dagster.sinks.webhook.history import Attempt
from pgstream_dagster.sinks.webhook.subscription import Subscription, problem_of, row_name

logger = logging.getLogger(__name__)

MAX_BODY: Final = 65_536
"""A subscription is a URL and a few names."""

MAX_CONNECTIONS: Final = 200
"""More get 503 at once: connections that send nothing must not use up the file descriptors."""

STOP_SECONDS: Final = 10.0
"""For requests that are being answered when the server stops."""

Endpoint = Callable[[Request], Awaitable[Response]]


class SubscriptionStore(Protocol):
    """Where subscriptions are kept; its methods raise `SourceError`."""

    def subscribe(self, subscription: Subscription) -> bool:
        """Add or change it; whether it is new."""
        ...

    def unsubscribe(self, subscription: Subscription) -> bool:
        """Remove it; whether it was there."""
        ...

    def subscriptions(self) -> Sequence[Subscription]:
        """All of them."""
        ...


class Calls(Protocol):
    """What the server needs to know of how calls are made."""

    def secret(self, subscription: Subscription) -> str:
        """The secret that verifies the calls, as `whsec_...`."""
        ...

    def test(self, subscription: Subscription) -> Attempt:
        """Make one test call."""
        ...


class _Refusal(HTTPException):
    """400, with the reason."""

    def __init__(self, reason: str) -> None:
        super().__init__(400, reason)


def application(
    store: SubscriptionStore, calls: Calls, token: str, *, allow_private: bool
) -> Starlette:
    """The server's routes; `token` is what every request must carry."""
    version = metadata.version("pgstream-dagster")
    document, page = openapi.document(version), openapi.page(version)

    async def subscribe(request: Request) -> Response:
        subscription = await _subscription(request, allow_private=allow_private)
        is_new = await run_in_threadpool(store.subscribe, subscription)
        secret = calls.secret(subscription)
        return _answer(openapi.SubscribedBody(subscription.name, secret, is_new), 201)

    async def unsubscribe(request: Request) -> Response:
        subscription = await _subscription(request, allow_private=True)
        removed = await run_in_threadpool(store.unsubscribe, subscription)
        return _answer(openapi.UnsubscribedBody(removed))

    async def listed(request: Request) -> Response:  # noqa: ARG001 - starlette calls with it
        return _answer(_listed(await run_in_threadpool(store.subscriptions)))

    async def test(request: Request) -> Response:
        subscription = await _subscription(request, allow_private=allow_private)
        return _answer(_tested(await run_in_threadpool(calls.test, subscription)))

    async def openapi_json(request: Request) -> Response:  # noqa: ARG001
        return JSONResponse(document)

    async def openapi_page(request: Request) -> Response:  # noqa: ARG001
        return HTMLResponse(
            page, headers={"content-security-policy": "default-src 'self' 'unsafe-inline'"}
        )

    return Starlette(
        routes=[
            Route("/webhooks/subscribe", _guarded(subscribe, token), methods=["POST"]),
            Route("/webhooks/unsubscribe", _guarded(unsubscribe, token), methods=["POST"]),
            Route("/webhooks/test", _guarded(test, token), methods=["POST"]),
            Route("/webhooks", _guarded(listed, token), methods=["GET"]),
            Route("/openapi.json", openapi_json, methods=["GET"]),
            Route("/docs", openapi_page, methods=["GET"]),
        ],
        exception_handlers={HTTPException: _http_error, SourceError: _store_error},
    )


def _guarded(endpoint: Endpoint, token: str) -> Endpoint:
    expected = f"bearer {token}".encode()

    async def guarded(request: Request) -> Response:
        scheme, _, given = request.headers.get("authorization", "").partition(" ")
        if not hmac.compare_digest(f"{scheme.lower()} {given}".encode(), expected):
            challenge = {"WWW-Authenticate": "Bearer"}
            raise HTTPException(401, "the bearer token is missing or wrong", challenge)
        return await endpoint(request)

    return guarded


async def _subscription(request: Request, *, allow_private: bool) -> Subscription:
    """The request's body."""
    content = b""
    async for piece in request.stream():
        content += piece
        if len(content) > MAX_BODY:
            raise HTTPException(413, f"the body is longer than {MAX_BODY:,} bytes")
    try:
        body = msgspec.json.decode(content, type=openapi.SubscriptionBody)
    except (msgspec.DecodeError, RecursionError) as error:
        raise _Refusal(f"the body is no subscription: {error}") from error
    if (problem := problem_of(body.url, allow_private=allow_private)) is not None:
        raise _Refusal(f"url {problem}")
    namespace, table = body.schema or "", body.table or ""
    if "\0" in namespace + table:
        raise _Refusal("schema and table must not contain a zero byte")
    types = tuple(dict.fromkeys(body.event_types or ()))
    return Subscription(body.url, namespace, table, types, row_name(body.url, namespace, table))


def _listed(subscriptions: Sequence[Subscription]) -> openapi.SubscriptionsBody:
    return openapi.SubscriptionsBody(
        [
            openapi.ListedBody(
                entry.name,
                entry.url,
                entry.namespace,
                entry.table,
                list(entry.event_types),
                None if entry.disabled_at is None else entry.disabled_at.isoformat(),
                entry.disabled_reason,
            )
            for entry in subscriptions
        ]
    )


def _tested(attempt: Attempt) -> openapi.TestedBody:
    is_delivered = attempt.outcome is Outcome.DELIVERED
    return openapi.TestedBody(is_delivered, attempt.status, attempt.seconds, attempt.reason)


def _answer(body: msgspec.Struct, status: int = 200) -> Response:
    return Response(msgspec.json.encode(body), status, media_type="application/json")


def _http_error(request: Request, error: Exception) -> Response:  # noqa: ARG001
    assert isinstance(error, HTTPException)
    headers: Mapping[str, str] | None = error.headers
    return JSONResponse({"error": error.detail}, error.status_code, headers)


def _store_error(request: Request, error: Exception) -> Response:
    logger.warning("webhook server: %s failed: %s", request.url.path, error)
    reason = "the subscriptions cannot be read or written now; the server's log has the reason"
    return JSONResponse({"error": reason}, 503)


class SubscriptionServer:
    """The application on a port, in a thread; a context manager."""

    def __init__(self, application: Starlette, sink: str, host: str, port: int) -> None:
        try:
            family = socket.AF_INET6 if ":" in host else socket.AF_INET
            self._socket = socket.create_server((host, port), family=family)
        except OSError as error:
            reason = f"cannot listen on {host}:{port}: {error.strerror or error}"
            raise SinkRefused(sink, reason, "correct webhook.server in pgstream.yaml") from error
        settings = uvicorn.Config(
            application,
            log_config=None,  # the process' own
            access_log=False,
            server_header=False,
            lifespan="off",
            ws="none",
            interface="asgi3",
            limit_concurrency=MAX_CONNECTIONS,
            timeout_graceful_shutdown=int(STOP_SECONDS),
        )
        self._server = uvicorn.Server(settings)
        self._thread = threading.Thread(
            target=self._run, name="pgstream-webhook-server", daemon=True
        )

    @property
    def port(self) -> int:
        """The port that it listens on."""
        return self._socket.getsockname()[1]

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._server.should_exit = True
        self._thread.join()
        self._socket.close()

    def _run(self) -> None:
        self._server.run(sockets=[self._socket])
