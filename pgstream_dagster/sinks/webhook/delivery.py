"""
Delivers the changes of one subscription by HTTP.

Delivered means: the subscriber answered 2xx. With one worker, calls are made one after the other in
the order of all changes, and a change that is not accepted now holds back all later ones. With
more, the order of each key is kept, and a change that is not accepted holds back its key only.
A change may be delivered again after a crash or a lost answer: its id is the same then.

Before each call this process ensures that it alone delivers. No check can take back a call that is
being made: a process that is suspended in it finishes it when it wakes. These are up to
`worker_count` calls, which then arrive after changes that another process has delivered meanwhile.
"""

from __future__ import annotations

import itertools
import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass, field, replace
from typing import Final, NoReturn, TypeAlias
from urllib.parse import urlsplit

import httpx
import msgspec

from pgstream_dagster.errors import (
    PrivateAddress,
    SinkRefused,
    SinkUnreachable,
    SourceError,
    SubscriptionDisabled,
)
from pgstream_dagster.process_identity import this_process
from pgstream_dagster.readers.change import Change, ChangeBatch
from pgstream_dagster.sinks.base import Health, NotNow, Refused, Verdict, Verdicts
from pgstream_dagster.sinks.webhook.answers import Meaning, Outcome, meaning
from pgstream_dagster.sinks.webhook.history import Attempt, History, attempt_of
from pgstream_dagster.sinks.webhook.messages import (
    TEST_BODY,
    Message,
    Render,
    Rendered,
    Route,
    headers,
    message,
)
from pgstream_dagster.sinks.webhook.order import Held, queues
from pgstream_dagster.sinks.webhook.redaction import Redaction
from pgstream_dagster.sinks.webhook.signing import Secret, signature
from pgstream_dagster.sinks.webhook.subscription import Subscription
from pgstream_dagster.sinks.webhook.transport import Poster

logger = logging.getLogger(__name__)

BEHIND: Final = "waits for an earlier change that was not delivered"

PUT_OFF: Final = "is not sent yet"

SILENT: Final = "its address did not answer another event of the batch"

LEAST_FAILURES: Final = 10
"""Before hours without a delivery count: a table may change once a week."""

MOST_REFUSED: Final = 20
"""In a row: a subscriber that refuses everything (401, 404) has lost its credentials or its
address, so its changes wait and do not become dead letters."""

PART_SECONDS: Final = 5.0
"""After which the rest of a batch is put off: what is delivered is stored, and what people asked is
done, before it continues. Workers wait for each other then, so that it is not less."""

OnDisabled: TypeAlias = Callable[[Subscription, str], None]
"""Called once when a subscription is disabled, with the reason: it makes that durable."""


@dataclass(frozen=True, slots=True)
class Limits:
    """How much at a time, how long, and when to give up."""

    worker_count: int = 1
    changes_per_request: int = 1
    disable_after_seconds: float = 432_000.0
    disable_after_failures: int = 1_000_000
    history: int = 100


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where a subscription's calls go and what they carry; opens connections when used."""

    subscription: Subscription
    poster: Poster
    secrets: Sequence[Secret]
    own_headers: Mapping[str, str] = field(default_factory=dict[str, str], repr=False)


@dataclass(frozen=True, slots=True)
class _Item:
    """One change to deliver, and its index in the batch."""

    index: int
    change: Change


_ToSend: TypeAlias = "tuple[_Item, Rendered | Refused | None]"


class _Work:
    """One batch being delivered, shared by the workers; each writes verdicts of its own changes."""

    def __init__(self, items: Sequence[_Item], require: Callable[[float], None]) -> None:
        self.items, self.require = items, require
        self.until = time.monotonic() + PART_SECONDS
        self.verdicts: dict[int, Verdict] = {}
        self.has_delivered = False
        self.refused_in_row = 0
        self.refusal = ""
        self.failed_ids = set[str]()
        self.silent = set[str]()
        """Addresses of events that did not answer, and origins that cannot be reached: another call
        would cost the same time."""
        self.end: Meaning | None = None
        """Why no further call of the batch is made."""


class WebhookSink:
    """
    A sink for one subscription; see `sinks.base.Sink`.

    Once `stop` is set, no further call is made: the rest of the batch is `NotNow`. A subscription
    that was disabled stays so for this object; when it is enabled again it gets another. What it
    has failed since counts over restarts.
    """

    keeps_cursor = False

    def __init__(
        self,
        endpoint: Endpoint,
        render: Render,
        limits: Limits,
        on_disabled: OnDisabled = lambda subscription, reason: None,
        *,
        is_of_file: bool = False,
        stop: threading.Event | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._is_of_file = is_of_file
        self.history = History(limits.history)
        self._endpoint = endpoint
        self._name = endpoint.subscription.name or endpoint.subscription.origin
        self._redaction = Redaction([endpoint.subscription.url], endpoint.own_headers.values())
        self._render = render
        self._limits = limits
        self._on_disabled = on_disabled
        self._stop = stop or threading.Event()
        self._clock = clock
        self._disabled: str | None = None
        self._workers: ThreadPoolExecutor | None = None

    def open(self) -> None:
        """Connections are made by calls. Raises `SubscriptionDisabled` where it has been."""
        if self._disabled is not None:
            raise SubscriptionDisabled(self._name, self._disabled)
        if self._workers is None and self._limits.worker_count > 1:
            self._workers = ThreadPoolExecutor(self._limits.worker_count, "pgstream-webhook")

    def restore(self, health: Health) -> None:
        """
        Count on from the last process.

        A subscription of the file that was disabled is tried with one batch after a restart. A row
        of the table that is read here has been enabled since.
        """
        if health.disabled is not None and not self._is_of_file:
            return
        self.history.restore(health)
        if health.disabled_in == this_process():
            self._disabled = health.disabled

    def health(self) -> Health:
        """See `sinks.base.WithHealth`."""
        health, disabled = self.history.health(), self._disabled
        if disabled is None:
            return health
        return msgspec.structs.replace(health, disabled=disabled, disabled_in=this_process())

    def deliver(self, batch: ChangeBatch) -> Verdicts:
        """
        Deliver the changes that the subscription asks for; see `sinks.base.Sink.deliver`.

        What the subscriber does as a whole is no change's fault: while it cannot be reached, asks
        for a pause (429, 502 to 504, `Retry-After`), answers no call or refuses every one, changes
        are `NotNow` with `is_away`. What is not called within `PART_SECONDS` is put off.

        Raises:
            SinkUnreachable: it is to be disabled, and the table cannot be written.
            SinkRefused: the subscriber's address is not allowed.
            SubscriptionDisabled: it failed for too long, or answered 410.
        """
        if self._disabled is not None:
            raise SubscriptionDisabled(self._name, self._disabled)
        matches = self._endpoint.subscription.matches
        items = [_Item(i, c) for i, c in enumerate(batch.changes) if matches(c)]
        work = _Work(items, batch.require)
        shares = queues([item.change for item in work.items], self._limits.worker_count)
        if self._workers is None:
            for share in shares:
                self._deliver_share(work, share)
        else:
            futures = [self._workers.submit(self._deliver_share, work, s) for s in shares]
            wait(futures)  # all of them: a call that outlived this one would overtake the next
            for future in futures:
                future.result()
        self._require_endpoint(work)
        return self._waiting(work) if self._is_away(work) else work.verdicts

    def test(self) -> Attempt:
        """Make one signed call without a change, and record it."""
        sent = Message(f"test-{self._clock():.6f}", TEST_BODY, None)
        return self._attempt(sent, 0)[1]

    def close(self) -> None:
        """Close connections and threads."""
        if self._workers is not None:
            self._workers.shutdown()
            self._workers = None
        self._endpoint.poster.close()

    def _deliver_share(self, work: _Work, share: Sequence[int]) -> None:
        """Deliver one queue, in order: the first call, and as many as there is time for."""
        held, size = Held(), self._limits.changes_per_request
        items = [work.items[at] for at in share]
        for start in range(0, len(items), size):
            if start and time.monotonic() >= work.until:
                _put_off(work, items[start:])
                return
            self._deliver_call(work, items[start : start + size], held)

    def _deliver_call(self, work: _Work, items: Sequence[_Item], held: Held) -> None:
        """One call; what is refused as a whole is sent in halves, to find the change at fault."""
        ready = self._ready(work, items, held)
        # made here and not for the whole batch, which would be in memory twice
        rendered = [(item, self._render(item.change)) for item in ready]
        for _, part in itertools.groupby(rendered, key=_route):
            self._deliver_part(work, list(part), held)

    def _deliver_part(self, work: _Work, part: Sequence[_ToSend], held: Held) -> None:
        """The changes of a call that have one route, or cannot be sent at all."""
        if refused := [(item, r) for item, r in part if isinstance(r, Refused)]:
            for item, refusal in refused:
                work.verdicts[item.index] = refusal
                held.add(item.change)
            return
        ready = self._ready(work, [item for item, _ in part], held)
        sent = [(i, r) for i, r in part if isinstance(r, Rendered) and i in ready]
        if not sent:
            return
        ready, is_array = [item for item, _ in sent], self._limits.changes_per_request > 1
        call = message(ready[-1].change, [r for _, r in sent], is_array=is_array)
        own_url = call.route.url
        if own_url is not None and not work.silent.isdisjoint(_address(own_url)):
            self._failed_elsewhere(work, ready, held, Meaning(Outcome.NOT_NOW, SILENT))
            return
        work.require(self._endpoint.poster.timeout_seconds)
        result, _ = self._attempt(call, len(ready))
        if result.outcome is Outcome.DELIVERED:
            work.has_delivered, work.refused_in_row = True, 0
        elif result.outcome is Outcome.REFUSED and len(ready) > 1:
            middle = len(ready) // 2
            self._deliver_call(work, ready[:middle], held)
            self._deliver_call(work, ready[middle:], held)
        elif own_url is not None:
            address, origin = _address(own_url)
            if result.outcome is Outcome.UNREACHABLE:
                work.silent.add(origin)
            elif result.outcome is Outcome.NOT_NOW and result.status is None:
                work.silent.add(address)
            self._failed_elsewhere(work, ready, held, result)
        else:
            work.failed_ids.add(call.id)
            self._undelivered(work, ready, held, result)

    def _failed_elsewhere(
        self, work: _Work, items: Sequence[_Item], held: Held, result: Meaning
    ) -> None:
        """An address that only the event names did not take it: that is the event's matter."""
        is_refused = result.outcome in {Outcome.REFUSED, Outcome.FORBIDDEN, Outcome.GONE}
        for item in items:
            # How long that address wants to be left alone must not hold up all others.
            reason = result.reason
            work.verdicts[item.index] = Refused(reason) if is_refused else NotNow(reason)
            held.add(item.change)

    def _ready(self, work: _Work, items: Sequence[_Item], held: Held) -> list[_Item]:
        """The changes that wait for no other; the rest becomes `NotNow`."""
        if self._stop.is_set():
            work.end = work.end or Meaning(Outcome.NOT_NOW, "a stop was requested", stops_all=True)
        ready: list[_Item] = []
        for item in items:
            if work.end is None and item.change not in held:
                ready.append(item)
            else:
                seconds = None if work.end is None else work.end.wait_seconds
                work.verdicts[item.index] = NotNow(BEHIND, seconds, is_behind=True)
                held.add(item.change)
        return ready

    def _undelivered(
        self, work: _Work, items: Sequence[_Item], held: Held, result: Meaning
    ) -> None:
        is_refused = result.outcome is Outcome.REFUSED
        is_strict = self._limits.worker_count == 1
        work.refused_in_row += is_refused
        work.refusal = result.reason if is_refused else work.refusal
        is_hopeless = work.refused_in_row >= MOST_REFUSED
        if result.stops_all or is_hopeless or (is_strict and not is_refused):
            work.end = work.end or result
        for item in items:
            reason, seconds = result.reason, result.wait_seconds
            work.verdicts[item.index] = Refused(reason) if is_refused else NotNow(reason, seconds)
            held.add(item.change)

    def _require_endpoint(self, work: _Work) -> None:
        """Raise if what ended the batch is about the subscriber and not about its changes."""
        end = work.end
        if not work.verdicts:
            return
        if end is not None and end.outcome is Outcome.FORBIDDEN:
            remedy = "set allow_private_addresses, or correct the subscription's url"
            raise SinkRefused(self._name, end.reason, remedy)
        if (reason := self._reason_to_disable(end)) is not None:
            self._disable(reason)

    def _is_away(self, work: _Work) -> bool:
        """Whether what was not delivered is for reasons of the subscriber as a whole."""
        end, health = work.end, self.history.health()
        if not work.verdicts or self._stop.is_set():
            return False
        if end is not None and end.outcome in {Outcome.UNREACHABLE, Outcome.NOT_NOW}:
            if end.outcome is Outcome.UNREACHABLE or (end.stops_all and end.status is not None):
                return True
            # Without an answer it may be the change that the subscriber cannot take; not if an
            # earlier one had none either.
            return end.stops_all and not work.failed_ids <= {health.failing_id}
        return not work.has_delivered and health.refusals >= MOST_REFUSED

    def _waiting(self, work: _Work) -> Verdicts:
        reason, seconds = work.refusal or BEHIND, None
        if work.end is not None:
            reason, seconds = work.end.reason, work.end.wait_seconds
        return dict.fromkeys(work.verdicts, NotNow(reason, seconds, is_away=True))

    def _reason_to_disable(self, end: Meaning | None) -> str | None:
        if end is not None and end.outcome is Outcome.GONE:
            return "it answered 410 Gone"
        failures, since = self.history.failing()
        if failures >= self._limits.disable_after_failures:
            return f"{failures:,} calls in a row failed"
        if since is None or failures < LEAST_FAILURES:
            return None
        seconds = self._clock() - since.timestamp()
        if seconds >= self._limits.disable_after_seconds:
            return f"all calls failed for {seconds / 3600:.1f} hours"
        return None

    def _disable(self, reason: str) -> NoReturn:
        subscription = self._endpoint.subscription
        try:
            self._on_disabled(subscription, reason)
        except SourceError as error:
            raise SinkUnreachable(self._name, f"it cannot be disabled now: {error}") from error
        self._disabled = reason
        logger.warning("webhook %s is disabled: %s: %s", self._name, subscription.origin, reason)
        raise SubscriptionDisabled(self._name, reason)

    def _attempt(self, sent: Message, change_count: int) -> tuple[Meaning, Attempt]:
        began = self._clock()
        result = self._result(sent, int(began))
        result = replace(result, reason=self._redaction(result.reason))
        if sent.route.url is not None:  # says nothing of the subscriber
            return result, attempt_of(began, self._clock(), sent.id, change_count, result)
        failures, _ = self.history.failing()
        attempt = self.history.add(began, self._clock(), sent.id, change_count, result)
        if result.outcome is Outcome.DELIVERED and failures:
            logger.info("webhook %s: delivers again after %s failures", self._name, failures)
        elif result.outcome is not Outcome.DELIVERED and not failures:
            # an answer's body may repeat what was sent
            fact = result.reason if result.status is None else f"HTTP {result.status}"
            where = self._endpoint.subscription.origin
            logger.warning("webhook %s: %s did not take %s: %s", self._name, where, sent.id, fact)
        return result, attempt

    def _result(self, sent: Message, timestamp: int) -> Meaning:
        endpoint, route = self._endpoint, sent.route
        # Another address gets none of the subscription's headers, which may be secret.
        own = ({} if route.url else dict(endpoint.own_headers)) | dict(route.headers)
        signed = signature(endpoint.secrets, sent.id, timestamp, sent.body)
        sent_headers = headers(sent, timestamp, signed)
        try:
            answer = endpoint.poster.post(
                sent.body, sent_headers, own, self._redaction, url=route.url
            )
        except PrivateAddress as error:
            return Meaning(Outcome.FORBIDDEN, str(error), stops_all=True)
        except httpx.ConnectError as error:
            return Meaning(Outcome.UNREACHABLE, str(error) or "no connection", stops_all=True)
        except httpx.TimeoutException:
            return Meaning(Outcome.NOT_NOW, "no answer in time", stops_all=True)
        except httpx.TransportError as error:
            return Meaning(Outcome.NOT_NOW, f"the connection was lost: {error}", stops_all=True)
        return meaning(answer, self._clock())


def _route(rendered: _ToSend) -> Route | None:
    """Changes with one route may share a call; those without a body have none."""
    return rendered[1].route if isinstance(rendered[1], Rendered) else None


def _address(url: str) -> tuple[str, str]:
    """A URL without its query, and its origin."""
    parts = urlsplit(url)._replace(query="", fragment="")
    return parts.geturl(), parts._replace(path="").geturl()


def _put_off(work: _Work, items: Sequence[_Item]) -> None:
    for item in items:
        work.verdicts[item.index] = NotNow(PUT_OFF, is_behind=True)
