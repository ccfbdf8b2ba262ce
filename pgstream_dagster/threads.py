"""
Run operations in threads: one beside the main thread, or several at once.

Signals reach the main thread and may raise an exception there at any instruction. Inside a call to
the JVM that would leave half a response on the thread's connection, and the next call would read
it as its own. So the command line and Dagster run operations in another thread: the main thread
waits, calls `poll` regularly, and can request the operation to stop.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Final, TypeVar, TypeVarTuple

from pgstream_dagster.stop import Stop

T = TypeVar("T")
_Arguments = TypeVarTuple("_Arguments")

POLL_SECONDS: Final = 0.25
"""Between calls of `poll`: often enough for a progress bar and a prompt reaction to signals."""

PATIENCE_SECONDS: Final = 45.0
"""For a stopped operation to land what is complete: less than the 60 s after which Dagster gives up
a run, and the 90 s of systemd."""

CANCEL_SECONDS: Final = 8.0
"""For a cancelled operation to end: it lands nothing more."""


def run_in_thread(
    operation: Callable[[], T],
    *,
    stop: threading.Event | None = None,
    poll: Callable[[], None] = lambda: None,
    poll_seconds: float = POLL_SECONDS,
    patience_seconds: float = PATIENCE_SECONDS,
) -> T:
    """
    Run `operation` in a thread of its own and return its result; call `poll` here meanwhile.

    When anything is raised here (an interruption, an error of `poll`), sets `stop`, waits at most
    `patience_seconds` for the operation to end, and raises it again. Without `stop` the operation
    cannot be stopped: its thread is abandoned at once, as in a crash at that moment.
    """
    outcome, ended = Future[T](), threading.Event()

    def work() -> None:
        try:
            outcome.set_result(operation())
        except BaseException as error:  # noqa: BLE001 - raised again in the caller
            outcome.set_exception(error)
        finally:
            ended.set()

    # A daemon: when the caller gives up, the process may exit; everything durable is consistent.
    thread = threading.Thread(target=work, name="pgstream-operation", daemon=True)
    thread.start()
    try:
        while not ended.wait(poll_seconds):
            poll()
    except BaseException:
        if stop is not None:
            stop.set()
            ended.wait(patience_seconds)
        raise
    thread.join()
    return outcome.result()


def run_cancellable(
    operation: Callable[[Stop], T],
    *,
    poll: Callable[[], None] = lambda: None,
    patience_seconds: float = CANCEL_SECONDS,
) -> T:
    """
    As `run_in_thread`, for an operation that takes a `Stop`: anything raised here cancels it.

    Otherwise its waits on the source would continue there, and hold a slot or a lock.
    """
    stop = Stop()
    return run_in_thread(
        lambda: operation(stop), stop=stop, poll=poll, patience_seconds=patience_seconds
    )


def at_once(
    work: Callable[[*_Arguments], T], calls: Sequence[tuple[*_Arguments]], *, limit: int
) -> Generator[T]:
    """
    Call `work` with each of several arguments, at most `limit` at a time; results in their order.

    A call that fails keeps no other from being made; the first error is raised after all. When the
    caller ends early, those that have not begun are left out.
    """
    errors = list[Exception]()
    with ThreadPoolExecutor(limit, thread_name_prefix="pgstream-at-once") as pool:
        running = [pool.submit(work, *arguments) for arguments in calls]
        try:
            for call in running:
                if (error := call.exception()) is None:
                    yield call.result()
                elif isinstance(error, Exception):
                    errors.append(error)
                else:
                    raise error
        finally:
            pool.shutdown(cancel_futures=True)
    if errors:
        raise errors[0]
