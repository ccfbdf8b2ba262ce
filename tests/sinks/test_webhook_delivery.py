"""Delivery to real HTTP servers: order, failures, time limits, addresses, silence."""

from __future__ import annotations

import logging
import re
import socket
import ssl
import threading
import time
import zlib
from collections import Counter
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from email.utils import formatdate

import msgspec
import pytest
import standardwebhooks
import trustme

from pgstream_dagster.errors import (
    SinkRefused,
    SubscriptionDisabled,
)
from pgstream_dagster.sinks.base import Health, NotNow, Refused, Verdict
from pgstream_dagster.sinks.webhook import delivery
from pgstream_dagster.sinks.webhook.addresses import is_public
from pgstream_dagster.sinks.webhook.answers import Outcome
from pgstream_dagster.sinks.webhook.delivery import Limits, WebhookSink
from pgstream_dagster.sinks.webhook.pgstream_body import pgstream_body
from tests.support.plugins.wait import until
from tests.support.webhooks import (
    SECRET,
    Call,
    Receiver,
    Reply,
    batch,
    change,
    copied,
    insert,
    opened,
    rendered,
    sink,
)


@pytest.fixture(autouse=True)
def whole_batches(monkeypatch):
    """A busy machine takes as long as it takes."""
    monkeypatch.setattr(delivery, "PART_SECONDS", 600.0)


def statuses(*answers: int):
    """Answer with these statuses, one a call, the last one for ever."""
    left = list(answers)
    return lambda call: Reply(left.pop(0) if len(left) > 1 else left[0])


def refusing(*keys: str, status: int = 400):
    """Refuse the changes of these keys."""
    return lambda call: Reply(status if call.json["key"][0] in keys else 204)


def test_every_change_is_one_signed_call_in_order():
    changes = [insert(n) for n in range(20)]
    with Receiver() as receiver, opened(receiver.url) as sink:
        assert sink.deliver(batch(*changes)) == {}
    assert receiver.ids == [event.event_id for event in changes]
    for call, event in zip(receiver.calls, changes, strict=True):
        verified = standardwebhooks.Webhook(SECRET).verify(call.body, dict(call.headers))
        assert verified["id"] == call.headers["idempotency-key"] == event.event_id
        assert call.headers["x-pgstream-lsn"] == event.event_id.split("-")[1]
        assert call.headers["content-type"] == "application/json"
    assert receiver.most_at_once == 1


def test_a_thousand_copied_rows_are_a_thousand_event_ids():
    limits = Limits(worker_count=4)
    with Receiver() as receiver, opened(receiver.url, limits=limits) as sink:
        assert sink.deliver(batch(*copied(1_000))) == {}
    assert len(set(receiver.ids)) == len(receiver.ids) == 1_000
    assert not any("x-pgstream-lsn" in call.headers for call in receiver.calls)


def test_only_what_the_subscription_asks_for_is_sent():
    events = [insert(1), insert(2, namespace="pgstream"), insert(3, op="copy", key=None)]
    with Receiver() as receiver, opened(receiver.url, render=pgstream_body) as sink:
        assert sink.deliver(batch(*events)) == {}
    assert [call.json["Data"]["action"] for call in receiver.calls] == ["I"]


def test_a_change_that_is_not_accepted_now_holds_back_all_later_ones():
    changes = [insert(n) for n in range(4)]
    with Receiver(statuses(204, 500, 204)) as receiver, opened(receiver.url) as sink:
        verdicts = sink.deliver(batch(*changes))
        assert list(verdicts) == [1, 2, 3]
        assert verdicts[1] == NotNow("HTTP 500")
        assert len(receiver.calls) == 2
        assert sink.deliver(batch(*changes[1:])) == {}
    accepted = [receiver.ids[0], *receiver.ids[2:]]
    assert accepted == [event.event_id for event in changes]


def test_a_refused_change_holds_back_its_key_only():
    changes = [insert(0, "a"), insert(1, "b"), insert(2, "a"), insert(3, "b")]
    answer = "not\nlike\0this " + "x" * 1_000
    with (
        Receiver(
            lambda c: Reply(422, body=answer.encode()) if c.json["key"] == ["a"] else Reply()
        ) as receiver,
        opened(receiver.url) as sink,
    ):
        verdicts = sink.deliver(batch(*changes))
    assert isinstance(verdicts[0], Refused)
    assert verdicts[0].reason.startswith("HTTP 422: not like this xxx")
    assert len(verdicts[0].reason) < 600
    assert isinstance(verdicts[2], NotNow)
    assert list(verdicts) == [0, 2]
    assert [call.json["key"] for call in receiver.calls] == [["a"], ["b"], ["b"]]


def test_with_workers_each_key_keeps_its_order_under_failures():
    changes = [insert(n, str(n % 7)) for n in range(210)]
    failures = Counter[str]()

    def flaky(call: Call) -> Reply:
        failures[call.id] += 1
        return Reply(500 if failures[call.id] == 1 and zlib.crc32(call.body) % 3 == 0 else 204)

    with (
        Receiver(flaky) as receiver,
        opened(receiver.url, limits=Limits(worker_count=4)) as sink,
    ):
        left = changes
        while left:
            verdicts = sink.deliver(batch(*left))
            left = [event for index, event in enumerate(left) if index in verdicts]
    last_call = {call.id: at for at, call in enumerate(receiver.calls)}
    for key in range(7):
        ids = [event.event_id for event in changes if event.key == (str(key),)]
        assert [last_call[id_] for id_ in ids] == sorted(last_call[id_] for id_ in ids)


def test_workers_call_for_different_keys_at_the_same_time():
    arrived = threading.Event()
    gate = threading.Barrier(3, action=arrived.set)

    def meet(call: Call) -> Reply:
        threading.Thread(target=gate.wait, daemon=True).start()
        return Reply(after=arrived)

    with (
        Receiver(meet) as receiver,
        opened(receiver.url, limits=Limits(worker_count=3)) as sink,
    ):
        assert sink.deliver(batch(insert(1), insert(2), insert(3))) == {}
    assert receiver.most_at_once == 3


def test_a_truncate_and_a_moved_row_wait_for_what_they_concern():
    events = [
        insert(0, "a"),
        insert(1, "b", op="update", old_key=("a",)),
        insert(2, "c"),
        change(3, op="truncate"),
    ]
    with (
        Receiver(refusing("a")) as receiver,
        opened(receiver.url, limits=Limits(worker_count=4)) as sink,
    ):
        verdicts = sink.deliver(batch(*events))
    assert list(verdicts) == [0, 1, 3]
    assert [call.json["key"] for call in receiver.calls] == [["a"], ["c"]]


@pytest.mark.parametrize("status", [429, 503])
def test_retry_after_is_the_wait_of_all_that_waits(status):
    def busy(call: Call) -> Reply:
        return Reply(status, {"Retry-After": "17"})

    with (
        Receiver(busy) as receiver,
        opened(receiver.url, limits=Limits(worker_count=1)) as sink,
    ):
        verdicts = sink.deliver(batch(insert(1), insert(2)))
        assert [verdict.wait_seconds for verdict in verdicts.values()] == [17.0, 17.0]
        receiver.answer = lambda call: Reply(503, {"Retry-After": formatdate(usegmt=True)})
        assert sink.deliver(batch(insert(1)))[0].wait_seconds == 0.0
    assert len(receiver.calls) == 2


def test_several_changes_in_one_call():
    changes = [insert(n) for n in range(25)]
    limits = Limits(changes_per_request=10)
    with Receiver() as receiver, opened(receiver.url, limits=limits) as sink:
        assert sink.deliver(batch(*changes)) == {}
    assert [len(call.json) for call in receiver.calls] == [10, 10, 5]
    assert [e["id"] for c in receiver.calls for e in c.json] == [e.event_id for e in changes]
    assert len(set(receiver.ids)) == 3


def test_of_several_changes_in_one_call_only_the_one_at_fault_is_refused():
    changes = [insert(n) for n in range(16)]

    def poison(call: Call) -> Reply:
        return Reply(400 if any(e["key"] == ["11"] for e in call.json) else 204)

    with (
        Receiver(poison) as receiver,
        opened(receiver.url, limits=Limits(changes_per_request=16)) as sink,
    ):
        assert list(sink.deliver(batch(*changes))) == [11]
    delivered = [e["id"] for c in receiver.calls if len(poison(c).headers) == 0 for e in c.json]
    assert {e.event_id for e in changes} <= set(delivered)


def test_a_subscriber_that_is_not_there_is_unreachable_and_nothing_is_given_up():
    with socket.create_server(("127.0.0.1", 0)) as unused:
        port = unused.getsockname()[1]
    with opened(f"http://127.0.0.1:{port}/") as sink:
        verdicts = sink.deliver(batch(insert(1), insert(2)))
    assert [is_waited_for(v, "Connection refused") for v in verdicts.values()] == [True, True]
    with opened("http://nowhere.invalid/") as sink:
        [verdict] = sink.deliver(batch(insert(1))).values()
    assert is_waited_for(verdict, "cannot resolve nowhere.invalid")


def is_waited_for(verdict: Verdict, reason: str) -> bool:
    """Whether a change waits because its subscriber is away."""
    return isinstance(verdict, NotNow) and verdict.is_away and reason in verdict.reason


def test_an_answer_that_does_not_come_ends_with_the_timeout():
    never = threading.Event()
    with (
        Receiver(lambda call: Reply(after=never)) as receiver,
        opened(receiver.url, timeout_seconds=0.5) as sink,
    ):
        began = time.monotonic()
        verdicts = sink.deliver(batch(insert(1), insert(2)))
        assert time.monotonic() - began < 10
        assert verdicts[0] == NotNow("no answer in time")
        assert verdicts[1].reason.startswith("waits for")
        never.set()


def test_an_answer_that_comes_byte_by_byte_ends_with_the_timeout():
    enough = threading.Event()
    with (
        Receiver(lambda call: Reply(200, drip=enough)) as receiver,
        opened(receiver.url, timeout_seconds=0.5) as sink,
    ):
        assert sink.deliver(batch(insert(1)))[0] == NotNow("no answer in time")
        enough.set()


def test_a_lost_connection_is_tried_again_and_nothing_is_lost():
    with socket.create_server(("127.0.0.1", 0)) as server:

        def hang_up() -> None:
            connection, _ = server.accept()
            connection.recv(100)
            connection.close()

        thread = threading.Thread(target=hang_up)
        thread.start()
        with opened(f"http://127.0.0.1:{server.getsockname()[1]}/") as sink:
            verdicts = sink.deliver(batch(insert(1)))
        thread.join()
    assert isinstance(verdicts[0], NotNow)
    assert verdicts[0].reason.startswith("the connection was lost")


@pytest.mark.parametrize("worker_count", [1, 3])
def test_a_subscriber_that_refuses_everything_gets_a_few_calls_of_a_batch(worker_count):
    changes = [insert(n) for n in range(500)]
    with (
        Receiver(statuses(401)) as receiver,
        opened(receiver.url, limits=Limits(worker_count=worker_count)) as sink,
    ):
        verdicts = sink.deliver(batch(*changes))
    assert 20 <= len(receiver.calls) < 20 + worker_count
    assert len(verdicts) == 500
    assert all(is_waited_for(verdict, "HTTP 401") for verdict in verdicts.values())


def test_refusals_of_all_changes_cost_a_few_dead_letters_however_they_come():
    with Receiver(statuses(401)) as receiver, opened(receiver.url) as sink:
        verdicts = [sink.deliver(batch(insert(n)))[0] for n in range(60)]
        assert sum(isinstance(verdict, Refused) for verdict in verdicts) == 19
        assert all(is_waited_for(verdict, "HTTP 401") for verdict in verdicts[19:])
        health = sink.health()
    with Receiver(refusing("1")) as receiver, opened(receiver.url) as sink:
        sink.restore(health)  # a process that starts again continues counting
        assert is_waited_for(sink.deliver(batch(insert(1)))[0], "HTTP 400")
        # With a delivery in between it is the change that is at fault.
        verdicts = sink.deliver(batch(insert(1), insert(2)))
        assert {n: type(verdict) for n, verdict in verdicts.items()} == {0: Refused}


def test_a_subscriber_that_never_answers_costs_one_dead_letter_at_most():
    never = threading.Event()
    with (
        Receiver(lambda call: Reply(after=never)) as receiver,
        opened(receiver.url, timeout_seconds=0.2) as sink,
    ):
        for _ in range(3):  # it may be this change that it cannot take
            [verdict] = sink.deliver(batch(insert(1))).values()
            assert verdict == NotNow("no answer in time")
        [verdict] = sink.deliver(batch(insert(2))).values()
        assert is_waited_for(verdict, "no answer in time")
        never.set()


@pytest.mark.parametrize("status", [429, 502, 503, 504])
def test_a_subscriber_that_asks_for_a_pause_costs_no_dead_letter(status):
    with Receiver(statuses(status)) as receiver, opened(receiver.url) as sink:
        for _ in range(3):
            verdicts = sink.deliver(batch(insert(1), insert(2)))
            assert all(is_waited_for(verdict, f"HTTP {status}") for verdict in verdicts.values())
    assert len(receiver.calls) == 3


@pytest.mark.parametrize("worker_count", [1, 3])
def test_a_batch_that_takes_long_is_delivered_in_parts(worker_count, monkeypatch):
    monkeypatch.setattr(delivery, "PART_SECONDS", 0.0)
    limits = Limits(worker_count=worker_count)
    left = changes = [insert(n, str(n % 5)) for n in range(20)]
    with Receiver() as receiver, opened(receiver.url, limits=limits) as sink:
        while left:
            verdicts = sink.deliver(batch(*left))
            assert all(isinstance(v, NotNow) and v.is_behind for v in verdicts.values())
            assert 1 <= len(left) - len(verdicts) <= worker_count
            left = [change for index, change in enumerate(left) if index in verdicts]
    assert sorted(receiver.ids) == sorted(change.event_id for change in changes)
    for key in range(5):
        of_key = [change.event_id for change in changes if change.key == (str(key),)]
        assert [id_ for id_ in receiver.ids if id_ in of_key] == of_key


def test_a_call_that_is_refused_is_sent_in_halves_however_long_that_takes(monkeypatch):
    monkeypatch.setattr(delivery, "PART_SECONDS", 0.0)

    def poison(call: Call) -> Reply:
        return Reply(400 if any(e["key"] == ["3"] for e in call.json) else 204)

    limits = Limits(changes_per_request=8)
    with Receiver(poison) as receiver, opened(receiver.url, limits=limits) as sink:
        verdicts = sink.deliver(batch(*[insert(n) for n in range(12)]))
    assert {index: type(verdict) for index, verdict in verdicts.items()} == {
        3: Refused,
        **dict.fromkeys(range(8, 12), NotNow),
    }


@pytest.mark.parametrize("worker_count", [1, 3])
def test_a_stop_ends_a_batch_after_the_calls_that_are_being_made(worker_count):
    """P98: calls under way end first."""
    stop = threading.Event()

    def stopping(call: Call) -> Reply:
        if len(receiver.calls) >= 10:
            stop.set()
        return Reply()

    changes = [insert(n) for n in range(500)]
    with (
        Receiver(stopping) as receiver,
        opened(receiver.url, stop=stop, limits=Limits(worker_count=worker_count)) as sink,
    ):
        verdicts = sink.deliver(batch(*changes))
    delivered = {event.event_id for i, event in enumerate(changes) if i not in verdicts}
    assert delivered == set(receiver.ids)
    assert len(receiver.ids) < 20


def test_an_error_of_the_renderer_is_raised_when_no_call_is_left():
    gate = threading.Event()

    def broken(event):
        if event.key == ("1",):
            gate.set()
            raise ZeroDivisionError
        return rendered(event)

    with (
        Receiver(lambda call: Reply(after=gate)) as receiver,
        opened(receiver.url, render=broken, limits=Limits(worker_count=2)) as sink,
    ):
        with pytest.raises(ZeroDivisionError):
            sink.deliver(batch(insert(0), insert(1)))
        assert receiver.ids == [insert(0).event_id]


def test_cookies_of_answers_are_not_sent_again():
    with (
        Receiver(lambda call: Reply(204, {"set-cookie": f"c{call.id[-3:]}=1; Path=/"})) as receiver,
        opened(receiver.url) as sink,
    ):
        assert sink.deliver(batch(*[insert(n) for n in range(20)])) == {}
    assert not [call for call in receiver.calls if "cookie" in call.headers]


def test_a_long_answer_is_not_read_to_its_end():
    with (
        Receiver(lambda call: Reply(200, body=b"x" * 5_000_000)) as receiver,
        opened(receiver.url) as sink,
    ):
        assert sink.deliver(batch(insert(1), insert(2))) == {}
    assert len(receiver.calls) == 2


def test_a_row_of_five_megabytes_is_delivered():
    body = b'"' + b"x" * 5_000_000 + b'"'
    with Receiver() as receiver, opened(receiver.url, render=lambda given: body) as sink:
        assert sink.deliver(batch(insert(1))) == {}
    assert receiver.calls[0].body == body


def test_a_subscriber_that_is_busy_for_a_while_loses_nothing():
    changes = [insert(n, str(n % 5)) for n in range(200)]
    with Receiver() as receiver, opened(receiver.url, limits=Limits(worker_count=3)) as sink:
        receiver.answer = lambda call: Reply(503 if len(receiver.calls) > 60 else 204)
        verdicts = sink.deliver(batch(*changes))
        left = [event for index, event in enumerate(changes) if index in verdicts]
        assert 100 < len(left) < 200
        assert len(receiver.calls) < 70  # the endpoint's answer counts for all
        receiver.answer = lambda call: Reply()
        assert sink.deliver(batch(*left)) == {}
    assert set(receiver.ids) == {event.event_id for event in changes}


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"garbage\r\n\r\n",
        b"HTTP/1.1 abc\r\n\r\n",
        b"HTTP/1.1 99999 no\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ncontent-length: x\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nab",
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n",
        b"HTTP/1.1 503 \xff\r\nretry-after: \xff\xfe\r\ncontent-length: 0\r\n\r\n",
        b"HTTP/1.1 400 no\r\ncontent-encoding: gzip\r\ncontent-length: 3\r\n\r\n\xff\xfe\x00",
        b"HTTP/1.1 200 OK\r\n" + b"x: " + b"y" * 300_000,
        b"HTTP/1.1 101 Switching\r\n\r\n",
    ],
)
def test_an_answer_that_is_not_http_is_a_verdict_and_no_crash(answer):
    with socket.create_server(("127.0.0.1", 0)) as server:

        def speak() -> None:
            connection, _ = server.accept()
            with connection, suppress(OSError):
                connection.recv(65_536)
                connection.sendall(answer)
                connection.shutdown(socket.SHUT_WR)
                while connection.recv(65_536):
                    pass

        thread = threading.Thread(target=speak)
        thread.start()
        with opened(f"http://127.0.0.1:{server.getsockname()[1]}/") as sink:
            verdicts = sink.deliver(batch(insert(1)))
        thread.join()
    assert isinstance(verdicts[0], NotNow | Refused)


def test_a_slow_subscriber_delays_no_other():
    gate = threading.Event()
    with (
        Receiver(lambda call: Reply(after=gate)) as slow,
        Receiver() as quick,
        opened(slow.url) as slow_sink,
        opened(quick.url) as quick_sink,
    ):
        thread = threading.Thread(target=slow_sink.deliver, args=(batch(insert(1)),))
        thread.start()
        assert quick_sink.deliver(batch(*[insert(n) for n in range(50)])) == {}
        assert not slow.calls
        gate.set()
        thread.join()
    assert len(slow.calls) == 1


def test_410_disables_with_a_named_event_and_no_further_call():
    reasons: list[tuple[str, str]] = []
    with (
        Receiver(statuses(204, 410)) as receiver,
        opened(
            receiver.url, on_disabled=lambda entry, reason: reasons.append((entry.name, reason))
        ) as sink,
    ):
        for _ in range(2):
            with pytest.raises(SubscriptionDisabled, match=r"answered 410 Gone.*subscribe again"):
                sink.deliver(batch(insert(1), insert(2), insert(3)))
        with pytest.raises(SubscriptionDisabled):
            sink.open()
    assert len(receiver.calls) == 2
    assert reasons == [("hook", "it answered 410 Gone")]


def test_failures_in_a_row_disable():
    limits = Limits(disable_after_failures=3)
    with (
        Receiver(statuses(500, 500, 204, 500)) as receiver,
        opened(receiver.url, limits=limits) as sink,
    ):
        for _ in range(2):
            assert sink.deliver(batch(insert(1)))
        assert sink.deliver(batch(insert(1))) == {}
        for _ in range(2):
            assert sink.deliver(batch(insert(2)))
        with pytest.raises(SubscriptionDisabled, match="3 calls in a row failed"):
            sink.deliver(batch(insert(2)))


def test_hours_without_a_delivery_count_over_restarts():
    day, health = 86_400.0, Health()
    limits = Limits(disable_after_seconds=5 * day)
    with Receiver(statuses(503)) as receiver:
        for hour in range(5 * 24):
            with opened(receiver.url, limits=limits, clock=lambda: hour * 3600.0) as sink:  # noqa: B023
                sink.restore(health)
                assert sink.deliver(batch(insert(1)))
                health = decoded(sink.health())
        with opened(receiver.url, limits=limits, clock=lambda: 5 * day) as sink:
            sink.restore(health)
            with pytest.raises(SubscriptionDisabled, match=r"all calls failed for 120\.0 hours"):
                sink.deliver(batch(insert(1)))
            health = decoded(sink.health())
    assert len(receiver.calls) == 121
    assert [call.status for call in health.calls] == [503] * 20


def decoded(health: Health) -> Health:
    """As the progress stores it."""
    return msgspec.json.decode(msgspec.json.encode(health), type=Health)


def test_a_disabled_subscription_of_the_file_is_tried_once_by_each_process():
    with Receiver(statuses(410)) as receiver:
        with opened(receiver.url, is_of_file=True) as sink, pytest.raises(SubscriptionDisabled):
            sink.deliver(batch(insert(1)))
        health = sink.health()
        with sink_of(receiver.url, health) as again, pytest.raises(SubscriptionDisabled):
            again.open()
        assert len(receiver.calls) == 1
        receiver.answer = lambda call: Reply()
        other = msgspec.structs.replace(health, disabled_in="another process")
        with sink_of(receiver.url, other) as again:
            again.open()
            assert again.deliver(batch(insert(1))) == {}
            assert again.health().failures == 0


@contextmanager
def sink_of(url: str, health: Health) -> Iterator[WebhookSink]:
    """A sink that was stored with this health, not opened yet."""
    with closing(sink(url, is_of_file=True)) as made:
        made.restore(health)
        yield made


def test_a_failure_long_ago_does_not_disable():
    limits = Limits(disable_after_seconds=0.0)
    with Receiver(statuses(404)) as receiver, opened(receiver.url, limits=limits) as sink:
        assert list(sink.deliver(batch(insert(1)))) == [0]
        assert list(sink.deliver(batch(insert(2)))) == [0]
        assert sink.deliver(batch(insert(3, namespace="pgstream"))) == {}
        while len(receiver.calls) < 9:
            assert list(sink.deliver(batch(insert(4)))) == [0]
        with pytest.raises(SubscriptionDisabled):
            sink.deliver(batch(insert(5)))


def test_hours_without_a_delivery_disable():
    limits = Limits(disable_after_seconds=0.2)
    with Receiver(statuses(404)) as receiver, opened(receiver.url, limits=limits) as sink:
        assert isinstance(sink.deliver(batch(insert(1)))[0], Refused)

        def is_disabled() -> bool:
            try:
                sink.deliver(batch(insert(2)))
            except SubscriptionDisabled as error:
                return "all calls failed for" in str(error)
            return False

        until(is_disabled)


def test_history_says_what_happened():
    with Receiver(statuses(204, 503, 204)) as receiver, opened(receiver.url) as sink:
        sink.deliver(batch(insert(1), insert(2)))
        seen = sink.history.delivery()
        assert (seen.delivered_changes, seen.attempts, seen.failures_in_row) == (1, 2, 1)
        assert [a.outcome for a in seen.recent] == [Outcome.DELIVERED, Outcome.NOT_NOW]
        assert seen.recent[1].status == 503
        assert seen.recent[1].message_id == insert(2).event_id
        attempt = sink.test()
        assert attempt.outcome is Outcome.DELIVERED
    call = receiver.calls[-1]
    assert standardwebhooks.Webhook(SECRET).verify(call.body, dict(call.headers)) == {
        "type": "pgstream.test"
    }


# --- addresses ----------------------------------------------------------------------------------


def is_loopback(address) -> bool:
    """Take this machine for the internet: the tests have no other public address."""
    return address.is_loopback


def test_a_private_address_is_not_connected_to():
    with (
        Receiver() as receiver,
        opened(receiver.url, is_allowed=is_public) as sink,
        pytest.raises(SinkRefused, match=r"has the address 127\.0\.0\.1.*allow_private_addresses"),
    ):
        sink.deliver(batch(insert(1)))
    assert not receiver.calls


def test_the_address_that_was_checked_is_the_one_that_is_connected_to():
    answers = [["127.0.0.1"]]

    def rebinding(host: str, port: int) -> list[str]:
        return answers.pop(0)  # a second look-up would be an error

    with Receiver() as receiver:
        url = receiver.url.replace("127.0.0.1", "hooks.example.com")
        with opened(url, resolve=rebinding) as sink:
            assert sink.deliver(batch(insert(1))) == {}
        assert receiver.calls[0].headers["host"] == f"hooks.example.com:{receiver.port}"
        answers.append(["10.0.0.1", "::ffff:127.0.0.1", "127.0.0.1"])
        with (
            opened(url, resolve=rebinding, is_allowed=is_public) as sink,
            pytest.raises(SinkRefused, match=r"hooks\.example\.com has the address 10\.0\.0\.1"),
        ):
            sink.deliver(batch(insert(1)))


def test_a_name_that_turns_private_between_two_connections_is_refused():
    answers = [["127.0.0.1"], ["10.0.0.1"]]
    with Receiver(lambda call: Reply(204, {"connection": "close"})) as receiver:
        url = f"http://hooks.example.com:{receiver.port}/hook"
        resolve = lambda host, port: answers.pop(0)  # noqa: E731
        with opened(url, resolve=resolve, is_allowed=is_loopback) as sink:
            assert sink.deliver(batch(insert(1))) == {}
            with pytest.raises(SinkRefused, match=r"has the address 10\.0\.0\.1"):
                sink.deliver(batch(insert(2)))
    assert len(receiver.calls) == 1


def test_redirects_are_refused_unless_they_are_allowed():
    with Receiver() as target:
        redirect = Reply(307, {"location": target.url})
        with Receiver(lambda call: redirect) as receiver:
            with opened(receiver.url) as sink:
                assert sink.deliver(batch(insert(1)))[0] == Refused("HTTP 307")
            assert not target.calls
            secret = {"authorization": "Bearer 0123456789"}
            with opened(receiver.url, redirects=1, own_headers=secret) as sink:
                assert sink.deliver(batch(insert(1))) == {}
        assert target.calls[0].body == rendered(insert(1))
        assert "authorization" not in target.calls[0].headers
        assert receiver.calls[-1].headers["authorization"] == "Bearer 0123456789"


def test_redirects_end():
    with Receiver() as receiver:
        receiver.answer = lambda call: Reply(308, {"location": "/again"})
        with opened(receiver.url, redirects=3) as sink:
            assert sink.deliver(batch(insert(1)))[0] == Refused("HTTP 308")
    assert [call.path for call in receiver.calls] == ["/hook", "/again", "/again", "/again"]


@pytest.mark.parametrize(
    "location",
    ["http://[", "http://xn--/", "//:99999/", "ftp://a/", "http://u:p@127.0.0.1/", "http://a b/"],
)
def test_a_redirect_to_what_is_no_address_is_refused(location):
    for redirects in (0, 3):
        with (
            Receiver(lambda call: Reply(307, {"location": location})) as receiver,
            opened(receiver.url, redirects=redirects) as sink,
        ):
            assert sink.deliver(batch(insert(1)))[0] == Refused("HTTP 307")


def test_a_redirect_that_would_turn_the_post_into_a_get_is_refused():
    with (
        Receiver(lambda call: Reply(302, {"location": "/other"})) as receiver,
        opened(receiver.url, redirects=3) as sink,
    ):
        assert sink.deliver(batch(insert(1)))[0] == Refused("HTTP 302")
    assert len(receiver.calls) == 1


def test_a_redirect_to_a_private_address_is_not_followed():
    addresses = {"hooks.example.com": ["127.0.0.1"], "inside.example.com": ["10.9.9.9"]}
    with Receiver() as receiver:
        location = f"http://inside.example.com:{receiver.port}/hook"
        receiver.answer = lambda call: Reply(307, {"location": location})
        url = f"http://hooks.example.com:{receiver.port}/hook"
        resolve = lambda host, port: addresses[host]  # noqa: E731
        with (
            opened(url, redirects=1, resolve=resolve, is_allowed=is_loopback) as sink,
            pytest.raises(SinkRefused, match=r"inside\.example\.com has the address 10\.9\.9\.9"),
        ):
            sink.deliver(batch(insert(1)))
    assert len(receiver.calls) == 1


# --- TLS and silence ----------------------------------------------------------------------------


def test_tls_is_verified_against_the_name_of_the_url(tmp_path):
    authority = trustme.CA()
    certificate = authority.issue_cert("hooks.example.com")
    key, chain = tmp_path / "key.pem", tmp_path / "chain.pem"
    certificate.private_key_pem.write_to_path(key)
    for pem in certificate.cert_chain_pems:
        pem.write_to_path(chain, append=True)
    verify = ssl.create_default_context()
    authority.configure_trust(verify)
    tls = {"ssl_keyfile": str(key), "ssl_certfile": str(chain)}
    with Receiver(tls=tls) as receiver:
        for host, does_deliver in {"hooks.example.com": True, "other.example.com": False}.items():
            url = f"https://{host}:{receiver.port}/"
            with opened(url, resolve=lambda *_: ["127.0.0.1"], verify=verify) as sink:
                if does_deliver:
                    assert sink.deliver(batch(insert(1))) == {}
                else:
                    [verdict] = sink.deliver(batch(insert(1))).values()
                    assert is_waited_for(verdict, "CERTIFICATE_VERIFY_FAILED")


@pytest.mark.parametrize(
    "answer",
    [
        "<pre>Cannot POST {target}</pre>",
        "{decoded} is not served here",
        "x" * 480 + " {target}",
        '{{"path": "{slashes}"}}',
        "no route to {mounted}",
    ],
)
def test_no_path_that_an_answer_repeats_is_in_a_log_a_verdict_or_the_history(answer, caplog):
    caplog.set_level(logging.DEBUG)
    target = "/hooks/path%2Fsecret-1234/in?token=query%20secret"
    decoded = "/hooks/path/secret-1234/in?token=query secret"
    forms = {
        "target": target,
        "decoded": decoded,
        "slashes": decoded.replace("/", "\\/"),
        "mounted": "path%2fsecret-1234/in",
    }
    body = answer.format(**forms).encode()
    with (
        Receiver(lambda call: Reply(404, body=body)) as receiver,
        opened(receiver.url.replace("/hook", target)) as sink,
    ):
        verdicts = sink.deliver(batch(insert(1)))
        receiver.answer = lambda call: Reply(503, body=body)
        waiting = sink.deliver(batch(insert(2)))
        shown = repr((verdicts, waiting, sink.history.delivery(), sink.health())) + caplog.text
    assert "***" in shown
    for secret in ("secret-12", "query", "path%2", "path/s", "path\\/"):
        assert secret not in shown


def test_what_is_hidden_of_an_answer_leaves_no_part_where_it_is_cut(caplog):
    secret = "0123456789abcdef" * 30
    with Receiver() as receiver:
        receiver.answer = lambda call: Reply(400, body=(call.path * 400).encode())
        with opened(f"{receiver.url}/{secret}") as sink:
            [verdict] = sink.deliver(batch(insert(1))).values()
    assert "***" in verdict.reason
    assert "0123" not in verdict.reason


def test_no_secret_header_or_path_is_in_a_log_or_a_verdict(caplog):
    caplog.set_level(logging.DEBUG)
    value = "Bearer top-secret-token"

    def echo(call: Call) -> Reply:
        body = " ".join(f"{name}={text}" for name, text in call.headers.items())
        return Reply(400, {"set-cookie": "session=cookie-secret"}, body.encode())

    with Receiver(echo) as receiver:
        url = receiver.url + "/path-secret?token=query-secret"
        with opened(url, own_headers={"Authorization": value}) as sink:
            verdicts = sink.deliver(batch(insert(1)))
            receiver.answer = lambda call: Reply()
            assert sink.deliver(batch(insert(2))) == {}
            receiver.answer = lambda call: Reply(410)
            with pytest.raises(SubscriptionDisabled) as disabled:
                sink.deliver(batch(insert(3)))
            shown = repr(sink.history.delivery()) + repr(verdicts) + str(disabled.value)
            shown += repr(sink._endpoint)
    logged = "\n".join(record.getMessage() for record in caplog.records)
    assert "did not take" in logged and "delivers again" in logged and "is disabled" in logged
    assert isinstance(verdicts[0], Refused) and "authorization=***" in verdicts[0].reason
    for secret in ("top-secret", SECRET, SECRET[6:], "0123456789012345678901"):
        assert secret not in logged + shown
    for secret in ("cookie-secret", "path-secret", "query-secret"):
        assert secret not in logged
    signatures = re.findall(r"v1,\S+", logged)
    assert signatures == []
