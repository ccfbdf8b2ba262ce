"""What the demo finds when a target lacks a change, has it twice, or has it in another order."""

from __future__ import annotations

from datetime import UTC, datetime

import httpx
import msgspec
import pytest
from standardwebhooks.webhooks import Webhook

from pgstream_dagster.demo.masked import multiset
from pgstream_dagster.demo.receiver import Event, Receiver
from pgstream_dagster.demo.sinks import Record, compare_events, compare_records
from pgstream_dagster.sinks.webhook.signing import Secret, signature

IDS = {"flights": ["a", "b", "c"], "planes": ["a"]}
SECRET = "whsec_" + "MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"


def records(flights: str, keys: str = "111") -> list[Record]:
    of_flights = [
        Record("flights", key.encode(), event_id, event_id.encode())
        for event_id, key in zip(flights, keys, strict=True)
    ]
    return [*of_flights, Record("planes", b"1", "a", b"a")]


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        (records("abc"), None),
        (records("cab", "211"), None),  # of several keys, in any order
        (records("acb"), "1 out of order"),
        (records("ab", "11"), "1 missing"),
        (records("abcc", "1111"), "1 twice or unknown"),
        (records("abx"), "1 missing, 1 twice or unknown"),
    ],
)
def test_records_are_compared(given: list[Record], problem: str | None) -> None:
    compared = compare_records(IDS, given)
    assert compared.problem == problem
    assert compared.has == f"{len(given)} records in 2 topics"


@pytest.mark.parametrize(
    ("flights", "forged", "problem"),
    [
        ("abc", 0, None),
        ("abab" + "bc", 0, None),  # at least once, in order where it came first
        ("acb", 0, "1 unknown or out of order"),
        ("abx", 0, "1 missing, 1 unknown or out of order"),
        ("bc", 0, "1 missing"),
        ("abc", 2, "2 without a valid signature"),
    ],
)
def test_events_are_compared(flights: str, forged: int, problem: str | None) -> None:
    events = [Event("a", "planes"), *(Event(event_id, "flights") for event_id in flights)]
    assert compare_events(IDS, events, 1, forged).problem == problem


def test_rows_are_compared_as_often_as_they_are_there() -> None:
    rows = [("1", None), ("1", None), ("1", "")]
    assert multiset(rows) == multiset(rows[::-1])
    assert (multiset(rows) - multiset(rows[1:])).total() == 1
    assert multiset([("1", None)]) != multiset([("1", "")])


def test_the_receiver_believes_only_what_the_library_of_the_specification_would_sign() -> None:
    received = list[Event]()
    body = msgspec.json.encode([{"event_id": "a", "relation": "flights", "op": "insert"}])
    with Receiver(SECRET, received.append) as receiver, httpx.Client(trust_env=False) as client:

        def post(signed: str, content: bytes = body) -> int:
            headers = {"webhook-id": "m", "webhook-timestamp": "7", "webhook-signature": signed}
            return client.post(receiver.url, content=content, headers=headers).status_code

        ours = signature([Secret.parse(SECRET)], "m", 7, body)
        assert Webhook(SECRET).sign("m", datetime.fromtimestamp(7, UTC), body.decode()) == ours
        assert post(ours) == 204
        assert post(ours, body + b" ") == post("v1,AAAA") == post("") == 401
        assert (received, receiver.calls, receiver.forged) == ([Event("a", "flights")], 1, 3)
