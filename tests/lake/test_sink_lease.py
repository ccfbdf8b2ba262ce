"""The lease of a sink: one process delivers, whatever its clock, its lake or its machine does."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import pytest

from pgstream_dagster.changelog.sink_log import Kind, SinkLog
from pgstream_dagster.changelog.table_specs import create_sinks
from pgstream_dagster.errors import LakeAway, SinkHeld, SinkLost
from pgstream_dagster.sinks import state
from pgstream_dagster.sinks.state import Progress, Request, SinkLease
from tests.support.plugins.wait import until

pytestmark = pytest.mark.slow

OTHER = "another-place:1:1"
SECONDS = 1.5


@pytest.fixture
def log(lake, gateway) -> Iterator[SinkLog]:
    create_sinks(lake, gateway)
    opened = SinkLog(lake, gateway)
    yield opened
    opened.close()


@pytest.fixture
def other_log(lake, gateway, log) -> Iterator[SinkLog]:
    opened = SinkLog(lake, gateway)
    yield opened
    opened.close()


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state, "LEASE_SECONDS", SECONDS)
    monkeypatch.setattr(state, "_seen", {})


def elsewhere(monkeypatch: pytest.MonkeyPatch, log: SinkLog, sink: str) -> SinkLease:
    """A lease that a process on another machine has taken."""
    with monkeypatch.context() as patched:
        patched.setattr(state, "this_process", lambda: OTHER)
        return SinkLease(log, sink)


def suspend(lease: SinkLease) -> None:
    """Its process renews nothing, as if it were stopped."""
    lease._ended.set()
    lease._thread.join()


def taken(log: SinkLog, sink: str) -> SinkLease:
    """The lease, once it is free."""
    leases = list[SinkLease]()

    def is_taken() -> bool:
        try:
            leases.append(SinkLease(log, sink))
        except SinkHeld:
            return False
        return True

    until(is_taken)
    return leases[0]


def test_a_holder_that_was_replaced_neither_delivers_nor_stores(log, other_log, short, monkeypatch):
    first = elsewhere(monkeypatch, log, "out")
    first.save(changes=5)
    with pytest.raises(SinkHeld):
        SinkLease(other_log, "out")
    suspend(first)
    second = taken(other_log, "out")
    assert second.progress.changes == 5
    with pytest.raises(SinkLost):
        first.require()
    with pytest.raises(SinkLost):
        first.save(changes=99)
    with pytest.raises(SinkLost):
        first.release(changes=99)
    second.require()
    second.release()
    assert state.progress(log, "out").changes == 5


@pytest.mark.parametrize("jump", [-86_400, 86_400])
def test_no_clock_decides_who_holds_a_lease(log, other_log, short, monkeypatch, jump):
    holder = elsewhere(monkeypatch, log, "out")
    clock = time.time
    monkeypatch.setattr(state.time, "time", lambda: clock() + jump)
    end = time.monotonic() + 2 * SECONDS
    while time.monotonic() < end:  # it is renewed, so it is never free
        with pytest.raises(SinkHeld):
            SinkLease(other_log, "out")
        holder.require()
    holder.release()
    SinkLease(other_log, "out").release()


def test_a_lease_of_a_clock_that_is_ahead_is_over_in_time(log, other_log, short, monkeypatch):
    clock = time.time
    with monkeypatch.context() as patched:
        patched.setattr(state.time, "time", lambda: clock() + 86_400)
        suspend(elsewhere(monkeypatch, log, "out"))
    began = time.monotonic()
    taken(other_log, "out").release()
    assert time.monotonic() - began < 20 * SECONDS


def test_without_a_renewal_nothing_is_delivered(log, short, monkeypatch):
    lease = SinkLease(log, "out")

    def away(*_: object) -> None:
        raise LakeAway("lake")

    with monkeypatch.context() as patched:
        patched.setattr(log, "put", away)
        lease.require()
        until(lambda: is_refused(lease, LakeAway))
    until(lambda: not is_refused(lease, LakeAway))  # the lake is back, and no one took over
    lease.release()


def test_a_renewal_that_hangs_stops_the_delivery(log, short, monkeypatch):
    lease, is_back, delivered = SinkLease(log, "out"), threading.Event(), list[float]()
    put = log.put
    hung = threading.Event()

    def hang(*given: object) -> object:
        hung.set()
        assert is_back.wait(60)
        return put(*given)

    monkeypatch.setattr(log, "put", hang)

    def deliver() -> None:
        while not is_back.is_set():
            lease.require()
            delivered.append(time.monotonic())
            time.sleep(0.01)

    thread = threading.Thread(target=deliver)
    thread.start()
    assert hung.wait(60)
    over = time.monotonic() + SECONDS
    until(lambda: time.monotonic() > over + SECONDS)
    assert delivered[-1] <= over
    is_back.set()
    thread.join()
    lease.release()


def is_refused(lease: SinkLease, error: type[Exception]) -> bool:
    try:
        lease.require()
    except error:
        return True
    return False


def test_counts_made_during_a_save_are_kept(log, monkeypatch):
    lease, put = SinkLease(log, "out"), log.put

    def counting(*given: object) -> object:
        row = put(*given)
        lease.note(changes=7)
        return row

    monkeypatch.setattr(log, "put", counting)
    lease.save(refused=1)
    monkeypatch.setattr(log, "put", put)
    lease.release()
    stored = state.progress(log, "out")
    assert (stored.changes, stored.refused) == (7, 1)
    assert log.get("out", Kind.PROGRESS).revision == 3


def test_a_reader_whose_state_is_ended_begins_as_a_new_one(log, other_log, short, monkeypatch):
    holder = elsewhere(monkeypatch, log, "hooks.crm")
    holder.save(changes=5)
    state.ask(log, "hooks.crm", redrives=3)
    with pytest.raises(SinkHeld):
        state.end(other_log, "hooks.crm")
    holder.release()
    assert log.sinks() == ["hooks.crm"]
    state.end(other_log, "hooks.crm")
    assert log.sinks() == []
    assert state.progress(log, "hooks.crm") == Progress()
    assert state.request(log, "hooks.crm") == Request()
    SinkLease(log, "hooks.crm").release()
    assert log.sinks() == ["hooks.crm"]


def test_a_sink_that_is_paused_pauses_each_subscription(log):
    state.ask(log, "hooks", is_paused=True)
    state.ask(log, "hooks.crm", redrives=3)
    assert state.request(log, "hooks.crm") == Request(is_paused=True, redrives=3)
    assert not state.request(log, "hook.crm").is_paused
    state.ask(log, "hooks", is_paused=False)
    assert state.request(log, "hooks.crm") == Request(redrives=3)
    assert log.sinks() == []  # none has started
