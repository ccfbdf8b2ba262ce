"""
How a face of the engine (command line, Dagster) runs an operation: in a thread of its own.

Signals reach the main thread and may raise there at any instruction. Raised inside a call to the
JVM that would leave half an answer on the thread's connection, and the next call would read it as
its own. So operations never run where signals arrive: the main thread waits, looks now and then,
and asks the operation to stop.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Final, Generic, TypeVar

from pgstream_dagster.stop import Stop

T = TypeVar("T")

LOOK_SECONDS: Final = 0.25
"""How often the caller looks: a progress bar that moves, a signal that is heard at once."""

PATIENCE_SECONDS: Final = 45.0
"""For an operation to land what is complete once it is asked to stop: below the 60 s after which
Dagster gives a run up, and the 90 s of systemd."""


CANCEL_SECONDS: Final = 8.0
"""For an operation to end that is cancelled: it lands nothing more."""


class _Work(Generic[T]):
    """One operation in its thread: what it gave, or what it raised."""

    def __init__(self, operation: Callable[[], T]) -> None:
        self._operation = operation
        self.ended = threading.Event()
        self._error: BaseException | None = None
        # A daemon: when the caller gives up, the process may end; whatever is durable is sound.
        self._thread = threading.Thread(target=self._run, name="pgstream-operation", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self._result = self._operation()
        except BaseException as error:  # noqa: BLE001 - raised again by `result`, in the caller
            self._error = error
        finally:
            self.ended.set()

    def result(self) -> T:
        self._thread.join()
        if self._error is not None:
            raise self._error
        return self._result


def run_in_thread(
    operation: Callable[[], T],
    *,
    stop: threading.Event | None = None,
    look: Callable[[], None] = lambda: None,
    look_seconds: float = LOOK_SECONDS,
    patience_seconds: float = PATIENCE_SECONDS,
) -> T:
    """
    Run `operation` in its own thread and give its result, calling `look` here meanwhile.

    Whatever is raised here (an interruption, an error of `look`) sets `stop`, waits for the
    operation to end at most `patience_seconds`, and is raised again. Without `stop` the operation
    cannot be asked: it is left behind at once, which is what a crash at that moment would be.
    """
    work = _Work(operation)
    try:
        while not work.ended.wait(look_seconds):
            look()
    except BaseException:
        if stop is not None:
            stop.set()
            work.ended.wait(patience_seconds)
        raise
    return work.result()


def run_cancellable(
    operation: Callable[[Stop], T],
    *,
    look: Callable[[], None] = lambda: None,
    patience_seconds: float = CANCEL_SECONDS,
) -> T:
    """
    As `run_in_thread`, for an operation that takes a `Stop`: what is raised here cancels it.

    Otherwise what it waits for on the source would go on waiting there, and keep a slot or a lock.
    """
    stop = Stop()
    return run_in_thread(
        lambda: operation(stop), stop=stop, look=look, patience_seconds=patience_seconds
    )
