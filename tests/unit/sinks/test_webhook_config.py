"""The keys of a webhook sink, and the secrets that they name."""

from __future__ import annotations

import pytest

from pgstream_dagster.config import parse
from pgstream_dagster.config.webhook import WebhookConfig
from pgstream_dagster.errors import InvalidPipeline, InvalidSetting, MissingSetting, SinkRefused
from pgstream_dagster.sinks.webhook.endpoints import Credentials, webhook_sink
from pgstream_dagster.sinks.webhook.subscription import Subscription
from pgstream_dagster.sinks.webhook.subscriptions import of_file
from tests.support.webhooks import OTHER_SECRET, SECRET, rendered

ENVIRONMENT = {"HOOK_SECRET": SECRET, "OTHER": OTHER_SECRET, "AUTH": "Bearer x", "TOKEN": "t" * 16}


def webhook(text: str) -> WebhookConfig:
    config = parse(f"pipeline: shop\nsinks: {{hooks: {{webhook: {{{text}}}}}}}")
    assert config.sinks["hooks"].target == "webhook"
    assert config.sinks["hooks"].webhook is not None
    return config.sinks["hooks"].webhook


def problems(text: str) -> list[str]:
    with pytest.raises(InvalidPipeline) as caught:
        webhook(text)
    return caught.value.problems


def test_a_secret_is_enough_and_the_defaults_are_careful():
    config = webhook("secret: HOOK_SECRET")
    assert (config.allow_private_addresses, config.redirects, config.worker_count) == (False, 0, 1)
    assert config.server is None
    assert config.client_timeout_seconds == 10


def test_subscriptions_of_the_file_have_names():
    config = webhook(
        "secret: HOOK_SECRET, subscriptions: {crm: {url: 'https://a.example/', schema: public,"
        " table: orders, event_types: [I, U]}}"
    )
    assert of_file(config.subscriptions) == [
        Subscription("https://a.example/", "public", "orders", ("I", "U"), "crm")
    ]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("worker_count: 2", "sinks.hooks.webhook.secret: is required"),
        (
            "secret: whsec_abc=",
            "sinks.hooks.webhook.secret: must be the name of an environment variable, not a value",
        ),
        (
            "secret: S, body: pgstream, changes_per_request: 5",
            (
                "sinks.hooks.webhook: body pgstream has one change: remove changes_per_request, or"
                " body"
            ),
        ),
        (
            "secret: S, headers: {Webhook-Id: V}",
            "sinks.hooks.webhook.headers.Webhook-Id: 'Webhook-Id' is set by pgstream itself",
        ),
        (
            "secret: S, server: {token: T, porrt: 1}",
            "sinks.hooks.webhook.server.porrt: unknown key; did you mean 'port'?",
        ),
        (
            "secret: S, subscriptions: {a: {url: 'http://u', event_types: [X]}}",
            "sinks.hooks.webhook.subscriptions.a.event_types[0]: must be 'I', 'U', 'D', 'T' or 'M'",
        ),
        (
            "secret: S, subscriptions: {a: {url: 'ftp://b/'}}",
            "sinks.hooks.webhook.subscriptions.a.url: must be an http or https address with a host",
        ),
        ("secret: S, worker_count: 0", "sinks.hooks.webhook.worker_count: must be at least 1"),
    ],
)
def test_problem_is_named_with_its_path(text, problem):
    assert problems(text) == [problem]


def test_a_file_with_subscriptions_needs_no_server_for_the_table():
    listed = problems("secret: S, server: {token: T}, subscriptions: {a: {url: 'http://b/'}}")
    assert len(listed) == 1
    assert "remove either" in listed[0]


def test_subscribers_of_the_file_sign_with_the_secret_itself_or_their_own():
    config = webhook(
        "secret: HOOK_SECRET, former_secret: OTHER, subscriptions: {a: {url: 'https://a/'},"
        " b: {url: 'https://b/', secret: OTHER}}"
    )
    credentials = Credentials.read(config, ENVIRONMENT)
    a, b = of_file(config.subscriptions)
    assert [secret.text for secret in credentials.signing(a)] == [SECRET, OTHER_SECRET]
    assert [secret.text for secret in credentials.signing(b)] == [OTHER_SECRET]


def test_subscribers_of_the_table_have_a_secret_made_from_their_url():
    credentials = Credentials.read(webhook("secret: HOOK_SECRET"), ENVIRONMENT)
    texts = {
        credentials.signing(Subscription(url, table))[0].text
        for url in ("https://a/", "https://b/")
        for table in ("x", "y")
    }
    assert len(texts) == 2
    assert SECRET not in texts


@pytest.mark.parametrize(
    ("text", "environment", "message"),
    [
        ("secret: HOOK_SECRET", {}, "HOOK_SECRET is not set"),
        (
            "secret: HOOK_SECRET",
            {"HOOK_SECRET": "hunter2"},
            r"HOOK_SECRET \(not shown\) is wrong: .*openssl rand",
        ),
        (
            "secret: HOOK_SECRET, headers: {X-A: H}",
            {"H": "hunter2\n"},
            r"H \(not shown\) is wrong: .*printable ASCII",
        ),
        (
            "secret: HOOK_SECRET, server: {token: T}",
            {"T": "hunter2"},
            r"T \(not shown\) is wrong: .*at least 16",
        ),
    ],
)
def test_wrong_secret_is_an_error_that_does_not_show_it(text, environment, message):
    given = {"HOOK_SECRET": SECRET, **environment} if environment else {}
    with pytest.raises((MissingSetting, InvalidSetting), match=message) as caught:
        Credentials.read(webhook(text), given)
    assert "hunter2" not in f"{caught.value} {caught.value.__cause__}"


def test_credentials_show_no_value():
    config = webhook("secret: HOOK_SECRET, headers: {Authorization: AUTH}, server: {token: TOKEN}")
    shown = repr(Credentials.read(config, ENVIRONMENT))
    assert not [value for value in ENVIRONMENT.values() if value in shown]


def test_a_subscription_that_cannot_be_called_is_refused_before_a_call():
    config = webhook("secret: HOOK_SECRET, subscriptions: {a: {url: 'http://127.0.0.1/'}}")
    credentials = Credentials.read(config, ENVIRONMENT)
    with pytest.raises(SinkRefused, match="its url is a private address"):
        webhook_sink(config, credentials, of_file(config.subscriptions)[0], rendered)
