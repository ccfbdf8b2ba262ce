"""
The state of one sink as it is stored, and the lease of the process that delivers for it.

Only the holder of the lease delivers. It saves its progress with a compare-and-set, so a process
that slept through its replacement learns it before it delivers again. No two clocks are compared:
the holder counts from before its save, and another process from when it saw that save. What people
ask (pause, reset) is a row of its own, which they write and the holder reads.
"""

from __future__ import annotations

import logging
import threading
import time
import uuid
from collections.abc import Callable
from typing import Final, TypeAlias, TypeVar

import msgspec

from pgstream_dagster.changelog.sink_log import Kind, Overtaken, SinkLog, StateRow
from pgstream_dagster.errors import SinkHeld, SinkLost
from pgstream_dagster.lsn import lsn_of_number
from pgstream_dagster.process_identity import has_ended, this_process
from pgstream_dagster.readers.cursor import Cursor
from pgstream_dagster.sinks.base import Health

logger = logging.getLogger(__name__)

T = TypeVar("T")

LEASE_SECONDS: Final = 60.0
"""Of silence, after which a holder counts as dead. Its own machine sees its end immediately."""


class Replay(msgspec.Struct, frozen=True):
    """
    A part of the log to deliver once more: from a start up to a position, of some tables.

    `start` is `copy` for everything, or a position; `until` a position, or `now` for all that the
    sink has received when it delivers the part; no `tables`: all of the sink's.
    """

    number: int
    start: str
    until: str
    tables: tuple[str, ...] = ()


class Request(msgspec.Struct, frozen=True):
    """
    What people ask of a sink.

    `generation` grows with every reset; `start` is where a generation begins: `copy`, `now` or a
    position. `redrives` counts the requests to deliver dead letters again. `delivered_before`: a
    stream of the outbox, and the snapshot of its events that a former log delivered, which `setup`
    has read from the source.
    """

    generation: int = 1
    start: str | None = None  # as pgstream.yaml says
    is_paused: bool = False
    redrives: int = 0
    replay: Replay | None = None
    delivered_before: tuple[int, str] | None = None


class Progress(msgspec.Struct, frozen=True):
    """
    How far a sink is. `until` (seconds since 1970) is the end of the holder's lease.

    `changes` counts what was delivered, `refused` the dead letters that are open; `redriven` and
    `replayed` are the last requests that were served, `replaying` the one that was begun, and how
    far it is. `error` is why the sink does not deliver now.
    """

    cursor: Cursor | None = None
    holder: str | None = None
    token: str = ""  # of the lease within its process
    until: float = 0.0
    changes: int = 0
    refused: int = 0
    redriven: int = 0
    replayed: int = 0
    replaying: tuple[int, Cursor] | None = None
    error: str | None = None
    committed_at_us: int | None = None  # of the last delivered transaction
    current_at: float | None = None  # when everything was delivered last
    health: Health = Health()


IsDone: TypeAlias = Callable[[Progress], bool]


def request(log: SinkLog, sink: str) -> Request:
    """What people ask of a reader now; a sink that is paused pauses all its subscriptions."""
    asked, whole = _decoded(log.get(sink, Kind.REQUEST), Request), sink.partition(".")[0]
    if whole != sink and _decoded(log.get(whole, Kind.REQUEST), Request).is_paused:
        return msgspec.structs.replace(asked, is_paused=True)
    return asked


def progress(log: SinkLog, sink: str) -> Progress:
    """The stored progress of a sink."""
    return _decoded(log.get(sink, Kind.PROGRESS), Progress)


def ask(log: SinkLog, sink: str, **changes: object) -> Request:
    """Change what is asked of a sink; again after another process has just done so."""
    while True:
        row = log.get(sink, Kind.REQUEST)
        asked = msgspec.structs.replace(_decoded(row, Request), **changes)
        try:
            log.put(sink, Kind.REQUEST, _encoded(asked), row)
        except Overtaken:
            continue
        return asked


def store_problem(log: SinkLog, sink: str, problem: str | None) -> None:
    """Store why a sink's readers cannot be known, or that they are; its own progress stays."""
    stored = progress(log, sink)
    if problem == stored.error or (problem is None and stored == Progress()):
        return
    try:
        SinkLease(log, sink).release(error=problem)
    except (SinkHeld, SinkLost):  # another process delivers for it, so that is no problem there
        logger.info("sink %s: %s", sink, problem)


def end(log: SinkLog, reader: str) -> None:
    """
    Forget a reader: the next one of this name begins as a new one.

    Raises:
        SinkHeld: a process delivers for it.
        SinkLost: one has just begun to.
    """
    SinkLease(log, reader).release()
    for kind in Kind:
        try:
            log.put(reader, kind, "", log.get(reader, kind))
        except Overtaken as error:
            raise SinkLost(reader) from error


class SinkLease:
    """
    The right to deliver for one sink, renewed by a thread of its own until `release`.

    So a batch may take any time; a process that was suspended finds out before its next delivery,
    and one that cannot renew it delivers nothing more once it is over.
    """

    def __init__(self, log: SinkLog, sink: str) -> None:
        """
        Take the lease.

        Raises:
            SinkHeld: another process has it, or another thread of this one.
        """
        self._log, self._sink, self._row = log, sink, log.get(sink, Kind.PROGRESS)
        self._until = 0.0  # by `_seconds`
        self._writing, self._changing = threading.Lock(), threading.Lock()
        self._ended, self._is_lost = threading.Event(), False
        self.progress = _decoded(self._row, Progress)
        if _is_held(log, sink, self._row, self.progress):
            raise SinkHeld(sink, self.progress.holder or "")
        self._holder, self._token = this_process(), uuid.uuid4().hex
        try:
            self.save()
        except SinkLost:  # another process was faster
            raise SinkHeld(sink, progress(log, sink).holder or "") from None
        _held_here.add(self._token)
        self._thread = threading.Thread(target=self._renew, name=f"lease-{sink}", daemon=True)
        self._thread.start()

    def note(self, **changes: object) -> None:
        """Change the progress, which the next save stores."""
        with self._changing:
            self.progress = msgspec.structs.replace(self.progress, **changes)

    def save(self, **changes: object) -> None:
        """
        Store the progress, with `changes`, and renew the lease.

        Raises:
            SinkLost: another process has taken over.
        """
        until = _seconds() + LEASE_SECONDS  # from before the save, which others see sooner
        shown = time.time() + LEASE_SECONDS
        self._write(holder=self._holder, token=self._token, until=shown, **changes)
        self._until = max(self._until, until)

    def require(self, seconds: float = 0.0) -> None:
        """
        Before every delivery: ensure that only this process delivers, now and for these seconds.

        More than a third of a lease is not ensured. Any thread may call it. It blocks while the
        lease is over and the lake does not answer.

        Raises:
            SinkLost: another process has taken over.
        """
        if self._is_lost:
            raise SinkLost(self._sink)
        ahead = min(seconds, LEASE_SECONDS / 3)
        if _seconds() + ahead > self._until or time.time() + ahead > self.progress.until:
            self.save()  # this process or its machine slept, or the lease is not renewed

    def release(self, **changes: object) -> None:
        """Store the progress, and leave the sink to the next process."""
        self._ended.set()
        self._thread.join()
        _held_here.discard(self._token)
        self._write(holder=None, token="", until=0.0, **changes)

    def _renew(self) -> None:
        """Save when a third of the lease is over, while no one else does."""
        while not self._ended.wait(LEASE_SECONDS / 6):
            if self._until - _seconds() > LEASE_SECONDS * 2 / 3:
                continue
            try:
                self.save()
            except SinkLost:
                return
            except Exception as error:  # noqa: BLE001 - the lake is away; `require` tries again
                logger.info("the lease of sink %s is not renewed now: %s", self._sink, error)

    def _write(self, **changes: object) -> None:
        with self._writing:
            state = _encoded(msgspec.structs.replace(self.progress, **changes))
            try:
                self._row = self._log.put(self._sink, Kind.PROGRESS, state, self._row)
            except Overtaken as error:
                self._is_lost = True
                raise SinkLost(self._sink) from error
            self.note(**changes)


_held_here = set[str]()
"""The tokens of leases that threads of this process hold."""

_seen: dict[tuple[str, str], tuple[int, float]] = {}
"""Of leases that other processes hold: lake and sink -> its revision, and since when it is seen."""


def _is_held(log: SinkLog, sink: str, row: StateRow, progress: Progress) -> bool:
    """
    Whether another process, or another thread of this one, may be delivering.

    A lease is over when this process has seen no save for its length. The time that is stored is
    the holder's, whose clock may be another.
    """
    if progress.holder is None:
        return False
    if progress.holder == this_process():
        return progress.token in _held_here
    if has_ended(progress.holder):
        return False
    revision, since = _seen.get((log.uri, sink), (-1, 0.0))
    if revision != row.revision:
        _seen[log.uri, sink] = row.revision, _seconds()
        return True
    return _seconds() - since <= LEASE_SECONDS


_CLOCK: Final[int] = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


def _seconds() -> float:
    """A clock that is never set, and counts the time in which the machine sleeps."""
    return time.clock_gettime(_CLOCK)


def _encoded(state: msgspec.Struct) -> str:
    return msgspec.json.encode(state, enc_hook=int).decode()


def _decoded(row: StateRow, kind: type[T]) -> T:
    return msgspec.json.decode(row.state or "{}", type=kind, dec_hook=lsn_of_number)
