"""The subscription server's OpenAPI document, and a page of it that needs no network. Pure."""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence
from typing import Any, Final, Literal

import msgspec

EventType = Literal["I", "U", "D", "T", "M"]


class SubscriptionBody(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """A subscription, as pgstream's server takes it."""

    url: str
    schema: str | None = None
    table: str | None = None
    event_types: list[EventType] | None = None


class SubscribedBody(msgspec.Struct, frozen=True):
    """What `subscribe` answers: the secret verifies the calls."""

    name: str
    secret: str
    is_new: bool


class UnsubscribedBody(msgspec.Struct, frozen=True):
    """What `unsubscribe` answers: whether there was such a subscription."""

    removed: bool


class ListedBody(msgspec.Struct, frozen=True):
    """A subscription of the list; `disabled_at` is set if it receives nothing."""

    name: str
    url: str
    schema: str
    table: str
    event_types: list[str]
    disabled_at: str | None
    disabled_reason: str | None


class SubscriptionsBody(msgspec.Struct, frozen=True):
    """All subscriptions."""

    subscriptions: list[ListedBody]


class TestedBody(msgspec.Struct, frozen=True):
    """What the subscriber answered to a test call."""

    delivered: bool
    status: int | None
    seconds: float
    reason: str


class ErrorBody(msgspec.Struct, frozen=True):
    """Why a request was refused."""

    error: str


class Operation(msgspec.Struct, frozen=True):
    """One request that the server takes."""

    method: str
    path: str
    summary: str
    answers: Mapping[str, tuple[str, type[msgspec.Struct]]]
    takes: type[msgspec.Struct] | None = None


_WRONG: Final = ("The body is not valid; the answer says why.", ErrorBody)
_TOKEN: Final = ("The token is missing or wrong.", ErrorBody)
_STORE: Final = ("The source's database does not answer now.", ErrorBody)
_FAILURES: Final = {"401": _TOKEN, "503": _STORE}

OPERATIONS: Final = (
    Operation(
        "post",
        "/webhooks/subscribe",
        "Subscribe a URL, or change the event types of its subscription and enable it again.",
        {"201": ("Subscribed.", SubscribedBody), "400": _WRONG, **_FAILURES},
        SubscriptionBody,
    ),
    Operation(
        "post",
        "/webhooks/unsubscribe",
        "Remove the subscription of this url, schema and table.",
        {
            "200": ("There is no such subscription now.", UnsubscribedBody),
            "400": _WRONG,
            **_FAILURES,
        },
        SubscriptionBody,
    ),
    Operation(
        "post",
        "/webhooks/test",
        "Make one signed call without a change, and answer what came of it.",
        {"200": ("The call was made.", TestedBody), "400": _WRONG, **_FAILURES},
        SubscriptionBody,
    ),
    Operation(
        "get",
        "/webhooks",
        "List all subscriptions.",
        {"200": ("All subscriptions.", SubscriptionsBody), **_FAILURES},
    ),
)


def document(version: str) -> dict[str, Any]:
    """The OpenAPI 3.1 document."""
    structs = {struct for o in OPERATIONS for _, struct in o.answers.values()} | {SubscriptionBody}
    _, schemas = msgspec.json.schema_components(
        sorted(structs, key=lambda struct: struct.__name__),
        ref_template="#/components/schemas/{name}",
    )
    paths: dict[str, dict[str, Any]] = {}
    for operation in OPERATIONS:
        paths.setdefault(operation.path, {})[operation.method] = _described(operation)
    return {
        "openapi": "3.1.0",
        "info": {"title": "pgstream webhook subscriptions", "version": version},
        "security": [{"token": []}],
        "paths": paths,
        "components": {
            "schemas": schemas,
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
    }


def _described(operation: Operation) -> dict[str, Any]:
    answers = {
        status: {"description": text, "content": _content(struct)}
        for status, (text, struct) in operation.answers.items()
    }
    described: dict[str, Any] = {"summary": operation.summary, "responses": answers}
    if operation.takes is not None:
        described["requestBody"] = {"required": True, "content": _content(operation.takes)}
    return described


def _content(struct: type[msgspec.Struct]) -> dict[str, Any]:
    reference = {"$ref": f"#/components/schemas/{struct.__name__}"}
    return {"application/json": {"schema": reference}}


def page(version: str) -> str:
    """The document for people: one page of HTML without scripts and without other files."""
    parts = [_section(operation) for operation in OPERATIONS]
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        "<title>pgstream webhook subscriptions</title><style>body{font:16px/1.5 sans-serif;"
        "max-width:60rem;margin:2rem auto;padding:0 1rem}table{border-collapse:collapse}"
        "td,th{border:1px solid #ccc;padding:.3rem .6rem;text-align:left}</style></head><body>"
        f"<h1>pgstream webhook subscriptions {html.escape(version)}</h1>"
        "<p>Requests carry <code>Authorization: Bearer &lt;token&gt;</code>. "
        '<a href="openapi.json">openapi.json</a> is the same for programs.</p>'
        + "".join(parts)
        + "</body></html>"
    )


def _section(operation: Operation) -> str:
    heading = f"<h2><code>{operation.method.upper()} {operation.path}</code></h2>"
    takes = "" if operation.takes is None else "<h3>Body</h3>" + _fields(operation.takes)
    answers = _rows(
        (status, html.escape(text), ", ".join(f"<code>{f}</code>" for f in _names(struct)))
        for status, (text, struct) in operation.answers.items()
    )
    return (
        f"{heading}<p>{html.escape(operation.summary)}</p>{takes}<h3>Answers</h3>"
        f"<table><tr><th>status</th><th>meaning</th><th>fields</th></tr>{answers}</table>"
    )


def _fields(struct: type[msgspec.Struct]) -> str:
    meanings = {
        "url": "Where changes are posted. Required.",
        "schema": "Only changes of this schema; empty or missing: of all.",
        "table": "Only changes of this table; empty or missing: of all.",
        "event_types": "A list of I, U, D, T; missing or empty: all.",
    }
    rows = _rows((f"<code>{name}</code>", meanings[name]) for name in _names(struct))
    return f"<table><tr><th>field</th><th>meaning</th></tr>{rows}</table>"


def _names(struct: type[msgspec.Struct]) -> Sequence[str]:
    return struct.__struct_fields__


def _rows(rows: Any) -> str:
    return "".join("<tr>" + "".join(f"<td>{c}</td>" for c in row) + "</tr>" for row in rows)
