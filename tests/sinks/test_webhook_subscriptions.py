"""The table of subscriptions on a real source, and the server that writes it."""

from __future__ import annotations

import logging
import socket
from collections.abc import Iterator
from contextlib import contextmanager

import httpx
import pytest
import standardwebhooks
from psycopg.conninfo import make_conninfo

from pgstream_dagster.config import parse
from pgstream_dagster.errors import AccessRefused, SinkRefused, Unreachable
from pgstream_dagster.sinks.webhook.endpoints import Credentials, subscription_server
from pgstream_dagster.sinks.webhook.subscription import Subscription
from pgstream_dagster.sinks.webhook.subscriptions import CachedSubscriptions, SubscriptionTable
from tests.support.plugins.cluster import psql
from tests.support.webhooks import SECRET, Receiver, Reply

TOKEN = "0123456789abcdef-token"
URL = "https://hooks.example.com/in"


@pytest.fixture
def table(dsn: str) -> SubscriptionTable:
    table = SubscriptionTable(dsn)
    table.create()
    return table


@contextmanager
def client(table: SubscriptionTable, options: str = "", port: int = 0) -> Iterator[httpx.Client]:
    """A client of a running server, with its token."""
    text = f"secret: S, server: {{token: T, port: {port}}}{options}"
    sink = parse(f"pipeline: shop\nsinks: {{hooks: {{webhook: {{{text}}}}}}}").sinks["hooks"]
    assert sink.webhook is not None
    credentials = Credentials.read(sink.webhook, {"S": SECRET, "T": TOKEN})
    server = subscription_server("hooks", sink.webhook, credentials, table)
    assert server is not None
    headers = {"authorization": f"Bearer {TOKEN}"}
    with (
        server,
        httpx.Client(base_url=f"http://127.0.0.1:{server.port}", headers=headers) as http,
    ):
        yield http


# --- the table ----------------------------------------------------------------------------------


def test_subscribing_again_replaces_the_event_types(table):
    assert table.subscribe(Subscription(URL, "public", "orders", ("I",)))
    assert not table.subscribe(Subscription(URL, "public", "orders", ("U", "D")))
    assert table.subscribe(Subscription(URL))
    listed = table.subscriptions()
    assert [(s.namespace, s.table, s.event_types) for s in listed] == [
        ("", "", ()),
        ("public", "orders", ("U", "D")),
    ]
    assert len({s.name for s in listed}) == 2


def test_unsubscribing_removes_that_subscription_only(table):
    table.subscribe(Subscription(URL, "public", "orders"))
    table.subscribe(Subscription(URL))
    assert table.unsubscribe(Subscription(URL, "public", "orders"))
    assert not table.unsubscribe(Subscription(URL, "public", "orders"))
    assert [s.table for s in table.subscriptions()] == [""]


def test_subscribing_enables_what_was_disabled(table):
    entry = Subscription(URL)
    table.subscribe(entry)
    table.disable(entry, "it answered 410 Gone")
    table.disable(entry, "a later reason")
    assert [s.disabled_reason for s in table.subscriptions()] == ["it answered 410 Gone"]
    assert CachedSubscriptions(table.subscriptions, 60).active() == []
    table.subscribe(entry)
    assert [s.disabled_at for s in table.subscriptions()] == [None]


def test_the_table_of_a_pgstream_is_taken_over_with_its_rows(dsn):
    psql(
        dsn,
        "create schema pgstream",
        "create table pgstream.webhook_subscriptions (url text, schema_name text, table_name text,"
        " event_types text[], primary key (url, schema_name, table_name))",
        f"insert into pgstream.webhook_subscriptions values ('{URL}', 'public', '', null),"
        f" ('{URL}', '', 't', '{{I,D}}')",
    )
    table = SubscriptionTable(dsn)
    table.create()
    assert [(s.namespace, s.table, s.event_types) for s in table.subscriptions()] == [
        ("", "t", ("I", "D")),
        ("public", "", ()),
    ]


def test_creating_it_again_changes_nothing_and_needs_no_rights(dsn, table):
    table.subscribe(Subscription(URL))
    psql(
        dsn,
        "drop role if exists webhook_reader",
        "create role webhook_reader login password 'x'",
        "grant usage on schema pgstream to webhook_reader",
        "grant select on pgstream.webhook_subscriptions to webhook_reader",
    )
    try:
        other = SubscriptionTable(make_conninfo(dsn, user="webhook_reader", password="x"))
        other.create()
        assert len(other.subscriptions()) == 1
    finally:
        psql(dsn, "drop owned by webhook_reader", "drop role webhook_reader")


def test_a_role_that_may_not_create_it_gets_the_statement(dsn):
    psql(dsn, "drop role if exists webhook_guest", "create role webhook_guest login password 'x'")
    try:
        guest = SubscriptionTable(make_conninfo(dsn, user="webhook_guest", password="x"))
        with pytest.raises(AccessRefused, match="grant create on database"):
            guest.create()
    finally:
        psql(dsn, "drop role webhook_guest")


def test_names_are_data_and_never_part_of_a_statement(table):
    odd = Subscription(URL + "?a='%s;--", "we\"ird'; drop table x", "%(url)s")
    table.subscribe(odd)
    assert [(s.url, s.namespace, s.table) for s in table.subscriptions()] == [
        (odd.url, odd.namespace, odd.table)
    ]
    assert table.unsubscribe(odd)


def test_the_cache_reads_again_after_its_time(table):
    now = [0.0]
    cached = CachedSubscriptions(table.subscriptions, 60, clock=lambda: now[0])
    assert cached.all() == []
    table.subscribe(Subscription(URL))
    now[0] = 59
    assert cached.all() == []
    now[0] = 60
    assert len(cached.all()) == 1
    table.subscribe(Subscription(URL + "2"))
    cached.forget()
    assert len(cached.all()) == 2


def test_a_source_that_is_down_stops_no_delivery(table, dsn, caplog):
    table.subscribe(Subscription(URL))
    down = SubscriptionTable(make_conninfo(dsn, host="127.0.0.1", port="1", connect_timeout="2"))
    now, tables = [0.0], [table, down]
    cached = CachedSubscriptions(lambda: tables.pop(0).subscriptions(), 60, lambda: now[0])
    assert len(cached.all()) == 1
    now[0] = 61
    assert len(cached.all()) == 1
    assert "could not be read again" in caplog.text
    with pytest.raises(Unreachable):
        CachedSubscriptions(down.subscriptions, 60).all()


# --- the server ---------------------------------------------------------------------------------


def test_bodies_of_pgstream_subscribe_list_and_unsubscribe(table):
    with client(table) as http:
        body = {"url": URL, "schema": "public", "table": "orders", "event_types": ["I", "U"]}
        subscribed = http.post("/webhooks/subscribe", json=body)
        assert subscribed.status_code == 201
        assert subscribed.json()["is_new"] is True
        assert subscribed.json()["secret"].startswith("whsec_")
        assert subscribed.json()["secret"] != SECRET
        again = http.post("/webhooks/subscribe", json={**body, "event_types": None})
        assert (again.status_code, again.json()["is_new"]) == (201, False)
        assert again.json()["secret"] == subscribed.json()["secret"]
        [listed] = http.get("/webhooks").json()["subscriptions"]
        assert listed == {
            "name": subscribed.json()["name"],
            "url": URL,
            "schema": "public",
            "table": "orders",
            "event_types": [],
            "disabled_at": None,
            "disabled_reason": None,
        }
        for was_there in (True, False):
            gone = http.post("/webhooks/unsubscribe", json=body)
            assert (gone.status_code, gone.json()) == (200, {"removed": was_there})
        assert http.get("/webhooks").json() == {"subscriptions": []}


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "Input data was truncated"),
        (b"{", "the body is no subscription"),
        (b"[]", "Expected `object`"),
        (b"{}", "missing required field `url`"),
        (b'{"url": 5}', "Expected `str`"),
        (b'{"url": "https://a.example/", "tabel": "x"}', "unknown field `tabel`"),
        (b'{"url": "https://a.example/", "event_types": ["X"]}', "Invalid enum value 'X'"),
        (b'{"url": "gopher://a/"}', "url must be an http or https address"),
        (b'{"url": "http://10.0.0.1/"}', "url is a private address"),
        (b'{"url": "https://a.example/", "table": "a\\u0000"}', "zero byte"),
        (b"[" * 60_000, "the body is no subscription"),
    ],
)
def test_body_that_is_no_subscription_is_refused_with_the_reason(table, content, reason):
    with client(table) as http:
        for path in ("subscribe", "test"):
            answer = http.post(f"/webhooks/{path}", content=content)
            assert answer.status_code == 400
            assert reason in answer.json()["error"]
        assert http.get("/webhooks").json() == {"subscriptions": []}


def test_other_requests_are_refused(table):
    with client(table) as http:
        assert http.get("/webhooks/subscribe").status_code == 405
        assert http.post("/webhooks").status_code == 405
        assert http.get("/nothing").status_code == 404
        assert http.post("/webhooks/subscribe", content=b" " * 70_000).status_code == 413


@pytest.mark.parametrize(
    "authorization", ["", "Bearer", "Bearer wrong", f"Basic {TOKEN}", f"Bearer {TOKEN}x"]
)
def test_without_the_token_nothing_is_answered(table, authorization):
    with client(table) as http:
        http.headers["authorization"] = authorization
        for method, path in [
            ("POST", "/webhooks/subscribe"),
            ("POST", "/webhooks/unsubscribe"),
            ("POST", "/webhooks/test"),
            ("GET", "/webhooks"),
        ]:
            answer = http.request(method, path, json={"url": URL})
            assert (answer.status_code, answer.headers["www-authenticate"]) == (401, "Bearer")
    assert table.subscriptions() == []


def test_a_source_that_fails_is_503_and_its_reason_stays_in_the_log(table, dsn, caplog):
    down = SubscriptionTable(make_conninfo(dsn, host="127.0.0.1", port="1", connect_timeout="2"))
    with client(down) as http:
        answer = http.post("/webhooks/subscribe", json={"url": URL})
        assert answer.status_code == 503
        assert "127.0.0.1" not in answer.text
    assert "cannot reach" in caplog.text


def test_a_table_that_was_dropped_is_made_again(table, dsn):
    psql(dsn, "drop table pgstream.webhook_subscriptions")
    with client(table) as http:
        assert http.get("/webhooks").json() == {"subscriptions": []}
        assert http.post("/webhooks/subscribe", json={"url": URL}).status_code == 201


def test_a_test_call_is_signed_with_the_secret_that_subscribe_answers(table):
    with (
        Receiver() as receiver,
        client(table, ", allow_private_addresses: true") as http,
    ):
        body = {"url": receiver.url}
        secret = http.post("/webhooks/subscribe", json=body).json()["secret"]
        tested = http.post("/webhooks/test", json=body).json()
        assert (tested["delivered"], tested["status"]) == (True, 204)
        receiver.answer = lambda call: Reply(418, body=b"short and stout")
        refused = http.post("/webhooks/test", json=body).json()
        assert refused == {**refused, "delivered": False, "status": 418}
        assert refused["reason"] == "HTTP 418: short and stout"
    call = receiver.calls[0]
    verified = standardwebhooks.Webhook(secret).verify(call.body, dict(call.headers))
    assert verified == {"type": "pgstream.test"}


def test_a_test_call_reaches_no_private_address(table):
    with Receiver() as receiver, client(table) as http:
        body = {"url": receiver.url.replace("127.0.0.1", "2130706433")}
        tested = http.post("/webhooks/test", json=body)
        assert tested.status_code == 200
        assert tested.json()["delivered"] is False
        assert "is not one of the internet" in tested.json()["reason"]
    assert not receiver.calls


def test_the_documentation_needs_no_network_and_no_token(table):
    with client(table) as http:
        del http.headers["authorization"]
        document = http.get("/openapi.json").json()
        page = http.get("/docs")
    assert document["openapi"] == "3.1.0"
    assert list(document["paths"]) == [
        "/webhooks/subscribe",
        "/webhooks/unsubscribe",
        "/webhooks/test",
        "/webhooks",
    ]
    properties = document["components"]["schemas"]["SubscriptionBody"]["properties"]
    assert list(properties) == ["url", "schema", "table", "event_types"]
    assert "POST /webhooks/subscribe" in page.text
    assert "<script" not in page.text
    assert "http://" not in page.text
    assert "https://" not in page.text


def test_a_port_that_is_taken_is_named(table):
    with (
        socket.create_server(("127.0.0.1", 0)) as taken,
        pytest.raises(SinkRefused, match=r"cannot listen on 127\.0\.0\.1:.*Address already in use"),
        client(table, port=taken.getsockname()[1]),
    ):
        pass


def test_no_secret_and_no_token_is_in_the_servers_log(table, caplog):
    caplog.set_level(logging.DEBUG)
    with client(table) as http:
        secret = http.post("/webhooks/subscribe", json={"url": URL + "/path-secret"}).json()
        http.post("/webhooks/test", json={"url": URL.replace("hooks", "nowhere") + "/path-secret"})
    ours = [r.getMessage() for r in caplog.records if not r.name.startswith("http")]
    for text in (TOKEN, secret["secret"], "path-secret"):
        assert not [line for line in ours if text in line]
