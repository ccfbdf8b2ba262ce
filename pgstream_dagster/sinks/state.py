"""
The state of one sink as it is stored, and the lease of the process that delivers for it.

Only the holder of the lease delivers. It saves its progress with a compare-and-set, so a process
that slept through its replacement learns it before it delivers again. What people ask (pause,
reset) is a row of its own, which they write and the holder reads.
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
from pgstream_dagster.process_identity import has_ended, this_process
from pgstream_dagster.readers.cursor import Cursor

logger = logging.getLogger(__name__)

T = TypeVar("T")

LEASE_SECONDS: Final = 60.0
"""Of silence, after which a holder counts as dead. Its own machine sees its end immediately."""


class Replay(msgspec.Struct, frozen=True):
    """
    A part of the log to deliver once more: from a start up to a position, of some tables.

    `start` is `copy` for everything, or a position; no `tables`: all of the sink's.
    """

    number: int
    start: str
    until: str
    tables: tuple[str, ...] = ()


class Request(msgspec.Struct, frozen=True):
    """
    What people ask of a sink.

    `generation` grows with every reset; `start` is where a generation begins: `copy`, `now` or a
    position. `redrives` counts the requests to deliver dead letters again.
    """

    generation: int = 1
    start: str | None = None  # as pgstream.yaml says
    is_paused: bool = False
    redrives: int = 0
    replay: Replay | None = None


class Progress(msgspec.Struct, frozen=True):
    """
    How far a sink is. `until` (seconds since 1970) is the end of the holder's lease.

    `changes` counts what was delivered, `refused` the dead letters that are open; `redriven` and
    `replayed` are the last requests that were served. `error` is why the sink does not deliver now.
    """

    cursor: Cursor | None = None
    holder: str | None = None
    token: str = ""  # of the lease within its process
    until: float = 0.0
    changes: int = 0
    refused: int = 0
    redriven: int = 0
    replayed: int = 0
    error: str | None = None
    committed_at_us: int | None = None  # of the last delivered transaction


IsDone: TypeAlias = Callable[[Progress], bool]


def request(log: SinkLog, sink: str) -> Request:
    """What people ask of a sink now."""
    return _decoded(log.get(sink, Kind.REQUEST), Request)


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


class Lease:
    """
    The right to deliver for one sink, renewed by a thread of its own until `release`.

    So a batch may take any time; a process that was suspended finds out before its next delivery.
    """

    def __init__(self, log: SinkLog, sink: str) -> None:
        """
        Take the lease.

        Raises:
            SinkHeld: another process has it, or another thread of this one.
        """
        self._log, self._sink, self._row = log, sink, log.get(sink, Kind.PROGRESS)
        self._until = 0.0  # by this process's own clock
        self._lock, self._ended = threading.Lock(), threading.Event()
        self._is_lost = False
        self.progress = _decoded(self._row, Progress)
        if _is_held(self.progress):
            raise SinkHeld(sink, self.progress.holder or "")
        self._token = uuid.uuid4().hex
        try:
            self.save()
        except SinkLost:  # another process was faster
            raise SinkHeld(sink, progress(log, sink).holder or "") from None
        _held_here.add(self._token)
        self._thread = threading.Thread(target=self._renew, name=f"lease-{sink}", daemon=True)
        self._thread.start()

    def save(self, **changes: object) -> None:
        """
        Store the progress, with `changes`, and renew the lease.

        Raises:
            SinkLost: another process has taken over.
        """
        until = time.time() + LEASE_SECONDS
        self._write(holder=this_process(), token=self._token, until=until, **changes)
        self._until = time.monotonic() + LEASE_SECONDS

    def require(self) -> None:
        """
        Before every delivery: ensure that no other process has taken over.

        Raises:
            SinkLost
        """
        if self._is_lost:
            raise SinkLost(self._sink)
        if time.monotonic() > self._until:
            self.save()  # this process slept

    def release(self, **changes: object) -> None:
        """Store the progress, and leave the sink to the next process."""
        self._ended.set()
        self._thread.join()
        _held_here.discard(self._token)
        self._write(holder=None, token="", until=0.0, **changes)

    def _renew(self) -> None:
        """Save when a third of the lease is over, while no one else does."""
        while not self._ended.wait(LEASE_SECONDS / 6):
            if self._until - time.monotonic() > LEASE_SECONDS * 2 / 3:
                continue
            try:
                self.save()
            except SinkLost:
                self._is_lost = True
                return
            except Exception as error:  # noqa: BLE001 - the lake is away; `require` tries again
                logger.info("the lease of sink %s is not renewed now: %s", self._sink, error)

    def _write(self, **changes: object) -> None:
        with self._lock:
            changed = msgspec.structs.replace(self.progress, **changes)
            try:
                self._row = self._log.put(self._sink, Kind.PROGRESS, _encoded(changed), self._row)
            except Overtaken as error:
                raise SinkLost(self._sink) from error
            self.progress = changed


_held_here = set[str]()
"""The tokens of leases that threads of this process hold."""


def _is_held(progress: Progress) -> bool:
    """Whether another process, or another thread of this one, may be delivering."""
    if progress.holder is None or progress.until <= time.time():
        return False
    if progress.holder == this_process():
        return progress.token in _held_here
    return not has_ended(progress.holder)


def _encoded(state: msgspec.Struct) -> str:
    return msgspec.json.encode(state).decode()


def _decoded(row: StateRow, kind: type[T]) -> T:
    return msgspec.json.decode(row.state or "{}", type=kind)
