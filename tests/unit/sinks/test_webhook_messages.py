"""What a call carries: ids, headers, signatures, pgstream's body; what an answer means."""

from __future__ import annotations

import json
import time
from email.utils import formatdate

import pytest
import standardwebhooks

from pgstream_dagster.readers.change import Change
from pgstream_dagster.schema.table import Column, ReplicaIdentity, TableSchema
from pgstream_dagster.sinks.webhook.answers import Outcome, meaning, retry_after
from pgstream_dagster.sinks.webhook.history import History
from pgstream_dagster.sinks.webhook.messages import Message, Rendered, headers, message
from pgstream_dagster.sinks.webhook.pgstream_body import pgstream_body
from pgstream_dagster.sinks.webhook.signing import Secret, signature
from pgstream_dagster.sinks.webhook.subscription import Subscription
from pgstream_dagster.sinks.webhook.transport import Answer
from tests.support.webhooks import OTHER_SECRET, SECRET, change, copied, insert

URL = "https://example.com/hook"


def test_the_standard_library_verifies_our_signature():
    body = '{"ä": 1}'.encode()
    signed = {
        "webhook-id": "1-16/B374D848-0",
        "webhook-timestamp": str(int(time.time())),
    }
    timestamp = int(signed["webhook-timestamp"])
    signed["webhook-signature"] = signature(
        [Secret.parse(SECRET)], signed["webhook-id"], timestamp, body
    )
    assert standardwebhooks.Webhook(SECRET).verify(body, signed) == {"ä": 1}
    with pytest.raises(standardwebhooks.WebhookVerificationError):
        standardwebhooks.Webhook(SECRET).verify(body + b" ", signed)
    with pytest.raises(standardwebhooks.WebhookVerificationError):
        standardwebhooks.Webhook(OTHER_SECRET).verify(body, signed)


def test_while_a_secret_is_replaced_both_verify():
    now = int(time.time())
    secrets = [Secret.parse(SECRET), Secret.parse(OTHER_SECRET)]
    signed = {"webhook-id": "a", "webhook-timestamp": str(now)}
    signed["webhook-signature"] = signature(secrets, "a", now, b"{}")
    for text in (SECRET, OTHER_SECRET):
        assert standardwebhooks.Webhook(text).verify(b"{}", signed) == {}


@pytest.mark.parametrize("text", ["", "secret", "whsec_", "whsec_c2hvcnQ=", "whsec_!", SECRET[6:]])
def test_text_that_is_no_secret_is_refused_and_not_repeated(text):
    with pytest.raises(ValueError, match="whsec_ and the base64") as caught:
        Secret.parse(text)
    assert caught.value.__cause__ is None
    assert not text.removeprefix("whsec_") or text not in str(caught.value)


def test_a_secret_does_not_show_itself():
    secret = Secret.parse(SECRET)
    assert "0123" not in repr(secret)
    assert secret.text == SECRET


def test_subscribers_get_secrets_that_do_not_verify_for_each_other():
    secret = Secret.parse(SECRET)
    texts = {secret.for_url(url).text for url in (URL, URL + "2")} | {SECRET}
    assert len(texts) == 3
    assert secret.for_url(URL) == Secret.parse(SECRET).for_url(URL)
    assert Secret.parse(secret.for_url(URL).text) == secret.for_url(URL)


def called(changes: list[Change], bodies: list[bytes]) -> Message:
    """The call for changes with these bodies."""
    sent = [Rendered(c.event_id, body) for c, body in zip(changes, bodies, strict=True)]
    return message(changes[-1], sent, is_array=len(sent) > 1)


def test_call_has_the_event_id_and_the_commit_lsn():
    sent = called([insert(1)], [b"{}"])
    assert headers(sent, 5, "v1,x") == {
        "content-type": "application/json",
        "webhook-id": insert(1).event_id,
        "webhook-timestamp": "5",
        "webhook-signature": "v1,x",
        "idempotency-key": insert(1).event_id,
        "x-pgstream-lsn": "16/64",
    }


def test_call_of_a_copied_row_has_no_lsn_and_an_id_of_its_own():
    calls = [called([row], [b"{}"]) for row in copied(1_000)]
    assert len({sent.id for sent in calls}) == 1_000
    assert "x-pgstream-lsn" not in headers(calls[0], 5, "v1,x")


def test_call_of_several_changes_is_an_array_whose_id_says_which():
    rows = [insert(1), insert(2)]
    sent = called(rows, [b"1", b"2"])
    assert sent.body == b"[1,2]"
    assert sent.id == called(rows, [b"1", b"2"]).id
    assert sent.id != called([insert(1), insert(3)], [b"1", b"2"]).id


@pytest.mark.parametrize(
    ("subscription", "event", "does_match"),
    [
        (Subscription(URL), insert(1), True),
        (Subscription(URL, "public", "orders", ("I",)), insert(1), True),
        (Subscription(URL, event_types=("I",)), insert(1, op="delete"), False),
        (Subscription(URL, event_types=("I",)), insert(1, op="read"), True),
        (Subscription(URL, event_types=("U", "D")), insert(1, op="update"), True),
        (Subscription(URL, event_types=("T",)), change(1, op="truncate"), True),
        (Subscription(URL, "other"), insert(1), False),
        (Subscription(URL, "", "other"), insert(1), False),
        (Subscription(URL, "", "orders"), insert(1), True),
        (Subscription(URL), insert(1, namespace="pgstream"), False),
    ],
)
def test_subscription_matches(subscription, event, does_match):
    assert subscription.matches(event) is does_match


@pytest.mark.parametrize("status", [200, 201, 202, 204, 299])
def test_every_2xx_delivers(status):
    assert meaning(Answer(status, {}, ""), 0).outcome is Outcome.DELIVERED


@pytest.mark.parametrize("status", [408, 425, 429, 500, 502, 503, 504, 599])
def test_status_that_passes_is_tried_again(status):
    assert meaning(Answer(status, {}, ""), 0).outcome is Outcome.NOT_NOW


@pytest.mark.parametrize("status", [300, 301, 307, 400, 401, 403, 404, 409, 413, 422])
def test_any_other_status_refuses_with_the_first_bytes_of_the_answer(status):
    result = meaning(Answer(status, {"retry-after": "5"}, "no such thing"), 0)
    assert (result.outcome, result.reason) == (Outcome.REFUSED, f"HTTP {status}: no such thing")


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("0", 0.0),
        ("120", 120.0),
        (" 7 ", 7.0),
        (formatdate(1_000_090, usegmt=True), 90.0),
        (formatdate(999_000, usegmt=True), 0.0),
        ("99999999999", 86_400.0),
        (formatdate(9_000_000, usegmt=True), 86_400.0),
        ("-5", None),
        ("soon", None),
        ("", None),
        ("²", None),
    ],
)
def test_retry_after_is_seconds_or_a_date(text, seconds):
    assert retry_after(text, 1_000_000) == seconds


TYPES = TableSchema(
    epoch=1,
    relation_id=9,
    namespace="public",
    name="types",
    identity=ReplicaIdentity.DEFAULT,
    columns=(
        Column("id", 1, 20, "bigint", value_type="int8"),
        Column("price", 2, 1700, "numeric(38,10)", value_type="numeric"),
        Column("ok", 3, 16, "boolean", value_type="bool"),
        Column("data", 4, 17, "bytea", value_type="bytea"),
        Column("big", 5, 25, "text", value_type="text"),
        Column("ratio", 6, 701, "double precision", value_type="float8"),
    ),
    key=("id",),
)


def of_types(op, **more):
    facts = {"op": op, "relation": "types", "schema": TYPES, "key": ("1",)}
    return change(1, **{**facts, "committed_at_us": 1_700_000_000_123_456, **more})


def test_insert_has_the_form_that_pgstream_posts():
    after = {
        "id": "1",
        "price": "12345678901234567890.1234567891",
        "ok": "t",
        "data": "\\x00ff",
        "big": None,
        "ratio": "NaN",
    }
    body = pgstream_body(of_types("insert", after=after))
    assert body is not None
    assert b'"value":12345678901234567890.1234567891}' in body
    data = json.loads(body)["Data"]
    assert {k: v for k, v in data.items() if k != "columns"} == {
        "action": "I",
        "timestamp": "2023-11-14 22:13:20.123456+00",
        "lsn": "16/64",
        "schema": "public",
        "table": "types",
        "identity": None,
        "metadata": {"schema_id": None, "table_pgstream_id": "", "id_col_pgstream_id": None},
    }
    assert data["columns"][0] == {"id": "", "name": "id", "type": "bigint", "value": 1}
    values = {column["name"]: column["value"] for column in data["columns"]}
    assert [values[n] for n in ("ok", "data", "big", "ratio")] == [True, "AP8=", None, None]


def test_update_leaves_out_columns_that_were_not_sent_and_names_the_old_key():
    body = pgstream_body(of_types("update", after={"id": "1", "ok": "f"}, old_key=("5",)))
    data = json.loads(body or b"")["Data"]
    assert [column["name"] for column in data["columns"]] == ["id", "ok"]
    assert [(c["name"], c["value"]) for c in data["identity"]] == [("id", 5)]


def test_delete_and_truncate_and_copied_row():
    deleted = json.loads(pgstream_body(of_types("delete", before={"id": "1"})) or b"")["Data"]
    assert (deleted["action"], deleted["columns"]) == ("D", None)
    assert deleted["identity"][0]["value"] == 1
    truncated = json.loads(pgstream_body(of_types("truncate", key=None)) or b"")["Data"]
    assert (truncated["columns"], truncated["identity"]) == (None, None)
    row = json.loads(pgstream_body(of_types("read", after={"id": "1"}, ordinal=-5)) or b"")["Data"]
    assert (row["action"], row["lsn"]) == ("I", "0/0")
    assert row["timestamp"] == "2023-11-14T22:13:20.123456Z"


def test_marker_has_no_form_in_pgstream():
    assert pgstream_body(of_types("copy", after=None)) is None


def test_history_keeps_the_last_attempts_and_all_counts():
    history = History(2)
    ok = meaning(Answer(204, {}, ""), 0)
    bad = meaning(Answer(500, {}, "boom"), 0)
    for at, result in enumerate([ok, bad, bad]):
        history.add(at, at + 0.5, f"id{at}", 3, result)
    delivery = history.delivery()
    assert (delivery.attempts, delivery.delivered_changes, delivery.not_now) == (3, 3, 2)
    assert [attempt.message_id for attempt in delivery.recent] == ["id1", "id2"]
    assert delivery.recent[-1].reason == "HTTP 500: boom"
    assert delivery.failures_in_row == 2
    assert delivery.failing_since is not None
    assert delivery.failing_since.timestamp() == 1
    history.add(9, 9, "id9", 1, ok)
    assert history.failing() == (0, None)
