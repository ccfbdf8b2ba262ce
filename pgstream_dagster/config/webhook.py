"""The keys of a webhook sink: who is called, how a call is signed, made and given up."""

from __future__ import annotations

from typing import Annotated, Final, Literal
from urllib.parse import urlsplit

from pydantic import AfterValidator, Field, model_validator

from pgstream_dagster.config.section import Identifier, Section, SinkName, Variable

CLIENT_TIMEOUT_SECONDS: Final = 10.0
"""pgstream's; the Standard Webhooks specification advises 15 to 30 at most."""

DISABLE_AFTER_HOURS: Final = 120.0
"""Five days: a subscriber's long weekend passes, a subscriber that is gone costs no requests."""

REFRESH_SECONDS: Final = 60.0
"""pgstream's: how long a new subscription in the table may stay unseen."""

HISTORY_ATTEMPTS: Final = 100
"""About 30 KB of memory per subscription."""

PORT: Final = 9900
"""pgstream's."""

OURS: Final = frozenset(
    {
        "webhook-id",
        "webhook-timestamp",
        "webhook-signature",
        "idempotency-key",
        "x-pgstream-lsn",
        "x-pgstream-position",
        "content-type",
        "content-length",
        "transfer-encoding",
        "connection",
        "accept-encoding",
        "host",
    }
)
"""Headers that every call has already."""


MAX_URL: Final = 2_000
"""An index row of Postgres takes 2,700 bytes; the URL is the first part of a primary key."""


def url_problem(url: str) -> str | None:
    """What is wrong with a subscriber's URL, without repeating it: its path may be a secret."""
    try:
        parts = urlsplit(url)
        host, _ = parts.hostname, parts.port
    except ValueError:
        return "is no URL"
    if parts.scheme not in ("http", "https") or not host:
        return "must be an http or https address with a host"
    if len(url.encode()) > MAX_URL or not url.isascii() or not url.isprintable() or " " in url:
        return f"must be at most {MAX_URL:,} printable ASCII characters without blanks"
    if parts.username or parts.password:
        return "must have no user and password in it: they would be stored with it"
    return "must have no #fragment: it is never sent" if parts.fragment else None


def _url(text: str) -> str:
    if (problem := url_problem(text)) is not None:
        raise ValueError(problem)
    return text


def _header(name: str) -> str:
    if not name.isascii() or not name.replace("-", "").replace("_", "").isalnum():
        raise ValueError(f"{name!r} is no name of an HTTP header: letters, digits, - and _")
    if name.lower() in OURS:
        raise ValueError(f"{name!r} is set by pgstream itself")
    return name


EventType = Literal["I", "U", "D", "T", "M"]
"""pgstream's letters: insert (and copied row), update, delete, truncate, message."""

Header = Annotated[str, AfterValidator(_header)]


class SubscriptionConfig(Section):
    """One subscriber, and the changes it receives."""

    url: Annotated[str, AfterValidator(_url)] = Field(
        description="Where changes are posted, as `https://host/path` or `http://...`"
    )
    namespace: Identifier | None = Field(
        default=None,
        alias="schema",
        description="Only changes of tables of this schema. Without it: of every schema.",
    )
    table: Identifier | None = Field(
        default=None,
        description="Only changes of tables of this name. Without it: of every table.",
    )
    event_types: Annotated[tuple[EventType, ...], Field(strict=False)] = Field(
        default=(),
        description="Only these: `I` (inserts and copied rows), `U`, `D`, `T`. Without it: all.",
    )
    secret: Variable | None = Field(
        default=None,
        description="The variable with this subscriber's signing secret, in place of the sink's.",
    )


class SubscriptionServerConfig(Section):
    """The server where subscribers subscribe: `POST /webhooks/subscribe` and its like."""

    host: str = Field(default="127.0.0.1", min_length=1, description="The address to listen on.")
    port: int = Field(default=PORT, ge=0, le=65_535, description="The port; 0: any free one.")
    token: Variable = Field(
        description="The variable with the token that every request must carry, as"
        " `Authorization: Bearer <token>`; 16 characters at least."
    )


class DisableConfig(Section):
    """When a subscription that fails is disabled; what it has not received waits in the log."""

    hours: float = Field(
        default=DISABLE_AFTER_HOURS,
        ge=0.01,
        le=8_760,
        description="Hours without one delivery, while all attempts fail, after which a"
        " subscription is disabled.",
    )
    failures: int = Field(
        default=1_000_000,
        ge=1,
        le=1_000_000,
        description="Failed attempts in a row after which it is disabled earlier.",
    )


class WebhookConfig(Section):
    """Changes as signed HTTP requests to subscribers, each with its own progress."""

    secret: Variable = Field(
        description="The variable with the signing secret, `whsec_` and 24 to 64 bytes in base64."
        " Subscriptions of the file sign with it; those of the table with a secret made from it"
        " and their URL, which `subscribe` answers."
    )
    former_secret: Variable | None = Field(
        default=None,
        description="The variable with the secret before the current one: calls carry signatures"
        " of both until every subscriber has the new one.",
    )
    subscriptions: dict[SinkName, SubscriptionConfig] = Field(
        default_factory=dict,
        description="The subscriptions, by name. Without it they are rows of"
        " `pgstream.webhook_subscriptions` in the source's database.",
    )
    server: SubscriptionServerConfig | None = Field(
        default=None,
        description="The server that writes the table's subscriptions. Without it: no server.",
    )
    refresh_seconds: float = Field(
        default=REFRESH_SECONDS,
        ge=0.1,
        le=86_400,
        description="Seconds for which the table's subscriptions are taken from memory.",
    )
    body: Literal["envelope", "pgstream"] = Field(
        default="envelope",
        description="The shape of a call's body: the JSON envelope of all sinks, or pgstream's"
        ' `{"Data": ...}`.',
    )
    changes_per_request: int = Field(
        default=1,
        ge=1,
        le=10_000,
        description="Changes of one call at most; with more than 1 the body is an array of"
        " envelopes.",
    )
    worker_count: int = Field(
        default=1,
        ge=1,
        le=256,
        description="Calls of one subscription at the same time. 1: in the order of all changes;"
        " more: in the order of the changes of each key.",
    )
    client_timeout_seconds: float = Field(
        default=CLIENT_TIMEOUT_SECONDS,
        ge=0.1,
        le=600,
        description="Seconds that a call may take, from the connection to the end of the answer.",
    )
    redirects: int = Field(
        default=0,
        ge=0,
        le=10,
        description="Redirects (307 and 308) that a call follows; with 0 one is a refusal.",
    )
    allow_private_addresses: bool = Field(
        default=False,
        description="Whether subscribers may be in private networks or on this machine. Checked"
        " on every address that is connected to.",
    )
    headers: dict[Header, Variable] = Field(
        default_factory=dict,
        description="Further headers of each call: name to the variable with the value.",
    )
    disable_after: DisableConfig = Field(
        default_factory=DisableConfig, description="When a subscription that fails is disabled."
    )
    history: int = Field(
        default=HISTORY_ATTEMPTS,
        ge=0,
        le=100_000,
        description="Attempts of each subscription that `status` can show.",
    )

    @model_validator(mode="after")
    def _fits_together(self) -> WebhookConfig:
        if self.body == "pgstream" and self.changes_per_request > 1:
            raise ValueError("body pgstream has one change: remove changes_per_request, or body")
        if self.subscriptions and self.server is not None:
            raise ValueError(
                "has subscriptions of its own and a server, which writes those of the table: remove"
                " either"
            )
        return self
