"""
A stop request that threads share, and the waits it interrupts. Opens nothing by itself.

Only code that polls an event notices that it is set. Code that waits in a server (for a lock, an
older transaction, a query) does not poll, so it registers how to interrupt that wait.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Final

INTERRUPT_SECONDS: Final = 5.0
"""For an interrupt to reach the server; our side of the wait has already ended."""


class Cancelled(BaseException):
    """Work ended because a stop was requested; not an `Exception`, so no handler swallows it."""


class Stop(threading.Event):
    """
    An event that interrupts the registered waits when it is set; it is never cleared.

    It also counts as set once `parent` is set, but only `set` of this event interrupts the waits.
    """

    def __init__(self, parent: threading.Event | None = None) -> None:
        super().__init__()
        self._parent = parent
        self._lock = threading.RLock()
        self._interrupts: list[threading.Thread] = []

    def is_set(self) -> bool:
        """Whether a stop was requested, here or by the parent."""
        return super().is_set() or (self._parent is not None and self._parent.is_set())

    def set(self) -> None:
        """Request the stop. Returns at once: each interrupt runs in a thread of its own."""
        super().set()
        with self._lock:
            due, self._interrupts = self._interrupts, []
            for thread in due:
                thread.start()

    def require(self) -> None:
        """Raise `Cancelled` if this is set."""
        if self.is_set():
            raise Cancelled

    def sleep(self, seconds: float) -> None:
        """Wait for `seconds`; raise `Cancelled` if this is set before they have passed."""
        self.wait(seconds)
        self.require()

    @contextmanager
    def interrupts(self, interrupt: Callable[[], None]) -> Generator[None]:
        """
        If this is set while the block runs, call `interrupt`, once, in another thread.

        Any exception that the block raises after that is raised as `Cancelled`.
        """
        thread = threading.Thread(target=interrupt, name="pgstream-interrupt", daemon=True)
        with self._lock:
            self.require()
            self._interrupts.append(thread)
        try:
            yield
        except Exception as error:
            if self.is_set():
                raise Cancelled from error
            raise
        finally:
            self._forget(thread)

    def _forget(self, thread: threading.Thread) -> None:
        with self._lock:
            if thread in self._interrupts:
                self._interrupts.remove(thread)
                return
        thread.join(INTERRUPT_SECONDS)
