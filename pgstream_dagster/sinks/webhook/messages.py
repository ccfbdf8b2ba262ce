"""The calls that deliver changes: id, headers and body of each. No I/O."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

import httpx

from pgstream_dagster.config.webhook import OURS, url_problem
from pgstream_dagster.lsn import Lsn
from pgstream_dagster.readers.change import Change
from pgstream_dagster.sinks.base import Refused
from pgstream_dagster.sinks.message import of_event


@dataclass(frozen=True, slots=True)
class Route:
    """Where a call goes: to the subscription's URL unless `url` is given, with further headers."""

    url: str | None = None
    headers: tuple[tuple[str, str], ...] = ()


DIRECT: Final = Route()


@dataclass(frozen=True, slots=True)
class Rendered:
    """A change as the body of a call, in JSON; `position` is that of an event of the outbox."""

    id: str
    body: bytes
    route: Route = DIRECT
    position: str | None = None


Render: TypeAlias = Callable[[Change], "Rendered | Refused | None"]
"""What is sent of a change, or why nothing is; `None`: this change has no such form."""


def rendering(body_of: Callable[[Change], bytes | None]) -> Render:
    """Changes as bodies that all go to the URL of the subscription."""

    def render(change: Change) -> Rendered | None:
        body = body_of(change)
        return None if body is None else Rendered(change.event_id, body)

    return render


def rendering_events(own_url: str) -> Render:
    """Events of the outbox; one that names `own_url` goes there as one that names none."""
    return lambda change: _render_event(change, own_url)


def _render_event(change: Change, own_url: str) -> Rendered | Refused:
    """Its payload, to the URL and with the headers of its metadata."""
    message = of_event(change)
    if isinstance(message, Refused):
        return message
    url, headers = message.route.get("url"), message.route.get("headers") or {}
    if url is not None and not isinstance(url, str):
        return Refused("the url of the event's metadata is no text")
    if url is not None and (problem := _problem_of(url)) is not None:
        return Refused(f"the url of the event's metadata {problem}")
    if not isinstance(headers, dict) or not all(map(_is_header, headers.items())):
        return Refused("the headers of the event's metadata are no object of names and texts")
    route = Route(None if url == own_url else url, tuple(sorted(headers.items())))
    return Rendered(message.id, message.body, route, message.position)


def _problem_of(url: str) -> str | None:
    """What is wrong with the URL of an event; the client's own rules for hosts hold, too."""
    if (problem := url_problem(url)) is not None:
        return problem
    try:
        httpx.Request("POST", url)
    except (httpx.InvalidURL, UnicodeError):
        return "has a host that is none"
    return None


def _is_header(header: tuple[object, object]) -> bool:
    name, value = header
    if not isinstance(name, str) or not isinstance(value, str):
        return False
    is_named = name.isascii() and name.replace("-", "").replace("_", "").isalnum()
    is_text = value.isascii() and value.isprintable() and value == value.strip()
    return is_named and is_text and name.lower() not in OURS


TEST_BODY: Final = b'{"type":"pgstream.test"}'
"""Of a test call: no change, but signed like any other."""


@dataclass(frozen=True, slots=True)
class Message:
    """What is sent; the same changes always make the same id."""

    id: str
    body: bytes
    lsn: Lsn | None  # none: copied rows, or a test
    route: Route = DIRECT
    position: str | None = None


def message(last: Change, rendered: Sequence[Rendered], *, is_array: bool) -> Message:
    """The call for changes with one route, of which there is at least one, up to the `last`."""
    bodies, ids = [r.body for r in rendered], [r.id for r in rendered]
    return Message(
        id=ids[0] if len(ids) == 1 else _batch_id(ids),
        body=b"[" + b",".join(bodies) + b"]" if is_array else bodies[0],
        lsn=None if last.ordinal < 0 else last.commit_lsn,
        route=rendered[0].route,
        position=rendered[-1].position,
    )


def _batch_id(ids: Sequence[str]) -> str:
    digest = hashlib.blake2b("\0".join(ids).encode(), digest_size=16)
    return f"batch-{digest.hexdigest()}"


def headers(sent: Message, timestamp: int, signature: str) -> dict[str, str]:
    """Standard Webhooks' headers, and those that pgstream sends."""
    lsn = {} if sent.lsn is None else {"x-pgstream-lsn": str(sent.lsn)}
    position = {} if sent.position is None else {"x-pgstream-position": sent.position}
    return {
        "content-type": "application/json",
        "webhook-id": sent.id,
        "webhook-timestamp": str(timestamp),
        "webhook-signature": signature,
        "idempotency-key": sent.id,
        **lsn,
        **position,
    }
