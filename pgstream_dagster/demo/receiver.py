"""
A webhook receiver, as a subscriber would write it: it believes only calls with a valid signature.

The signature is that of the Standard Webhooks specification, computed here without our own code.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
from collections.abc import Callable, Mapping
from typing import Final, Self

import msgspec
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from pgstream_dagster.demo.outbox import Arrival
from pgstream_dagster.sinks.webhook.server import SubscriptionServer

HOST: Final = "127.0.0.1"
PREFIX: Final = "whsec_"


class Event(msgspec.Struct, frozen=True, gc=False):
    """What the receiver remembers of one change."""

    event_id: str
    relation: str


class Late(msgspec.Struct, frozen=True, gc=False):
    """The payload of an event of the outbox, as far as the receiver looks at it."""

    group_id: str


class Receiver:
    """
    An HTTP server on a free port of this machine; use it as a context manager.

    Under `/late` it takes events of the outbox, unless it `is_away`: then it answers 503.
    """

    def __init__(self, secret: str, on_event: Callable[[Event], object]) -> None:
        """`on_event` is called with each change of a call, in order, before it is answered."""
        self._key = base64.b64decode(secret.removeprefix(PREFIX))
        self._on_event = on_event
        self._decoder = msgspec.json.Decoder(list[Event])
        self.late: list[Arrival] = []
        """The events of the outbox that it took, in their order."""
        self.is_away = False
        self.turned_away = 0
        """Calls while it was away."""
        routes = [
            Route("/", self._receive, methods=["POST"]),
            Route("/late", self._receive_late, methods=["POST"]),
        ]
        application = Starlette(routes=routes)
        self._server = SubscriptionServer(application, "receiver", HOST, 0)
        self.calls = 0
        """Calls with a valid signature."""
        self.forged = 0
        """Calls without one; nothing of them is remembered."""

    @property
    def url(self) -> str:
        """Where it listens."""
        return f"http://{HOST}:{self._server.port}/"

    def __enter__(self) -> Self:
        self._server.__enter__()
        return self

    def __exit__(self, *raised: object) -> None:
        self._server.__exit__(None, None, None)

    async def _receive_late(self, request: Request) -> Response:
        body = await request.body()
        if not is_signed(self._key, request.headers, body):
            self.forged += 1
            return Response(status_code=401)
        if self.is_away:
            self.turned_away += 1
            return Response(status_code=503)
        group = msgspec.json.decode(body, type=Late).group_id
        names = ("webhook-id", "x-pgstream-position")
        event_id, position = (request.headers[name] for name in names)
        self.late.append(Arrival(event_id, group, position))
        return Response(status_code=204)

    async def _receive(self, request: Request) -> Response:
        body = await request.body()
        if not is_signed(self._key, request.headers, body):
            self.forged += 1
            return Response(status_code=401)
        self.calls += 1
        for event in self._decoder.decode(body):
            self._on_event(event)
        return Response(status_code=204)


def is_signed(key: bytes, headers: Mapping[str, str], body: bytes) -> bool:
    """Whether one of a call's signatures is that of its id, its time and its body."""
    names = ("webhook-id", "webhook-timestamp", "webhook-signature")
    message_id, timestamp, signatures = (headers.get(name, "") for name in names)
    digest = hmac.digest(key, f"{message_id}.{timestamp}.".encode() + body, hashlib.sha256)
    expected = f"v1,{base64.b64encode(digest).decode()}"
    return any(hmac.compare_digest(given, expected) for given in signatures.split())
