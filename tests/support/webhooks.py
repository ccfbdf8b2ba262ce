"""A subscriber for tests, which answers as it is told, and changes to send to it."""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from typing import Any, Self, TypeAlias

import msgspec
import uvicorn

from pgstream_dagster.lsn import Lsn
from pgstream_dagster.readers.change import Change, ChangeBatch, Key
from pgstream_dagster.schema.table import Column, ReplicaIdentity, TableSchema
from pgstream_dagster.sinks.webhook.addresses import anywhere
from pgstream_dagster.sinks.webhook.delivery import Endpoint, Limits, OnDisabled, WebhookSink
from pgstream_dagster.sinks.webhook.messages import rendering, rendering_events
from pgstream_dagster.sinks.webhook.signing import Secret
from pgstream_dagster.sinks.webhook.subscription import Subscription
from pgstream_dagster.sinks.webhook.transport import Poster

SECRET = "whsec_MDEyMzQ1Njc4OTAxMjM0NTY3ODkwMTIzNDU2Nzg5MDE="
OTHER_SECRET = "whsec_YWJjZGVmZ2hpamtsbW5vcHFyc3R1dnd4eXphYmNkZWY="

ORDERS = TableSchema(
    epoch=1,
    relation_id=7,
    namespace="public",
    name="orders",
    identity=ReplicaIdentity.DEFAULT,
    columns=(
        Column("id", 1, 20, "bigint", value_type="int8"),
        Column("note", 2, 25, "text", value_type="text"),
    ),
    key=("id",),
)


@dataclass(frozen=True)
class Call:
    path: str
    headers: Mapping[str, str]
    body: bytes

    @property
    def id(self) -> str:
        return self.headers["webhook-id"]

    @property
    def json(self) -> Any:
        return msgspec.json.decode(self.body)


@dataclass(frozen=True)
class Reply:
    """`after`: answered once it is set; `drip`: the body comes byte by byte until it is set."""

    status: int = 204
    headers: Mapping[str, str] = field(default_factory=dict[str, str])
    body: bytes = b""
    after: threading.Event | None = None
    drip: threading.Event | None = None


Answer: TypeAlias = Callable[[Call], Reply]


class Receiver:
    """An HTTP server on this machine; what it has received, in the order of the answers."""

    def __init__(
        self,
        answer: Answer = lambda call: Reply(),
        tls: Mapping[str, str] | None = None,
        port: int = 0,
    ) -> None:
        self.answer = answer
        self.calls: list[Call] = []
        self.most_at_once = 0
        self.at_once = 0
        self._scheme = "https" if tls else "http"
        self._socket = socket.create_server(("127.0.0.1", port))
        config = uvicorn.Config(
            self._app,
            log_config=None,
            access_log=False,
            lifespan="off",
            ws="none",
            interface="asgi3",
            timeout_graceful_shutdown=1,
            **(tls or {}),
        )
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(
            target=lambda: self._server.run(sockets=[self._socket]), daemon=True
        )

    @property
    def port(self) -> int:
        return self._socket.getsockname()[1]

    @property
    def url(self) -> str:
        return f"{self._scheme}://127.0.0.1:{self.port}/hook"

    @property
    def ids(self) -> list[str]:
        return [call.id for call in self.calls]

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.should_exit = True
        self._thread.join()
        self._socket.close()

    async def _app(self, scope: dict[str, Any], receive: Any, send: Any) -> None:
        body, more = b"", True
        while more:
            message = await receive()
            body += message.get("body", b"")
            more = message.get("more_body", False)
        call = Call(scope["path"], {k.decode(): v.decode() for k, v in scope["headers"]}, body)
        self.at_once += 1
        self.most_at_once = max(self.most_at_once, self.at_once)
        reply = self.answer(call)
        if reply.after is not None:
            await asyncio.to_thread(reply.after.wait, 60)
        self.at_once -= 1
        self.calls.append(call)
        headers = [(k.lower().encode(), v.encode()) for k, v in reply.headers.items()]
        await send({"type": "http.response.start", "status": reply.status, "headers": headers})
        while reply.drip is not None and not reply.drip.is_set():
            await send({"type": "http.response.body", "body": b".", "more_body": True})
            await asyncio.sleep(0.05)
        await send({"type": "http.response.body", "body": reply.body})


def insert(number: int, key: str | None = None, **more: Any) -> Change:
    """The `number`-th change: an insert of the row `key` into orders."""
    text = str(number) if key is None else key
    facts: dict[str, Any] = {
        "op": "insert",
        "key": (text,),
        "after": {"id": text, "note": "x"},
        "committed_at_us": 1_700_000_000_123_456,
    }
    return change(number, **{**facts, **more})


def change(number: int, **more: Any) -> Change:
    """A change at the `number`-th position."""
    facts: dict[str, Any] = {
        "epoch": 1,
        "commit_lsn": Lsn(0x16_0000_0000 + 100 * number),
        "ordinal": 0,
        "end_lsn": Lsn(0x16_0000_0000 + 100 * number + 50),
        "op": "insert",
        "namespace": "public",
        "relation": "orders",
        "relation_id": 7,
        "schema": ORDERS,
    }
    return Change(**{**facts, **more})


def copied(count: int, relation_id: int = 7) -> list[Change]:
    """The rows of a copy."""
    return [
        insert(
            0,
            str(number),
            op="read",
            ordinal=number - (1 << 40),
            relation_id=relation_id,
            committed_at_us=None,
        )
        for number in range(count)
    ]


def batch(*changes: Change) -> ChangeBatch:
    return ChangeBatch(list(changes))


def rendered(given: Change) -> bytes:
    """An envelope, as far as these tests look at it."""
    key: Key | None = given.key
    return msgspec.json.encode({"id": given.event_id, "op": given.op, "key": key})


def sink(
    url: str,
    render: Callable[[Change], bytes | None] = rendered,
    *,
    timeout_seconds: float = 30.0,
    own_headers: Mapping[str, str] | None = None,
    on_disabled: OnDisabled = lambda subscription, reason: None,
    limits: Limits | None = None,
    stop: threading.Event | None = None,
    is_of_file: bool = False,
    is_outbox: bool = False,
    clock: Callable[[], float] = time.time,
    **poster: Any,
) -> WebhookSink:
    """The sink of one subscription to everything; calls may stay on this machine."""
    limits = limits or Limits()
    facts = {"is_allowed": anywhere, "connections": limits.worker_count, **poster}
    endpoint = Endpoint(
        Subscription(url, name="hook"),
        Poster(url, timeout_seconds=timeout_seconds, **facts),
        [Secret.parse(SECRET)],
        own_headers or {},
    )
    more: Any = {"is_of_file": is_of_file, "stop": stop, "clock": clock}
    send = rendering_events(url) if is_outbox else rendering(render)
    return WebhookSink(endpoint, send, limits, on_disabled, **more)


@contextmanager
def opened(url: str, **more: Any) -> Iterator[WebhookSink]:
    """The same, open."""
    with closing(sink(url, **more)) as made:
        made.open()
        yield made
