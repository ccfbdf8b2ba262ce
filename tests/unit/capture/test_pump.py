"""How the threads of the stream end, over a connection that only seems to be one."""

from __future__ import annotations

import contextlib
import os
import select
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from pgstream_dagster.capture import pump as module
from pgstream_dagster.capture.decoding import Decoder
from pgstream_dagster.capture.pump import (
    TICK_SECONDS,
    ReplicationStream,
    Silence,
    StreamSettings,
)
from pgstream_dagster.capture.spool import Spool
from pgstream_dagster.capture.transactions import Assembler
from pgstream_dagster.changelog.land import Arrival, Ended, Keepalive
from pgstream_dagster.errors import ConnectionLost
from pgstream_dagster.lsn import Lsn
from tests.support.plugins.wait import until


class Connection:
    """A server that sends keepalives which want an answer: each is a batch of its own."""

    def __init__(self, keepalives: int) -> None:
        self.ours, self.theirs = socket.socketpair()
        self.socket = self.ours.fileno()
        self.sent = iter(range(1, keepalives + 1))
        self.answers: list[bytes] = []

    def get_copy_data(self, _: int) -> tuple[int, bytes | None]:
        number = next(self.sent, None)
        if number is None:
            return 0, None
        return 18, b"k" + struct.pack(">QqB", number, 0, 1)

    def put_copy_data(self, data: bytes) -> int:
        self.answers.append(data)
        return 1

    def flush(self) -> int:
        return 0

    def consume_input(self) -> None:
        self.ours.recv(1 << 16)

    def close(self) -> None:
        self.ours.close()
        self.theirs.close()


class Polled:
    """`select.poll`, whose own methods cannot be replaced."""

    def __init__(self, *descriptors: int) -> None:
        polled = select.poll()
        for descriptor in descriptors:
            polled.register(descriptor, select.POLLIN)
        self.poll: Callable[..., Any] = polled.poll
        self.modify = polled.modify


class Breaking:
    """A method that does its work until it is to raise."""

    def __init__(self, owner: object, name: str, error: BaseException) -> None:
        self.work, self.error, self.is_broken = getattr(owner, name), error, False
        setattr(owner, name, self)

    def __call__(self, *given: Any, **named: Any) -> Any:
        if self.is_broken:
            raise self.error
        return self.work(*given, **named)


class Stream(ReplicationStream):
    """The real one, but for its connection; one of its calls can be broken."""

    connection: Connection
    broken: tuple[str, BaseException] | None = None
    breaking: Breaking

    def _open(self, opened: contextlib.ExitStack) -> None:
        self._wake_read, self._wake_write = os.pipe()
        opened.callback(os.close, self._wake_read)
        opened.callback(os.close, self._wake_write)
        self._assembler = Assembler(Spool(self._settings.state))
        self._connection: Any = self.connection
        opened.callback(self.connection.close)
        self._polled: Any = Polled(self.connection.socket, self._wake_read)
        if self.broken is not None:
            call, error = self.broken
            owner, name = call.split(".")
            self.breaking = Breaking(getattr(self, owner), name, error)


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing here waits for another process."""
    monkeypatch.setattr(module, "TICK_SECONDS", 0.01)
    monkeypatch.setattr(module, "STATUS_SECONDS", 0.02)


@pytest.fixture
def stop() -> threading.Event:
    return threading.Event()


@pytest.fixture
def make(tmp_path: Path, stop: threading.Event) -> Callable[[int], Stream]:
    def made(keepalives: int) -> Stream:
        decoder = Decoder(1, _never, _never, {}, _never, _never, _never, _never)
        settings = StreamSettings("", "slot", "publication", "name", tmp_path)
        stream = Stream(settings, Lsn(0), decoder, stop)
        stream.connection = Connection(keepalives)
        return stream

    return made


def _never(*_: object) -> Any:
    raise AssertionError


def everything(stream: ReplicationStream) -> Iterator[Arrival]:
    """What comes until nothing does for a while."""
    while (arrival := stream.take(10)) is not None:
        yield arrival
        if isinstance(arrival, Ended):
            return


PUMP = [
    "_connection.get_copy_data",
    "_connection.put_copy_data",
    "_polled.poll",
    "_transactions.put",
]
DECODER = ["_transactions.get", "_decoder.decode", "_arrivals.put"]


@pytest.mark.parametrize(
    "error", [psycopg.OperationalError("gone"), MemoryError(), SystemExit()], ids=type
)
@pytest.mark.parametrize("keepalives", [0, 3, 100], ids=["idle", "some batches", "queues are full"])
@pytest.mark.parametrize("wait", [*PUMP, *DECODER])
def test_a_thread_that_ends_at_any_of_its_waits_is_heard_of(
    make: Callable[[int], Stream], wait: str, keepalives: int, error: BaseException
) -> None:
    """Not while something complete is still to be taken, and never not at all."""
    stream = make(keepalives)
    stream.broken = wait, error
    with stream:
        _until_settled(stream, keepalives)
        stream.breaking.is_broken = True
        stream.connection.sent = iter(range(1_000, 1_100))  # work for who waits for some
        stream.connection.theirs.send(b"!")
        with pytest.raises((ConnectionLost, MemoryError, SystemExit)) as raised:
            list(everything(stream))
        if isinstance(error, psycopg.OperationalError):
            assert isinstance(raised.value, ConnectionLost)
        else:
            assert raised.value is error
        with pytest.raises(type(raised.value)):  # and again, at every call
            stream.take(0)
        stream.breaking.is_broken = False  # the end puts something, too


def _until_settled(stream: Stream, keepalives: int) -> None:
    if keepalives > 10:
        until(lambda: stream._transactions.full() and stream._arrivals.full())
    else:
        until(lambda: len(stream.connection.answers) > 0)


def test_what_was_complete_is_given_before_the_error(make: Callable[[int], Stream]) -> None:
    stream = make(100)
    stream.broken = "_connection.put_copy_data", psycopg.OperationalError()
    taken: list[Arrival] = []
    with stream:
        _until_settled(stream, 100)
        stream.breaking.is_broken = True
        until(stream._pumped.is_set)
        with pytest.raises(ConnectionLost):
            _take_all(stream, taken)
    assert taken == [Keepalive(Lsn(n), wants_reply=True) for n in range(1, len(taken) + 1)]
    assert len(taken) >= module.TRANSACTIONS_WAITING + module.ARRIVALS_WAITING


def _take_all(stream: ReplicationStream, taken: list[Arrival]) -> None:
    while (arrival := stream.take(10)) is not None:
        taken.append(arrival)


def test_a_decoder_that_stands_still_is_reported(
    make: Callable[[int], Stream], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "DECODING_SECONDS", 0.1)
    stream, goes_on = make(30), threading.Event()

    def decode(_: object) -> Iterator[Arrival]:
        goes_on.wait()
        yield Keepalive(Lsn(1))

    stream._decoder.decode = decode  # type: ignore[method-assign]
    with stream:
        assert stream.stall is None
        until(lambda: "are being decoded" in (stream.stall or ""))
        goes_on.set()
        until(lambda: stream.stall is None)
        assert stream.take(10) == Keepalive(Lsn(1))


def test_nothing_is_answered_on_a_broken_connection(make: Callable[[int], Stream]) -> None:
    stream = make(0)
    stream.broken = "_connection.put_copy_data", psycopg.OperationalError()
    with stream:
        _until_settled(stream, 0)
        stream.breaking.is_broken = True
        with pytest.raises(ConnectionLost):
            list(everything(stream))
        stream.breaking.is_broken = False
        answers = list(stream.connection.answers)
    assert stream.connection.answers == answers


def test_a_stop_gives_what_is_complete_and_then_the_end(
    make: Callable[[int], Stream], stop: threading.Event
) -> None:
    stream = make(4)
    with stream:
        until(lambda: stream._arrivals.full() and not stream._transactions.empty())
        stop.set()
        assert list(everything(stream)) == [
            *(Keepalive(Lsn(n), wants_reply=True) for n in range(1, 5)),
            Ended(),
        ]


# --- silence ----------------------------------------------------------------------------------


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def test_a_server_that_was_asked_and_does_not_answer_is_dead() -> None:
    clock = Clock()
    silence = Silence(3.0, clock)
    clock.now += 0.9
    assert not silence.is_suspicious
    clock.now += 0.1
    assert silence.is_suspicious
    silence.requested()
    clock.now += 1.4
    silence.requested()  # again: it is the first that counts
    assert not silence.is_dead
    clock.now += 0.1
    assert silence.is_dead
    assert silence.seconds == pytest.approx(2.5)


def test_silence_is_noticed_within_its_limit_though_each_look_comes_a_tick_late() -> None:
    clock = Clock()
    silence = Silence(3.0, clock)
    clock.now += 1.0 + TICK_SECONDS
    silence.requested()
    clock.now += 1.5 + TICK_SECONDS - 0.01
    assert silence.is_dead
    assert silence.seconds < 3.0


def test_a_process_that_slept_asks_first() -> None:
    clock = Clock()
    silence = Silence(3.0, clock)
    clock.now += 1_000
    assert silence.is_suspicious
    assert not silence.is_dead


def test_what_is_heard_begins_the_silence_again() -> None:
    clock = Clock()
    silence = Silence(3.0, clock)
    clock.now += 2
    silence.requested()
    silence.begin()
    clock.now += 2.9
    assert not silence.is_dead
    assert silence.seconds == pytest.approx(2.9)
