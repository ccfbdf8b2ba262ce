"""
From the pipeline file and the environment to what delivers and serves.

Secrets are read here, from the variables that the file names; an error names the variable and never
repeats the value.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from typing import Final

from pgstream_dagster.config.webhook import WebhookConfig
from pgstream_dagster.errors import InvalidSetting, SinkRefused
from pgstream_dagster.readers.change import Change
from pgstream_dagster.settings import required
from pgstream_dagster.sinks.webhook.addresses import anywhere, is_public
from pgstream_dagster.sinks.webhook.delivery import Endpoint, Limits, OnDisabled, WebhookSink
from pgstream_dagster.sinks.webhook.history import Attempt
from pgstream_dagster.sinks.webhook.messages import rendering, rendering_events
from pgstream_dagster.sinks.webhook.pgstream_body import pgstream_body
from pgstream_dagster.sinks.webhook.server import (
    SubscriptionServer,
    SubscriptionStore,
    application,
)
from pgstream_dagster.sinks.webhook.signing import Secret
from pgstream_dagster.sinks.webhook.subscription import Subscription, problem_of
from pgstream_dagster.sinks.webhook.transport import Poster

NOT_SHOWN: Final = ""
"""It may be a secret that is only mistyped."""

LEAST_TOKEN: Final = 16
"""Characters of the server's token: a shorter one can be guessed."""

_HEADER_VALUE: Final = re.compile(r"[\x21-\x7e](?:[\x20-\x7e]*[\x21-\x7e])?")


@dataclass(frozen=True, slots=True)
class Credentials:
    """The secrets of a webhook sink, read once: a wrong one is an error before anything is sent."""

    secrets: tuple[Secret, ...]
    headers: Mapping[str, str] = field(repr=False)
    of_subscriptions: Mapping[str, Secret] = field(default_factory=dict[str, Secret])
    token: str = field(default="", repr=False)
    has_file: bool = False  # the subscriptions are those of the file

    @classmethod
    def read(cls, config: WebhookConfig, environment: Mapping[str, str]) -> Credentials:
        """
        The values of the variables that the file names.

        Raises:
            MissingSetting, InvalidSetting
        """
        names = [config.secret, *filter(None, [config.former_secret])]
        own = {name: entry.secret for name, entry in config.subscriptions.items()}
        return cls(
            secrets=tuple(_secret(environment, name) for name in names),
            headers={n: _header(environment, v) for n, v in config.headers.items()},
            of_subscriptions={n: _secret(environment, v) for n, v in own.items() if v is not None},
            token="" if config.server is None else _token(environment, config.server.token),
            has_file=bool(config.subscriptions),
        )

    def signing(self, subscription: Subscription) -> tuple[Secret, ...]:
        """What a subscription's calls are signed with, the current secret first."""
        if not self.has_file:
            return tuple(secret.for_url(subscription.url) for secret in self.secrets)
        own = self.of_subscriptions.get(subscription.name)
        return self.secrets if own is None else (own,)


def webhook_sink(
    config: WebhookConfig,
    credentials: Credentials,
    subscription: Subscription,
    envelope: Callable[[Change], bytes | None],
    *,
    is_outbox: bool = False,
    on_disabled: OnDisabled = lambda subscription, reason: None,
    stop: threading.Event | None = None,
) -> WebhookSink:
    """
    The sink of one subscription; `envelope` renders a change for `body: envelope`.

    `is_outbox`: its changes are events, which may name a URL and headers of their own.

    Raises:
        SinkRefused: its URL cannot be called.
    """
    problem = problem_of(subscription.url, allow_private=config.allow_private_addresses)
    if problem is not None:
        raise SinkRefused(subscription.name, f"its url {problem}", "correct the subscription")
    secrets = credentials.signing(subscription)
    endpoint = Endpoint(subscription, _poster(config, subscription), secrets, credentials.headers)
    body_of = pgstream_body if config.body == "pgstream" else envelope
    render = rendering_events(subscription.url) if is_outbox else rendering(body_of)
    is_of_file = credentials.has_file
    return WebhookSink(
        endpoint, render, _limits(config), on_disabled, is_of_file=is_of_file, stop=stop
    )


@dataclass(frozen=True, slots=True)
class SinkCalls:
    """What the subscription server asks of the sink; see `server.Calls`."""

    config: WebhookConfig
    credentials: Credentials

    def secret(self, subscription: Subscription) -> str:
        """The secret that verifies the subscription's calls."""
        return self.credentials.signing(subscription)[0].text

    def test(self, subscription: Subscription) -> Attempt:
        """Make one test call, with connections of its own."""
        with closing(webhook_sink(self.config, self.credentials, subscription, _nothing)) as sink:
            return sink.test()


def subscription_server(
    sink: str, config: WebhookConfig, credentials: Credentials, store: SubscriptionStore
) -> SubscriptionServer | None:
    """
    The server that the file asks for, listening once it is entered; `None`: it asks for none.

    Raises:
        SinkRefused: it cannot listen on its port.
    """
    if config.server is None:
        return None
    routes = application(
        store,
        SinkCalls(config, credentials),
        credentials.token,
        allow_private=config.allow_private_addresses,
    )
    return SubscriptionServer(routes, sink, config.server.host, config.server.port)


def _nothing(_change: Change) -> None:
    return None


def _poster(config: WebhookConfig, subscription: Subscription) -> Poster:
    return Poster(
        subscription.url,
        timeout_seconds=config.client_timeout_seconds,
        connections=config.worker_count,
        redirects=config.redirects,
        is_allowed=anywhere if config.allow_private_addresses else is_public,
    )


def _limits(config: WebhookConfig) -> Limits:
    return Limits(
        worker_count=config.worker_count,
        changes_per_request=config.changes_per_request,
        disable_after_seconds=config.disable_after.hours * 3600,
        disable_after_failures=config.disable_after.failures,
        history=config.history,
    )


def _secret(environment: Mapping[str, str], variable: str) -> Secret:
    try:
        return Secret.parse(required(environment, variable, "the secret that signs webhooks"))
    except ValueError as error:
        raise InvalidSetting(variable, NOT_SHOWN, str(error)) from None


def _header(environment: Mapping[str, str], variable: str) -> str:
    value = required(environment, variable, "the value of a header of webhooks")
    if not _HEADER_VALUE.fullmatch(value):
        raise InvalidSetting(variable, NOT_SHOWN, "printable ASCII without blanks at its ends")
    return value


def _token(environment: Mapping[str, str], variable: str) -> str:
    value = required(environment, variable, "the token of the subscription server")
    if len(value) < LEAST_TOKEN or not _HEADER_VALUE.fullmatch(value) or " " in value:
        expected = f"at least {LEAST_TOKEN} printable ASCII characters without blanks"
        raise InvalidSetting(variable, NOT_SHOWN, expected)
    return value
